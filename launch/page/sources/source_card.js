/** One source: its name, and its best passages with their scores. */

import { bar, element } from "../dom.js";
import { change, current } from "../state.js";
import { number } from "../text.js";
import { languageOf } from "./source_names.js";

const LONGEST = 400; // characters of a text that becomes the query, which the URL contains

/**
 * @param {import("./sources_view.js").SourceHits} one
 * @param {number} largest score of all sources: the end of the scale
 * @param {string} query
 * @returns {HTMLElement}
 */
export function sourceCard({ source, hits }, largest, query) {
  const language = languageOf(source);
  return element("section.source-card", { "aria-label": language || source },
    element("header.source-head", {},
      element("h2", { dir: "auto" }, language || source),
      language ? element("span.source-code", {}, source) : null),
    hits.length
      ? element("ol", { "data-hits": source },
        ...hits.map((hit) => item(hit, language && source, hit.score / largest, query)))
      : element("p.hint.source-none", {}, "No passage was found."));
}

function item(hit, lang, share, query) {
  const isQuery = hit.text.trim() === query;
  return element("li.source-hit", {},
    element("button.source-text", {
      type: "button", dir: "auto", lang: lang || null, "data-hit": hit.id,
      title: isQuery ? null : "Search for this text", onclick: () => searchFor(hit),
    },
    hit.title ? element("b", {}, hit.title) : null,
    element("span", {}, hit.text)),
    element("div.source-score", {},
      bar(share),
      element("span.value", {}, element("span.unseen", {}, "Score "), number(hit.score)),
      isQuery ? element("span.source-same", {}, "query") : null,
      element("button.source-why", { type: "button", "aria-expanded": "false",
        "aria-controls": "evidence", "aria-label": `Evidence for ${hit.title || hit.id}`,
        "data-why": hit.id, onclick: () => toggle(hit.id) }, "Evidence")));
}

/** A text as the query, cut at a space where it is long. */
function searchFor({ text }) {
  const whole = text.trim();
  const part = whole.slice(0, LONGEST);
  const cut = part.replace(/\s+\S*$/, "").replace(/[\uD800-\uDBFF]$/, "");
  change({ query: whole.length > LONGEST ? cut : whole, open: "" });
  window.scrollTo({ top: 0 });
}

function toggle(id) {
  change({ open: current().open === id ? "" : id });
}

/**
 * Show which passage is open.
 *
 * @param {HTMLElement} root
 * @param {string} open its id, or ""
 */
export function markOpen(root, open) {
  for (const button of root.querySelectorAll("[data-why]")) {
    const isOpen = button.dataset.why === open;
    button.setAttribute("aria-expanded", String(isOpen));
    button.closest("li").classList.toggle("is-open", isOpen);
  }
}
