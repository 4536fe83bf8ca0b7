/** What a view shows in place of results: nothing yet, nothing found, an error. */

import { ApiError } from "./api.js";
import { element } from "./dom.js";

/**
 * A notice with a heading, text and perhaps a button.
 *
 * @param {string} heading
 * @param {string} text
 * @param {{label: string, action: () => void}|null} [button]
 * @param {"plain"|"error"} [kind]
 * @returns {HTMLElement}
 */
export function notice(heading, text, button = null, kind = "plain") {
  return element(`section.notice.${kind}`, kind === "error" ? { role: "alert" } : {},
    element("h2", {}, heading),
    element("p", {}, text),
    button && element("button.quiet", { type: "button", onclick: button.action }, button.label));
}

/**
 * What went wrong and what to do about it.
 *
 * @param {unknown} error
 * @param {() => void} retry
 * @returns {HTMLElement}
 */
export function errorNotice(error, retry) {
  if (!(error instanceof ApiError)) throw error;
  const button = { label: "Try again", action: retry };
  if (error.status === 429) return busyNotice(error, button);
  if (error.status === 401) return notice("A key is needed", error.message, button, "error");
  if (error.status === 0) {
    return notice("No answer", `${error.message} Is it still running?`, button, "error");
  }
  const heading = error.status >= 500 ? "The server failed" : "The server refused the request";
  return notice(heading, `It reports: ${error.message}`, button, "error");
}

function busyNotice(error, button) {
  const left = Math.max(1, Math.ceil(error.retryAfter));
  const shown = notice("The server is busy",
    "Too many requests are waiting, and this one was not put in the queue. The server expects "
    + `to have room in ${left === 1 ? "a second" : `${left} seconds`}.`, button, "error");
  const retry = shown.querySelector("button");
  retry.disabled = true;
  window.setTimeout(() => {
    retry.disabled = false;
  }, left * 1000);
  return shown;
}

/**
 * A warning in one line above results.
 *
 * @param {string} text
 * @returns {HTMLElement}
 */
export function warning(text) {
  return element("p.warning", {}, text);
}

/**
 * Grey lines where hits will be.
 *
 * @param {number} [rows]
 * @returns {HTMLElement}
 */
export function placeholder(rows = 4) {
  const row = () => element("div.ghost-hit", {},
    element("span.ghost.short"), element("span.ghost"), element("span.ghost.long"));
  return element("div.ghosts", { "aria-hidden": "true" }, ...Array.from({ length: rows }, row));
}
