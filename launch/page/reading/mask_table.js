/** The table of a [MASK]: a row for each token, a column for each document. */

import { bar, element, setProperty } from "../dom.js";
import { counted } from "../text.js";
import { chance } from "./probability.js";

/**
 * @param {import("./fill_view.js").Mask} mask
 * @param {{title: string, share: number}[]} columns documents; the first is the one without a text
 * @param {[string, string]|null} heading and what is around the [MASK]
 * @param {(column: number) => void} choose
 * @returns {HTMLElement}
 */
export function maskTable(mask, columns, heading, choose) {
  const cells = mask.words.flatMap((word) => word.by_document);
  const most = Math.max(...cells);
  const likeliest = Math.max(...mask.words.map(({ probability, by_document: [alone] }) =>
    Math.max(probability, alone)));
  const table = element("table.tokens", {},
    element("caption.unseen", {}, heading ? `Tokens for ${heading[0]}` : "Tokens for the [MASK]"),
    element("thead", {}, headings(columns, choose)),
    element("tbody", {}, ...mask.words.map((word) => row(word, likeliest, most))));
  listenToArrows(table);
  return element("section.mask", {},
    heading ? element("h2", {}, heading[0], " ",
      element("span.around-mask", { dir: "auto" }, heading[1])) : null,
    effect(mask.words, columns.length - 1),
    element("div.table-wrap", {}, element("div.table-box", {}, table),
      element("div.under-table", {}, element("p.document-readout"), legend(most))));
}

/** One sentence: what reading changes for the likeliest token. */
function effect(words, read) {
  const [{ piece, probability, by_document: [alone] }] = words;
  const first = words.reduce((a, b) => (b.by_document[0] > a.by_document[0] ? b : a));
  const token = element("b", { dir: "auto" }, piece);
  const numbers = [element("b.value", {}, chance(alone)), " to ",
    element("b.value", {}, chance(probability))];
  const isLittle = Math.abs(probability - alone) < 0.02 * Math.max(probability, alone);
  const passages = counted(read, "passage");
  const sentence = !read ? ["Without a passage, ", token, " has the probability ", numbers[0], "."]
    : isLittle ? [`${passages} hardly ${read === 1 ? "changes" : "change"} the probability of `, token, ": ", ...numbers, "."]
      : [`${passages} ${probability > alone ? "raise" : "lower"}${read === 1 ? "s" : ""} the `
        + "probability of ", token, " from ", ...numbers, "."];
  return element("p.effect", {}, ...sentence, ...(first === words[0] ? [] : [
    " Without a passage, ", element("b", { dir: "auto" }, first.piece),
    " is the likeliest of these tokens, with ", element("b.value", {}, chance(
      first.by_document[0])), "."]));
}

function headings(columns, choose) {
  return element("tr", {},
    element("th.token-head", { scope: "col" }, "Token"),
    element("th.mixed-head", { scope: "col" }, element("span.symbol", {}, "p(y|x)"),
      element("span.of", {}, "all documents")),
    ...columns.map(({ title, share }, n) => element("th.document-head", { scope: "col",
      "data-document": n },
    element("button", { type: "button", "data-document": n, tabindex: n ? "-1" : "0",
      "aria-pressed": "false", title, onclick: () => choose(n) },
    n ? element("span.rank", {}, String(n)) : element("span.of", {}, "without a passage"),
    n ? element("span.unseen", {}, `${title}, p(z|x) `) : element("span.unseen", {}, " p(z|x) "),
    element("span.value", {}, chance(share)), bar(share)))));
}

function row(word, likeliest, most) {
  const [alone] = word.by_document;
  const length = setProperty(bar(word.probability / likeliest), "--alone", alone / likeliest);
  length.append(element("span.without-mark"));
  return element("tr", {},
    element("th", { scope: "row", dir: "auto", title: word.piece }, word.piece),
    element("td.mixed", {}, element("div.measure", {},
      element("span.value", {}, chance(word.probability)), length)),
    ...word.by_document.map((value, n) => setProperty(
      element("td.cell", { "data-document": n }, chance(value)), "--share",
      (value / most).toFixed(3))));
}

/** One column can be reached with Tab; left and right, Home and End move between them. */
function listenToArrows(table) {
  const buttons = [...table.querySelectorAll("thead button")];
  const goals = { ArrowLeft: (n) => n - 1, ArrowRight: (n) => n + 1, Home: () => 0,
    End: () => buttons.length - 1 };
  table.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(event.target.closest("button"));
    const goal = at >= 0 && goals[event.key]?.(at);
    if (!buttons[goal]) return;
    event.preventDefault();
    buttons[goal].focus();
  });
  table.addEventListener("focusin", (event) => {
    const focused = event.target.closest("button");
    for (const button of buttons) button.tabIndex = button === focused ? 0 : -1;
  });
}

function legend(most) {
  return element("div.token-legend", {},
    element("span", {}, element("span.tick-sample", { "aria-hidden": "true" }),
      "without a passage"),
    element("span.ramp-legend", {}, element("span", {}, "p(y|z,x) 0"),
      element("span.shades", { "aria-hidden": "true" }), element("span", {}, chance(most))));
}
