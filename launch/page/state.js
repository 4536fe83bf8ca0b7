/**
 * What is shown, kept in the URL alone: a link restores it, and Back and Forward work.
 *
 * @typedef {Object} State
 * @property {"search"|"answer"|"fill"|"compare"|"sources"|"map"|"training"|"about"} view
 * @property {string} query as it was submitted
 * @property {string} mode "" until one is chosen
 * @property {number} k how many hits
 * @property {number} read how many passages a model reads; 0: as many as the view reads by default
 * @property {number} each how many hits of each source; 0: as many as the view shows by default
 * @property {string} source "" for all
 * @property {string} open id of the passage whose evidence, or whole text, is shown, or ""
 * @property {string} point id of the passage that is selected on the map, or ""
 * @property {string} stage the one training that is shown, or "" for all
 * @property {""|"log"} scale of losses
 * @property {""|"light"|"dark"} theme "" follows the system
 */

const VIEWS = ["search", "answer", "fill", "compare", "sources", "map", "training", "about"];
const WITHOUT_QUERY = ["training", "about"];
const THEMES = ["", "light", "dark"];
const NAMES = { view: "view", query: "q", mode: "mode", k: "k", read: "read", each: "each",
  source: "source", open: "open", point: "point", stage: "stage", scale: "scale", theme: "theme" };
const listeners = new Set();

/** @type {Readonly<State>} */
export const DEFAULTS = Object.freeze({
  view: "search", query: "", mode: "", k: 10, read: 0, each: 0, source: "", open: "", point: "",
  stage: "", scale: "", theme: "",
});

/**
 * Read a query string; values that are not allowed become the default.
 *
 * @param {string} search
 * @returns {State}
 */
export function parse(search) {
  const given = new URLSearchParams(search);
  const state = { ...DEFAULTS };
  for (const [name, short] of Object.entries(NAMES)) {
    if (given.has(short)) state[name] = given.get(short);
  }
  for (const name of ["k", "read", "each"]) {
    state[name] = /^[1-9]\d{0,3}$/.test(String(state[name])) ? Number(state[name]) : DEFAULTS[name];
  }
  if (!VIEWS.includes(state.view)) state.view = DEFAULTS.view;
  if (state.scale !== "log") state.scale = DEFAULTS.scale;
  if (!THEMES.includes(state.theme)) state.theme = DEFAULTS.theme;
  return state;
}

/**
 * The address of a state; defaults are left out.
 *
 * @param {State} state
 * @returns {string} "?q=..." or "?"
 */
export function address(state) {
  const given = new URLSearchParams();
  for (const [name, short] of Object.entries(NAMES)) {
    if (state[name] !== DEFAULTS[name]) given.set(short, String(state[name]));
  }
  return `?${given}`;
}

/**
 * Whether a view shows what a query finds.
 *
 * @param {State} state
 */
export function hasQuery({ view }) {
  return !WITHOUT_QUERY.includes(view);
}

/** @returns {State} */
export function current() {
  return parse(window.location.search);
}

/**
 * Change some of what is shown.
 *
 * @param {Partial<State>} patch
 * @param {{replace?: boolean}} [options] replace: no new entry in the history
 */
export function change(patch, { replace = false } = {}) {
  const before = current();
  const target = address({ ...before, ...patch });
  if (target !== address(before)) {
    window.history[replace ? "replaceState" : "pushState"](null, "", target);
  }
  notify();
}

/**
 * Call a function after each change, also by Back and Forward.
 *
 * @param {(state: State) => void} listener
 */
export function subscribe(listener) {
  listeners.add(listener);
}

/** Show the current state. */
export function notify() {
  const state = current();
  for (const listener of listeners) listener(state);
}

window.addEventListener("popstate", notify);
