/** Lines between the cards of one passage in neighbouring columns. */

import { svg } from "./dom.js";

/**
 * Draw over a grid of columns, and again when its size changes.
 *
 * @param {HTMLElement} grid holds `.column`s with `[data-hit]` cards
 * @returns {{follow: (id: string) => void}} follow: the passage whose lines are drawn strongly
 */
export function createLines(grid) {
  const overlay = svg("svg.lines", { "aria-hidden": "true" });
  let followed = "";
  grid.append(overlay);
  const draw = () => {
    if (!grid.isConnected || !grid.clientWidth) return;
    overlay.setAttribute("viewBox", `0 0 ${grid.clientWidth} ${grid.clientHeight}`);
    overlay.replaceChildren(...paths(grid, followed));
  };
  new ResizeObserver(draw).observe(grid);
  return {
    follow(id) {
      followed = id;
      draw();
    },
  };
}

/** Faint lines first, so that the followed passage is drawn over them. */
function paths(grid, followed) {
  const columns = [...grid.querySelectorAll(".column")].map((column) => boxes(grid, column));
  const faint = [];
  const strong = [];
  for (let at = 0; at + 1 < columns.length; at += 1) {
    for (const [id, box] of columns[at]) {
      const next = columns[at + 1].get(id);
      const found = id === followed ? strong : faint;
      if (next) found.push(joined(box, next, id === followed));
      else if (id === followed) strong.push(...ended(box.right, box.middle, 1));
    }
    const arrived = columns[at + 1].get(followed);
    if (arrived && !columns[at].has(followed)) {
      strong.push(...ended(arrived.left, arrived.middle, -1));
    }
  }
  return [...faint, ...strong];
}

/** id -> where its card is, relative to the grid. */
function boxes(grid, column) {
  const origin = grid.getBoundingClientRect();
  return new Map([...column.querySelectorAll("[data-hit]")].map((card) => {
    const box = card.getBoundingClientRect();
    return [card.dataset.hit, {
      left: box.left - origin.left,
      right: box.right - origin.left,
      middle: (box.top + box.bottom) / 2 - origin.top,
    }];
  }));
}

function joined(from, to, isStrong) {
  const [start, end] = [from.right, to.left];
  const half = (start + end) / 2;
  const d = `M${start} ${from.middle}`
    + `C${half} ${from.middle} ${half} ${to.middle} ${end} ${to.middle}`;
  return svg(isStrong ? "path.line.strong" : "path.line", { d });
}

/** The passage is not among the hits of the next column: a short line that ends in a ring. */
function ended(x, y, direction) {
  const end = x + 14 * direction;
  return [
    svg("path.line.strong.missing", { d: `M${x} ${y}H${end}` }),
    svg("circle.line.strong", { cx: end + 3 * direction, cy: y, r: 3 }),
  ];
}
