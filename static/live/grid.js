// A pool too large for rows: one cell an instance, by node; the legend counts and filters.

import { byId, find, setAttr, setText, svg } from "./dom.js";
import { NODE_MAX_CHARS, byName, shortName, stateWord } from "./format.js";

export class Grid {
  /** @param {HTMLElement} grid @param {HTMLElement} legend */
  constructor(grid, legend) {
    this.grid = grid;
    this.legend = legend;
    /** @type {Map<string, SVGElement>} */
    this.cells = new Map();
    for (const cell of grid.querySelectorAll("svg.cell")) this.cells.set(cell.dataset.name, cell);
    this.text = "";
    this.key = "";
    legend.addEventListener("click", (event) => this.press(event));
    grid.addEventListener("keydown", (event) => this.move(event));
    const first = this.cells.values().next().value;
    if (first) first.setAttribute("tabindex", "0");
  }

  /** @param {Map<string, any[]>} rows @param {Set<string>} changed @param {Set<string>} gone */
  apply(rows, changed, gone) {
    for (const name of gone) this.remove(name);
    for (const name of changed) {
      const row = rows.get(name);
      if (row) this.put(name, row);
    }
    this.count();
    this.dim();
  }

  /** @param {string} name @param {any[]} row */
  put(name, [node, state, level]) {
    const box = this.box(node);
    let cell = this.cells.get(name);
    if (!cell) {
      cell = /** @type {SVGElement} */ (svg("svg", { class: "cell", viewBox: "0 0 17 17", role: "img", tabindex: "-1", "data-name": name }));
      cell.append(svg("title", {}), svg("rect", { width: "17", height: "17", rx: "3" }));
      this.cells.set(name, cell);
    }
    if (cell.parentNode !== box) {
      const next = [...box.children].find((c) => byName(/** @type {SVGElement} */ (c).dataset.name, name) > 0);
      box.insertBefore(cell, next ?? null);
    }
    setAttr(cell, "data-state", state);
    setAttr(cell, "data-level", level);
    setAttr(cell, "aria-label", `${name}, ${stateWord(state).toLowerCase()}, node ${node}`);
    this.glyph(cell, state);
    setText(find(cell, "title"), `${name}, ${stateWord(state).toLowerCase()}`);
  }

  /**
   * Only what does not serve has a glyph: hundreds of hidden ones would cost the page its budget.
   * @param {SVGElement} cell @param {string} state
   */
  glyph(cell, state) {
    let use = cell.querySelector("use");
    if (state === "serving") {
      use?.remove();
      return;
    }
    if (!use) {
      use = /** @type {SVGUseElement} */ (svg("use", { x: "2.5", y: "2.5", width: "12", height: "12" }));
      cell.append(use);
    }
    setAttr(use, "href", `#ic-state-${state}`);
  }

  /** @param {string} name */
  remove(name) {
    const cell = this.cells.get(name);
    this.cells.delete(name);
    const node = cell?.closest(".grid-node");
    cell?.remove();
    if (node && !node.querySelector(".cell")) node.remove();
  }

  /** @param {string} node */
  box(node) {
    const nodes = [...this.grid.children];
    const found = nodes.find((n) => /** @type {HTMLElement} */ (n).dataset.node === node);
    if (found) return find(found, ".cells");
    const element = document.createElement("div");
    element.className = "grid-node";
    element.dataset.node = node;
    element.setAttribute("role", "listitem");
    const name = document.createElement("span");
    name.className = "grid-name";
    name.title = node;
    name.textContent = shortName(node, NODE_MAX_CHARS);
    const cells = document.createElement("span");
    cells.className = "cells";
    element.append(name, cells);
    const next = nodes.find((n) => byName(/** @type {HTMLElement} */ (n).dataset.node, node) > 0);
    this.grid.insertBefore(element, next ?? null);
    return cells;
  }

  count() {
    /** @type {Map<string, number>} */
    const counts = new Map();
    const add = (/** @type {string} */ key) => counts.set(key, (counts.get(key) ?? 0) + 1);
    for (const cell of this.cells.values()) {
      add(`state:${cell.dataset.state}`);
      if (cell.dataset.state === "serving") add(`level:${cell.dataset.level}`);
    }
    for (const key of this.legend.querySelectorAll("[data-filter]")) {
      const count = counts.get(key.getAttribute("data-filter") ?? "") ?? 0;
      setText(find(key, "b"), String(count));
      setAttr(key, "data-count", String(count));
    }
  }

  /** @param {MouseEvent} event */
  press(event) {
    const key = /** @type {Element} */ (event.target).closest("[data-filter]");
    if (!key) return;
    const wanted = key.getAttribute("data-filter") ?? "";
    this.key = this.key === wanted ? "" : wanted;
    for (const other of this.legend.querySelectorAll("[data-filter]")) {
      setAttr(other, "aria-pressed", String(other.getAttribute("data-filter") === this.key));
    }
    byId("no-match")?.toggleAttribute("hidden", this.dim() > 0);
  }

  /** @param {string} text in lower case */
  filter(text) {
    this.text = text;
    return this.dim();
  }

  /** Dims what does not match; the places stay, so that nothing moves. Returns how many match. */
  dim() {
    let shown = 0;
    const [kind, value] = this.key.split(":");
    for (const cell of this.cells.values()) {
      const label = (cell.getAttribute("aria-label") ?? "").toLowerCase();
      const isServing = cell.dataset.state === "serving";
      const fits = !kind || (cell.dataset[kind] === value && (kind === "state" || isServing));
      const matches = fits && label.includes(this.text);
      cell.toggleAttribute("data-dim", !matches);
      shown += matches ? 1 : 0;
    }
    return shown;
  }

  /** Arrow keys walk through the cells. @param {KeyboardEvent} event */
  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 8, ArrowUp: -8 }[event.key];
    if (!step) return;
    event.preventDefault();
    const cells = /** @type {SVGElement[]} */ ([...this.grid.querySelectorAll("svg.cell")]);
    const at = cells.indexOf(/** @type {SVGElement} */ (document.activeElement));
    const next = cells[Math.min(cells.length - 1, Math.max(0, at + step))];
    cells[at]?.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  }
}
