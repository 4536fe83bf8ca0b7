/** Start of the page: reads the facts of the bundle, then shows what the URL says. */

import { createAboutView } from "./about_view.js";
import { ApiError, call } from "./api.js";
import { createCompareView } from "./compare_view.js";
import { createControls } from "./controls.js";
import { createCurl } from "./curl.js";
import { createCurvesView } from "./curves/curves_view.js";
import { byId } from "./dom.js";
import { createEvidenceView } from "./evidence_view.js";
import { listenToKeys } from "./keyboard.js";
import { createMapView } from "./map/map_view.js";
import { errorNotice } from "./notices.js";
import { createAnswerView } from "./reading/answer_view.js";
import { createFillView } from "./reading/fill_view.js";
import { createReadingControls } from "./reading/reading_controls.js";
import { createSearchView } from "./search_view.js";
import { createSourcesControls, showSourcesLink } from "./sources/sources_controls.js";
import { createSourcesView } from "./sources/sources_view.js";
import { address, change, current, hasQuery, notify, subscribe } from "./state.js";
import { counted } from "./text.js";
import { showTheme } from "./theme.js";

/**
 * What the parts of the page share.
 *
 * @typedef {Object} Context
 * @property {import("./api.js").Info} info facts of the open version
 * @property {Map<string, import("./api.js").Hit>} known hits that were shown, by id
 * @property {(hits: import("./api.js").Hit[]) => void} remember hits that are shown now
 * @property {(listener: () => void) => void} onRemember
 * @property {(state: import("./state.js").State) => string} modeOf the mode that is searched
 * @property {(text: string) => void} say announce to screen readers
 * @property {(isBusy: boolean) => void} setBusy
 * @property {(version: number) => void} seen the version that an answer is of
 */

/** @returns {Context} */
function createContext(info) {
  let waiting = 0;
  const listeners = new Set();
  const context = {
    info,
    known: new Map(),
    modeOf(state) {
      const { modes } = context.info;
      if (modes.includes(state.mode)) return state.mode;
      return modes.at(-1);
    },
    remember(hits) {
      for (const hit of hits) context.known.set(hit.id, hit);
      for (const listener of listeners) listener();
    },
    onRemember(listener) {
      listeners.add(listener);
    },
    say(text) {
      byId("status").textContent = text;
    },
    setBusy(isBusy) {
      waiting = Math.max(0, waiting + (isBusy ? 1 : -1));
      byId("busy").hidden = waiting === 0;
    },
    async seen(version) {
      if (version === undefined || version === context.info.bundle_version) return;
      try {
        context.info = await call("info");
      } catch (error) {
        if (error instanceof ApiError) return; // the next answer tries again
        throw error;
      }
      showBundle(context.info);
      notify();
    },
  };
  return context;
}

function showBundle(info) {
  byId("bundle").textContent = `${info.name} · version ${info.bundle_version} · `
    + counted(info.passages, "passage");
  document.querySelector("nav a[data-view=training]").hidden = !info.curves;
  showSourcesLink(info);
}

function showLinks(state) {
  for (const link of document.querySelectorAll("nav a[data-view]")) {
    const view = link.dataset.view;
    link.href = address({ ...state, view, open: "" });
    if (view === state.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const title = document.querySelector(`nav a[data-view=${state.view}]`).textContent;
  const asked = hasQuery(state) && state.query ? `${state.query} · ` : "";
  document.title = `${asked}${title} · Kennel`;
}

function followLinks() {
  document.querySelector("nav").addEventListener("click", (event) => {
    const link = event.target.closest("a[data-view]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    change({ view: link.dataset.view, open: "" });
  });
}

/** Ask for the facts until they are there; each failure is shown with a button. */
async function readInfo() {
  try {
    return await call("info");
  } catch (error) {
    return new Promise((resolve) => {
      const retry = () => resolve(readInfo());
      byId("views").replaceChildren(errorNotice(error, retry));
    });
  }
}

async function start() {
  subscribe(showTheme);
  subscribe(showLinks);
  notify();
  followLinks();
  const info = await readInfo();
  showBundle(info);
  const context = createContext(info);
  const views = {
    search: createSearchView(context),
    answer: createAnswerView(context),
    fill: createFillView(context),
    compare: createCompareView(context),
    sources: createSourcesView(context),
    map: createMapView(context),
    training: createCurvesView(context),
    about: createAboutView(context),
  };
  byId("views").replaceChildren(...Object.values(views).map((view) => view.element));
  subscribe(createControls(context).show);
  subscribe(createReadingControls(context).show);
  subscribe(createSourcesControls(context).show);
  subscribe((state) => {
    for (const [name, view] of Object.entries(views)) view.element.hidden = name !== state.view;
    views[state.view].show(state);
  });
  subscribe(createEvidenceView(context).show);
  subscribe(createCurl(context).show);
  listenToKeys();
  notify();
  if (!current().query && hasQuery(current())) byId("query").focus();
}

start();
