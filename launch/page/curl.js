/** The requests that brought what is shown, as lines for a shell. */

import { byId, element } from "./dom.js";
import { readKey } from "./key_dialog.js";
import { readingBody } from "./reading/requests.js";
import { searchBody } from "./search_view.js";
import { sourcesBody } from "./sources/sources_request.js";
import { hasQuery } from "./state.js";

/**
 * @param {import("./main.js").Context} context
 * @returns {{show: (state: import("./state.js").State) => void}}
 */
export function createCurl(context) {
  const root = byId("curl");
  return {
    show(state) {
      root.replaceChildren(...requests(context, state).map(([path, body]) => row(path, body)));
    },
  };
}

/** [path, body] of each request of a state. */
function requests(context, state) {
  if (state.view === "answer" || state.view === "fill") {
    const body = readingBody(context, state);
    return [body ? [state.view, body] : ["info", null]];
  }
  if (state.view === "sources" && !sourcesBody(context, state)) return [["info", null]];
  const isMap = state.view === "map" && context.info.kinds.includes("dense");
  const first = isMap ? [["map", null]] : [];
  if (state.view === "training" && context.info.curves) return [["curves", null]];
  if (!hasQuery(state) || !state.query) return isMap ? first : [["info", null]];
  const { query, k, open } = state;
  const main = state.view === "compare" ? ["compare", { query, k }]
    : state.view === "sources" ? ["sources", sourcesBody(context, state)]
      : ["search", searchBody(context, state)];
  return [...first, main, ...(open ? [["evidence", { query, id: open }]] : [])];
}

/**
 * A line for a POSIX shell. The key is named and not shown.
 *
 * @param {string} path
 * @param {Object|null} body
 * @returns {string}
 */
export function curlLine(path, body) {
  const parts = ["curl", "-s", quoted(new URL(path, document.baseURI).href)];
  if (readKey()) parts.push("-H", '"Authorization: Bearer $KENNEL_KEY"');
  if (body) {
    parts.push("-H", quoted("Content-Type: application/json"), "-d", quoted(JSON.stringify(body)));
  }
  return parts.join(" ");
}

function quoted(text) {
  return /^[\w:/.-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function row(path, body) {
  const line = curlLine(path, body);
  const copy = element("button.quiet", { type: "button", "aria-label": `Copy curl for ${path}` },
    "Copy");
  copy.addEventListener("click", async () => {
    copy.textContent = await copied(line) ? "Copied" : "Press Ctrl+C";
    window.setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  return element("div.curl-row", {},
    element("code", { tabindex: "0", role: "group", "aria-label": `curl for ${path}` }, line),
    copy);
}

/** Copy; where the clipboard is closed, as it is without TLS, the line is selected instead. */
async function copied(line) {
  try {
    await window.navigator.clipboard.writeText(line);
    return true;
  } catch {
    const code = [...document.querySelectorAll("#curl code")]
      .find((found) => found.textContent === line);
    if (code) window.getSelection().selectAllChildren(code);
    return false;
  }
}
