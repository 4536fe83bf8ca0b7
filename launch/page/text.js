/** Names, numbers and words as the page shows them. */

import { element } from "./dom.js";

const MODES = { dense: "Dense", sparse: "Sparse", multi_vector: "Multi-vector", bm25: "BM25",
  hybrid: "Hybrid", reranked: "Re-ranked" };
// Words that are in nearly all passages; to mark them would hide the others.
const COMMON = new Set((
  "a an and are as at be been but by can could did do does for from had has have how i if in into "
  + "is it its may of on or s she so t than that the their them then there these they this to was "
  + "we were what when where which who why will with would you"
).split(" "));
const WORDS = new Intl.Segmenter(undefined, { granularity: "word" });

/** @param {string} mode a mode or a kind */
export function nameOf(mode) {
  return MODES[mode] ?? mode.replaceAll("_", " ");
}

/**
 * A number with about four digits that count.
 *
 * @param {number} value
 */
export function number(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : size >= 0.1 || size === 0 ? 3 : 4);
}

/** @param {number} value a whole number */
export function count(value) {
  return Number(value).toLocaleString("en");
}

/**
 * A number with its noun: "1 hit", "2 hits".
 *
 * @param {number} value
 * @param {string} noun
 */
export function counted(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/**
 * Seconds of each stage: "tokenization 0.3 ms · encoding 12 ms".
 *
 * @param {Object<string, any>} [seconds] a stage's value may be an object of stages
 */
export function timings(seconds = {}) {
  return Object.entries(seconds).flatMap(([stage, value]) => {
    if (value === null) return [];
    if (typeof value === "object") return `${nameOf(stage)} (${timings(value)})`;
    const thousandths = value * 1000;
    return `${stage.replaceAll("_", " ")} ${thousandths.toFixed(thousandths < 10 ? 1 : 0)} ms`;
  }).join(" · ");
}

function folded(word) {
  return word.normalize("NFKC").toLowerCase();
}

/**
 * The words of a query that are worth a mark.
 *
 * @param {string} query
 * @returns {Set<string>}
 */
export function wordsOf(query) {
  const words = [...WORDS.segment(query)].filter((part) => part.isWordLike);
  return new Set(words.map((part) => folded(part.segment)).filter((word) => !COMMON.has(word)));
}

/**
 * A text with some of its words marked.
 *
 * @param {string} text
 * @param {Set<string>} words of `wordsOf`
 * @returns {DocumentFragment}
 */
export function marked(text, words) {
  const result = document.createDocumentFragment();
  let plain = "";
  for (const part of WORDS.segment(text)) {
    if (part.isWordLike && words.has(folded(part.segment))) {
      result.append(plain, element("mark", {}, part.segment));
      plain = "";
    } else {
      plain += part.segment;
    }
  }
  result.append(plain);
  return result;
}
