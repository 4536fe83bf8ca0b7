/**
 * The server's routes. Requests go to the folder of the page, and nowhere else.
 *
 * @typedef {Object} Info
 * @property {string} name
 * @property {number} bundle_version what answers call `version`
 * @property {string[]} kinds
 * @property {string[]} modes
 * @property {number} dimension
 * @property {string} similarity
 * @property {number} query_length
 * @property {number} passage_length
 * @property {number} passages
 * @property {string[]} sources
 * @property {boolean} curves whether /curves has any
 * @property {string} made
 * @property {boolean} reranks whether the model scores a question with a passage
 * @property {null|"answer"|"fill"} reads what the model does with passages that it reads
 * @property {number} max_read passages for one request
 *
 * @typedef {Object} Hit
 * @property {number} rank from 1
 * @property {string} id
 * @property {string} title
 * @property {string} text
 * @property {string} source
 * @property {number} score
 * @property {Object<string, number>} scores of each kind that took part
 *
 * @typedef {Object} SharedWord
 * @property {string} piece
 * @property {number} query_weight
 * @property {number} passage_weight
 * @property {number} part
 *
 * @typedef {Object} MaxSim
 * @property {string[]} rows tokens of the query
 * @property {{piece: string, place: [number, number]|null}[]} columns tokens of the passage
 * @property {number[][]} values
 *
 * @typedef {Object} Evidence
 * @property {string} [title] of the passage, where the server names it
 * @property {string} content the passage as it was tokenized
 * @property {SharedWord[]|null} words
 * @property {MaxSim|null} max_sim
 * @property {{pieces: string[], places: ([number, number]|null)[], cut_off: number}|null} passage
 */

import { askForKey, readKey } from "./key_dialog.js";

/** A request that brought no answer. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} status of HTTP; 0: there was no answer at all
   * @param {number} [retryAfter] seconds
   */
  constructor(message, status, retryAfter = 0) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/**
 * Send a request; asks for the key, and sends it again, where the server wants one.
 *
 * @param {string} path "search"
 * @param {Object} [body] sent as JSON by POST; without one the method is GET
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function call(path, body, signal) {
  for (;;) {
    const key = readKey();
    const response = await send(path, body, key, signal);
    if (response.status !== 401) return unpack(response);
    if (readKey() === key && !(await askForKey(key !== ""))) {
      throw new ApiError("The server answers only requests with a key.", 401);
    }
    signal?.throwIfAborted();
  }
}

async function send(path, body, key, signal) {
  const headers = { Accept: "application/json" };
  if (body) headers["Content-Type"] = "application/json";
  if (key) headers.Authorization = `Bearer ${key}`;
  try {
    return await fetch(new URL(path, document.baseURI), {
      method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.", 0);
  }
}

async function unpack(response) {
  const answer = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;
  });
  if (response.ok && answer !== null) return answer;
  const told = typeof answer?.error === "string" ? answer.error : "";
  const seconds = Number(response.headers.get("Retry-After")) || 0;
  throw new ApiError(told || `The server answered with status ${response.status}.`,
    response.status, seconds);
}

/** Requests of one view: a new one aborts the one before it. */
export class Latest {
  #controller = new AbortController();

  /**
   * @param {string} path
   * @param {Object} body
   * @returns {Promise<any|null>} null where a later request took its place
   */
  async call(path, body) {
    this.abort();
    const controller = new AbortController();
    this.#controller = controller;
    try {
      const answer = await call(path, body, controller.signal);
      return controller.signal.aborted ? null : answer;
    } catch (error) {
      if (controller.signal.aborted) return null;
      throw error;
    }
  }

  /** Drop the request that is under way, if there is one. */
  abort() {
    this.#controller.abort();
  }
}
