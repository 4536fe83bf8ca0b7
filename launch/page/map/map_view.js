/** A map of the passages: near each other where their dense vectors are alike. */

import { Latest, call } from "../api.js";
import { byId, element } from "../dom.js";
import { errorNotice, notice, placeholder } from "../notices.js";
import { searchBody } from "../search_view.js";
import { change, current } from "../state.js";
import { count, counted, nameOf, timings } from "../text.js";
import { createMapCanvas } from "./map_canvas.js";
import { groupsOf, isOfSource } from "./map_colours.js";
import { hitList, legend, passageCard, passageLines } from "./map_panel.js";

const QUIET = 300; // milliseconds without a key until the link names the point

/**
 * @typedef {Object} CorpusMap what /map answers; the lists have an entry for each point
 * @property {number} version
 * @property {number} passages of the bundle
 * @property {[number, number]} explained
 * @property {string[]} ids
 * @property {number[]} x
 * @property {number[]} y
 * @property {string[]} titles
 * @property {string[]} texts
 * @property {string[]} sources
 * @property {number[]} groups
 */

/**
 * @param {import("../main.js").Context} context
 * @returns {{element: HTMLElement, show: (state: import("../state.js").State) => void}}
 */
export function createMapView(context) {
  const root = element("section.map", { "aria-label": "Map of the passages" });
  let [version, asked, drawn] = [0, 0, null]; // of the map that is shown, and that is awaited

  let turn = 0; // an older map that comes late is not shown

  async function load() {
    const mine = ++turn;
    asked = context.info.bundle_version;
    context.setBusy(true);
    root.setAttribute("aria-busy", "true");
    if (!drawn) root.replaceChildren(placeholder());
    try {
      const map = await call("map");
      if (mine !== turn) return;
      drawn = createDrawnMap(context, map);
      version = map.version;
      root.replaceChildren(drawn.element);
      if (current().view === "map") drawn.show(current());
      context.seen(map.version);
    } catch (error) {
      if (mine !== turn) return;
      drawn = null;
      root.replaceChildren(errorNotice(error, load));
      context.say("The map cannot be shown.");
    } finally {
      context.setBusy(false);
      root.removeAttribute("aria-busy");
    }
  }

  return {
    element: root,
    show(state) {
      const { info } = context;
      if (!info.kinds.includes("dense")) {
        [version, asked, drawn] = [0, 0, null];
        turn += 1; // of a map that is awaited
        const kinds = new Intl.ListFormat("en").format(info.kinds.map(nameOf)).toLowerCase();
        root.replaceChildren(notice("No map of this bundle",
          "A map is drawn of dense vectors. This bundle has "
            + `${kinds ? `only ${kinds}` : "no"} representations.`));
      } else if (info.bundle_version !== version && info.bundle_version !== asked) {
        load();
      } else {
        drawn?.show(state);
      }
    },
  };
}

/** The parts of a map that is there. */
function createDrawnMap(context, map) {
  const places = new Map(map.ids.map((id, point) => [id, point]));
  const groups = groupsOf(map);
  const passage = (point) => ({ id: map.ids[point], title: map.titles[point],
    text: map.texts[point], source: map.sources[map.groups[point]] });
  const place = (id) => places.get(id) ?? -1;
  const parts = { summary: element("p.summary"), card: element("div.map-chosen"),
    hits: element("div.map-found"), legend: element("div.map-sources") };
  const colouring = createColouring(map, groups);
  const pointer = createPointer(place);
  const canvas = createMapCanvas(map, (point) => passageLines(passage(point)), {
    select: (point) => pointer.select(map.ids[point], draw),
    act: (point) => {
      if (current().query) openEvidence(map.ids[point]);
      else searchLike(passage(point));
    },
  });
  const hits = createHits(context, () => draw());

  function draw() {
    const state = current();
    const selected = pointer.selected(state);
    canvas.show({ ...colouring(state.source), selected,
      hits: (hits.found() ?? []).map((hit) => place(hit.id)) });
    const chosen = selected < 0 ? null : passage(selected);
    refill(parts.card, passageCard(chosen, state.query !== "", {
      search: () => searchLike(chosen), open: () => openEvidence(chosen.id) }));
    parts.summary.replaceChildren(...summary(map, hits.answer()));
  }

  function drawHits(state) {
    refill(parts.hits, ...hits.content(state, { isOn: (id) => places.has(id),
      open: state.open }, { open: openEvidence, point: (id) => canvas.point(place(id)) }));
  }

  hits.onChange(() => {
    drawHits(current());
    draw();
  });
  return {
    element: element("div.map-inside", {}, parts.summary, element("div.map-body", {},
      element("div.map-main", {}, canvas.element, parts.legend,
        caption(map)),
      element("div.map-panel", {}, parts.card, parts.hits))),
    show(state) {
      pointer.forget();
      hits.show(state);
      const keys = legend(groups, state.source, (source) => change({ source, open: "" }));
      refill(parts.legend, ...(keys ? [keys] : []));
      draw();
    },
  };
}

