// Writes to the document only what changed; never parses text as HTML.

/** @param {Element} element @param {string} text */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** @param {Element} element @param {string} name @param {string | null} value null removes it */
export function setAttr(element, name, value) {
  if (value === null) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== value) {
    element.setAttribute(name, value);
  }
}

/** @template {Element} T @param {ParentNode} parent @param {string} selector @returns {T} */
export function find(parent, selector) {
  const element = parent.querySelector(selector);
  if (!element) throw new Error(`the page has no ${selector}`);
  return /** @type {T} */ (element);
}

/** @param {string} id */
export const byId = (id) => document.getElementById(id);

/** Reads a JSON data block of the page. @param {string} id */
export function dataBlock(id) {
  return JSON.parse(byId(id)?.textContent ?? "null");
}

/** @param {string} name @param {Record<string, string>} attributes */
export function svg(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

/** Writes all times of a part of the page in the reader's own zone. @param {ParentNode} parent */
export function localTimes(parent) {
  for (const time of parent.querySelectorAll("time[datetime]")) {
    const at = new Date(time.getAttribute("datetime") ?? "");
    setText(time, at.toLocaleTimeString("en-GB"));
    const full = at.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "long" });
    setAttr(time, "title", full);
  }
}

let lastSpoken_ms = 0;
let timer = 0;
/** @type {string[]} */
let queue = [];

/** Speaks to screen readers, at most once in 5 s; what comes meanwhile is merged. @param {string} text */
export function speak(text) {
  queue.push(text);
  clearTimeout(timer);
  timer = setTimeout(() => {
    const region = byId("spoken");
    if (region) region.textContent = queue.slice(-3).join(". ");
    queue = [];
    lastSpoken_ms = Date.now();
  }, Math.max(100, lastSpoken_ms + 5000 - Date.now()));
}

/** The query that names the page's pool, for what a script asks the server. */
export function ofPool() {
  const shell = /** @type {HTMLElement | null} */ (document.querySelector(".shell"));
  return new URLSearchParams({ pool: shell?.dataset.pool ?? "" }).toString();
}
