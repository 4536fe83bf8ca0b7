/** Next to the map: the passage that is selected, the hits, and the sources with their colours. */

import { element } from "../dom.js";
import { placeholder, warning } from "../notices.js";
import { count, counted, number } from "../text.js";

const TEASER = 80; // characters of a hit; CSS cuts them at the end of the line

/**
 * @param {{title: string, text: string, source: string, id: string}} passage
 * @returns {HTMLElement[]} title, beginning and source
 */
export function passageLines(passage) {
  const { id, title, text, source } = passage;
  return [
    element("p.map-title", { dir: "auto" }, title || id),
    element("p.map-text", { dir: "auto" }, text),
    source ? element("p.meta", {}, element("span.source", {}, source)) : null,
  ].filter(Boolean);
}

/**
 * @param {Object|null} passage that is selected
 * @param {boolean} hasQuery
 * @param {{search: () => void, open: () => void}} actions
 * @returns {HTMLElement}
 */
export function passageCard(passage, hasQuery, actions) {
  if (!passage) {
    return element("section.map-card", { "aria-label": "Selected passage" },
      element("p.hint", {}, hasQuery
        ? "Point at a passage to read it, and click it to see why it was found, or was not."
        : "Point at a passage to read it, and click it to search for its title. The hits are "
          + "marked."));
  }
  const similar = passage.title ? "Search for its title" : "Search for its first words";
  return element("section.map-card.is-chosen", { "aria-label": "Selected passage" },
    element("div", { "aria-live": "polite" }, ...passageLines(passage)),
    element("div.buttons", {},
      hasQuery ? button("Evidence", actions.open) : null,
      button(similar, actions.search)));
}

function button(label, action) {
  return element("button.quiet", { type: "button", onclick: action }, label);
}

/**
 * The hits as a list; keys move in it as in the other views.
 *
 * @param {import("../api.js").Hit[]|null} hits null while they are awaited
 * @param {{isOn: (id: string) => boolean, open: string}} places
 * @param {{open: (id: string) => void, point: (id: string) => void}} actions
 * @returns {HTMLElement}
 */
export function hitList(hits, places, actions) {
  const root = element("section.map-hits", {}, element("h2", {}, "Hits"));
  if (!hits) {
    root.append(placeholder(2));
  } else if (!hits.length) {
    root.append(element("p.hint", {}, "No passage was found. Try other words, or another mode."));
  } else {
    const away = hits.filter((hit) => !places.isOn(hit.id)).length;
    const text = `${count(away)} of ${counted(hits.length, "hit")} not on the map.`;
    if (away) root.append(warning(text));
    root.append(element("ol", { "data-hits": true }, ...hits.map((hit) => element("li", {},
      element("button.map-hit", { type: "button", "data-hit": hit.id, "aria-controls": "evidence",
        "aria-expanded": String(hit.id === places.open), onclick: () => actions.open(hit.id),
        onfocus: () => actions.point(hit.id), onblur: () => actions.point(""),
        onpointerenter: () => actions.point(hit.id), onpointerleave: () => actions.point("") },
      element("span.rank", {}, String(hit.rank)),
      element("span.map-hit-title", { dir: "auto" }, hit.title || hit.id),
      element("span.value", {}, number(hit.score)),
      element("span.map-hit-text", { dir: "auto" }, hit.text.slice(0, TEASER)))))));
  }
  return root;
}

/**
 * The sources, the largest first. A button shows one source alone.
 *
 * @param {import("./map_colours.js").Group[]} groups
 * @param {string} chosen source, or ""
 * @param {(source: string) => void} choose
 * @returns {HTMLElement|null} null where passages have no source
 */
export function legend(groups, chosen, choose) {
  if (groups.every(({ name }) => name === "")) return null;
  const order = groups.toSorted((a, b) => b.passages - a.passages);
  const shown = order.filter(({ colour, name }) => colour !== "other" || name === chosen);
  const others = order.filter((group) => !shown.includes(group));
  const passages = others.reduce((sum, group) => sum + group.passages, 0);
  return element("section.map-legend", {}, element("h2.unseen", {}, "Sources"),
    element("ul", {}, ...shown.map((group) => element("li", {}, key(group, chosen, choose))),
      others.length ? element("li", {}, element("span.map-key", {}, ...keyParts("other",
        counted(others.length, "other source"), passages))) : null));
}

function key({ name, passages, colour }, chosen, choose) {
  const parts = keyParts(chosen && colour === "other" ? "ink" : colour, name || "No source",
    passages);
  if (!name) return element("span.map-key", {}, ...parts);
  return element("button.map-key", { type: "button", "aria-pressed": String(name === chosen),
    title: name, onclick: () => choose(name === chosen ? "" : name) }, ...parts);
}

function keyParts(colour, name, passages) {
  return [element("span.map-colour.swatch", { "data-colour": colour, "aria-hidden": "true" }),
    element("span.map-key-name", { dir: "auto" }, name),
    element("span.value", {}, count(passages))];
}