/** Replace what is inside; the button that has the focus gives it to the one of the same text. */
function refill(parent, ...children) {
  const focused = document.activeElement;
  const text = parent.contains(focused) ? focused.textContent : null;
  parent.replaceChildren(...children);
  if (text === null) return;
  [...parent.querySelectorAll("button")].find((one) => one.textContent === text)?.focus();
}

function openEvidence(id) {
  change({ point: id, open: current().open === id ? "" : id });
}

function searchLike({ id, title, text }) {
  change({ query: (title || text).replace(/…$/, "").trim(), point: id, open: "" });
  document.querySelector(".map-frame")?.focus({ preventScroll: true });
}

/** The point that is selected; the link names it once the keys are quiet. */
function createPointer(place) {
  let [newest, timer] = ["", 0];
  return {
    select(id, draw) {
      newest = id;
      draw();
      window.clearTimeout(timer);
      timer = window.setTimeout(() => {
        if (current().view === "map") change({ point: id }, { replace: true });
      }, QUIET);
    },
    selected: (state) => place(newest || state.point || state.open),
    forget() {
      window.clearTimeout(timer);
      newest = "";
    },
  };
}

/** Colours by source: the same objects for the same source, so that points are not drawn again. */
function createColouring(map, groups) {
  let [last, scene] = [null, null];
  return (source) => {
    if (source === last) return scene;
    last = source;
    const isShown = groups.map(({ name }) => isOfSource(name, source));
    const colours = groups.map(({ colour }) => (source && colour === "other" ? "ink" : colour));
    scene = { colours: map.groups.map((group) => colours[group]),
      isActive: (point) => isShown[map.groups[point]] };
    return scene;
  };
}

/** The hits of the present query, from /search. */
function createHits(context) {
  const latest = new Latest();
  let [shown, answer, error] = ["", null, null];
  let announce = () => {};
  // Before the listener of the form itself: an error is no answer, and may be asked again.
  byId("form").addEventListener("submit", () => {
    if (error) shown = "";
  });

  async function load(body) {
    [shown, answer, error] = [JSON.stringify(body), null, null];
    context.setBusy(true);
    announce();
    try {
      const found = await latest.call("search", body);
      if (!found) return;
      answer = found;
      context.seen(found.version);
      context.remember(found.hits);
      context.say(found.hits.length ? `${counted(found.hits.length, "hit")} marked on the map`
        : "No passage was found.");
    } catch (failure) {
      error = failure;
      context.say("The search failed.");
    } finally {
      context.setBusy(false);
    }
    announce();
  }

  return {
    answer: () => answer,
    found: () => answer?.hits,
    onChange(listener) {
      announce = listener;
    },
    show(state) {
      const body = state.query ? searchBody(context, state) : null;
      if (!body) {
        latest.abort();
        [shown, answer, error] = ["", null, null];
        announce();
      } else if (JSON.stringify(body) !== shown) {
        load(body);
      } else {
        announce();
      }
    },
    content(state, places, actions) {
      if (!state.query) return [];
      if (error) return [errorNotice(error, () => load(searchBody(context, current())))];
      return [hitList(answer ? answer.hits : null, places, actions)];
    },
  };
}

function summary(map, answer) {
  const all = map.ids.length === map.passages;
  const passages = all ? counted(map.passages, "passage")
    : `${count(map.ids.length)} of ${counted(map.passages, "passage")}, evenly spaced`;
  if (!answer) return [element("span", {}, passages)];
  return [
    element("span", {}, `${counted(answer.hits.length, "hit")} of ${passages}`
      + ` · ${nameOf(answer.mode)}`),
    element("span.timings", {}, timings(answer.seconds)),
  ];
}

function caption(map) {
  const [across, up] = map.explained.map((share) => `${(100 * share).toFixed(1)} %`);
  return element("div.map-caption", {},
    element("p.hint", { id: "map-keys" }, element("kbd", {}, "←"), element("kbd", {}, "↑"),
      element("kbd", {}, "→"), element("kbd", {}, "↓"), " passages ",
      element("kbd", {}, "Enter"), " the same as a click"),
    element("p.hint", {}, "The first two principal components of the dense vectors: "
      + `${across} and ${up} of their variance. Passages that are apart here differ; those that `
      + "are near may still differ in other components."));
}
