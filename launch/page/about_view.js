/** Facts of the open version of the bundle. */

import { element } from "./dom.js";
import { count, nameOf } from "./text.js";

const READS = { answer: "to answer questions", fill: "to fill in [MASK]" };
const LABELS = {
  name: "Name", bundle_version: "Version", made: "Made",
  passages: "Passages", kinds: "Representations",
  modes: "Modes", dimension: "Dimension", similarity: "Similarity",
  query_length: "Tokens of a query", passage_length: "Tokens of a passage", sources: "Sources",
  reads: "Reads passages", reranks: "Scores pairs of a question and a passage", version: "Kennel",
};

/**
 * @param {import("./main.js").Context} context
 * @returns {{element: HTMLElement, show: () => void}}
 */
export function createAboutView(context) {
  const root = element("section.about", { "aria-label": "About this bundle" });
  return { element: root, show: () => root.replaceChildren(...content(context.info)) };
}

function content(info) {
  const { contract = {}, ...rest } = info;
  const others = flat(Object.fromEntries(
    Object.entries({ ...rest, ...contract }).filter(([name]) => !(name in LABELS))));
  return [
    element("h2", {}, "This bundle"),
    facts(Object.keys(LABELS).filter((name) => name in info
      && (name !== "dimension" || info.kinds.length)), info),
    ...(Object.keys(others).length
      ? [element("h2", {}, "Contract"), facts(Object.keys(others), others)] : []),
    element("h2", {}, "The server"),
    element("p", {}, "Every view uses the routes that other clients use: ",
      element("a", { href: "docs" }, "documentation of the routes"), ", ",
      element("a", { href: "metrics" }, "metrics"), "."),
  ];
}

/** Fields of fields as one table: {a: {b: 1}} becomes {"a.b": 1}. */
function flat(fields) {
  return Object.fromEntries(Object.entries(fields).flatMap(([name, value]) => {
    if (value === null || typeof value !== "object" || Array.isArray(value)) return [[name, value]];
    return Object.entries(flat(value)).map(([inner, one]) => [`${name}.${inner}`, one]);
  }));
}

function facts(names, info) {
  return element("dl.facts", {}, ...names.map((name) => element("div", {},
    element("dt", {}, LABELS[name] ?? name.replaceAll("_", " ")),
    element("dd", {}, shown(name, info[name])))));
}

function shown(name, value) {
  if (name === "made") return date(value);
  if (name === "reads") return READS[value] ?? "no";
  if (name === "kinds" || name === "modes") return value.map(nameOf).join(", ") || "none";
  if (name === "reranks") return value ? "yes" : "no";
  if (name === "passages" || name.endsWith("_length")) return count(value);
  if (Array.isArray(value)) return value.length ? value.join(", ") : "none";
  return value === null || value === "" ? "none" : String(value);
}

function date(value) {
  const made = new Date(value);
  return Number.isNaN(made.getTime()) ? String(value)
    : `${made.toLocaleString("en-GB",
      { dateStyle: "long", timeStyle: "short", timeZone: "UTC" })} UTC`;
}
