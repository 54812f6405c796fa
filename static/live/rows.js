// The instance rows: each keeps references to its cells and writes only what changed.

import { SILENT_AFTER_S, STALE_AFTER_S, ageTone } from "./ages.js";
import { byId, find, setAttr, setText, svg } from "./dom.js";
import { FILLS, barRects, gaugePercent, gaugeTone } from "./drawing.js";
import { age, byName, clock, freeness, number, shortName, stateWord } from "./format.js";
import { named } from "./messages.js";

/** @param {string} id @returns {HTMLElement} */
function cloned(id) {
  const template = /** @type {HTMLTemplateElement} */ (byId(id));
  return /** @type {HTMLElement} */ (template.content.firstElementChild?.cloneNode(true));
}

export class RowView {
  /** @param {HTMLElement} [element] the row of the first paint, if there is one */
  constructor(element = cloned("tpl-row")) {
    this.element = element;
    this.cell = {};
    for (const name of ["name", "row-menu", "badge", "kv", "segs", "caption", "free-num", "mark", "run", "wait", "step", "in-out", "age"]) {
      this.cell[name] = find(element, `.${name}`);
    }
    this.word = find(element, ".badge .word");
    this.glyph = find(element, ".badge use");
    /** @type {any} */
    this.row = null;
    this.bar = "";
  }

  /** @param {string} name @param {any[]} array */
  update(name, array) {
    const row = named("cluster", array);
    const cell = this.cell;
    this.row = row;
    setAttr(this.element, "data-name", name);
    setAttr(this.element, "data-state", row.state);
    setAttr(this.element, "data-wanted", row.wanted);
    setText(cell.name, shortName(name));
    setAttr(cell.name, "title", name);
    setAttr(cell.name, "href", `/instances/${encodeURIComponent(name)}/`);
    setAttr(cell["row-menu"], "href", `/instances/${encodeURIComponent(name)}/`);
    setAttr(cell["row-menu"], "aria-label", `Actions for ${name}`);
    setAttr(cell.badge, "data-state", row.state);
    setAttr(this.glyph, "href", `#ic-state-${row.state}`);
    setText(this.word, stateWord(row.state));
    this.drawBar(row);
    setAttr(cell.kv, "aria-label", `${name}: ${row.caption}`);
    setText(cell["free-num"], freeness(row.freeness));
    setAttr(cell.mark, "class", `mark ${gaugeTone(row.freeness)}`);
    setAttr(cell.mark, "x", `${gaugePercent(row.freeness) ?? 0}%`);
    setText(cell.run, number(row.running));
    setText(cell.wait, number(row.waiting));
    cell.wait.toggleAttribute("data-some", row.waiting > 0);
    setText(cell.step, freeness(row.step_ms));
    setText(cell["in-out"], `${row.moves_in} / ${row.moves_out}`);
  }

  /** @param {any} row */
  drawBar(row) {
    const key = `${row.state === "draining" || row.state === "starting" ? row.state : ""}${row.bar}`;
    if (key === this.bar) return;
    this.bar = key;
    this.cell.segs.replaceChildren(
      ...barRects(row.bar, row.state).map(([kind, x, width]) => {
        const isOver = kind === "over";
        const rect = svg("rect", {
          class: `seg ${kind}`, x: `${x}%`, width: `${width}%`, height: isOver ? "2.5" : "14",
        });
        if (isOver) rect.setAttribute("y", "11.5");
        if (FILLS[kind]) rect.setAttribute("fill", FILLS[kind]);
        return rect;
      }),
    );
  }

  /** Writes what changes with time alone. @param {number} now_s the server's time */
  tick(now_s) {
    const row = this.row;
    if (!row) return;
    const at = row.at_unix_s;
    const age_s = at === null ? null : now_s - at;
    const starting = row.state === "starting";
    const isStale = age_s !== null && age_s > STALE_AFTER_S && !starting;
    const isSilent = age_s !== null && age_s > SILENT_AFTER_S && !starting && row.tone !== "bad";
    setText(this.cell.age, age(age_s));
    setAttr(this.cell.age, "data-old", age_s === null || starting ? null : ageTone(age_s) || null);
    this.element.toggleAttribute("data-stale", isStale);
    setText(this.cell.caption, isSilent ? `no report since ${clock(at)}` : row.caption);
    setAttr(this.cell.caption, "data-tone", isSilent ? "bad" : row.tone);
  }

  /** @param {string} filter in lower case */
  matches(filter) {
    const { row, element } = this;
    const text = `${element.dataset.name} ${row?.node} ${row && stateWord(row.state)}`;
    return text.toLowerCase().includes(filter);
  }
}

