// Single keys and `g` sequences. They do nothing in fields and dialogs, and can be switched off.

import { byId } from "./dom.js";

const SEQUENCE_MS = 1500;
const OFF = "ferry-single-keys-off";

/** Where a key leads after `g`: what the navigation of this person offers. @param {string} key */
function placeOf(key) {
  const items = /** @type {HTMLAnchorElement[]} */ ([...document.querySelectorAll("#side a[data-key]")]);
  return items.find((item) => item.dataset.key === key)?.href;
}

export function startKeys() {
  const dialog = /** @type {HTMLDialogElement} */ (byId("keys"));
  const box = /** @type {HTMLInputElement} */ (byId("single-keys"));
  box.checked = localStorage.getItem(OFF) === null;
  box.addEventListener("change", () => {
    if (box.checked) localStorage.removeItem(OFF);
    else localStorage.setItem(OFF, "1");
  });
  // When keys were pressed, not when a busy page got to them.
  let sinceG_ms = -Infinity;
  document.addEventListener("keydown", (event) => {
    if (!box.checked || isTyping(event) || document.querySelector("dialog[open]")) return;
    const place = placeOf(event.key);
    if (place && event.timeStamp - sinceG_ms < SEQUENCE_MS) location.assign(place);
    else if (event.key === "?") dialog.showModal();
    else if (event.key === ".") byId("pause")?.click();
    else if (event.key === "/") focusField(event);
    sinceG_ms = event.key === "g" ? event.timeStamp : -Infinity;
  });
}

/** @param {KeyboardEvent} event */
function isTyping(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  const inField = target.closest("input, textarea, select, [contenteditable]") !== null;
  return inField || event.ctrlKey || event.metaKey || event.altKey;
}

/** @param {KeyboardEvent} event */
function focusField(event) {
  const field = byId("filter") ?? byId("prompt");
  if (!field) return;
  event.preventDefault();
  field.focus();
}
