/** Why a passage was found: its text by token, shared words, and the MaxSim matrix. */

import { Latest } from "./api.js";
import { byId, element } from "./dom.js";
import { createHeatMap } from "./heat_map.js";
import { focusHit } from "./keyboard.js";
import { errorNotice, placeholder, warning } from "./notices.js";
import { createPassageText } from "./passage_text.js";
import { sharedWords } from "./shared_words.js";
import { change, current } from "./state.js";
import { counted, nameOf, number } from "./text.js";

const WITH_EVIDENCE = ["search", "compare", "sources", "map"];

/**
 * @param {import("./main.js").Context} context
 * @returns {{show: (state: import("./state.js").State) => void}}
 */
export function createEvidenceView(context) {
  const root = byId("evidence");
  const latest = new Latest();
  let shown = "";
  let nameNow = () => {}; // the title may become known after the evidence
  context.onRemember(() => nameNow());
  let isFirst = true; // a link that is opened leaves focus where it is

  async function load(body) {
    context.setBusy(true);
    const inside = element("div.evidence-body", { "aria-busy": "true" }, placeholder(3));
    const title = element("h2", { tabindex: "-1", dir: "auto" });
    root.replaceChildren(head(title, body.id), inside);
    let evidence = null;
    nameNow = () => nameIt(root, context, body.id, evidence);
    nameNow();
    if (!isFirst) title.focus();
    try {
      evidence = await latest.call("evidence", body);
      if (!evidence) return;
      nameNow();
      inside.replaceChildren(...content(context, body.query, evidence));
      context.say("Evidence is shown");
    } catch (error) {
      inside.replaceChildren(errorNotice(error, () => load(body)));
    } finally {
      inside.removeAttribute("aria-busy");
      context.setBusy(false);
    }
  }

  return {
    show(state) {
      const isOpen = state.open !== "" && state.query !== "" && WITH_EVIDENCE.includes(state.view);
      root.hidden = !isOpen;
      byId("work").classList.toggle("with-evidence", isOpen);
      byId("work").dataset.view = state.view;
      const body = { query: state.query, id: state.open };
      const request = isOpen ? JSON.stringify(body) : "";
      if (isOpen && request !== shown) {
        load(body);
        document.querySelector(".hit.is-open")?.scrollIntoView({ block: "nearest" });
      }
      if (!isOpen) latest.abort();
      shown = request;
      isFirst = false;
    },
  };
}

function head(title, id) {
  const close = element("button.quiet.close", { type: "button", onclick: () => leave(id) },
    element("span.to-hits", {}, `Back to the ${current().view === "map" ? "map" : "hits"}`), element("span.to-close", {}, "Close"));
  return element("header.evidence-head", {},
    element("div.evidence-title", {}, element("p.eyebrow", {}, "Evidence"), title,
      element("p.meta", {})),
    close);
}

function leave(id) {
  change({ open: "" });
  focusHit(id);
}

/** The title as far as it is known: a link may open evidence before its hit is there. */
function nameIt(root, context, id, evidence) {
  const hit = context.known.get(id);
  root.querySelector("h2").textContent = hit?.title || evidence?.title || id;
  const scores = Object.entries(hit?.scores ?? {}).map(([kind, score]) =>
    element("span", {}, `${nameOf(kind)} ${number(score)}`));
  root.querySelector(".meta").replaceChildren(element("span.id", {}, id), ...scores);
}

function content(context, query, evidence) {
  const text = createPassageText(evidence, query);
  const map = evidence.max_sim && createHeatMap(evidence.max_sim, text.chooseRow);
  if (map) text.onRow(map.chooseRow);
  const cutOff = evidence.passage?.cut_off ?? 0;
  return [
    section("Passage", text.hint, text.element),
    cutOff > 0 ? warning(`The passage is cut off after ${context.info.passage_length} tokens. `
      + `${counted(cutOff, "token")} at its end are not read.`) : null,
    evidence.words && section("Shared words", "Tokens of both texts. The product of their weights "
      + "is what each adds to the score.", sharedWords(evidence.words)),
    map && section("Token by token", "Inner products of token vectors. A ring marks the best match "
      + "of a query token; MaxSim adds these up.", map.element),
  ].filter(Boolean);
}

function section(heading, hint, body) {
  return element("section.evidence-part", {},
    element("h3", {}, heading), element("p.hint", {}, hint), body);
}

