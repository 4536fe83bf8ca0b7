/** The nearest passages of each source next to each other, such as sentences of each language. */

import { Latest } from "../api.js";
import { byId, element } from "../dom.js";
import { errorNotice, notice, placeholder, warning } from "../notices.js";
import { current } from "../state.js";
import { count, counted, nameOf, number, timings } from "../text.js";
import { markOpen, sourceCard } from "./source_card.js";
import { areLanguages, areShown } from "./source_names.js";
import { sourcesBody } from "./sources_request.js";

/**
 * @typedef {Object} SourceHits
 * @property {string} source
 * @property {import("../api.js").Hit[]} hits of this source, best first
 *
 * @typedef {Object} SourcesReply
 * @property {string} mode
 * @property {number} version
 * @property {{tokens: number, cut_off: number}} query
 * @property {SourceHits[]} sources in the order of their best scores
 * @property {Object<string, number>} seconds
 */

/**
 * @param {import("../main.js").Context} context
 * @returns {{element: HTMLElement, show: (state: import("../state.js").State) => void}}
 */
export function createSourcesView(context) {
  const root = element("section.by-source", { "aria-label": "Hits of each source" });
  const latest = new Latest();
  let [shown, hasFailed] = ["", false]; // the request whose answer, or error, is in view
  // Before the listener of the form itself: an error is no answer, and may be asked again.
  byId("form").addEventListener("submit", () => {
    if (hasFailed) shown = "";
  });

  async function load(body) {
    const request = JSON.stringify(body);
    [shown, hasFailed] = [request, false];
    startWaiting(root, context);
    try {
      const reply = await latest.call("sources", body);
      if (!reply) return;
      context.remember(reply.sources.flatMap(({ hits }) => hits));
      context.say(spoken(context, reply));
      const hadFocus = root.contains(document.activeElement);
      root.replaceChildren(...content(context, reply, body.query));
      markOpen(root, current().open);
      if (hadFocus) root.querySelector("[data-hit]")?.focus({ preventScroll: true });
      context.seen(reply.version);
    } catch (error) {
      hasFailed = true;
      root.replaceChildren(errorNotice(error, () => load(body)));
      context.say("The search failed.");
    } finally {
      context.setBusy(false);
      if (shown === request) root.removeAttribute("aria-busy");
    }
  }

  function showIdle() {
    latest.abort();
    shown = "";
    root.removeAttribute("aria-busy");
    const { sources } = context.info;
    root.replaceChildren(areShown(sources) ? welcome(context) : refusal(sources.length));
  }

  return {
    element: root,
    show(state) {
      const body = sourcesBody(context, state);
      if (!body) showIdle();
      else if (JSON.stringify(body) !== shown) load(body);
      else markOpen(root, state.open);
    },
  };
}

function startWaiting(root, context) {
  context.setBusy(true);
  context.say("Searching");
  root.setAttribute("aria-busy", "true");
  if (!root.querySelector("[data-hits]")) root.replaceChildren(placeholder());
}

/** "2 languages", "1 source". */
function countedSources(context, value) {
  return counted(value, areLanguages(context.info.sources) ? "language" : "source");
}

function spoken(context, { sources }) {
  const found = sources.filter(({ hits }) => hits.length);
  return found.length ? `Hits of ${countedSources(context, found.length)}`
    : "No passage was found.";
}

function content(context, reply, query) {
  const scores = reply.sources.flatMap(({ hits }) => hits.map(({ score }) => score));
  if (!scores.length) {
    return [notice("No passage was found", "Try other words, or another mode.")];
  }
  const largest = Math.max(...scores);
  const grid = element("div.source-grid", {},
    ...reply.sources.map((one) => sourceCard(one, largest, query)));
  grid.classList.toggle("is-few", reply.sources.length < 4);
  grid.classList.toggle("of-languages", areLanguages(context.info.sources));
  return [
    summary(context, reply),
    cutWarning(context, reply.query),
    grid,
    element("p.hint.source-note", {}, "The order is that of the best scores. All bars are from 0 "
      + `to the best score of all, ${number(largest)}. A click on a text searches for it.`),
  ].filter(Boolean);
}

function summary(context, reply) {
  return element("p.summary", {},
    element("span", {}, `${countedSources(context, reply.sources.length)} · `
      + `${counted(context.info.passages, "passage")} · ${nameOf(reply.mode)}`),
    element("span.timings", {}, timings(reply.seconds)));
}

function cutWarning(context, { cut_off: cutOff }) {
  if (!cutOff) return null;
  const rest = cutOff === 1 ? "The last token of it is" : `Its last ${count(cutOff)} tokens are`;
  return warning(`The query is cut off after ${count(context.info.query_length)} tokens. `
    + `${rest} not read.`);
}

function welcome(context) {
  const { info } = context;
  const each = areLanguages(info.sources) ? "language" : "source";
  return element("section.welcome", {},
    element("p.lead", {}, `${counted(info.passages, "passage")} of `
      + `${countedSources(context, info.sources.length)}`),
    element("p", {}, `The nearest passages of each ${each} are shown next to each other. A click `
      + `on one searches for its text, so that you can go on from one ${each} to another.`));
}

function refusal(sources) {
  const found = sources ? `lists ${count(sources)}` : "lists none";
  return notice("Too few or too many sources",
    `This view shows the hits of 2 to 24 sources next to each other, and this bundle ${found}.`);
}
