/**
 * The points of the map. One canvas has all points and is drawn when its size, the theme or the
 * source changes; the other has what is marked, and is drawn with each step of the pointer.
 */

import { element, setProperty } from "../dom.js";
import { onTheme } from "../theme.js";
import { coloursIn } from "./map_colours.js";
import { createGrid, step } from "./map_grid.js";

const MARGIN = 20; // pixels around the points
const REACH = { mouse: 12, touch: 24 }; // pixels from the pointer to a point
const MOST_STRETCH = 3; // of the shorter axis, so that a line remains one
const STEPS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

/**
 * What is marked on the map; points are numbers, -1 is none.
 *
 * @typedef {Object} Scene
 * @property {string[]} colours of each point, by name
 * @property {(point: number) => boolean} isActive whether a point is of the chosen source
 * @property {number[]} hits in the order of their ranks
 * @property {number} selected
 */

/**
 * @param {{x: number[], y: number[]}} map
 * @param {(point: number) => HTMLElement[]} describe what the tip of a point says
 * @param {{select: (point: number) => void, act: (point: number) => void}} actions
 * @returns {{element: HTMLElement, show: (scene: Scene) => void, point: (point: number) => void}}
 */
export function createMapCanvas(map, describe, actions) {
  const layers = [element("canvas.map-points"), element("canvas.map-marks")];
  const tip = element("div.map-tip", { hidden: true });
  const frame = element("div.map-frame", { tabindex: "0", role: "group",
    "aria-roledescription": "map", "aria-describedby": "map-keys",
    "aria-label": "Map of the passages" }, ...layers, tip);
  const view = { xs: new Float32Array(0), ys: new Float32Array(0), width: 0, height: 0,
    radius: radiusOf(map.x.length), colours: {}, grid: null };
  let [scene, hovered] = [null, -1];

  function drawAll() {
    const { width, height } = frame.getBoundingClientRect();
    if (!scene || width < 1 || height < 1) return; // hidden
    Object.assign(view, { width, height, colours: coloursIn(frame) }, placed(map, width, height));
    view.grid = createGrid(view.xs, view.ys, scene.isActive);
    drawPoints(layers[0], view, scene);
    mark();
  }

  function mark() {
    if (!view.grid) return;
    const isFocused = document.activeElement === frame;
    drawMarks(layers[1], view, scene, hovered >= 0 ? hovered : scene.selected);
    showTip(tip, view, hovered >= 0 || !isFocused ? hovered : scene.selected, describe);
    frame.classList.toggle("has-point", hovered >= 0);
  }

  function point(next) {
    if (next === hovered) return;
    hovered = next;
    mark();
  }

  const drawLater = later(drawAll);
  new window.ResizeObserver(drawLater).observe(frame);
  const end = onTheme(() => (frame.isConnected ? drawLater() : end()));
  listenToPointer(frame, view, point, actions, () => scene);
  listenToKeys(frame, view, point, actions, () => scene);
  frame.addEventListener("focus", mark);
  frame.addEventListener("blur", mark);
  return {
    element: frame,
    point,
    show(next) {
      const isSame = scene && next.colours === scene.colours && next.isActive === scene.isActive;
      scene = next;
      frame.classList.toggle("has-hits", scene.hits.some((hit) => hit >= 0));
      if (isSame) mark();
      else drawAll();
    },
  };
}

function listenToPointer(frame, view, point, { select, act }, scene) {
  const at = (event, reach) => {
    const { left, top } = frame.getBoundingClientRect();
    const [x, y] = [event.clientX - left - frame.clientLeft, event.clientY - top - frame.clientTop];
    return view.grid ? view.grid.nearest(x, y, reach) : -1;
  };
  frame.addEventListener("pointermove", (event) => {
    if (event.pointerType !== "touch") point(at(event, REACH.mouse));
  });
  frame.addEventListener("pointerleave", () => point(-1));
  frame.addEventListener("click", (event) => {
    const isTouch = event.pointerType === "touch";
    const found = at(event, isTouch ? REACH.touch : REACH.mouse);
    if (found < 0) return;
    if (isTouch && found !== scene().selected) select(found); // there is no hover: first show it
    else act(found);
  });
}

function listenToKeys(frame, view, point, { select, act }, scene) {
  frame.addEventListener("keydown", (event) => {
    const { selected, hits, isActive } = scene();
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" && selected >= 0) {
      event.preventDefault();
      act(selected);
    }
    const direction = STEPS[event.key];
    if (!direction || !view.grid) return;
    event.preventDefault();
    point(-1);
    const first = hits.find((hit) => hit >= 0)
      ?? view.grid.nearest(view.width / 2, view.height / 2, view.width + view.height);
    const next = selected < 0 ? first : step(view.xs, view.ys, isActive, selected, direction);
    if (next >= 0) select(next);
  });
}

/** Call a function once in the next frame, however often it is asked for before. */
function later(action) {
  let isWaiting = false;
  return () => {
    if (isWaiting) return;
    isWaiting = true;
    window.requestAnimationFrame(() => {
      isWaiting = false;
      action();
    });
  };
}

