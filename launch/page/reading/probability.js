/** Probabilities as numbers and bars. */

import { bar, element } from "../dom.js";

/**
 * Three decimals; small values with their exponent, as 1.1e-14.
 *
 * @param {number} value
 */
export function chance(value) {
  if (!Number.isFinite(value)) return "–";
  return value === 0 || value >= 0.001 ? value.toFixed(3) : value.toExponential(1);
}

/**
 * A row of a list: its name, a bar, the number.
 *
 * @param {string} symbol "p(z|x)"
 * @param {string} meaning in one word or two
 * @param {number} value
 */
export function chanceRow(symbol, meaning, value) {
  return element("div.chance-row", {},
    element("dt", {}, element("span.symbol", {}, symbol), ` ${meaning}`),
    element("dd", {}, bar(value), element("span.value", {}, chance(value))));
}
