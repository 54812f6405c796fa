// Opens actions in the page's dialog: a link with `data-dialog` leads to a page of its own without
// this. A form that is sent shows that it is, once; what the server refuses stands in the dialog.

import { byId, find } from "./dom.js";

const TIMEOUT_MS = 20_000;
const dialog = /** @type {HTMLDialogElement} */ (byId("action"));
/** @type {Element | null} */
let opener = null;

/** Shows the form of an answer. @param {string} text @returns {boolean} whether there was one */
function show(text) {
  const form = new DOMParser().parseFromString(text, "text/html").querySelector("form.action-form");
  if (!form) return false;
  dialog.replaceChildren(form);
  if (!dialog.open) dialog.showModal();
  const alert = /** @type {HTMLElement | null} */ (dialog.querySelector("[role=alert]"));
  alert?.focus();
  return true;
}

/** @param {string} url */
async function open(url) {
  try {
    const answer = await fetch(url, { headers: { "HX-Request": "true" }, signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (answer.redirected || !show(await answer.text())) location.assign(url);
  } catch {
    location.assign(url);
  }
}

/** @param {HTMLFormElement} form @param {boolean} isBusy @param {string} [words] */
function busy(form, isBusy, words) {
  for (const button of form.querySelectorAll("button")) {
    // Its width is kept: nothing moves under the cursor.
    button.style.setProperty("min-width", `${button.offsetWidth}px`);
    if (isBusy && words) button.textContent = words;
    button.toggleAttribute("disabled", isBusy);
  }
}

/** @param {HTMLFormElement} form */
async function send(form) {
  const body = new FormData(form);
  busy(form, true);
  try {
    const answer = await fetch(form.action, {
      method: "POST", body, headers: { "HX-Request": "true" }, signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    if (answer.redirected) location.assign(answer.url);
    else if (!show(await answer.text())) fail(form, `The server answered ${answer.status}.`);
  } catch {
    fail(form, form.dataset.unknown ?? "The server did not answer. Whether the move began stands under Migrations.");
  }
}

/** @param {HTMLFormElement} form @param {string} words */
function fail(form, words) {
  busy(form, false);
  let alert = form.querySelector("[role=alert]");
  if (!alert) {
    alert = document.createElement("p");
    alert.className = "alert";
    alert.setAttribute("role", "alert");
    find(form, ".foot").before(alert);
  }
  alert.textContent = words;
}

document.addEventListener("click", (event) => {
  const target = /** @type {Element} */ (event.target);
  if (dialog.contains(target) && target.closest("[data-close]")) {
    event.preventDefault();
    dialog.close();
    return;
  }
  const link = target.closest("a[data-dialog]");
  const isPlain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
  if (!link || !isPlain) return;
  event.preventDefault();
  opener = link;
  open(/** @type {HTMLAnchorElement} */ (link).href);
});
dialog.addEventListener("close", () => {
  const href = opener?.getAttribute("href");
  // The row may have been drawn anew meanwhile.
  const again = opener?.isConnected ? opener : document.querySelector(`a[data-dialog][href="${CSS.escape(href ?? "")}"]`);
  /** @type {HTMLElement | null} */ (again)?.focus();
});
document.addEventListener("submit", (event) => {
  const form = /** @type {HTMLFormElement} */ (event.target);
  if (form.classList.contains("action-form")) {
    event.preventDefault();
    send(form);
  } else if (form.dataset.busy) {
    // After the browser has taken the form's values.
    setTimeout(() => busy(form, true, form.dataset.busy));
  }
});
