// The cluster page: tiles, instances, events; charts load when they come into view.

import { Charts } from "./charts.js";
import { byId, dataBlock, find, setAttr, setText } from "./dom.js";
import { sparkPath, useBand } from "./drawing.js";
import { EventList } from "./events.js";
import { Grid } from "./grid.js";
import { named } from "./messages.js";
import { MovesPanel } from "./moves.js";
import { LeastTable, RowTable } from "./rows.js";
import { live } from "./socket.js";

const snap = dataBlock("snap");
for (const message of Object.values(snap.topics)) live.seed(message);

const field = /** @type {HTMLInputElement} */ (byId("filter"));
const table = /** @type {HTMLTableElement | null} */ (byId("rows"));
const gridElement = byId("grid");
const rows = table && new RowTable(table);
const grid = gridElement && new Grid(gridElement, /** @type {HTMLElement} */ (byId("grid-legend")));
const leastElement = /** @type {HTMLTableElement | null} */ (byId("least-rows"));
const least = leastElement && new LeastTable(leastElement);

/** @param {Map<string, any[]>} all @param {Set<string>} changed */
function drawTiles(all, changed) {
  for (const key of changed) {
    const element = document.querySelector(`[data-tile="${CSS.escape(key)}"]`);
    const row = all.get(key);
    if (!element || !row) continue;
    const tile = named("tiles", row);
    setAttr(element, "data-tone", tile.tone);
    setText(find(element, ".value"), tile.value);
    setText(find(element, ".unit"), tile.unit);
    setText(find(element, ".context"), tile.context);
    setAttr(find(element, ".spark path"), "d", sparkPath(tile.spark));
  }
}

/** @param {Map<string, any[]>} all */
function drawCount(all) {
  const total = all.size;
  for (const id of ["rows", "legend", "grid", "grid-legend"]) byId(id)?.toggleAttribute("hidden", !total);
  byId("no-instance")?.toggleAttribute("hidden", total > 0);
  const nodes = new Set([...all.values()].map((row) => row[0])).size;
  // The first paint knows how many were left out of the rows; a count of rows would hide that.
  const words = find(document, "#instances-count");
  if (!words.textContent?.startsWith("first")) {
    setText(words, total ? `${total} on ${nodes} node${nodes === 1 ? "" : "s"}` : "0");
  }
}

function filter() {
  const wanted = field.value.trim().toLowerCase();
  const shown = rows ? rows.filter(wanted) : grid ? grid.filter(wanted) : 0;
  const total = rows ? rows.views.size : grid ? grid.cells.size : 0;
  byId("no-match")?.toggleAttribute("hidden", shown > 0 || total === 0);
  moves.drawArcs(false);
  const url = new URL(location.href);
  if (wanted) url.searchParams.set("q", wanted);
  else url.searchParams.delete("q");
  if (url.href !== location.href) history.replaceState(null, "", url);
}

/** @param {any} now */
function drawRebalancing(now) {
  const box = find(document, "#rebalancing");
  setAttr(box, "data-state", now.state);
  setText(find(box, ".line"), now.line);
  const isPaused = now.state === "paused";
  byId("rebalancing-pause")?.toggleAttribute("hidden", isPaused || now.state === "off" || now.state === "forbidden");
  byId("rebalancing-resume")?.toggleAttribute("hidden", !isPaused);
  charts.use([now.below_steps, now.above_steps]);
}

const moves = new MovesPanel(/** @type {HTMLElement} */ (byId("moves")), byId("rows-box"));

useBand(snap.band);
const pool = snap.pool;
if (rows) {
  live.on(`cluster:${pool}`, (all, changed, gone) => {
    rows.apply(all, changed, gone);
    rows.tick(live.clock.now());
    drawCount(all);
    if (field.value) filter();
    moves.drawArcs(false);
  });
}
if (grid) {
  live.on(`grid:${pool}`, (all, changed, gone) => {
    grid.apply(all, changed, gone);
    drawCount(all);
    if (field.value) filter();
  });
}
if (least) {
  live.on(`least:${pool}`, (all) => {
    least.apply(all, live.clock.now());
    least.tick(live.clock.now());
  });
}
live.on(`tiles:${pool}`, drawTiles);

const events = new EventList(/** @type {HTMLElement} */ (byId("events")));
live.on("moves", (all) => moves.apply(all, live.clock.now()));
live.on("events", (all, changed) => events.apply(all, changed));

live.listen(() => {
  if (live.paused) return;
  const now_s = live.clock.now();
  rows?.tick(now_s);
  least?.tick(now_s);
  moves.tick(now_s);
});
field.addEventListener("input", filter);
field.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    field.value = "";
    filter();
    field.blur();
  }
});
if (field.value) filter();

const charts = new Charts(snap, () => live.paused);
live.on(`chart:${pool}`, (all) => {
  const row = all.get("now");
  if (row) charts.add(named("chart", row));
});
live.on("rebalancing", (all) => {
  const row = all.get("now");
  if (row) drawRebalancing(named("rebalancing", row));
});
addEventListener("load", () => charts.start());
if (document.readyState === "complete") charts.start();
