// The frame of every page: menus, keys, times. What is live in it: strip.js.

import { byId, find, localTimes, setAttr } from "./dom.js";
import { startKeys } from "./keys.js";

function startMenus() {
  const button = find(document, "#menu-button");
  const side = find(document, "#side");
  const open = (/** @type {boolean} */ wanted) => {
    side.classList.toggle("open", wanted);
    setAttr(button, "aria-expanded", String(wanted));
    if (wanted) /** @type {HTMLElement} */ (find(side, "a.item")).focus();
  };
  button.addEventListener("click", () => open(!side.classList.contains("open")));
  document.addEventListener("click", (event) => {
    const target = /** @type {Node} */ (event.target);
    if (!side.contains(target) && !button.contains(target)) open(false);
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      if (!menu.contains(target)) menu.removeAttribute("open");
    }
  });
  // What the role does not allow does nothing; its title says which role it needs.
  document.addEventListener("click", (event) => {
    const target = /** @type {Element} */ (event.target);
    if (!target.closest(".button[aria-disabled=true]")) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }, { capture: true });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    open(false);
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      menu.removeAttribute("open");
      /** @type {HTMLElement} */ (find(menu, "summary")).focus();
    }
  });
}

byId("show-keys")?.addEventListener("click", () => {
  /** @type {HTMLDialogElement} */ (byId("keys")).showModal();
});
localTimes(document);
startMenus();
startKeys();
