/** A small line chart whose cursor is moved by the pointer or by keys. */

import { element, setProperty, svg } from "../dom.js";
import { count } from "../text.js";
import { fromZero, linear, logarithmic, tickTexts, valueText } from "./scales.js";

const SIZE = 1000; // of the drawing, which is stretched to the size of the plot
const DOTTED_BELOW = 60; // points of a curve, each of which gets a dot
const LEAP = 10; // points that Page Up and Page Down pass

/**
 * @param {import("./panels.js").Panel} panel
 * @param {{name: string, lastStep: number, isLog: boolean}} options the training, the right end of
 *   the axis, whether values are on a logarithmic axis where they are all above 0
 * @param {(step: number|null) => void} move the cursor of all charts of the training
 * @returns {{element: HTMLElement, show: (step: number|null) => void}}
 */
export function createChart(panel, { name, lastStep, isLog }, move) {
  const { title, series } = panel;
  const x = fromZero(lastStep);
  const [y, isLogarithmic] = axisOf(series, isLog);
  const stops = [...new Set(series.flatMap((one) => one.steps))].sort((a, b) => a - b);
  const colour = (number) => (series.length > 1 ? String(number) : "accent");
  const area = element("div.plot-area", {}, drawing(series, x, y, colour));
  const frame = element("div.plot", { role: "slider", tabindex: "0",
    "aria-label": `${title} of ${name} by step`, "aria-valuemin": stops[0],
    "aria-valuemax": stops.at(-1) },
  ...tickLabels("y", y), ...tickLabels("x", x), area);
  const cursor = createCursor(area, series, { x, y, colour });
  const readout = createReadout(series, colour);
  listenToPointer(frame, area, (share) => move(nearest(stops, share * (lastStep || 1))), move);
  listenToKeys(frame, stops, () => cursor.step(), move);
  frame.addEventListener("blur", () => move(null));
  const gaps = series.reduce((sum, one) => sum + one.values.filter((v) => v === null).length, 0);

  function show(step) {
    cursor.show(step);
    readout.show(step);
    frame.setAttribute("aria-valuenow", nearest(stops, step ?? lastStep));
    frame.setAttribute("aria-valuetext", readout.text());
  }

  show(null);
  return {
    element: element("section.chart", { "aria-label": title },
      element("div.chart-head", {}, element("h3", {}, title),
        isLogarithmic ? element("span.hint", {}, "log") : null,
        gaps ? element("span.chart-gaps", {}, `${count(gaps)} not finite`) : null, readout.step),
      readout.element, frame),
    show,
  };
}

/** The axis of all finite values, and whether it is logarithmic. */
function axisOf(series, isLog) {
  const values = series.flatMap((one) => one.values).filter((value) => value !== null);
  if (!values.length) return [{ place: () => 0.5, ticks: [] }, false];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return isLog && low > 0 ? [logarithmic(low, high), true] : [linear(low, high), false];
}

function drawing(series, x, y, colour) {
  const at = (step, value) => [round(x.place(step)), round(1 - y.place(value))];
  const across = y.ticks.map((tick) => `M0 ${round(1 - y.place(tick))}H${SIZE}`).join("");
  return svg("svg.plot-lines", { viewBox: `0 0 ${SIZE} ${SIZE}`, preserveAspectRatio: "none",
    "aria-hidden": "true" },
  svg("path.grid", { d: across }),
  ...series.flatMap(({ steps, values }, number) => {
    const points = steps.map((step, place) => (values[place] === null ? null
      : at(step, values[place])));
    const isDotted = points.length < DOTTED_BELOW;
    const alone = points.filter((point, place) => point
      && (isDotted || !(points[place - 1] || points[place + 1])));
    const gaps = steps.filter((_, place) => values[place] === null);
    return [
      svg("path.curve.map-colour", { d: connected(points), "data-colour": colour(number) }),
      svg("path.dots.map-colour", { d: alone.map(([left, top]) => `M${left} ${top}h0`).join(""),
        "data-colour": colour(number) }),
      svg("path.gap", { d: gaps.map((step) => `M${round(x.place(step))} ${SIZE}v-60`).join("") }),
    ];
  }));
}

