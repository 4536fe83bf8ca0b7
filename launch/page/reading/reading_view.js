/** What both views have in common: one request, its states, and what screen readers announce. */

import { Latest } from "../api.js";
import { byId, element } from "../dom.js";
import { errorNotice, notice, placeholder, warning } from "../notices.js";
import { change, current } from "../state.js";
import { count, counted, timings } from "../text.js";
import { readingBody } from "./requests.js";

/**
 * @typedef {Object} Reading one of the two views
 * @property {"answer"|"fill"} name of the view, of the route, and of what the model does
 * @property {string} label of the section
 * @property {string} missing heading where the model does something else
 * @property {string} needed what the model has to do
 * @property {string} failed announced after an error
 * @property {(state: import("../state.js").State) => Node[]} idle shown without a request
 * @property {(reply: any, state: import("../state.js").State) => Node[]} content
 * @property {(reply: any) => string} spoken announced with a reply
 * @property {(root: HTMLElement, state: import("../state.js").State) => void} mark what is open
 */

/**
 * @param {import("../main.js").Context} context
 * @param {Reading} reading
 * @returns {{element: HTMLElement, show: (state: import("../state.js").State) => void}}
 */
export function createReadingView(context, reading) {
  const root = element(`section.reading.${reading.name}`, { "aria-label": reading.label });
  const latest = new Latest();
  let [shown, hasFailed] = ["", false]; // the request whose answer, or error, is in view
  // Before the listener of the form itself: an error is no answer, and may be asked again.
  byId("form").addEventListener("submit", () => {
    if (hasFailed) shown = "";
  });

  async function load(body, state) {
    const request = JSON.stringify(body);
    [shown, hasFailed] = [request, false];
    startWaiting(root, context);
    try {
      const reply = await latest.call(reading.name, body);
      if (!reply) return;
      context.say(reading.spoken(reply));
      root.replaceChildren(...reading.content(reply, state)); // of this request, whatever is shown now
      reading.mark(root, current());
      context.seen(reply.version);
    } catch (error) {
      hasFailed = true;
      root.replaceChildren(errorNotice(error, () => load(body, state)));
      context.say(reading.failed);
    } finally {
      context.setBusy(false);
      if (shown === request) root.removeAttribute("aria-busy");
    }
  }

  function showIdle(state) {
    latest.abort();
    shown = "";
    root.removeAttribute("aria-busy");
    root.replaceChildren(...(context.info.reads === reading.name ? reading.idle(state)
      : [notice(reading.missing, `This view needs a model that ${reading.needed}.`)]));
  }

  return {
    element: root,
    show(state) {
      const body = readingBody(context, state);
      if (!body) showIdle(state);
      else if (JSON.stringify(body) !== shown) load(body, state);
      else reading.mark(root, state);
    },
  };
}

function startWaiting(root, context) {
  context.setBusy(true);
  context.say("Reading");
  root.setAttribute("aria-busy", "true");
  if (!root.querySelector(".hits")) root.replaceChildren(placeholder());
}

/**
 * A line above the results: how much was read, and how long it took.
 *
 * @param {import("../main.js").Context} context
 * @param {number} read passages
 * @param {Object} reply
 */
export function summary(context, read, reply) {
  return element("p.summary", {},
    element("span", {}, `${count(read)} of ${counted(context.info.passages, "passage")} read`),
    element("span.timings", {}, timings(reply.seconds)));
}

/**
 * A warning that the end of the text is not read; null where it is.
 *
 * @param {import("../main.js").Context} context
 * @param {string} name of the text
 * @param {{cut_off: number}} query of the reply
 * @param {string} [more]
 */
export function cutWarning(context, name, query, more = "") {
  if (!query.cut_off) return null;
  const rest = query.cut_off === 1 ? "The last token of it is"
    : `Its last ${count(query.cut_off)} tokens are`;
  return warning(`The ${name} is cut off after ${count(context.info.query_length)} tokens. `
    + `${rest} not read.${more}`);
}

/** @param {import("../state.js").State} state */
export function nothingFound(state) {
  if (!state.source) return notice("No passage was found", "Try other words.");
  return notice("No passage was found", `Only passages from “${state.source}” were searched.`,
    { label: "Search all sources", action: () => change({ source: "" }) });
}

/**
 * The title of a passage as a button that opens it, and closes it again.
 *
 * @param {string} id
 * @param {string} title
 */
export function titleButton(id, title) {
  const toggle = () => change({ open: current().open === id ? "" : id });
  return element("button.hit-title", { type: "button", dir: "auto", "data-hit": id,
    "aria-expanded": "false", onclick: toggle }, title);
}

/**
 * Source and id of a passage.
 *
 * @param {import("../api.js").Hit} hit
 * @param {...string} more
 */
export function metaOf(hit, ...more) {
  return element("p.meta", {},
    hit.source ? element("span.source", {}, hit.source) : null,
    hit.title ? element("span.id", {}, hit.id) : null,
    ...more.map((text) => element("span", {}, text)));
}

/**
 * Show which passage is open.
 *
 * @param {HTMLElement} root
 * @param {string} open its id, or ""
 */
export function markOpen(root, open) {
  for (const button of root.querySelectorAll("[data-hit]")) {
    const isOpen = button.dataset.hit === open;
    button.setAttribute("aria-expanded", String(isOpen));
    button.closest("li").classList.toggle("is-open", isOpen);
  }
}
