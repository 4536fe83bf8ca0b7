/** Light, dark, or what the system prefers. */

import { byId } from "./dom.js";
import { change } from "./state.js";

const NEXT = { "": "light", light: "dark", dark: "" };
const LABELS = { "": "auto", light: "light", dark: "dark" };
const listeners = new Set();
const system = window.matchMedia("(prefers-color-scheme: dark)");

/** @param {import("./state.js").State} state */
export function showTheme(state) {
  const button = byId("theme");
  const changed = document.documentElement.dataset.theme !== state.theme;
  document.documentElement.dataset.theme = state.theme;
  button.textContent = `Theme: ${LABELS[state.theme]}`;
  button.onclick = () => change({ theme: NEXT[state.theme] }, { replace: true });
  if (changed) announce();
}

/**
 * Call a function when colours change; what is drawn on a canvas does not follow them by itself.
 *
 * @param {() => void} listener
 * @returns {() => void} ends it
 */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function announce() {
  for (const listener of listeners) listener();
}

system.addEventListener("change", announce);