/** A path that is interrupted at each null. */
function connected(points) {
  return points.map((point, place) => (point
    ? `${points[place - 1] ? "L" : "M"}${point[0]} ${point[1]}` : "")).join("");
}

function round(share) {
  return Math.round(share * SIZE * 10) / 10;
}

function tickLabels(axis, { place, ticks }) {
  const texts = tickTexts(ticks);
  return ticks.map((tick, number) => {
    const share = place(tick);
    const end = share < 0.04 ? "first" : share > 0.96 ? "last" : "middle";
    return setProperty(element(`span.tick.tick-${axis}`, { "aria-hidden": "true", "data-end": end },
      texts[number]), "--share", share);
  });
}

/** A vertical line, and a dot on each curve at its point nearest to it. */
function createCursor(area, series, { x, y, colour }) {
  const line = element("div.plot-cursor", { hidden: true });
  const dots = series.map((_, number) => element("div.plot-dot.map-colour",
    { "data-colour": colour(number), hidden: true }));
  area.append(line, ...dots);
  let shown = null;
  return {
    step: () => shown,
    show(step) {
      shown = step;
      line.hidden = step === null;
      if (step !== null) setProperty(line, "--x", x.place(step));
      dots.forEach((dot, number) => {
        const { steps, values } = series[number];
        const place = step === null ? -1 : placeNearest(steps, step);
        dot.hidden = place < 0 || values[place] === null;
        if (dot.hidden) return;
        setProperty(setProperty(dot, "--x", x.place(steps[place])), "--y", y.place(values[place]));
      });
    },
  };
}

/** The values at the cursor, or the last ones. */
function createReadout(series, colour) {
  const cells = series.map(() => element("span.value"));
  const step = element("span.chart-step");
  let text = "";
  return {
    step,
    text: () => text,
    element: element("ul.chart-values", {}, ...series.map(({ label }, number) => element("li", {},
      series.length > 1 ? element("span.map-colour.swatch", { "data-colour": colour(number),
        "aria-hidden": "true" }) : null,
      label ? element("span.chart-label", {}, label) : null, cells[number]))),
    show(at) {
      const said = series.map(({ label, steps, values }, number) => {
        const place = at === null ? steps.length - 1 : placeNearest(steps, at);
        cells[number].textContent = valueText(values[place]);
        return { step: steps[place], text: `${label} ${valueText(values[place])}`.trim() };
      });
      const near = [...new Set(said.map((one) => one.step))];
      step.textContent = at === null ? "last" : near.length > 1 ? `near step ${count(at)}`
        : `step ${count(near[0])}`;
      text = said.map((one) => `step ${count(one.step)}: ${one.text}`).join(", ");
    },
  };
}

function listenToPointer(frame, area, point, move) {
  const follow = (event) => {
    const { left, width } = area.getBoundingClientRect();
    point(Math.min(1, Math.max(0, (event.clientX - left) / width)));
  };
  frame.addEventListener("pointermove", follow);
  frame.addEventListener("pointerdown", follow);
  frame.addEventListener("pointerleave", () => move(null));
}

function listenToKeys(frame, stops, present, move) {
  const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -LEAP,
    PageUp: LEAP, Home: -Infinity, End: Infinity };
  frame.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isEscape = event.key === "Escape" && present() !== null;
    if (!isEscape && !(event.key in steps)) return;
    event.preventDefault();
    if (isEscape) {
      move(null);
      return;
    }
    const from = present() === null ? stops.length - 1 : placeNearest(stops, present());
    const to = present() === null && Number.isFinite(steps[event.key]) && steps[event.key] > 0
      ? from : from + steps[event.key];
    move(stops[Math.min(stops.length - 1, Math.max(0, to))]);
  });
}

function nearest(stops, step) {
  return stops[placeNearest(stops, step)];
}

/** The place of the number nearest to another among ascending ones. */
function placeNearest(numbers, wanted) {
  let [low, high] = [0, numbers.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low > 0 && wanted - numbers[low - 1] <= numbers[low] - wanted ? low - 1 : low;
}
