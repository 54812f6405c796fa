// The charts of a what-if run: drawn once its result is there, both sides in the same chart. The
// page's tables have the same numbers.

import { colours } from "./charts.js";
import { byId, find, speak } from "./dom.js";
import { position } from "./drawing.js";
import { number } from "./format.js";

/** Of the sides: what if, and what it is compared with. */
const COLOURS = ["--s1", "--s2"];
const WIDTHS = [2, 1.25];
/** Of the quantities of a chart. */
const DASHES = ["solid", "dot"];
const FIRST = ["median", "mean", "P99"];
/** On the axis of freeness, which is linear near 0 and logarithmic far from it. */
const STEPS = [-10000, -1000, -100, 0, 100, 1000, 10000];

/** @typedef {{label: string, series: Record<string, (number | null)[]>, first: (number | null)[]}} Side */
/** @typedef {{sides: Side[], below: number | null, above: number | null, band: [number, number] | null}} Data */
/** @typedef {(name: string) => string} Colour */

/** Each chart over time: its quantities, their names, and what a value is multiplied by. */
const CHARTS = [
  { key: "freeness", lines: ["freeness_mean", "freeness_lowest"], names: ["mean", "lowest"], factor: 1 },
  { key: "requests", lines: ["running", "waiting"], names: ["running", "waiting"], factor: 1 },
  { key: "free", lines: ["free_share"], names: ["free"], factor: 100 },
  { key: "instances", lines: ["instances"], names: ["instances"], factor: 1 },
  { key: "events", lines: ["preemptions", "moves"], names: ["preemptions", "moves"], factor: 1 },
];

/** @param {typeof CHARTS[0]} chart @param {Data} data @param {Colour} colour */
function overTime(chart, data, colour) {
  const isSteps = chart.key === "freeness";
  const values = data.sides.map((side) =>
    chart.lines.map((line) => side.series[line].map((v) => (v === null ? null : v * chart.factor))),
  );
  const known = /** @type {number[]} */ (values.flat(2).filter((v) => v !== null));
  const range = rangeOf(chart.key, known);
  const scale = isSteps ? position : (/** @type {number} */ v) => v;
  const traces = data.sides.flatMap((side, s) =>
    chart.lines.map((line, i) => ({
      x: side.series.time_s,
      y: values[s][i].map((v) => (v === null ? null : scale(v))),
      text: values[s][i].map((v) => number(v)),
      name: line,
      mode: "lines",
      connectgaps: false,
      hovertemplate: `${side.label}, ${chart.names[i]}: %{text}<extra></extra>`,
      line: { color: colour(COLOURS[s]), width: WIDTHS[s], dash: DASHES[i], shape: chart.key === "instances" ? "hv" : "linear" },
      zorder: data.sides.length - s,
    })),
  );
  const layout = base(colour);
  layout.hovermode = "x unified";
  layout.yaxis.range = range.map(scale);
  if (isSteps) Object.assign(layout.yaxis, { tickmode: "array", tickvals: STEPS.map(scale), ticktext: STEPS.map((v) => number(v)) });
  else Object.assign(layout.yaxis, { nticks: 6, tickformat: "," });
  Object.assign(layout.xaxis, { ticksuffix: " s", rangemode: "tozero", nticks: 6, hoverformat: ",.1f" });
  if (isSteps) thresholds(layout, data, scale, colour);
  return { traces, layout };
}

/** @param {string} key @param {number[]} known @returns {[number, number]} */
function rangeOf(key, known) {
  if (key === "freeness") return [Math.min(-100, ...known) * 1.1, Math.max(1000, ...known) * 1.1];
  if (key === "free") return [0, 100];
  const most = Math.max(1, ...known) * 1.05;
  const size = 10 ** Math.floor(Math.log10(most));
  const top = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((n) => n * size).find((n) => n >= most) ?? 10 * size;
  return [0, Math.max(4, top)];
}

/** Between which freenesses requests move, and the band of scaling. */
function thresholds(layout, /** @type {Data} */ data, scale, /** @type {Colour} */ colour) {
  if (data.band) {
    layout.shapes.push({
      type: "rect", xref: "paper", x0: 0, x1: 1, y0: scale(data.band[0]), y1: scale(data.band[1]),
      fillcolor: colour("--band"), line: { width: 0 }, layer: "below",
    });
    note(layout, scale(data.band[1]), `scaling band ${number(data.band[0])}–${number(data.band[1])}`, "bottom", colour);
  }
  if (data.below === null || data.above === null) return;
  const lines = data.below === data.above ? [data.below] : [data.below, data.above];
  for (const steps of lines) {
    layout.shapes.push({
      type: "line", xref: "paper", x0: 0, x1: 1, y0: scale(steps), y1: scale(steps), layer: "below",
      line: { color: colour("--border-strong"), width: 1, dash: "dash" },
    });
  }
  note(layout, scale(data.below), `moves from under ${number(data.below)}`, "top", colour);
}