function radiusOf(points) {
  return points > 8000 ? 1.6 : points > 1500 ? 2.3 : points > 200 ? 3.2 : 4.5;
}

/** Pixels of each point: both axes fill the frame, as far as they may be stretched. */
function placed(map, width, height) {
  const [left, right] = bounds(map.x);
  const [bottom, top] = bounds(map.y);
  const scales = [(width - 2 * MARGIN) / (right - left || 1), (height - 2 * MARGIN)
    / (top - bottom || 1)];
  const most = MOST_STRETCH * Math.min(...scales);
  const [across, up] = scales.map((scale) => Math.min(scale, most));
  const [x, y] = [(left + right) / 2, (bottom + top) / 2];
  return {
    xs: Float32Array.from(map.x, (one) => width / 2 + (one - x) * across),
    ys: Float32Array.from(map.y, (one) => height / 2 - (one - y) * up),
  };
}

function bounds(values) {
  return [values.reduce((a, b) => Math.min(a, b), Infinity),
    values.reduce((a, b) => Math.max(a, b), -Infinity)];
}

function cleared(canvas, { width, height }) {
  const ratio = window.devicePixelRatio || 1;
  const size = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** A picture of a dot is copied for each point, which is faster than many paths. */
function dotOf(colour, radius) {
  const ratio = window.devicePixelRatio || 1;
  const canvas = element("canvas", { width: Math.ceil((2 * radius + 2) * ratio),
    height: Math.ceil((2 * radius + 2) * ratio) });
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  disc(context, radius + 1, radius + 1, radius, colour);
  return { canvas, size: canvas.width / ratio };
}

function drawPoints(canvas, view, scene) {
  const context = cleared(canvas, view);
  const dots = Object.fromEntries(Object.entries(view.colours)
    .map(([name, colour]) => [name, dotOf(colour, view.radius)]));
  const put = (point, { canvas: dot, size }) => context.drawImage(dot,
    view.xs[point] - size / 2, view.ys[point] - size / 2, size, size);
  const points = [...view.xs.keys()];
  const active = points.filter(scene.isActive);
  if (active.length < points.length) {
    for (const point of points) if (!scene.isActive(point)) put(point, dots.faint);
  }
  context.globalAlpha = 0.85;
  for (const point of active) put(point, dots[scene.colours[point]]);
}

function drawMarks(canvas, view, scene, pointed) {
  const context = cleared(canvas, view);
  const { ink, paper, accent } = view.colours;
  const radius = Math.max(3, view.radius + 1);
  const spot = (point, edge, width, gap) => {
    const [x, y] = [view.xs[point], view.ys[point]];
    disc(context, x, y, radius + gap + width, paper);
    disc(context, x, y, radius + gap, edge);
    disc(context, x, y, radius + gap - width, paper);
    disc(context, x, y, radius, view.colours[scene.colours[point]]);
  };
  const hits = [...scene.hits.entries()].filter(([, point]) => point >= 0);
  for (const [, point] of hits.toReversed()) spot(point, ink, 1.5, 3);
  if (pointed >= 0) spot(pointed, accent, 2.5, 5.5);
  label(context, view, hits, radius + 5);
}

/** Ranks of hits: on the right or the left of each, or nowhere where they would cover another. */
function label(context, view, hits, gap) {
  context.font = `600 11px ${window.getComputedStyle(document.body).fontFamily}`;
  context.textBaseline = "middle";
  Object.assign(context, { lineWidth: 3, lineJoin: "round", strokeStyle: view.colours.paper,
    fillStyle: view.colours.ink });
  const taken = hits.map(([, point]) => [view.xs[point], view.ys[point]]);
  for (const [rank, point] of hits) {
    const [x, y] = [view.xs[point], view.ys[point]];
    const isFree = (middle) => middle > 8 && middle < view.width - 8
      && !taken.some(([a, b]) => Math.abs(a - middle) < 13 && Math.abs(b - y) < 13);
    const side = [1, -1].find((one) => isFree(x + one * (gap + 8)));
    if (!side) continue;
    taken.push([x + side * (gap + 8), y]);
    context.textAlign = side > 0 ? "left" : "right";
    const place = [String(rank + 1), x + side * gap, y];
    context.strokeText(...place);
    context.fillText(...place);
  }
}

function disc(context, x, y, radius, colour) {
  context.fillStyle = colour;
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fill();
}

/** The tip is on the side of the point that has more room. */
function showTip(tip, view, point, describe) {
  tip.hidden = point < 0;
  if (point < 0) return;
  const [x, y] = [view.xs[point], view.ys[point]];
  setProperty(setProperty(tip, "--x", `${x}px`), "--y", `${y}px`);
  tip.classList.toggle("is-left", x > view.width / 2);
  tip.classList.toggle("is-above", y > view.height / 2);
  if (tip.dataset.point !== String(point)) tip.replaceChildren(...describe(point));
  tip.dataset.point = String(point);
}
