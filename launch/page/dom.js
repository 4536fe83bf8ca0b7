/** Elements without markup in strings: all text is set as text, so no passage can add markup. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Create an HTML element.
 *
 * @param {string} tag name, with classes after dots: "p.notice.error"
 * @param {Object<string, any>} [properties] attributes; "on..." adds a listener, a value of false,
 *   null or undefined is left out
 * @param {...(Node|string|null|undefined)} children
 * @returns {HTMLElement}
 */
export function element(tag, properties = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  return fill(document.createElement(name), classes, properties, children);
}

/**
 * Create an SVG element, as `element` does.
 *
 * @param {string} tag
 * @param {Object<string, any>} [properties]
 * @param {...Node} children
 * @returns {SVGElement}
 */
export function svg(tag, properties = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  return fill(document.createElementNS(SVG, name), classes, properties, children);
}

function fill(node, classes, properties, children) {
  if (classes.length) node.classList.add(...classes);
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/**
 * Set a custom property of CSS; the policy of the page allows this, but no style attribute.
 *
 * @template {HTMLElement} T
 * @param {T} node
 * @param {string} name "--share"
 * @param {number|string} value
 * @returns {T}
 */
export function setProperty(node, name, value) {
  node.style.setProperty(name, String(value));
  return node;
}

/**
 * A bar whose length is a share of its track. Numbers stand next to it, so that it is decoration.
 *
 * @param {number} share 0 to 1; more or less is cut
 * @param {string} [kind] a further class
 * @returns {HTMLElement}
 */
export function bar(share, kind = "plain") {
  const length = Math.min(1, Math.max(0, share || 0));
  const inside = setProperty(element("span.bar-fill"), "--share", length);
  return element(`span.bar.${kind}`, { "aria-hidden": "true" }, inside);
}

/**
 * The element of the page with this id, which index.html must hold.
 *
 * @param {string} id
 * @returns {any}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`index.html has no element with the id '${id}'`);
  return found;
}
