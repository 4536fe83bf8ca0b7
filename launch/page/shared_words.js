/** Tokens that query and passage share, with their weights. */

import { bar, element } from "./dom.js";
import { number } from "./text.js";

const FIRST = 12; // rows before "show all"

/**
 * A table of words; parts are bars on one scale, weights on another.
 *
 * @param {import("./api.js").SharedWord[]} words largest part first
 * @returns {HTMLElement}
 */
export function sharedWords(words) {
  if (!words.length) {
    return element("p.none", {}, "No token with a weight is in both texts.");
  }
  const weight = Math.max(...words.flatMap((word) => [word.query_weight, word.passage_weight]));
  const part = Math.max(...words.map((word) => word.part));
  const total = words.reduce((sum, word) => sum + word.part, 0);
  const rows = words.map((word) => wordRow(word, weight, part));
  const body = element("tbody", {}, ...rows.slice(0, FIRST));
  const table = element("table.words", {},
    element("caption.unseen", {}, "Shared tokens and their weights"),
    element("thead", {}, headings()), body,
    element("tfoot", {}, element("tr", {}, element("th", { scope: "row" }, "Sum"),
      element("td", {}), element("td", {}),
      element("td.part", {}, element("span.value", {}, number(total))))));
  return element("div", {}, table, rows.length > FIRST ? rest(body, rows) : null);
}

function headings() {
  const names = ["Token", "Query", "Passage", "Product"];
  return element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)));
}

function wordRow(word, weight, part) {
  return element("tr", {},
    element("th", { scope: "row", dir: "auto" }, word.piece),
    cell(word.query_weight, word.query_weight / weight, "plain"),
    cell(word.passage_weight, word.passage_weight / weight, "plain"),
    cell(word.part, word.part / part, "accent"));
}

function cell(value, share, kind) {
  return element(kind === "accent" ? "td.part" : "td", {},
    element("div.measure", {}, bar(share, kind), element("span.value", {}, number(value))));
}

function rest(body, rows) {
  const button = element("button.quiet", { type: "button" }, `Show all ${rows.length} tokens`);
  button.addEventListener("click", () => {
    body.replaceChildren(...rows);
    button.remove();
  });
  return button;
}
