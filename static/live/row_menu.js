// What an instance's row offers: one menu for all rows, and the keys `d` and `c` for the row that
// has the focus, or for the instance that the page is about. Each leads to a dialog.

import { byId } from "./dom.js";

const SEQUENCE_MS = 1500;
const KEYS = { d: "drain", c: "cordon" };

/** @param {string} name @param {string} action */
const urlOf = (name, action) => `/instances/${encodeURIComponent(name)}/${action}/`;

/** What can be done, by what is wanted. @param {string} wanted @returns {[string, string][]} */
function actionsFor(wanted) {
  if (wanted === "stopped") return [["release", "Start…"]];
  if (wanted === "drained") return [["release", "Undrain…"], ["stop", "Stop…"]];
  const first = wanted === "cordoned" ? ["release", "Uncordon…"] : ["cordon", "Cordon…"];
  return [/** @type {[string, string]} */ (first), ["drain", "Drain…"], ["restart", "Restart…"], ["stop", "Stop…"]];
}

const box = document.createElement("div");
box.className = "menu-box";
box.id = "row-menu-box";
box.setAttribute("role", "menu");
box.hidden = true;
/** @type {HTMLElement | null} */
let opener = null;

/** @param {string} href @param {string} words @param {boolean} isDialog */
function item(href, words, isDialog) {
  const link = document.createElement("a");
  link.href = href;
  link.textContent = words;
  link.setAttribute("role", "menuitem");
  if (isDialog) link.dataset.dialog = "";
  return link;
}

/** @param {HTMLElement} link */
function open(link) {
  close();
  const row = /** @type {HTMLElement} */ (link.closest("tr.row"));
  const name = row.dataset.name ?? "";
  const page = item(`/instances/${encodeURIComponent(name)}/`, "Open", false);
  const links = actionsFor(row.dataset.wanted ?? "serving").map(([action, words]) => item(urlOf(name, action), words, true));
  if (link.getAttribute("aria-disabled") === "true") {
    for (const one of links) {
      one.classList.add("button");
      one.setAttribute("aria-disabled", "true");
      one.title = link.title;
    }
  }
  box.replaceChildren(page, ...links);
  box.setAttribute("aria-label", name);
  document.body.append(box);
  box.hidden = false;
  const at = link.getBoundingClientRect();
  const below = at.bottom + box.offsetHeight < innerHeight;
  box.style.setProperty("left", `${Math.max(4, at.right + scrollX - box.offsetWidth)}px`);
  box.style.setProperty("top", `${scrollY + (below ? at.bottom + 2 : at.top - box.offsetHeight - 2)}px`);
  link.setAttribute("aria-expanded", "true");
  opener = link;
  page.focus();
}

function close() {
  box.hidden = true;
  opener?.setAttribute("aria-expanded", "false");
  opener = null;
}

/** @param {KeyboardEvent} event */
function step(event) {
  const items = /** @type {HTMLElement[]} */ ([...box.querySelectorAll("a")]);
  const at = items.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  items[(next + items.length) % items.length].focus();
}

document.addEventListener("click", (event) => {
  const target = /** @type {Element} */ (event.target);
  const link = /** @type {HTMLElement | null} */ (target.closest("a.row-menu"));
  if (link && event.button === 0 && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    if (opener === link) close();
    else open(link);
  } else if (!box.hidden) {
    // After the dialog's own listener has taken the link.
    setTimeout(close);
  }
});
addEventListener("scroll", close, { capture: true, passive: true });

/** The instance that a key is meant for. */
function current() {
  const row = /** @type {HTMLElement | null} */ (document.activeElement?.closest("tr.row") ?? null);
  return row?.dataset.name ?? byId("instance")?.dataset.name;
}

let sinceG_ms = 0;
document.addEventListener("keydown", (event) => {
  if (!box.hidden) {
    if (event.key === "Escape") {
      const back = opener;
      close();
      back?.focus();
    } else step(event);
    return;
  }
  const target = /** @type {HTMLElement} */ (event.target);
  const isOff = byId("single-keys") instanceof HTMLInputElement && !(/** @type {HTMLInputElement} */ (byId("single-keys")).checked);
  const inField = target.closest("input, textarea, select, [contenteditable]") !== null;
  const isAfterG = Date.now() - sinceG_ms < SEQUENCE_MS;
  sinceG_ms = event.key === "g" ? Date.now() : 0;
  if (isOff || inField || isAfterG || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const action = KEYS[event.key], name = current();
  if (!action || !name) return;
  const link = item(urlOf(name, action), "", true);
  link.hidden = true;
  document.body.append(link);
  link.click();
  link.remove();
});

// Enter must not do what can end answers: the name is typed and the button pressed.
document.addEventListener("keydown", (event) => {
  const target = /** @type {Element} */ (event.target);
  if (event.key !== "Enter" || !target.matches("form.drain-form input")) return;
  const form = /** @type {HTMLFormElement} */ (target.closest("form"));
  if (form.dataset.grade === "C" || form.querySelector("[value=end]:checked")) event.preventDefault();
});
