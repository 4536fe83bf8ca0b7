/** Answers to a question: the best one, then the best span of each passage that was read. */

import { element } from "../dom.js";
import { notice } from "../notices.js";
import { counted, number } from "../text.js";
import { excerpt } from "./excerpt.js";
import { chanceRow } from "./probability.js";
import { createReadingView, cutWarning, markOpen, metaOf, nothingFound, summary,
  titleButton } from "./reading_view.js";

/**
 * @typedef {Object} Answer the best span of a passage
 * @property {number} rank from 1
 * @property {string} answer "" where the passage has nothing to point at
 * @property {[number, number]|null} place code points of the passage's text
 * @property {number|null} score by which answers are in order
 * @property {number} passage_probability p(z|x)
 * @property {number} span_probability p(y|z,x)
 * @property {import("../api.js").Hit} hit
 */

const HINT = "p(z|x) is the share of a passage among those that were read; p(y|z,x) that of the "
  + "marked span among all spans of its passage. The order is that of the scores, which add up "
  + "the relevance of the passage and the reader's score of the span.";

/**
 * @param {import("../main.js").Context} context
 * @returns {{element: HTMLElement, show: (state: import("../state.js").State) => void}}
 */
export function createAnswerView(context) {
  return createReadingView(context, {
    name: "answer",
    label: "Answers",
    missing: "This model answers no questions",
    needed: "points at answers in passages, such as a run of realm_qa",
    failed: "The question was not answered.",
    idle: () => [welcome(context)],
    content: (reply, state) => content(context, reply, state),
    spoken,
    mark: (root, state) => markOpen(root, state.open),
  });
}

function spoken({ answers }) {
  if (!answers.length) return "No passage was found.";
  const best = answers[0].answer;
  return `${best ? `The best answer: ${best}.` : "No answer was found."} `
    + `${counted(answers.length, "passage")} read.`;
}

function content(context, reply, state) {
  const { answers } = reply;
  if (!answers.length) return [nothingFound(state)];
  return [
    summary(context, answers.length, reply),
    cutWarning(context, "question", reply.query),
    answers[0].place ? bestAnswer(answers) : notice("No answer was found",
      "None of the passages below has a span that the model can point at."),
    element("h2.part", {}, "In each passage"),
    element("ol.hits", { "data-hits": true }, ...answers.map(item)),
    element("p.hint.note", {}, HINT),
  ].filter(Boolean);
}

function bestAnswer(answers) {
  const [best] = answers;
  const same = answers.slice(1).filter((one) => one.place && folded(one) === folded(best));
  const places = new Intl.ListFormat("en").format(same.map((one) => String(one.rank)));
  return element("section.best", { "aria-label": "Best answer" },
    element("p.best-answer", { dir: "auto" }, best.answer),
    chances(best),
    element("p.best-of", {}, "from ", element("b", { dir: "auto" }, best.hit.title || best.hit.id),
      best.hit.source ? ` · ${best.hit.source}` : "",
      same.length ? ` · the same answer in passage${same.length === 1 ? "" : "s"} ${places}` : ""));
}

function folded({ answer }) {
  return answer.normalize("NFKC").toLowerCase();
}

function item(one) {
  const { hit, place } = one;
  return element("li.hit", {},
    element("span.rank", { "aria-hidden": "true" }, String(one.rank)),
    element("div.hit-body", {},
      place ? element("p.answer-text", { dir: "auto" }, one.answer)
        : element("p.answer-text.none", {}, "Nothing to point at in this passage"),
      element("div.of-passage", {},
        element("h3", {}, titleButton(hit.id, hit.title || hit.id)),
        metaOf(hit, ...(place ? [`score ${number(one.score)}`] : []))),
      ...excerpt(hit.text, place)),
    element("div.scores", {}, chances(one)));
}

function chances(one) {
  return element("dl.chances", {},
    chanceRow("p(z|x)", "passage", one.passage_probability),
    one.place ? chanceRow("p(y|z,x)", "answer", one.span_probability) : null);
}

function welcome({ info }) {
  return element("section.welcome", {},
    element("p.lead", {}, `${counted(info.passages, "passage")} to read`),
    element("p", {}, "Ask a question. The model finds passages for it, reads each of them with "
      + "the question, and points at the answer in it."));
}
