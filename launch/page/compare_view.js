/** All modes next to each other, and how the rank of a passage moves between them. */

import { Latest } from "./api.js";
import { createLines } from "./compare_lines.js";
import { byId, element } from "./dom.js";
import { errorNotice, notice, placeholder } from "./notices.js";
import { rankTable, ranksOf } from "./rank_table.js";
import { change, current } from "./state.js";
import { counted, nameOf, number, timings } from "./text.js";

const narrow = window.matchMedia("(max-width: 820px)");

/**
 * @param {import("./main.js").Context} context
 * @returns {{element: HTMLElement, show: (state: import("./state.js").State) => void}}
 */
export function createCompareView(context) {
  const root = element("section.compare", { "aria-label": "Modes side by side" });
  const latest = new Latest();
  let shown = "";
  let answer = null;
  // Before the listener of the form itself: an error is no answer, and may be asked again.
  byId("form").addEventListener("submit", () => {
    if (!answer) shown = "";
  });
  const draw = () => {
    if (answer) root.replaceChildren(...content(context, answer));
  };
  narrow.addEventListener("change", draw);

  async function load(body) {
    const request = JSON.stringify(body);
    shown = request;
    answer = null;
    startWaiting(root, context);
    try {
      const found = await latest.call("compare", body);
      if (found) receive(found);
    } catch (error) {
      root.replaceChildren(errorNotice(error, () => load(body)));
      context.say("The comparison failed.");
    } finally {
      context.setBusy(false);
      if (shown === request) root.removeAttribute("aria-busy");
    }
  }

  function receive(found) {
    answer = found;
    context.seen(found.version);
    context.remember(found.modes[context.info.modes.at(-1)] ?? []);
    context.remember(Object.values(found.modes).flat().filter((hit) => !context.known.has(hit.id)));
    context.say(`${counted(Object.keys(found.modes).length, "mode")} side by side`);
    draw();
  }

  return {
    element: root,
    show(state) {
      const body = { query: state.query, k: state.k };
      if (!state.query) {
        latest.abort();
        [shown, answer] = ["", null];
        root.replaceChildren(notice("Modes side by side",
          "Search for something to see the hits of each mode, and where each passage moves."));
      } else if (JSON.stringify(body) !== shown) {
        load(body);
      }
    },
  };
}

function startWaiting(root, context) {
  context.setBusy(true);
  context.say("Searching");
  root.setAttribute("aria-busy", "true");
  if (!root.querySelector("[data-hits]")) root.replaceChildren(placeholder());
}

function content(context, answer) {
  const modes = context.info.modes.filter((mode) => mode in answer.modes);
  if (!modes.some((mode) => answer.modes[mode].length)) {
    return [notice("No passage was found", "No mode found a passage. Try other words.")];
  }
  const summary = element("p.summary", {},
    element("span", {}, `The first ${current().k} of ${counted(context.info.passages, "passage")}`
      + ` · ${counted(ranksOf(modes, answer.modes).size, "different passage")}`),
    element("span.timings", {}, timings(answer.seconds)));
  if (narrow.matches) return [summary, rankTable(modes, answer.modes, open)];
  return [summary, ...columns(modes, answer.modes)];
}

function open(id) {
  change({ open: id });
}

function columns(modes, hits) {
  const ranks = ranksOf(modes, hits);
  const titles = new Map(Object.values(hits).flat().map((hit) => [hit.id, hit.title || hit.id]));
  const idle = "Point at a passage, or move with the arrow keys, to follow it.";
  const readout = element("p.readout", { "aria-live": "polite" }, idle);
  const grid = element("div.columns", {}, ...modes.map((mode) => column(mode, hits[mode])));
  grid.dataset.columns = String(modes.length);
  const lines = createLines(grid);
  const follow = (id) => {
    for (const card of grid.querySelectorAll("[data-hit]")) {
      card.classList.toggle("is-same", card.dataset.hit === id);
    }
    grid.classList.toggle("has-same", id !== "");
    lines.follow(id);
    readout.textContent = id ? `${titles.get(id)}: ${places(modes, ranks.get(id))}` : idle;
  };
  listen(grid, follow);
  return [readout, grid];
}

function places(modes, ranks) {
  return modes.map((mode) => `${nameOf(mode)} ${ranks[mode] ?? "–"}`).join("  ·  ");
}

function listen(grid, follow) {
  const idOf = (target) => target?.closest?.("[data-hit]")?.dataset.hit ?? "";
  const focused = () => (grid.contains(document.activeElement) ? idOf(document.activeElement) : "");
  grid.addEventListener("pointerover", (event) => follow(idOf(event.target) || focused()));
  grid.addEventListener("pointerleave", () => follow(focused()));
  grid.addEventListener("focusin", (event) => follow(idOf(event.target)));
  grid.addEventListener("focusout", (event) => follow(idOf(event.relatedTarget)));
}

function column(mode, hits) {
  return element("section.column", { "aria-labelledby": `column-${mode}` },
    element("h2", { id: `column-${mode}` }, nameOf(mode)),
    hits.length ? element("ol", { "data-hits": mode }, ...hits.map(card))
      : element("p.hint", {}, "No passage was found."));
}

function card(hit) {
  return element("li", {}, element("button.card", {
    type: "button", "data-hit": hit.id, onclick: () => open(hit.id),
  },
  element("span.rank", {}, String(hit.rank)),
  element("span.card-title", { dir: "auto" }, hit.title || hit.id),
  element("span.value", {}, number(hit.score)),
  element("span.card-text", { dir: "auto" }, hit.text)));
}
