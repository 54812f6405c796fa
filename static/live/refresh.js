// Fetches parts of the page anew: an element with `data-refresh` is asked for from that address each
// `data-every-ms`, until the answer no longer has the attribute. Only those of its `data-part`s are
// replaced that differ, and not one with `data-hold` that is pointed at.

import { localTimes } from "./dom.js";
import { live } from "./socket.js";

const RETRY_MS = 2000;
const TIMEOUT_MS = 5000;

/** Somebody reads or is about to press something here. @param {Element} part */
const isRead = (part) => part.hasAttribute("data-hold") && part.matches(":hover, :has(:focus-visible)");

/** Replaces those `[data-part]` elements that differ. @param {Element} old @param {Element} fresh */
function update(old, fresh) {
  const known = new Map([...old.querySelectorAll("[data-part]")].map((e) => [e.getAttribute("data-part"), e]));
  const wanted = [...fresh.querySelectorAll("[data-part]")];
  const names = wanted.map((e) => e.getAttribute("data-part"));
  if (names.join() !== [...known.keys()].join()) {
    if (![...known.values()].some(isRead)) old.replaceChildren(...fresh.childNodes);
  } else {
    for (const part of wanted) {
      const before = /** @type {Element} */ (known.get(part.getAttribute("data-part")));
      localTimes(part);
      if (!isRead(before) && !before.isEqualNode(part)) replace(before, part);
    }
  }
  localTimes(old);
  for (const name of ["data-refresh", "data-state"]) {
    const value = fresh.getAttribute(name);
    if (value === null) old.removeAttribute(name);
    else old.setAttribute(name, value);
  }
}

/** Keeps the focus where it is. @param {Element} before @param {Element} part */
function replace(before, part) {
  const focused = document.activeElement;
  const id = focused && before.contains(focused) ? focused.getAttribute("href") ?? focused.id : null;
  before.replaceWith(part);
  if (id === null) return;
  const again = [...part.querySelectorAll("a, button, [tabindex]")].find((e) => e.id === id || e.getAttribute("href") === id);
  /** @type {HTMLElement | undefined} */ (again)?.focus();
}

const isHeld = () => document.hidden || live.paused || document.querySelector("dialog[open]") !== null;

/** @param {Element} element */
async function follow(element) {
  const url = element.getAttribute("data-refresh");
  if (url === null || !element.isConnected) return;
  const every_ms = Number(element.getAttribute("data-every-ms"));
  let wait_ms = every_ms;
  if (!isHeld()) {
    try {
      const answer = await fetch(url, { headers: { "HX-Request": "true" }, signal: AbortSignal.timeout(TIMEOUT_MS) });
      // The login page, or a refusal: the strip says that the session ended.
      if (answer.redirected || answer.status === 403 || answer.status === 404) {
        element.setAttribute("data-old", "");
        return;
      }
      if (!answer.ok) throw new Error(String(answer.status));
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(element.id);
      if (fresh && !isHeld()) update(element, fresh);
      element.removeAttribute("data-old");
    } catch {
      element.setAttribute("data-old", "");
      wait_ms = RETRY_MS;
    }
  }
  setTimeout(() => follow(element), wait_ms);
}

const followed = new WeakSet();

/** @param {Element} element */
function begin(element) {
  if (followed.has(element)) return;
  followed.add(element);
  setTimeout(() => follow(element), Number(element.getAttribute("data-every-ms")));
}

document.querySelectorAll("[data-refresh]").forEach(begin);
// What a filter has put in place is followed too.
document.addEventListener("htmx:afterSettle", () => document.querySelectorAll("[data-refresh]").forEach(begin));
