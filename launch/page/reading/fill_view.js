/** Tokens for each [MASK] of a sentence, with and without the passages that were found for it. */

import { element } from "../dom.js";
import { warning } from "../notices.js";
import { change, current } from "../state.js";
import { counted, marked, wordsOf } from "../text.js";
import { wordsToHide } from "./words_to_hide.js";
import { maskTable } from "./mask_table.js";
import { chance, chanceRow } from "./probability.js";
import { createReadingView, cutWarning, markOpen, metaOf, summary,
  titleButton } from "./reading_view.js";
import { MASK, NOTHING } from "./requests.js";

const NEAR = 4; // words on each side of a [MASK] in the heading of its table

/**
 * @typedef {Object} Document a passage that was read; the first has no text and no hit
 * @property {import("../api.js").Hit|null} hit
 * @property {number} relevance
 * @property {number} probability p(z|x)
 *
 * @typedef {Object} Word a token for a [MASK]
 * @property {string} piece
 * @property {number} probability p(y|x), with all documents
 * @property {number[]} by_document p(y|z,x)
 *
 * @typedef {Object} Mask
 * @property {[number, number]|null} place code points of the sentence
 * @property {Word[]} words the likeliest first
 */

/**
 * @param {import("../main.js").Context} context
 * @returns {{element: HTMLElement, show: (state: import("../state.js").State) => void}}
 */
export function createFillView(context) {
  let mark = () => {};
  return createReadingView(context, {
    name: "fill",
    label: "Filled in",
    missing: `This model fills in no ${MASK}`,
    needed: `fills in ${MASK} with the help of passages, such as a run of realm`,
    failed: "The sentence was not filled in.",
    idle: (state) => [state.query ? wordsToHide(state.query) : welcome(context)],
    content(reply, state) {
      const parts = content(context, reply, state);
      mark = followDocuments(parts, reply.documents);
      return parts;
    },
    spoken: ({ masks }) => `${counted(masks.length, MASK)} filled in: `
      + masks.map(({ words }) => words[0].piece).join(", "),
    mark(root, state) {
      markOpen(root, state.open);
      mark(state.open);
    },
  });
}

/** @param {Document} one */
function idOf(one) {
  return one.hit?.id ?? NOTHING;
}

function titleOf(one) {
  return one.hit ? one.hit.title || one.hit.id : "Without a passage";
}

function content(context, reply, state) {
  const { documents, masks } = reply;
  const asked = state.query.split(MASK).length - 1;
  const left = asked > masks.length
    ? ` ${counted(asked - masks.length, MASK)} in it ${asked - masks.length === 1 ? "is" : "are"} `
      + "not filled in." : "";
  const columns = documents.map((one) => ({ title: titleOf(one), share: one.probability }));
  return [
    summary(context, documents.length - 1, reply),
    cutWarning(context, "sentence", reply.query, left),
    documents.length > 1 ? null : warning(nothingRead(state)),
    sentence(state.query, masks),
    ...masks.map((mask, n) => maskTable(mask, columns, headingOf(state.query, masks, n), toggle(
      documents))),
    element("h2.part", {}, "Documents"),
    element("ol.hits", { "data-hits": true },
      ...documents.map((one, n) => item(one, n, likeliest(masks)))),
    element("p.hint.note", {}, "p(z|x) is the share of each document in p(y|x), by its relevance "
      + "to the sentence. The likeliest tokens are marked where a passage has them."),
  ].filter(Boolean);
}

function nothingRead(state) {
  return `No passage was found${state.source ? ` from “${state.source}”` : ""}. `
    + "The probabilities are those without a passage.";
}

function likeliest(masks) {
  return wordsOf(masks.map(({ words }) => words[0].piece).join(" "));
}

/** Where there are several, the number of a [MASK] and what is around it. */
function headingOf(query, masks, n) {
  if (masks.length === 1) return null;
  const number = `${MASK} ${n + 1} of ${masks.length}`;
  if (!masks[n].place) return [number, ""];
  const characters = Array.from(query);
  const [start, end] = masks[n].place;
  const words = (from, to) => characters.slice(from, to).join("").split(/(?<=\s)/);
  const [before, after] = [words(0, start), words(end)];
  return [number, (before.length > NEAR ? "… " : "") + before.slice(-NEAR).join("") + "____"
    + after.slice(0, NEAR).join("").trimEnd() + (after.length > NEAR ? " …" : "")];
}

