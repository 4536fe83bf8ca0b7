/** The text of a passage, each token shaded by how well it matches a token of the query. */

import { element, setProperty } from "./dom.js";
import { marked, number, wordsOf } from "./text.js";

/**
 * @param {import("./api.js").Evidence} evidence
 * @param {string} query
 * @returns {{element: HTMLElement, hint: string, chooseRow: (row: number) => void,
 *   onRow: (listener: (row: number) => void) => void}} a row is a token of the query; -1 means all
 */
export function createPassageText(evidence, query) {
  if (!evidence.max_sim) return plainText(evidence, query);
  const { rows, values } = evidence.max_sim;
  const { root, tokens } = tokenText(evidence.content, evidence.max_sim.columns);
  const best = evidence.max_sim.columns.map((_, at) => Math.max(...values.map((row) => row[at])));
  const listeners = [];
  const chips = [chip("All", -1), ...rows.map((piece, row) => chip(piece, row))];

  function chip(label, row) {
    return element("button.chip", { type: "button", onclick: () => choose(row) }, label);
  }

  function chooseRow(row) {
    chips.forEach((button, at) => button.setAttribute("aria-pressed", String(at === row + 1)));
    shade(tokens, row < 0 ? best : values[row]);
  }

  function choose(row) {
    chooseRow(row);
    for (const listener of listeners) listener(row);
  }

  chooseRow(-1);
  return {
    element: element("div", {},
      element("div.chips", { role: "group", "aria-label": "Token of the query" }, ...chips), root),
    hint: "Shaded by the match with a token of the query; All takes the best one of each.",
    chooseRow,
    onRow: (listener) => listeners.push(listener),
  };
}

/** Without vectors of tokens: tokens shaded by what they add as words, or the query's words. */
function plainText(evidence, query) {
  const parts = new Map((evidence.words ?? []).map((word) => [word.piece, word.part]));
  const nothing = { chooseRow() {}, onRow() {} };
  if (!parts.size || !evidence.passage) {
    const text = element("p.passage", { dir: "auto" }, marked(evidence.content, wordsOf(query)));
    return { element: text, hint: "Words of the query are marked.", ...nothing };
  }
  const { pieces, places } = evidence.passage;
  const columns = pieces.map((piece, at) => ({ piece, place: places[at] }));
  const { root, tokens } = tokenText(evidence.content, columns);
  shade(tokens, pieces.map((piece) => parts.get(piece) ?? 0));
  return { element: root, hint: "Shaded by what each token adds to the score.", ...nothing };
}

/**
 * Split a text at its tokens. Places count code points, as Python does, and not UTF-16 units.
 *
 * @returns {{root: HTMLElement, tokens: Map<number, HTMLElement>}} tokens by their column
 */
function tokenText(content, columns) {
  const characters = Array.from(content);
  const root = element("p.passage", { dir: "auto" });
  const tokens = new Map();
  let end = 0;
  columns.forEach(({ place }, at) => {
    if (!place || place[0] < end || place[1] <= place[0]) return;
    root.append(characters.slice(end, place[0]).join(""));
    const token = element("span.token", {}, characters.slice(...place).join(""));
    root.append(token);
    tokens.set(at, token);
    [, end] = place;
  });
  root.append(characters.slice(end).join(""));
  return { root, tokens };
}

/** Shade from the median up, so that what stands out is what matches better than most. */
function shade(tokens, values) {
  const shown = [...tokens.keys()].map((at) => values[at]).sort((a, b) => a - b);
  const [low, high] = [shown[Math.floor(shown.length / 2)], shown.at(-1)];
  for (const [at, token] of tokens) {
    const share = high > low ? (values[at] - low) / (high - low) : 0;
    setProperty(token, "--share", Math.max(0, share).toFixed(3));
    token.title = number(values[at]);
  }
}
