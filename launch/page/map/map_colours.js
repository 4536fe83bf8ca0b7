/** A colour for each source: the largest ones have their own, the others share one. */

import { element } from "../dom.js";

const COLOURS = 8; // that map.css names, from 0
const OTHERS = ["other", "faint", "ink", "paper", "accent"];

/**
 * A source on the map.
 *
 * @typedef {Object} Group
 * @property {string} name "" of passages without one
 * @property {number} passages
 * @property {string} colour of `coloursIn`
 */

/**
 * @param {{sources: string[], groups: number[]}} map
 * @returns {Group[]} by their number
 */
export function groupsOf(map) {
  const counts = map.sources.map(() => 0);
  for (const group of map.groups) counts[group] += 1;
  const order = [...counts.keys()].sort((a, b) => counts[b] - counts[a]);
  return counts.map((passages, group) => {
    const rank = order.indexOf(group);
    return { name: map.sources[group], passages,
      colour: rank < COLOURS ? String(rank) : "other" };
  });
}

/**
 * Whether a group may hold passages of a source. Groups may be beginnings of sources, and so may
 * the source that was chosen.
 *
 * @param {string} name of the group
 * @param {string} source "" for all
 */
export function isOfSource(name, source) {
  return name.startsWith(source) || (name !== "" && source.startsWith(name));
}

/**
 * The colours of the present theme, as a canvas takes them.
 *
 * @param {HTMLElement} parent
 * @returns {Object<string, string>}
 */
export function coloursIn(parent) {
  const probe = element("span.map-colour", { hidden: true });
  parent.append(probe);
  const names = [...Array.from({ length: COLOURS }, (_, rank) => String(rank)), ...OTHERS];
  const colours = Object.fromEntries(names.map((name) => {
    probe.dataset.colour = name;
    return [name, window.getComputedStyle(probe).color];
  }));
  probe.remove();
  return colours;
}
