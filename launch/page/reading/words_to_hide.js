/** A sentence without a [MASK]: a notice whose words are buttons that hide them. */

import { element } from "../dom.js";
import { change } from "../state.js";
import { MASK } from "./requests.js";

const WORDS = new Intl.Segmenter(undefined, { granularity: "word" });

/**
 * @param {string} query
 * @returns {HTMLElement}
 */
export function wordsToHide(query) {
  const spelled = query.match(/\[mask\]/i)?.[0];
  const text = spelled ? `The model looks for ${MASK} in capital letters.`
    : `The model fills in ${MASK}. Choose a word to hide, or write ${MASK} into the sentence.`;
  return element("section.notice.plain.no-mask", {},
    element("h2", {}, "Nothing to fill in"),
    element("p", {}, text),
    spelled ? button(`Write ${MASK}`, () => change({ query: query.replaceAll(spelled, MASK) }))
      : element("p.words-to-hide", { dir: "auto" }, ...wordButtons(query)),
    element("p.hint", {}, `Each ${MASK} is one token. A long or rare word may be several.`));
}

function button(label, action) {
  return element("button.quiet", { type: "button", onclick: action }, label);
}

function wordButtons(query) {
  return [...WORDS.segment(query)].map(({ segment, index, isWordLike }) => {
    if (!isWordLike) return segment;
    const hidden = query.slice(0, index) + MASK + query.slice(index + segment.length);
    return element("button.word", { type: "button", "aria-label": `Hide “${segment}”`,
      onclick: () => change({ query: hidden }) }, segment);
  });
}
