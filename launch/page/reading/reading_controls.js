/** Parts of the form and of the navigation that depend on whether the model reads passages. */

import { byId, element } from "../dom.js";
import { change } from "../state.js";
import { MASK, readCount } from "./requests.js";

const SIZES = [1, 3, 5, 7, 10, 20, 50];
const READING = ["answer", "fill"];
const OTHERS = { submit: "Search", placeholder: "Ask in your own words", label: "Query",
  hits: "hits", enter: "evidence" };
const TEXTS = {
  answer: { submit: "Answer", placeholder: "Ask a question", label: "Question",
    hits: "passages", enter: "open" },
  fill: { submit: "Fill in", placeholder: `A sentence with ${MASK} where a word is missing`,
    label: "Sentence", hits: "passages", enter: "open" },
};

/**
 * @param {import("../main.js").Context} context
 * @returns {{show: (state: import("../state.js").State) => void}}
 */
export function createReadingControls(context) {
  const query = byId("query");
  byId("read").addEventListener("change", (event) => {
    change({ query: query.value.trim(), open: "", read: Number(event.target.value) });
  });
  byId("insert-mask").addEventListener("click", insertMask);
  return {
    show(state) {
      for (const view of READING) {
        document.querySelector(`nav a[data-view=${view}]`).hidden = context.info.reads !== view;
      }
      const isReading = READING.includes(state.view);
      byId("k-field").hidden = isReading;
      byId("read-field").hidden = !isReading;
      byId("insert-mask").hidden = state.view !== "fill";
      if (isReading) showSizes(readCount(context, state), context.info.max_read);
      showTexts(TEXTS[state.view] ?? OTHERS);
    },
  };
}

function showSizes(chosen, most) {
  const sizes = [...new Set([...SIZES.filter((size) => size <= most), chosen])];
  sizes.sort((a, b) => a - b);
  byId("read").replaceChildren(
    ...sizes.map((size) => element("option", { value: size }, String(size))));
  byId("read").value = String(chosen);
}

function showTexts(texts) {
  byId("form").querySelector(".primary").textContent = texts.submit;
  byId("form").querySelector("label[for=query]").textContent = texts.label;
  byId("query").placeholder = texts.placeholder;
  byId("key-hits").textContent = texts.hits;
  byId("key-enter").textContent = texts.enter;
}

/** Put [MASK] in place of what is selected in the field, with spaces around it. */
function insertMask() {
  const query = byId("query");
  const [before, after] = [query.value.slice(0, query.selectionStart),
    query.value.slice(query.selectionEnd)];
  const left = before === "" || /\s$/.test(before) ? "" : " ";
  const right = after === "" || /^[\s.,;:!?)]/.test(after) ? "" : " ";
  query.setRangeText(left + MASK + right, query.selectionStart, query.selectionEnd, "end");
  query.focus();
}
