/** The text of a passage with a span marked: the part around it, and the whole. */

import { element } from "../dom.js";

const [BEFORE, AFTER] = [120, 200]; // characters around a span, at most
const WHITE = /\s/;

/**
 * Places count code points, as Python does, and not UTF-16 units.
 *
 * @param {string} text
 * @param {[number, number]|null} place null: nothing is marked
 * @returns {HTMLElement[]} the whole text; before it, where it is long, the part around the span
 */
export function excerpt(text, place) {
  const characters = Array.from(text);
  const [start, end] = place ?? [0, 0];
  const first = firstShown(characters, start);
  const last = lastShown(characters, end);
  const part = (from, to) => characters.slice(from, to).join("");
  const paragraph = (name, from, to) => element(`p.hit-text.${name}`, { dir: "auto" },
    from > 0 ? "… " : null, part(from, start),
    place ? element("mark.span", {}, part(start, end)) : null,
    part(end, to), to < characters.length ? " …" : null);
  const whole = paragraph("whole", 0, characters.length);
  if (first === 0 && last === characters.length) {
    whole.classList.add("only");
    return [whole];
  }
  return [paragraph("around", first, last), whole];
}

/** The beginning of a word at most BEFORE characters ahead of a span. */
function firstShown(characters, start) {
  if (start <= BEFORE) return 0;
  const from = start - BEFORE;
  const space = characters.slice(from, start).findIndex((one) => WHITE.test(one));
  return space < 0 ? from : from + space + 1;
}

/** The end of a word at most AFTER characters after a span. */
function lastShown(characters, end) {
  if (characters.length - end <= AFTER) return characters.length;
  const space = characters.slice(end, end + AFTER).findLastIndex((one) => WHITE.test(one));
  return end + (space < 0 ? AFTER : space);
}
