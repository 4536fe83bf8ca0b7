/**
 * Keys of the whole page: "/" goes to the query, arrows move between hits, Escape closes evidence.
 * Enter needs nothing here, since each hit is a button.
 */

import { byId } from "./dom.js";
import { change, current } from "./state.js";

const TYPING = "input, select, textarea, [contenteditable]";

/** Listen from now on. */
export function listenToKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    const action = actionOf(event.key, event.target);
    if (action?.() === true) event.preventDefault();
  });
}

function actionOf(key, target) {
  if (key === "/" && !target.closest(TYPING)) return focusQuery;
  if (key === "Escape") return () => closeEvidence(target);
  if (target.id === "query") return key === "ArrowDown" ? () => move(null, 0, 1) : null;
  if (target.closest(TYPING)) return null;
  const steps = { ArrowDown: [0, 1], ArrowUp: [0, -1], ArrowRight: [1, 0], ArrowLeft: [-1, 0] };
  if (key in steps && (target.closest("[data-hit]") || target === document.body)) {
    return () => move(target.closest("[data-hit]"), ...steps[key]);
  }
  return null;
}

function focusQuery() {
  byId("query").focus();
  byId("query").select();
  return true;
}

function closeEvidence(target) {
  const { open } = current();
  if (!open) {
    if (target.id === "query") target.blur();
    return target.id === "query";
  }
  change({ open: "" });
  focusHit(open);
  return true;
}

/**
 * Focus the button of a passage in the view that is shown, or else the map.
 *
 * @param {string} id
 */
export function focusHit(id) {
  const hits = [...document.querySelectorAll("#views [data-hit]")];
  const hit = hits.find((one) => one.dataset.hit === id && one.checkVisibility());
  (hit ?? document.querySelector("section:not([hidden]) > * .map-frame"))?.focus();
}

/** Move focus by columns and rows; a column is the list that a hit is in. */
function move(from, columns, rows) {
  const lists = [...document.querySelectorAll("#views [data-hits]")]
    .filter((list) => list.checkVisibility())
    .map((list) => [...list.querySelectorAll("[data-hit]")]);
  if (!lists.length) return false;
  const column = Math.max(0, lists.findIndex((list) => list.includes(from)));
  const row = lists[column].indexOf(from);
  const next = columns ? besides(from, lists[column + columns], row) : lists[column][row + rows];
  if (next) next.focus();
  else if (from && rows < 0 && row === 0) byId("query").focus();
  return Boolean(next) || row >= 0;
}

/** The same passage in another column, or else the one at the same rank. */
function besides(from, list, row) {
  if (!from || !list) return null;
  return list.find((hit) => hit.dataset.hit === from.dataset.hit) ?? list[row] ?? list.at(-1);
}
