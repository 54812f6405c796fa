// Moves in flight: the panel's rows, and the arcs between the instance rows.

import { layout } from "./arcs.js";
import { byId, find, setAttr, setText, svg } from "./dom.js";
import { shortName } from "./format.js";
import { named } from "./messages.js";
import { placed } from "./slots.js";

const SHOWN_MAX = 6;
const ABORT_SHOWN_S = 3;
const STEP_WORDS = { d: "done", n: "now", a: "ahead", x: "broken off" };

/** @param {any} row @param {number} now_s */
function elapsed(row, now_s) {
  const took_s = row.took_s ?? Math.max(0, now_s - row.started_unix_s);
  return `${took_s.toFixed(took_s < 10 ? 1 : 0)} s`;
}

class MoveView {
  /** @param {HTMLElement} element */
  constructor(element) {
    this.element = element;
    this.cell = Object.fromEntries(
      ["request", "class", "elapsed", "from", "to", "pips", "line"].map((name) => [name, find(element, `.m-${name}`)]),
    );
    /** @type {any} */
    this.row = null;
    this.pips = "";
  }

  /** @param {string} key @param {any} row @param {number} now_s */
  update(key, row, now_s) {
    const { cell, element } = this;
    this.row = row;
    element.hidden = false;
    setAttr(element, "data-gone", null);
    setAttr(element, "data-key", key);
    setAttr(element, "data-state", row.state);
    setText(cell.request, shortName(row.request_id));
    setAttr(cell.request, "href", `/migrations/${encodeURIComponent(key)}/`);
    setAttr(cell.request, "title", row.request_id);
    setText(cell.class, row.priority_class);
    setText(cell.from, shortName(row.source));
    setText(cell.to, shortName(row.destination));
    setText(cell.line, row.line);
    setAttr(cell.line, "title", row.line);
    setAttr(cell.line, "data-tone", row.tone);
    this.tick(now_s);
    if (row.pips !== this.pips) this.drawPips(row.pips);
  }

  /** @param {string} pips */
  drawPips(pips) {
    this.pips = pips;
    const copies = pips.length - 3;
    const names = ["Reserve", ...Array.from({ length: copies }, (_, i) => `Copy ${i + 1}`), "Pause", "Commit"];
    this.cell.pips.replaceChildren(
      ...[...pips].map((step, i) => {
        const pip = document.createElement("i");
        pip.className = `${step}${i > 0 && i <= copies ? " wide" : ""}`;
        pip.title = `${names[i]}: ${STEP_WORDS[/** @type {keyof typeof STEP_WORDS} */ (step)]}`;
        return pip;
      }),
    );
  }

  /** @param {number} now_s */
  tick(now_s) {
    if (this.row) setText(this.cell.elapsed, elapsed(this.row, now_s));
  }
}

export class MovesPanel {
  /** @param {HTMLElement} list @param {HTMLElement | null} rows the instance rows' box, with its gutter */
  constructor(list, rows) {
    this.views = [...list.children].map((e) => new MoveView(/** @type {HTMLElement} */ (e)));
    this.arcs = rows?.querySelector("svg.arcs") ?? null;
    this.rows = rows;
    /** @type {(string | null)[]} */
    this.slots = this.views.map((v) => v.element.dataset.key || null).filter((key) => key !== null);
    /** @type {Map<string, any>} */
    this.moves = new Map();
    this.drawn = "";
    for (const event of ["mouseover", "mouseout", "focusin", "focusout"]) {
      list.addEventListener(event, (e) => this.light(/** @type {Event} */ (e)));
    }
    addEventListener("resize", () => this.drawArcs(true));
  }

  /** @param {Map<string, any[]>} all @param {number} now_s */
  apply(all, now_s) {
    this.moves = new Map([...all].map(([key, row]) => [key, named("moves", row)]));
    this.slots = placed(this.slots, [...all.keys()], SHOWN_MAX);
    this.views.forEach((view, i) => {
      const key = this.slots[i];
      const row = key ? this.moves.get(key) : null;
      if (row && key) view.update(key, row, now_s);
      else if (i < this.slots.length) setAttr(view.element, "data-gone", "");
      else view.element.hidden = true;
    });
    const going = [...this.moves.values()].filter((m) => m.took_s === null).length;
    const more = this.moves.size - this.slots.filter((s) => s !== null).length;
    const counts = [going ? `${going}` : "", more > 0 ? `${more} not shown` : ""];
    setText(find(document, "#moves-count"), counts.filter(Boolean).join(", "));
    byId("no-move")?.toggleAttribute("hidden", this.slots.length > 0);
    this.drawArcs(false);
  }

  /** @param {number} now_s */
  tick(now_s) {
    for (const view of this.views) if (!view.element.hidden) view.tick(now_s);
  }

  /** Draws anew when the set of moves, their states or the rows' places changed. @param {boolean} isForced */
  drawArcs(isForced) {
    if (!this.arcs || !this.rows) return;
    const shown = [...this.moves].filter(([, m]) => m.took_s === null || m.state === "aborted");
    const names = [...this.rows.querySelectorAll("tr.row:not([hidden])")].map((r) => /** @type {HTMLElement} */ (r).dataset.name);
    const key = `${shown.map(([k, m]) => `${k}${m.state}`)}|${shown.length ? names : ""}`;
    if (key === this.drawn && !isForced) return;
    this.drawn = key;
    const middles = shown.length ? this.middles() : new Map();
    const moves = shown
      .map(([k, m]) => ({ key: k, from: middles.get(m.source), to: middles.get(m.destination) }))
      // One end out of view: the list and the counts tell it.
      .filter((m) => m.from !== undefined && m.to !== undefined);
    const arcs = moves.length === shown.length ? layout(/** @type {any} */ (moves)) : [];
    this.arcs.replaceChildren(...arcs.map((arc) => this.arc(arc)));
  }

  /** @returns {Map<string, number>} */
  middles() {
    const top = /** @type {HTMLElement} */ (this.rows).getBoundingClientRect().top;
    return new Map(
      [.../** @type {HTMLElement} */ (this.rows).querySelectorAll("tr.row:not([hidden])")].map((row) => {
        const box = row.getBoundingClientRect();
        return [/** @type {HTMLElement} */ (row).dataset.name ?? "", box.top - top + box.height / 2];
      }),
    );
  }

  /** @param {import("./arcs.js").Arc} arc */
  arc(arc) {
    const move = this.moves.get(arc.key);
    const group = svg("g", { class: "arc", "data-key": arc.key, "data-state": move.state });
    group.append(
      svg("path", { class: "way", d: arc.path }),
      svg("path", { class: "head", d: arc.arrow }),
      svg("circle", { class: "start", cx: String(arc.dot[0]), cy: String(arc.dot[1]), r: "3" }),
    );
    if (move.state === "aborted") setTimeout(() => group.remove(), ABORT_SHOWN_S * 1000);
    return group;
  }

  /** Lights a move's arc and both rows. @param {Event} event */
  light(event) {
    const isOn = event.type === "mouseover" || event.type === "focusin";
    const row = /** @type {Element} */ (event.target).closest("[data-key]");
    const key = isOn ? row?.getAttribute("data-key") ?? "" : "";
    const move = this.moves.get(key);
    for (const arc of this.arcs?.children ?? []) arc.toggleAttribute("data-lit", arc.getAttribute("data-key") === key);
    for (const tr of this.rows?.querySelectorAll("tr.row") ?? []) {
      const name = /** @type {HTMLElement} */ (tr).dataset.name;
      tr.toggleAttribute("data-lit", !!move && (name === move.source || name === move.destination));
    }
  }
}
