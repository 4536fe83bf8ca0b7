/** The key of a server that wants one. It is kept for this tab, and never in the URL. */

import { element } from "./dom.js";

const NAME = "kennel-key";
const KEY = /^[!-~]+$/; // as of the server; `fetch` sends no header with other characters
/** @type {Promise<boolean>|null} */
let asking = null;

/** @returns {string} "" without one; one that no server can have is dropped */
export function readKey() {
  const key = window.sessionStorage.getItem(NAME) ?? "";
  if (KEY.test(key)) return key;
  window.sessionStorage.removeItem(NAME);
  return "";
}

/**
 * Ask for the key; requests that fail together share one dialog.
 *
 * @param {boolean} refused the key that was sent is wrong
 * @returns {Promise<boolean>} whether one was given
 */
export function askForKey(refused) {
  asking ??= open(refused).finally(() => {
    asking = null;
  });
  return asking;
}

function open(refused) {
  const input = element("input", {
    id: "key", name: "key", type: "password", required: true, autocomplete: "off",
    "aria-describedby": "key-hint",
  });
  input.addEventListener("input", () => input.setCustomValidity(problem(input.value.trim())));
  const hint = refused ? "The server did not accept this key."
    : "It is kept until this tab is closed, and sent to this server only.";
  const dialog = element("dialog.key-dialog", { "aria-labelledby": "key-title" },
    element("form", { method: "dialog" },
      element("h2", { id: "key-title" }, "This server needs a key"),
      element("label", { for: "key" }, "API key"),
      input,
      element(refused ? "p.hint.wrong" : "p.hint", { id: "key-hint" }, hint),
      element("div.buttons", {},
        element("button.quiet", { type: "button", onclick: () => dialog.close("") }, "Cancel"),
        element("button.primary", { type: "submit", value: "given" }, "Continue"))));
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const key = input.value.trim();
      const given = dialog.returnValue === "given" && KEY.test(key);
      if (given) window.sessionStorage.setItem(NAME, key);
      dialog.remove();
      resolve(given);
    });
  });
}

/** What is wrong with a key, "" if nothing: often a character that came with a copy of it. */
function problem(key) {
  const wrong = [...key].find((character) => !KEY.test(character));
  if (wrong === undefined) return "";
  const code = wrong.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  return `Expected letters, digits and signs of ASCII without spaces, found U+${code}`;
}
