/**
 * The MaxSim matrix: a row for each token of the query, a column for each token of the passage.
 * The canvas has one pixel for each pair, which CSS makes as large as a cell.
 */

import { element, setProperty } from "./dom.js";
import { number } from "./text.js";
import { onTheme } from "./theme.js";

/**
 * @param {import("./api.js").MaxSim} maxSim
 * @param {(row: number) => void} onRow the token of the query that was chosen
 * @returns {{element: HTMLElement, chooseRow: (row: number) => void}}
 */
export function createHeatMap(maxSim, onRow) {
  const { rows, columns, values } = maxSim;
  const flat = values.flat();
  const range = [flat.reduce((a, b) => Math.min(a, b), Infinity),
    flat.reduce((a, b) => Math.max(a, b), -Infinity)];
  const best = values.map((row) => row.indexOf(Math.max(...row)));
  const canvas = element("canvas", { width: columns.length, height: rows.length });
  const cursor = element("span.cursor", { hidden: true });
  const readout = element("p.readout", { "aria-live": "polite" }, "");
  const cells = element("div.cells", { tabindex: "0", role: "group", "aria-roledescription":
    "heat map", "aria-label": "MaxSim values; arrow keys move between pairs" },
  canvas, ...rings(values, best, range), cursor);
  const labels = rows.map((piece) => element("span", {}, piece));
  const grid = element("div.heat", {},
    element("div.heat-corner"),
    element("div.heat-columns", { "aria-hidden": "true" },
      ...columns.map(({ piece }) => element("span", {}, piece))),
    element("div.heat-rows", { "aria-hidden": "true" }, ...labels), cells);
  setProperty(setProperty(grid, "--rows", rows.length), "--columns", columns.length);

  const point = (row, column) => {
    cursor.hidden = false;
    at(cursor, row, column);
    readout.textContent = `${rows[row]} × ${columns[column].piece}  ${number(values[row][column])}`
      + (best[row] === column ? "  best of its row" : "");
  };
  const chooseRow = (row) => labels.forEach((label, n) => label.classList.toggle("on", n === row));
  readout.textContent = sumText(values, best);
  listenToPointer(cells, [rows.length, columns.length], point, onRow, chooseRow);
  listenToArrows(cells, best, columns.length, point);
  paintNowAndLater(canvas, values, range);
  return {
    element: element("div.heat-map", {}, legend(range), readout,
      element("div.heat-scroll", {}, grid)),
    chooseRow,
  };
}

/** A ring in the best cell of each row, in the colour that stands out from its cell. */
function rings(values, best, [low, high]) {
  return best.map((column, row) => {
    const isStrong = values[row][column] > (low + high) / 2;
    return at(element(isStrong ? "span.ring.on-strong" : "span.ring"), row, column);
  });
}

function at(node, row, column) {
  return setProperty(setProperty(node, "--row", row), "--column", column);
}

function sumText(values, best) {
  const sum = values.reduce((total, row, index) => total + row[best[index]], 0);
  return `Sum of the best matches ${number(sum)}, mean ${number(sum / values.length)}`;
}

function legend([low, high]) {
  return element("div.legend", {}, element("span", {}, number(low)),
    element("span.ramp", { "aria-hidden": "true" }), element("span", {}, number(high)));
}

function listenToPointer(cells, [rows, columns], point, onRow, chooseRow) {
  const pair = (event) => {
    const box = cells.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    return row >= 0 && row < rows && column >= 0 && column < columns ? [row, column] : null;
  };
  cells.addEventListener("pointermove", (event) => {
    const found = pair(event);
    if (found) point(...found);
  });
  cells.addEventListener("click", (event) => {
    const found = pair(event);
    if (!found) return;
    onRow(found[0]);
    chooseRow(found[0]);
  });
}

function listenToArrows(cells, best, columns, point) {
  let [row, column] = [0, best[0]];
  const steps = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] };
  cells.addEventListener("focus", () => point(row, column));
  cells.addEventListener("keydown", (event) => {
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    row = Math.min(best.length - 1, Math.max(0, row + step[0]));
    column = Math.min(columns - 1, Math.max(0, column + step[1]));
    point(row, column);
    cells.querySelector(".cursor").scrollIntoView({ block: "nearest", inline: "nearest" });
  });
}

/** Paint, and once more when colours change; the listener ends with the canvas. */
function paintNowAndLater(canvas, values, range) {
  window.requestAnimationFrame(() => paint(canvas, values, range));
  const end = onTheme(() => {
    if (canvas.isConnected) paint(canvas, values, range);
    else end();
  });
}

function paint(canvas, values, [low, high]) {
  const [red, green, blue] = window.getComputedStyle(canvas).color.match(/[\d.]+/g).map(Number);
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  values.flat().forEach((value, n) => {
    const share = high > low ? (value - low) / (high - low) : 0;
    image.data.set([red, green, blue, Math.round(255 * share)], 4 * n);
  });
  context.putImageData(image, 0, 0);
}
