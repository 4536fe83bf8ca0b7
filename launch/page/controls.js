/** The form: query, mode, number of hits, source. A change of a choice searches at once. */

import { byId, element } from "./dom.js";
import { change, current, hasQuery } from "./state.js";
import { nameOf } from "./text.js";

const SIZES = [5, 10, 20, 50, 100];
const BY_ONE_MODE = ["search", "sources", "map"];
const FROM_ONE_SOURCE = ["search", "map", "answer", "fill"];
const MOST_OPTIONS = 15; // of sources in a plain menu; more are typed, with suggestions

/**
 * @param {import("./main.js").Context} context
 * @returns {{show: (state: import("./state.js").State) => void}}
 */
export function createControls(context) {
  const form = byId("form");
  const query = byId("query");
  const submit = (patch = {}) => change({ query: query.value.trim(), open: "", ...patch });
  let [modes, sources, source] = [[], null, null]; // those that the form offers now
  const offer = ({ info }) => { // another version of the bundle may have others
    if (!areSame(modes, info.modes)) showModes(info.modes, (mode) => submit({ mode }));
    if (!areSame(sources, info.sources)) {
      source?.element.remove();
      source = createSource(info.sources, (value) => submit({ source: value }));
      byId("source-field").append(source.element);
    }
    ({ modes, sources } = info);
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit(hasQuery(current()) ? {} : { view: "search" });
  });
  byId("k").addEventListener("change", (event) => submit({ k: Number(event.target.value) }));
  return {
    show(state) {
      offer(context);
      if (document.activeElement !== query || query.value.trim() !== state.query) {
        query.value = state.query;
      }
      showSizes(byId("k"), state.k);
      source.show(state.source);
      for (const radio of form.querySelectorAll("input[name=mode]")) {
        radio.checked = radio.value === context.modeOf(state);
      }
      byId("modes").hidden = !BY_ONE_MODE.includes(state.view);
      byId("source-field").hidden = !FROM_ONE_SOURCE.includes(state.view)
        || !context.info.sources.length;
      form.hidden = !hasQuery(state);
    },
  };
}

function areSame(some, others) {
  return JSON.stringify(some) === JSON.stringify(others);
}

function showModes(modes, choose) {
  const legend = byId("modes").querySelector("legend");
  byId("modes").replaceChildren(legend, ...modes.map((mode) => element("label.segment", {},
    element("input", { type: "radio", name: "mode", value: mode, onchange: () => choose(mode) }),
    element("span", {}, nameOf(mode)))));
}

function showSizes(select, k) {
  const sizes = [...new Set([...SIZES, k])].sort((a, b) => a - b);
  select.replaceChildren(...sizes.map((size) => element("option", { value: size }, String(size))));
  select.value = String(k);
}

function createSource(sources, choose) {
  return (sources.length > MOST_OPTIONS ? typedSource : chosenSource)(sources, choose);
}

function chosenSource(sources, choose) {
  const select = element("select", { name: "source", onchange: () => choose(select.value) },
    element("option", { value: "" }, "All"),
    ...sources.map((source) => element("option", { value: source }, source)));
  return { element: select, show: (source) => { select.value = source; } };
}

function typedSource(sources, choose) {
  const input = element("input", { name: "source", list: "sources", placeholder: "All",
    "aria-label": "Source" });
  input.addEventListener("change", () => {
    const isKnown = input.value === "" || sources.includes(input.value);
    input.setCustomValidity(isKnown ? "" : `No passage is from “${input.value}”`);
    if (isKnown) choose(input.value);
    else input.reportValidity();
  });
  const list = element("datalist", { id: "sources" },
    ...sources.map((source) => element("option", { value: source })));
  return {
    element: element("span", {}, input, list),
    show(source) {
      input.value = source;
      input.setCustomValidity("");
    },
  };
}
