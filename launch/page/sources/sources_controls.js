/** Parts of the form and of the navigation that depend on the sources of the bundle. */

import { byId, element } from "../dom.js";
import { change } from "../state.js";
import { areLanguages, areShown, viewName } from "./source_names.js";
import { eachCount } from "./sources_request.js";

const SIZES = [1, 2, 3, 5, 10, 20];

/**
 * @param {import("../main.js").Context} context
 * @returns {{show: (state: import("../state.js").State) => void}} to be called after those of
 *   other controls, which show what this view hides
 */
export function createSourcesControls(context) {
  byId("each").addEventListener("change", (event) => {
    change({ query: byId("query").value.trim(), open: "", each: Number(event.target.value) });
  });
  return {
    show(state) {
      const isHere = state.view === "sources";
      byId("each-field").hidden = !isHere;
      if (!isHere) return;
      byId("k-field").hidden = true;
      byId("key-enter").textContent = "search for it";
      if (areLanguages(context.info.sources)) {
        byId("query").placeholder = "A sentence in any language";
      }
      showSizes(eachCount(state));
    },
  };
}

function showSizes(chosen) {
  const sizes = [...new Set([...SIZES, chosen])].sort((a, b) => a - b);
  byId("each").replaceChildren(
    ...sizes.map((size) => element("option", { value: size }, String(size))));
  byId("each").value = String(chosen);
}

/**
 * Offer the view in the navigation, by its name, where the sources are few enough.
 *
 * @param {import("../api.js").Info} info
 */
export function showSourcesLink({ sources }) {
  const link = document.querySelector("nav a[data-view=sources]");
  link.hidden = !areShown(sources);
  link.textContent = viewName(sources);
}