function note(layout, /** @type {number} */ y, /** @type {string} */ words, /** @type {string} */ side, /** @type {Colour} */ colour) {
  layout.annotations.push({
    xref: "paper", x: 0, xanchor: "left", xshift: 3, yref: "y", y, yanchor: side,
    text: words, showarrow: false, bgcolor: colour("--surface"), opacity: 0.9, font: { size: 11, color: colour("--text-2") },
  });
}

/** @param {Data} data @param {Colour} colour */
function firstToken(data, colour) {
  const traces = data.sides.map((side, s) => ({
    type: "bar",
    x: FIRST,
    // A log axis has no place for 0.
    y: side.first.map((v) => (v === null ? null : Math.max(v, 1) / 1000)),
    text: side.first.map(short),
    customdata: side.first.map(duration),
    textposition: "outside",
    cliponaxis: false,
    textfont: { size: 11, color: colour("--text-2") },
    marker: { color: colour(COLOURS[s]) },
    hovertemplate: `${side.label}: %{customdata}<extra></extra>`,
  }));
  const layout = base(colour);
  const known = /** @type {number[]} */ (data.sides.flatMap((s) => s.first).filter((v) => v !== null));
  const [low, high] = [Math.min(...known, 1000), Math.max(...known, 1000)].map((v) => Math.log10(Math.max(v, 1) / 1000));
  Object.assign(layout, { barmode: "group", bargap: 0.25, hovermode: "closest" });
  Object.assign(layout.yaxis, { type: "log", range: [Math.floor(low) - 0.1, high + 0.45], dtick: 1, ticksuffix: " s" });
  Object.assign(layout.xaxis, { type: "category" });
  return { traces, layout };
}

/** @param {number | null} ms */
function duration(ms) {
  if (ms === null) return "–";
  return ms < 1000 ? `${number(ms)} ms` : `${number(ms / 1000)} s`;
}

/** Two digits, so that it stands over its bar. @param {number | null} ms */
function short(ms) {
  if (ms === null) return "–";
  const [value, unit] = ms < 1000 ? [ms, "ms"] : [ms / 1000, "s"];
  return `${number(Number(value.toPrecision(2)))} ${unit}`;
}

/** @param {Colour} colour @returns {any} */
function base(colour) {
  return {
    margin: { l: 48, r: 14, t: 12, b: 26 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: colour("--text-3") },
    showlegend: false,
    hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--border-strong"), font: { color: colour("--text"), size: 11 } },
    dragmode: false,
    shapes: [],
    annotations: [],
    xaxis: { fixedrange: true, showgrid: false, zeroline: false, linecolor: colour("--grid"), ticks: "" },
    yaxis: { fixedrange: true, zeroline: false, gridcolor: colour("--grid") },
  };
}

function draw() {
  const block = byId("run-data");
  if (!block) return;
  const boxes = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(".chart-grid .chart")]);
  if (!window.Plotly) {
    for (const box of boxes) box.textContent = "The chart's library did not load. The tables below have the numbers.";
    return;
  }
  window.Plotly.setPlotConfig({ logging: 0 });
  const colour = colours();
  /** @type {Data} */
  const data = JSON.parse(block.textContent ?? "");
  for (const box of boxes) {
    const chart = CHARTS.find((c) => box.id === `chart-${c.key}`);
    const { traces, layout } = chart ? overTime(chart, data, colour) : firstToken(data, colour);
    window.Plotly.react(box, traces, layout, { displayModeBar: false, responsive: false, doubleClick: false });
  }
}

const run = find(document, "#run");
// When the run ends, refresh.js puts the result in place and then writes the state.
new MutationObserver(() => {
  speak(`The run is ${run.getAttribute("data-state")}`);
  draw();
}).observe(run, { attributes: true, attributeFilter: ["data-state"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
addEventListener("resize", draw);
if (document.readyState === "complete") draw();
else addEventListener("load", draw);
