/** One training: its charts, which share a cursor, and a table of the same numbers. */

import { element } from "../dom.js";
import { count, counted } from "../text.js";
import { createChart } from "./chart.js";
import { panelsOf } from "./panels.js";
import { duration, valueText } from "./scales.js";

/**
 * A training of /curves.
 *
 * @typedef {Object} Training
 * @property {string} name
 * @property {boolean} served whether the model that is served was made from it
 * @property {string} finished
 * @property {number} seconds
 * @property {{name: string, logged: number, steps: number[], values: (number|null)[]}[]} curves
 */

/** @param {Training} training */
export function lastStep(training) {
  return Math.max(0, ...training.curves.map((curve) => curve.steps.at(-1) ?? 0));
}

/** @param {Training} training */
export function lengthOf(training) {
  return `${counted(lastStep(training), "step")} · ${duration(training.seconds)}`;
}

/**
 * @param {Training} training
 * @param {boolean} isLog whether losses are on logarithmic axes
 * @returns {HTMLElement}
 */
export function trainingSection(training, isLog) {
  const { name, finished, served } = training;
  const panels = panelsOf(training);
  let shown = null;
  const move = (step) => {
    if (step === shown) return;
    shown = step;
    for (const chart of charts) chart.show(step);
  };
  const charts = panels.map((panel) => createChart(panel, { name, lastStep: lastStep(training),
    isLog: isLog && panel.isLoss }, move));
  return element("section.training", { "aria-label": `Training ${name}` },
    element("div.training-head", {}, element("h2", {}, name),
      served ? null : element("span.training-note", {}, "not part of the model that is served"),
      element("p.meta", {}, element("span", {}, lengthOf(training)),
        element("span", {}, `finished ${finished.slice(0, 16)}`))),
    charts.length ? element("div.charts", {}, ...charts.map((chart) => chart.element))
      : element("p.hint", {}, "Its log has no loss, learning rate, speed or evaluation."),
    charts.length ? table(panels, name) : null);
}

function table(panels, name) {
  const heads = ["Metric", "First", "Lowest", "Highest", "Last", "Points"];
  const cells = (values) => values.map((value) => element("td.value", {}, value));
  return element("details.curve-table", {}, element("summary", {}, `Table of ${name}`),
    element("div.curve-scroll", { tabindex: "0", role: "group", "aria-label": `Table of ${name}` },
      element("table", {},
        element("thead", {}, element("tr", {},
          ...heads.map((head) => element("th", { scope: "col" }, head)))),
        element("tbody", {}, ...panels.flatMap(({ title, series }) => series.map((one) =>
          element("tr", {}, element("th", { scope: "row" },
            one.label ? `${title}, ${one.label}` : title),
          ...cells(figures(one)))))))));
}

/** First, lowest, highest and last value with their steps, and the number of points. */
function figures({ steps, values, logged }) {
  const at = (place) => `${valueText(values[place])} at ${count(steps[place])}`;
  const finite = [...values.keys()].filter((place) => values[place] !== null);
  const best = (isBetter) => (finite.length ? at(finite.reduce((one, other) =>
    (isBetter(values[other], values[one]) ? other : one))) : "–");
  const shown = logged > steps.length ? `${count(steps.length)} of ${count(logged)}` : count(logged);
  return [at(0), best((a, b) => a < b), best((a, b) => a > b), at(steps.length - 1), shown];
}
