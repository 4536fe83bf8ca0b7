/** The hits of one mode, best first. */

import { Latest } from "./api.js";
import { bar, byId, element } from "./dom.js";
import { errorNotice, notice, placeholder, warning } from "./notices.js";
import { change, current } from "./state.js";
import { count, counted, marked, nameOf, number, timings, wordsOf } from "./text.js";

/**
 * @param {import("./main.js").Context} context
 * @returns {{element: HTMLElement, show: (state: import("./state.js").State) => void}}
 */
export function createSearchView(context) {
  const root = element("section.search", { "aria-label": "Hits" });
  const latest = new Latest();
  let shown = ""; // the request whose answer, or error, is in view
  let hasFailed = false;
  // Before the listener of the form itself: an error is no answer, and may be asked again.
  byId("form").addEventListener("submit", () => {
    if (hasFailed) shown = "";
  });

  async function load(state, body) {
    const request = JSON.stringify(body);
    shown = request;
    hasFailed = false;
    startWaiting(root, context);
    try {
      const answer = await latest.call("search", body);
      if (answer) showAnswer(root, context, state, answer);
    } catch (error) {
      hasFailed = true;
      const retry = () => load(current(), body);
      root.replaceChildren(errorNotice(error, retry));
      context.say("The search failed.");
    } finally {
      context.setBusy(false);
      if (shown === request) root.removeAttribute("aria-busy");
    }
  }

  return {
    element: root,
    show(state) {
      if (!state.query) {
        latest.abort();
        shown = "";
        root.replaceChildren(welcome(context));
        return;
      }
      const body = searchBody(context, state);
      if (JSON.stringify(body) !== shown) load(state, body);
      else markOpen(root, state.open);
    },
  };
}

/**
 * What /search is sent.
 *
 * @param {import("./main.js").Context} context
 * @param {import("./state.js").State} state
 */
export function searchBody(context, state) {
  const body = { query: state.query, mode: context.modeOf(state), k: state.k };
  return state.source ? { ...body, source: state.source } : body;
}

function startWaiting(root, context) {
  context.setBusy(true);
  context.say("Searching");
  root.setAttribute("aria-busy", "true");
  if (!root.querySelector(".hits")) root.replaceChildren(placeholder());
}

function showAnswer(root, context, state, answer) {
  context.seen(answer.version);
  context.remember(answer.hits);
  context.say(answer.hits.length ? counted(answer.hits.length, "hit") : "No passage was found.");
  if (!answer.hits.length) {
    root.replaceChildren(nothing(state));
    return;
  }
  const scales = ranges(answer.hits);
  const words = wordsOf(state.query);
  const list = element("ol.hits", { "data-hits": true },
    ...answer.hits.map((hit) => hitElement(hit, words, scales)));
  root.replaceChildren(summary(context, answer), list);
  const { cut_off: cutOff } = answer.query;
  if (cutOff > 0) list.before(warning(cutMessage(context.info.query_length, cutOff)));
  markOpen(root, current().open);
}

function cutMessage(length, cutOff) {
  const rest = cutOff === 1 ? "The last token of it is" : `Its last ${count(cutOff)} tokens are`;
  return `The query is cut off after ${count(length)} tokens. ${rest} not read.`;
}

function summary(context, answer) {
  return element("p.summary", {},
    element("span", {}, `${counted(answer.hits.length, "hit")} of `
      + `${counted(context.info.passages, "passage")} · ${nameOf(answer.mode)}`),
    element("span.timings", {}, timings(answer.seconds)));
}

/** kind -> the lowest score of the hits, at most 0, and the highest: each kind has its own scale. */
function ranges(hits) {
  const scales = {};
  for (const hit of hits) {
    for (const [kind, score] of Object.entries(hit.scores)) {
      const { low, high } = scales[kind] ?? { low: 0, high: -Infinity };
      scales[kind] = { low: Math.min(low, score), high: Math.max(high, score) };
    }
  }
  return scales;
}

/** The place of a score on its scale, from 0 to 1. */
function share(score, { low, high }) {
  return high > low ? (score - low) / (high - low) : 0;
}

function hitElement(hit, words, scales) {
  const title = element("button.hit-title", {
    type: "button", dir: "auto", "data-hit": hit.id, "aria-expanded": "false",
    "aria-controls": "evidence", onclick: () => toggle(hit.id),
  }, hit.title || hit.id);
  return element("li.hit", {},
    element("span.rank", { "aria-hidden": "true" }, String(hit.rank)),
    element("div.hit-body", {},
      element("h2", {}, title),
      element("p.meta", {}, ...metaParts(hit)),
      element("p.hit-text", { dir: "auto" }, marked(hit.text, words))),
    scoresElement(hit, scales));
}

function metaParts(hit) {
  const parts = [hit.source && element("span.source", {}, hit.source)];
  if (hit.title) parts.push(element("span.id", {}, hit.id));
  return parts.filter(Boolean);
}

function toggle(id) {
  change({ open: current().open === id ? "" : id });
}

function scoresElement(hit, scales) {
  const rows = Object.entries(hit.scores).map(([kind, score]) => element("div.score-row", {},
    element("dt", {}, nameOf(kind)),
    element("dd", {}, bar(share(score, scales[kind])), element("span.value", {}, number(score)))));
  const isSame = rows.length === 1 && Object.values(hit.scores)[0] === hit.score;
  const score = element("p.score", {}, element("span.unseen", {}, "Score "), number(hit.score));
  return element("div.scores", {}, isSame ? null : score, element("dl", {}, ...rows));
}

function markOpen(root, open) {
  for (const button of root.querySelectorAll("[data-hit]")) {
    const isOpen = button.dataset.hit === open;
    button.setAttribute("aria-expanded", String(isOpen));
    const hit = button.closest("li");
    if (isOpen && !hit.classList.contains("is-open")) hit.scrollIntoView({ block: "nearest" });
    hit.classList.toggle("is-open", isOpen);
  }
}

function nothing(state) {
  if (!state.source) {
    return notice("No passage was found", "Try other words, or another mode.");
  }
  return notice("No passage was found",
    `Only passages from “${state.source}” were searched.`,
    { label: "Search all sources", action: () => change({ source: "" }) });
}

function welcome({ info }) {
  const kinds = new Intl.ListFormat("en").format(info.kinds.map((kind) => nameOf(kind)));
  const made = kinds ? `The model makes ${kinds.toLowerCase()} representations of a text. `
    : "The model reads a question with each passage that BM25 finds, and puts these in order. ";
  return element("section.welcome", {},
    element("p.lead", {}, `${counted(info.passages, "passage")} to search`),
    element("p", {}, made
      + (info.modes.length > 1 ? "Search in one mode, or compare all of them side by side. " : "")
      + "Open a hit to see which tokens it was found by."));
}