/** The sentence with the likeliest tokens, each a button that goes to its table. */
function sentence(query, masks) {
  const characters = Array.from(query);
  const root = element("p.sentence", { dir: "auto" });
  let end = 0;
  masks.forEach(({ place, words }, n) => {
    if (!place) return;
    root.append(characters.slice(end, place[0]).join(""), element("button.filled", {
      type: "button", title: `p(y|x) ${chance(words[0].probability)}`,
      "aria-label": `${words[0].piece}, for ${MASK} ${n + 1}: go to its table`,
      onclick: (event) => goTo(event.target.closest(".fill"), n),
    }, words[0].piece.replace(/^(##|▁|Ġ)(?=.)/, "")));
    [, end] = place;
  });
  root.append(characters.slice(end).join(""));
  return root;
}

function goTo(root, n) {
  const table = root.querySelectorAll(".mask")[n];
  table.scrollIntoView({ block: "start" });
  table.querySelector("button[tabindex='0']").focus({ preventScroll: true });
}

function item(one, n, words) {
  const { hit } = one;
  return element("li.hit", { "data-document": n },
    element("span.rank", { "aria-hidden": "true" }, hit ? String(n) : NOTHING),
    element("div.hit-body", {},
      element("h3", {}, titleButton(idOf(one), titleOf(one))),
      hit ? metaOf(hit) : null,
      element("p.hit-text.clamped", { dir: "auto" }, hit ? marked(hit.text, words)
        : "The model reads the sentence with an empty passage.")),
    element("div.scores", {}, element("dl.chances", {},
      chanceRow("p(z|x)", "", one.probability))));
}

function toggle(documents) {
  return (n) => {
    const id = idOf(documents[n]);
    change({ open: current().open === id ? "" : id });
  };
}

/**
 * Mark the column and the passage of a document that is pointed at, or else that is open.
 *
 * @returns {(open: string) => void} to be called with the id of the passage that is open
 */
function followDocuments(parts, documents) {
  let pinned = "";
  const all = parts.flatMap((part) => [...part.querySelectorAll("[data-document]")]);
  const readouts = parts.flatMap((part) => [...part.querySelectorAll(".document-readout")]);
  const of = (target) => target?.closest?.("[data-document]")?.dataset.document ?? "";
  const focused = () => of(document.activeElement);
  const show = (number) => {
    const chosen = number || pinned;
    for (const one of all) {
      one.classList.toggle("is-marked", one.dataset.document === chosen);
      if (one.tagName === "BUTTON") {
        one.setAttribute("aria-pressed", String(one.dataset.document === pinned));
      }
    }
    for (const one of readouts) fillReadout(one, chosen, documents);
  };
  for (const part of parts) {
    part.addEventListener("pointerover", (event) => show(of(event.target) || focused()));
    part.addEventListener("pointerleave", () => show(focused()));
    part.addEventListener("focusin", (event) => show(of(event.target)));
    part.addEventListener("focusout", (event) => show(of(event.relatedTarget)));
  }
  return (open) => {
    const at = documents.findIndex((one) => idOf(one) === open);
    pinned = open && at >= 0 ? String(at) : "";
    show(focused());
  };
}

function fillReadout(root, chosen, documents) {
  if (chosen === "") {
    root.replaceChildren("Point at a column, or move with the arrow keys, to read its passage.");
    return;
  }
  const one = documents[Number(chosen)];
  root.replaceChildren(
    element("b", { dir: "auto" }, `${one.hit ? chosen : NOTHING} ${titleOf(one)}`),
    ` p(z|x) ${chance(one.probability)}`,
    one.hit ? element("span.readout-text", { dir: "auto" }, one.hit.text) : "");
}

function welcome({ info }) {
  return element("section.welcome", {},
    element("p.lead", {}, `${counted(info.passages, "passage")} to read`),
    element("p", {}, `Write a sentence with ${MASK} where a word is missing. The model finds `
      + `passages for it and fills in each ${MASK}, without a passage and with each of them, so `
      + "that you see what retrieval changes."));
}
