/** Points on a plane, found by place: a grid for the pointer, and steps for the arrow keys. */

const CELL = 16; // pixels; a few points of 20,000 are in one

/**
 * A grid of points for look-ups that do not depend on how many there are.
 *
 * @param {Float32Array} xs in pixels, from 0
 * @param {Float32Array} ys
 * @param {(point: number) => boolean} isActive others are not found
 * @returns {{nearest: (x: number, y: number, radius: number) => number}} -1: none within the radius
 */
export function createGrid(xs, ys, isActive) {
  const columns = 1 + cellOf(xs.reduce((a, b) => Math.max(a, b), 0));
  const rows = 1 + cellOf(ys.reduce((a, b) => Math.max(a, b), 0));
  const starts = new Int32Array(columns * rows + 1);
  const place = (point) => cellOf(ys[point]) * columns + cellOf(xs[point]);
  const active = [...xs.keys()].filter(isActive);
  for (const point of active) starts[place(point) + 1] += 1;
  for (let cell = 0; cell < columns * rows; cell += 1) starts[cell + 1] += starts[cell];
  const ends = starts.slice(0, -1);
  const points = new Int32Array(active.length); // by cell, from starts[cell] to starts[cell + 1]
  for (const point of active) {
    points[ends[place(point)]] = point;
    ends[place(point)] += 1;
  }

  function nearest(x, y, radius) {
    let [found, least] = [-1, radius ** 2];
    const last = Math.min(rows - 1, cellOf(y + radius));
    for (let row = Math.max(0, cellOf(y - radius)); row <= last; row += 1) {
      const left = row * columns + Math.min(columns, Math.max(0, cellOf(x - radius)));
      const right = row * columns + Math.min(columns - 1, cellOf(x + radius));
      for (let at = starts[left]; at < starts[Math.max(left, right + 1)]; at += 1) {
        const distance = (xs[points[at]] - x) ** 2 + (ys[points[at]] - y) ** 2;
        if (distance < least) [found, least] = [points[at], distance];
      }
    }
    return found;
  }

  return { nearest };
}

function cellOf(pixels) {
  return Math.floor(pixels / CELL);
}

/**
 * The nearest point in a direction: at most 45 degrees from it, so that each point that has others
 * around it can be left in every direction. Points in the same place are in the order of their
 * numbers: right and down lead to the next one, left and up to the one before.
 *
 * @param {Float32Array} xs
 * @param {Float32Array} ys growing downwards
 * @param {(point: number) => boolean} isActive
 * @param {number} from a point
 * @param {[number, number]} direction [1, 0] is right, [0, 1] is down
 * @returns {number} a point; `from` where there is none in that direction
 */
export function step(xs, ys, isActive, from, direction) {
  const isForward = direction[0] + direction[1] > 0;
  let [found, least] = [from, Infinity];
  for (let point = 0; point < xs.length; point += 1) {
    if (point === from || !isActive(point)) continue;
    const [x, y] = [xs[point] - xs[from], ys[point] - ys[from]];
    let cost = Infinity;
    if (x === 0 && y === 0) {
      const gap = isForward ? point - from : from - point;
      if (gap > 0) cost = gap / xs.length - 1; // before all that are elsewhere
    } else {
      const along = x * direction[0] + y * direction[1];
      const across = Math.abs(x * direction[1]) + Math.abs(y * direction[0]);
      if (along >= across) cost = x ** 2 + y ** 2 + across ** 2;
    }
    if (cost < least) [found, least] = [point, cost];
  }
  return found;
}
