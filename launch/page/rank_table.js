/** Ranks of passages in each mode as a table, where columns of hits have no room. */

import { element } from "./dom.js";
import { nameOf } from "./text.js";

const SHORT = { multi_vector: "Multi" };

/**
 * Where each passage is.
 *
 * @param {string[]} modes
 * @param {Object<string, import("./api.js").Hit[]>} hits of each mode
 * @returns {Map<string, Object<string, number>>} id -> mode -> rank, in order of the best rank
 */
export function ranksOf(modes, hits) {
  const ranks = new Map();
  for (const mode of modes) {
    for (const hit of hits[mode]) {
      if (!ranks.has(hit.id)) ranks.set(hit.id, {});
      ranks.get(hit.id)[mode] = hit.rank;
    }
  }
  const best = (entry) => Math.min(...Object.values(entry[1]));
  const sum = (entry) => modes.reduce((total, mode) => total + (entry[1][mode] ?? 1e6), 0);
  return new Map([...ranks].sort((a, b) => best(a) - best(b) || sum(a) - sum(b)));
}

/**
 * @param {string[]} modes
 * @param {Object<string, import("./api.js").Hit[]>} hits
 * @param {(id: string) => void} open
 * @returns {HTMLElement}
 */
export function rankTable(modes, hits, open) {
  const titles = new Map(Object.values(hits).flat().map((hit) => [hit.id, hit.title || hit.id]));
  const heads = modes.map((mode) => element("th", { scope: "col" },
    element("abbr", { title: nameOf(mode) }, SHORT[mode] ?? nameOf(mode))));
  const rows = [...ranksOf(modes, hits)].map(([id, ranks]) => element("tr", {},
    element("th", { scope: "row" }, element("button.hit-title", {
      type: "button", dir: "auto", "data-hit": id, onclick: () => open(id),
    }, titles.get(id))),
    ...modes.map((mode) => cell(ranks[mode]))));
  return element("table.ranks", {},
    element("caption.unseen", {}, "Rank of each passage in each mode"),
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Passage"), ...heads)),
    element("tbody", { "data-hits": "table" }, ...rows));
}

function cell(rank) {
  if (rank === undefined) return element("td.missing", {}, "–");
  return element(rank <= 3 ? "td.high" : "td", {}, String(rank));
}
