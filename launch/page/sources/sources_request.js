/** What /sources is sent. */

import { areShown } from "./source_names.js";

const SHOWN = 3; // passages of each source, if the URL names no number
const MOST = 20;

/**
 * How many passages of each source are shown.
 *
 * @param {import("../state.js").State} state
 */
export function eachCount(state) {
  return Math.min(state.each || SHOWN, MOST);
}

/**
 * The body of the request; null: there is nothing to ask.
 *
 * @param {import("../main.js").Context} context
 * @param {import("../state.js").State} state
 * @returns {Object|null}
 */
export function sourcesBody(context, state) {
  if (!state.query || !areShown(context.info.sources)) return null;
  return { query: state.query, k: eachCount(state), mode: context.modeOf(state) };
}
