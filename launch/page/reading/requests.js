/** What /answer and /fill are sent. */

export const MASK = "[MASK]"; // as the server spells it
export const NOTHING = "∅"; // the document without a text, where others have an id
const READ = { answer: 5, fill: 7 }; // passages, if the URL names no number; as in the papers

/**
 * How many passages are read.
 *
 * @param {import("../main.js").Context} context
 * @param {import("../state.js").State} state
 */
export function readCount(context, state) {
  return Math.min(state.read || READ[state.view], context.info.max_read);
}

/**
 * The body of the request of a view; null: there is nothing to ask.
 *
 * @param {import("../main.js").Context} context
 * @param {import("../state.js").State} state
 * @returns {Object|null}
 */
export function readingBody(context, state) {
  if (context.info.reads !== state.view || !state.query) return null;
  if (state.view === "fill" && !state.query.includes(MASK)) return null;
  const text = state.view === "fill" ? { text: state.query } : { query: state.query };
  const body = { ...text, k: readCount(context, state) };
  return state.source ? { ...body, source: state.source } : body;
}
