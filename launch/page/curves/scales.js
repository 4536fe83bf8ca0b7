/** Axes of charts: where values go, and round numbers for the ticks. */

const ROUND = [1, 2, 2.5, 5, 10]; // a step between ticks is one of these times a power of ten
const GAPS = 3; // between ticks, or about so many
const MOST_TICKS = 5; // of a logarithmic axis
const UNITS = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];

/**
 * An axis.
 *
 * @typedef {Object} Scale
 * @property {(value: number) => number} place 0 at the lower end, 1 at the upper one
 * @property {number[]} ticks round numbers, ascending
 */

/**
 * A linear axis that ends at round numbers; from 0 where values differ much, so that small
 * differences are seen and large ones are not exaggerated.
 *
 * @param {number} low the lowest value
 * @param {number} high the highest value
 * @returns {Scale}
 */
export function linear(low, high) {
  if (low === high) {
    const margin = Math.abs(low) / 2 || 1;
    return linear(low - margin, high + margin);
  }
  const from = low > 0 && low < high / 2 ? 0 : low;
  const step = roundStep(from, high);
  const [first, last] = [Math.floor(from / step + 1e-9), Math.ceil(high / step - 1e-9)];
  return { ...straight(first * step, last * step), ticks: multiples(first, last, step) };
}

/**
 * A linear axis from 0 to exactly a number, as of steps.
 *
 * @param {number} high
 * @returns {Scale}
 */
export function fromZero(high) {
  const end = high > 0 ? high : 1;
  const step = Math.max(1, roundStep(0, end));
  return { ...straight(0, end), ticks: multiples(0, Math.floor(end / step + 1e-9), step) };
}

/**
 * A logarithmic axis.
 *
 * @param {number} low the lowest value, above 0
 * @param {number} high
 * @returns {Scale}
 */
export function logarithmic(low, high) {
  if (low === high) return linear(low, high);
  const margin = (high / low) ** 0.06;
  const { place } = straight(Math.log(low / margin), Math.log(high * margin));
  const first = Math.floor(Math.log10(low));
  const powers = Array.from({ length: Math.ceil(Math.log10(high)) - first + 1 },
    (_, more) => 10 ** (first + more));
  const inside = (ticks) => ticks.filter((tick) => tick >= low / margin && tick <= high * margin);
  const choices = [[1, 2, 5], [1, 3], [1]].map((digits) => inside(powers
    .flatMap((power) => digits.map((digit) => tidy(digit * power)))));
  let ticks = choices.find((one) => one.length >= 2 && one.length <= MOST_TICKS);
  if (!ticks) ticks = choices[2].length > MOST_TICKS ? every(choices[2]) : inside(between(low, high));
  return { place: (value) => place(Math.log(value)), ticks };
}

function every(ticks) {
  const step = Math.ceil(ticks.length / MOST_TICKS);
  return ticks.filter((_, number) => number % step === 0);
}

function between(low, high) {
  const step = roundStep(low, high);
  return multiples(Math.ceil(low / step), Math.floor(high / step), step);
}

function straight(from, to) {
  return { place: (value) => (value - from) / (to - from) };
}

function roundStep(low, high) {
  const least = (high - low) / (GAPS + 0.5);
  const power = 10 ** Math.floor(Math.log10(least));
  return tidy(power * ROUND.find((one) => one * power >= least * (1 - 1e-9)));
}

function multiples(first, last, step) {
  return Array.from({ length: last - first + 1 }, (_, more) => tidy((first + more) * step));
}

/** Without the error of the last bits: 0.30000000000000004 is 0.3. */
function tidy(value) {
  return Number(value.toPrecision(10));
}

/**
 * Ticks in few characters, all in one unit: "0", "1,500"; "5k", "10k"; "0.05"; "5e-4".
 *
 * @param {number[]} ticks
 * @returns {string[]}
 */
export function tickTexts(ticks) {
  const largest = Math.max(...ticks.map(Math.abs));
  const [unit, letter] = UNITS.find(([size]) => largest >= Math.max(size, 1e4)) ?? [1, ""];
  return ticks.map((tick) => {
    const size = Math.abs(tick);
    if (size !== 0 && (size < 1e-3 || size >= 1e12)) return tick.toExponential().replace("e+", "e");
    const text = tidy(tick / unit).toLocaleString("en", { maximumFractionDigits: 10 });
    return tick === 0 ? "0" : text + letter;
  });
}

/**
 * A value of a metric, with about four digits.
 *
 * @param {number|null} value null: not finite
 */
export function valueText(value) {
  if (value === null) return "not finite";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(2).replace("e+", "e");
  const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size < 0.1 && size ? 4 : 3;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/**
 * A duration: "42 s", "9 min 22 s", "3 h 5 min", "2 d 4 h".
 *
 * @param {number} seconds
 */
export function duration(seconds) {
  const whole = Math.round(seconds);
  const units = [["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => whole >= size);
  if (first < 0) return "0 s";
  const [[unit, size], next] = [units[first], units[first + 1]];
  const rest = next ? Math.floor((whole % size) / next[1]) : 0;
  return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${next[0]}` : ""}`;
}
