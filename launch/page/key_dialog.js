/** The key of a server that wants one. It is kept for this tab, and never in the URL. */

import { element } from "./dom.js";

const NAME = "kennel-key";
/** @type {Promise<boolean>|null} */
let asking = null;

/** @returns {string} "" without one */
export function readKey() {
  return window.sessionStorage.getItem(NAME) ?? "";
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
      const given = dialog.returnValue === "given" && input.value !== "";
      if (given) window.sessionStorage.setItem(NAME, input.value);
      dialog.remove();
      resolve(given);
    });
  });
}
