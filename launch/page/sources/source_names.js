/** Names of sources: of languages, where the sources of a bundle are codes of languages. */

const CODE = /^[a-z]{2,3}(-[A-Z][a-z]{3})?(-([A-Z]{2}|\d{3}))?$/; // BCP 47: language, script, region
const [FEWEST, MOST] = [2, 24]; // sources that are shown side by side; /sources takes no more
const NAMES = languageNames();

function languageNames() {
  try {
    return new Intl.DisplayNames(["en"], { type: "language", fallback: "none" });
  } catch {
    return null; // of a browser that knows no names
  }
}

/**
 * Whether the sources of a bundle are shown side by side.
 *
 * @param {string[]} sources
 */
export function areShown(sources) {
  return sources.length >= FEWEST && sources.length <= MOST;
}

/**
 * The name of a language.
 *
 * @param {string} source
 * @returns {string} "" where it is no code of a language that the browser knows
 */
export function languageOf(source) {
  return (CODE.test(source) && NAMES?.of(source)) || "";
}

/**
 * Whether all sources are codes of languages. Where a few are unknown to the browser, they are
 * languages all the same: most others are known.
 *
 * @param {string[]} sources
 */
export function areLanguages(sources) {
  const known = sources.filter((source) => languageOf(source)).length;
  return sources.length > 0 && sources.every((source) => CODE.test(source))
    && known * 2 > sources.length;
}

/**
 * The name of the view.
 *
 * @param {string[]} sources
 */
export function viewName(sources) {
  return areLanguages(sources) ? "Languages" : "By source";
}
