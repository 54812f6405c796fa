// Keys and forms of the tenants' pages: copy a secret, keep it until it is saved, suggest a short
// name. Everything works without it.

const COPIED_MS = 2000;

/** @param {string} id */
const field = (id) => /** @type {HTMLInputElement | null} */ (document.getElementById(id));

/** @param {Element} button */
async function copy(button) {
  const source = field(button.getAttribute("data-copy") ?? "");
  if (!source) return;
  const text = source.value ?? source.textContent ?? "";
  const word = /** @type {Element} */ (button.querySelector("span"));
  try {
    await navigator.clipboard.writeText(text);
    word.textContent = "Copied";
  } catch {
    // No permission, or no TLS: the text is marked, so that the keys of the system copy it.
    source.select?.();
    word.textContent = "Ctrl C";
  }
  setTimeout(() => (word.textContent = "Copy"), COPIED_MS);
}

/** Whether a secret stands here that is not saved yet. */
function isUnsaved() {
  const saved = field("saved");
  return document.querySelector("[data-secret]") !== null && saved !== null && !saved.checked;
}

function guardSecret() {
  const done = document.getElementById("secret-done");
  if (done) done.setAttribute("aria-disabled", String(isUnsaved()));
}

/** "Team Blue" becomes team-blue, until somebody writes another one. @param {HTMLInputElement} name */
function suggest(name) {
  const slug = field("id_slug");
  if (!slug || slug.dataset.own) return;
  slug.value = name.value.normalize("NFKD").toLowerCase()
    .replaceAll(/[^a-z0-9]+/g, "-").replaceAll(/^-|-$/g, "").slice(0, 50);
}

document.addEventListener("click", (event) => {
  const target = /** @type {Element} */ (event.target);
  const button = target.closest("[data-copy]");
  if (button) copy(button);
  if (target.closest("#secret-done") && isUnsaved()) event.preventDefault();
});
document.addEventListener("change", guardSecret);
document.addEventListener("input", (event) => {
  const target = /** @type {HTMLInputElement} */ (event.target);
  if (target.id === "id_slug") target.dataset.own = "yes";
  if (target.id === "id_name") suggest(target);
});
document.addEventListener("keydown", (event) => {
  const target = /** @type {Element} */ (event.target);
  // What cannot be taken back is not done by a stray Enter.
  if (event.key === "Enter" && target.matches("form[data-grade=C] input")) event.preventDefault();
});

const dialog = document.getElementById("action");
dialog?.addEventListener("cancel", (event) => {
  if (isUnsaved()) event.preventDefault();
});
if (dialog) new MutationObserver(guardSecret).observe(dialog, { childList: true });
guardSecret();
