// The chart of scaling: average freeness with its band, and below it, on the same time axis, how many
// instances were wanted and served; decisions are marked through both. Drawn anew when the page's
// data has changed (refresh.js). The page has the same numbers as a table.

import { colours } from "./charts.js";
import { byId, dataBlock } from "./dom.js";
import { position } from "./drawing.js";
import { number } from "./format.js";
import { axisRange, ticks } from "./points.js";

/** @typedef {{at: string, kind: string, words: string, key: string}} Mark */
/** @typedef {{at: string[], average: (number | null)[], wanted: (number | null)[], serving: (number | null)[], band: [number, number], range: [string, string], marks: Mark[]}} Data */
/** @typedef {(name: string) => string} Colour */

const MARK_COLOURS = { grow: "--s1", undrain: "--s1", shrink: "--plan", refused: "--warn", advice: "--border-strong" };
/** Of the whole height, from below: the instances' part, and where the freeness begins. */
const PARTS = [0.26, 0.36];

/** @type {[number, number] | undefined} */
let reached;

/** Times are the server's in UTC; the reader sees them in the zone that the page is in. @param {string} at */
function local(at) {
  const time = new Date(`${at}Z`);
  return new Date(time.getTime() - time.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}

/** @param {Data} data @param {Colour} colour */
function traces(data, colour) {
  const x = data.at.map(local);
  const steps = (/** @type {string} */ name, /** @type {(number | null)[]} */ y, /** @type {any} */ line) => ({
    x, y, name, yaxis: "y2", mode: "lines", connectgaps: false,
    line: { shape: "hv", ...line }, hovertemplate: `${name}: %{y}<extra></extra>`,
  });
  return [
    {
      x, y: data.average.map((v) => (v === null ? null : position(v))), text: data.average.map((v) => number(v)),
      name: "average", mode: lone(data.average) ? "markers" : "lines", connectgaps: false,
      line: { color: colour("--s1"), width: 1.75 }, marker: { color: colour("--s1"), size: 5 },
      hovertemplate: "average: %{text}<extra></extra>",
    },
    steps("wanted", data.wanted, { color: colour("--s1"), width: 2 }),
    steps("serving", data.serving, { color: colour("--s3"), width: 1.5, dash: "dot" }),
  ];
}

/** One value makes no line. @param {(number | null)[]} values */
const lone = (values) => values.filter((v) => v !== null).length < 2;

/** @param {Data} data @param {Colour} colour */
function layout(data, colour) {
  const known = /** @type {number[]} */ (data.average.filter((v) => v !== null));
  reached = axisRange("freeness", [...known, ...data.band], reached);
  const most = Math.max(2, ...data.wanted.map((v) => v ?? 0), ...data.serving.map((v) => v ?? 0));
  const [low, high] = data.band;
  const text = colour("--text-3");
  const axis = { fixedrange: true, zeroline: false, ticks: "" };
  const at = ticks("freeness", reached);
  return {
    margin: { l: 52, r: 16, t: 14, b: 26 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: text },
    showlegend: false, hovermode: "x unified", dragmode: false,
    hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--border-strong"), font: { color: colour("--text"), size: 11 } },
    shapes: [
      { type: "rect", xref: "paper", x0: 0, x1: 1, yref: "y", y0: position(low), y1: position(high), fillcolor: colour("--band"), line: { width: 0 }, layer: "below" },
      ...data.marks.map((mark) => ({
        type: "line", x0: local(mark.at), x1: local(mark.at), yref: "paper", y0: 0, y1: 1, layer: "below", opacity: 0.7,
        line: { color: colour(MARK_COLOURS[mark.kind] ?? "--border-strong"), width: 1, dash: mark.kind === "advice" || mark.kind === "refused" ? "dot" : "solid" },
      })),
    ],
    annotations: [
      { xref: "paper", x: 0, xanchor: "left", xshift: 3, yref: "y", y: position(high), yanchor: "bottom", text: `band ${number(low)}–${number(high)}`, showarrow: false, bgcolor: colour("--surface"), opacity: 0.9, font: { size: 11, color: colour("--text-2") } },
      ...labels(data, colour),
      ...(known.length ? [] : [{ xref: "paper", x: 0.5, yref: "paper", y: 0.7, text: data.at.length ? "Nothing ran, so there is no average." : "No check in this time.", showarrow: false, bgcolor: colour("--surface"), borderpad: 6, font: { size: 12, color: colour("--text-2") } }]),
    ],
    xaxis: { ...axis, type: "date", range: data.range.map(local), tickformat: "%H:%M", hoverformat: "%d %b %H:%M:%S", nticks: 8, showgrid: false, linecolor: colour("--grid"), anchor: "y2" },
    yaxis: { ...axis, domain: [PARTS[1], 1], range: reached.map(position), gridcolor: colour("--grid"), tickmode: "array", tickvals: at.map(position), ticktext: at.map((v) => number(v)) },
    yaxis2: { ...axis, domain: [0, PARTS[0]], range: [0, most * 1.15], gridcolor: colour("--grid"), tickmode: "array", tickvals: whole(most), ticktext: whole(most).map((v) => number(v)) },
  };
}

/** Some whole numbers from 0 to the most. @param {number} most */
function whole(most) {
  const step = Math.max(1, Math.ceil(most / 4));
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
}

/** Names the newest marks, as many as have room beside each other. @param {Data} data @param {Colour} colour */
function labels(data, colour) {
  const [from, to] = data.range.map((at) => Date.parse(`${at}Z`));
  const width = Math.max(320, byId("chart-scaling")?.clientWidth ?? 0);
  let free = Infinity;
  /** @type {any[]} */
  const made = [];
  for (const mark of [...data.marks].reverse()) {
    const x = ((Date.parse(`${mark.at}Z`) - from) / (to - from)) * width;
    const needs = mark.words.length * 6.2 + 10;
    // Beside the line where there is room: to its right, else to its left.
    const isLeft = x + needs > Math.min(free, width);
    if (isLeft && (x > free || x - needs < 0)) continue;
    made.push({ x: local(mark.at), xanchor: isLeft ? "right" : "left", xshift: isLeft ? -3 : 3, yref: "paper", y: 1, yanchor: "bottom", text: mark.words, showarrow: false, font: { size: 10.5, color: colour("--text-2") } });
    free = isLeft ? x - needs : x;
  }
  return made;
}

let drawn = "";

/** @param {boolean} anew also when the data has not changed */
function draw(anew) {
  const box = /** @type {HTMLElement | null} */ (byId("chart-scaling"));
  const text = byId("scaling-data")?.textContent ?? "";
  if (!box || !text || (!anew && (text === drawn || box.matches(":hover")))) return;
  if (!window.Plotly) {
    box.textContent = "The chart's library did not load. The table below has the numbers.";
    return;
  }
  drawn = text;
  const colour = colours();
  const data = /** @type {Data} */ (dataBlock("scaling-data"));
  window.Plotly.react(box, traces(data, colour), layout(data, colour), { displayModeBar: false, responsive: false, doubleClick: false });
}

function start() {
  window.Plotly?.setPlotConfig({ logging: 0 });
  draw(true);
  const page = byId("scaling");
  if (page) new MutationObserver(() => draw(false)).observe(page, { childList: true, subtree: true });
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(true));
addEventListener("resize", () => draw(true));
if (document.readyState === "complete") start();
else addEventListener("load", start);
