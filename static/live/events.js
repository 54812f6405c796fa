// Decisions and events, newest first. While somebody reads in the list, new ones wait behind a button.

import { byId, find, localTimes, setAttr, setText } from "./dom.js";
import { clock, fullTime } from "./format.js";
import { named } from "./messages.js";

const SHOWN_MAX = 50;

export class EventList {
  /** @param {HTMLElement} list */
  constructor(list) {
    this.list = list;
    this.keys = new Set([...list.children].map((item) => /** @type {HTMLElement} */ (item).dataset.key));
    this.size = SHOWN_MAX;
    // Who asks for older ones has them until the page is left.
    list.addEventListener("htmx:afterSwap", () => {
      this.size = list.childElementCount;
      localTimes(list);
    });
    /** @type {[string, any][]} */
    this.waiting = [];
    this.button = /** @type {HTMLButtonElement} */ (byId("new-events"));
    this.button.addEventListener("click", () => this.show());
    list.addEventListener("mouseleave", () => this.showUnlessRead());
    list.addEventListener("focusout", () => setTimeout(() => this.showUnlessRead()));
  }

  /** @param {Map<string, any[]>} rows @param {Set<string>} changed */
  apply(rows, changed) {
    for (const key of changed) {
      const row = rows.get(key);
      if (!row) continue;
      if (this.keys.has(key)) {
        this.grow(key, named("events", row));
        continue;
      }
      this.keys.add(key);
      this.waiting.push([key, named("events", row)]);
    }
    this.showUnlessRead();
  }

  isRead() {
    return this.list.matches(":hover, :focus-within") || this.list.scrollTop > 0;
  }

  showUnlessRead() {
    if (!this.isRead()) this.show();
    else if (this.waiting.length) {
      this.button.hidden = false;
      setText(this.button, `${this.waiting.length} new`);
    }
  }

  show() {
    this.button.hidden = true;
    if (!this.waiting.length) return;
    this.waiting.sort(([, a], [, b]) => a.at_unix_s - b.at_unix_s);
    for (const [key, event] of this.waiting.splice(0)) this.insert(key, event);
    const items = /** @type {HTMLElement[]} */ ([...this.list.querySelectorAll("li[data-key]")]);
    for (const last of items.slice(this.size)) {
      this.keys.delete(last.dataset.key);
      last.remove();
    }
    byId("no-event")?.setAttribute("hidden", "");
  }

  /** An event that is there changes in its place. @param {string} key @param {any} event */
  grow(key, event) {
    const at = this.waiting.findIndex(([waiting]) => waiting === key);
    if (at >= 0) this.waiting[at] = [key, event];
    const item = this.list.querySelector(`li[data-key="${CSS.escape(key)}"]`);
    if (!item) return;
    const isNewer = Date.parse(find(item, "time").getAttribute("datetime") ?? "") < event.at_unix_s * 1000 - 1;
    fill(item, event);
    // It is the newest now; whoever reads the list keeps its order.
    if (isNewer && !this.isRead()) this.list.prepend(item);
  }

  /** @param {string} key @param {any} event */
  insert(key, event) {
    const template = /** @type {HTMLTemplateElement} */ (byId("tpl-event"));
    const item = find(/** @type {DocumentFragment} */ (template.content.cloneNode(true)), "li");
    setAttr(item, "data-key", key);
    fill(item, event);
    this.list.prepend(item);
  }
}

const GLYPHS = {
  moved: "#ic-moves", move_aborted: "#ic-cross",
  scaling_grow: "#ic-scaling", scaling_shrink: "#ic-scaling", scaling_undrain: "#ic-scaling", scaling_refused: "#ic-scaling",
};

/** @param {Element} item @param {any} event */
function fill(item, event) {
  setAttr(item, "data-severity", event.severity);
  const glyph = GLYPHS[/** @type {keyof typeof GLYPHS} */ (event.kind)] ?? "#ic-info";
  setAttr(find(item, "use"), "href", event.severity === "info" ? glyph : "#ic-warn");
  const link = find(item, "b a");
  setText(link, event.headline);
  setAttr(link, "href", event.link || null);
  setText(find(item, "p"), event.detail);
  const time = find(item, "time");
  setText(time, clock(event.at_unix_s));
  setAttr(time, "datetime", new Date(event.at_unix_s * 1000).toISOString());
  setAttr(time, "title", fullTime(event.at_unix_s));
}