/** All instances in rows, grouped by node. */
export class RowTable {
  /** @param {HTMLTableElement} table */
  constructor(table) {
    this.table = table;
    /** @type {Map<string, RowView>} */
    this.views = new Map();
    for (const element of table.querySelectorAll("tr.row")) {
      this.views.set(element.dataset.name, new RowView(/** @type {HTMLElement} */ (element)));
    }
  }

  /** @param {Map<string, any[]>} rows @param {Set<string>} changed @param {Set<string>} gone */
  apply(rows, changed, gone) {
    for (const name of gone) this.remove(name);
    for (const name of changed) {
      const row = rows.get(name);
      if (row) this.put(name, row);
    }
  }

  /** @param {string} name @param {any[]} row */
  put(name, row) {
    let view = this.views.get(name);
    const node = row[0];
    const body = this.body(node);
    if (!view) {
      view = new RowView();
      this.views.set(name, view);
    }
    view.update(name, row);
    if (view.element.parentNode === body) return;
    const old = /** @type {HTMLElement | null} */ (view.element.parentNode);
    const next = [...body.querySelectorAll("tr.row")].find(
      (other) => byName(/** @type {HTMLElement} */ (other).dataset.name, name) > 0,
    );
    body.insertBefore(view.element, next ?? null);
    this.count(body);
    if (old) this.count(old);
  }

  /** @param {string} name */
  remove(name) {
    const view = this.views.get(name);
    if (!view) return;
    this.views.delete(name);
    const body = /** @type {HTMLElement | null} */ (view.element.parentNode);
    view.element.remove();
    if (body) this.count(body);
  }

  /** @param {string} node @returns {HTMLElement} */
  body(node) {
    const bodies = [...this.table.tBodies];
    const found = bodies.find((body) => body.dataset.node === node);
    if (found) return found;
    const body = document.createElement("tbody");
    body.dataset.node = node;
    const head = cloned("tpl-node");
    const place = `/nodes/${encodeURIComponent(node)}/`;
    setText(find(head, ".node-name"), node);
    setAttr(find(head, ".node-name"), "href", place);
    setAttr(find(head, ".node-drain"), "href", `${place}drain/`);
    body.append(head);
    this.table.insertBefore(body, bodies.find((b) => byName(b.dataset.node, node) > 0) ?? null);
    return body;
  }

  /** Writes how many instances the node has; a node without any goes. @param {HTMLElement} body */
  count(body) {
    const size = body.querySelectorAll("tr.row").length;
    if (!size) body.remove();
    else setText(find(body, "tr.node .sub"), `${size} instance${size === 1 ? "" : "s"}`);
  }

  /** @param {number} now_s */
  tick(now_s) {
    for (const view of this.views.values()) view.tick(now_s);
  }

  /** Shows only what matches. Returns how many do. @param {string} filter */
  filter(filter) {
    let shown = 0;
    for (const view of this.views.values()) {
      const matches = view.matches(filter);
      view.element.hidden = !matches;
      shown += matches ? 1 : 0;
    }
    for (const body of this.table.tBodies) body.hidden = !body.querySelector("tr.row:not([hidden])");
    return shown;
  }
}

const SORT_EVERY_S = 5;

/** The few instances with the least freeness; the order is held, so that nothing jumps while one reads. */
export class LeastTable {
  /** @param {HTMLTableElement} table */
  constructor(table) {
    this.table = table;
    this.body = table.tBodies[0];
    /** @type {RowView[]} */
    this.views = [...this.body.rows].map((element) => new RowView(element));
    this.order = this.views.map((view) => view.element.dataset.name ?? "");
    this.sorted_s = 0;
  }

  /** @param {Map<string, any[]>} rows @param {number} now_s */
  apply(rows, now_s) {
    const held = this.table.matches(":hover, :focus-within");
    const isDue = now_s - this.sorted_s >= SORT_EVERY_S && !held;
    if (isDue || this.order.some((name) => !rows.has(name)) || !this.order.length) {
      this.sorted_s = now_s;
      const freeness = (/** @type {string} */ name) => /** @type {any[]} */ (rows.get(name))[9];
      this.order = [...rows.keys()].sort((a, b) => freeness(a) - freeness(b));
    }
    while (this.views.length < this.order.length) {
      const view = new RowView();
      this.views.push(view);
      this.body.append(view.element);
    }
    this.views.forEach((view, i) => {
      const name = this.order[i];
      view.element.hidden = name === undefined;
      if (name !== undefined) view.update(name, /** @type {any[]} */ (rows.get(name)));
    });
  }

  /** @param {number} now_s */
  tick(now_s) {
    for (const view of this.views) view.tick(now_s);
  }
}
