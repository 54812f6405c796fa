// The charts of an SLO: attainment and budget over the window, and how its requests' times are
// spread. The page has the same numbers as tables.

import { colours } from "./charts.js";
import { byId } from "./dom.js";
import { number } from "./format.js";

/** @typedef {{edges: number[], counts: number[], target: number | null}} Bars */
/** @typedef {{objective: number, attainment: {at: string[], share: (number | null)[], requests: number[]}, budget: {at: string[], left: number[]}, ttft: Bars, tpot: Bars}} Data */
/** @typedef {(name: string) => string} Colour */

const EMPTY = "Too few requests to draw.";

/** @param {number} share */
const percent = (share) => Math.round(share * 1e4) / 100;

/** @param {number} ms */
function duration(ms) {
  return ms < 1000 ? `${number(Number(ms.toPrecision(2)))} ms` : `${number(Number((ms / 1000).toPrecision(2)))} s`;
}

/** @param {Data} data @param {Colour} colour */
function attainment(data, colour) {
  const values = data.attainment.share.map((v) => (v === null ? null : percent(v)));
  const known = /** @type {number[]} */ (values.filter((v) => v !== null));
  if (!known.length) return null;
  const goal = percent(data.objective);
  const low = Math.min(goal, ...known);
  const trace = {
    x: data.attainment.at, y: values, mode: known.length < 3 ? "markers" : "lines", connectgaps: false,
    line: { color: colour("--s1"), width: 2 }, marker: { color: colour("--s1"), size: 6 },
    text: data.attainment.requests.map((n) => `${number(n)} requests`),
    hovertemplate: "%{y} %, %{text}<extra></extra>",
  };
  const layout = base(colour);
  layout.yaxis.range = [Math.max(0, low - (100 - low) * 0.15 - 0.1), 100.05];
  layout.yaxis.ticksuffix = " %";
  line(layout, { y0: goal, y1: goal, x0: 0, x1: 1, xref: "paper" }, colour("--s2"));
  return { traces: [trace], layout };
}

/** @param {Data} data @param {Colour} colour */
function budget(data, colour) {
  const values = data.budget.left.map(percent);
  if (!values.length) return null;
  const isOver = (values.at(-1) ?? 0) <= 0;
  const trace = {
    x: data.budget.at, y: values, mode: "lines", fill: "tozeroy", fillcolor: colour(isOver ? "--bad-bg" : "--info-bg"),
    line: { color: colour(isOver ? "--bad" : "--s1"), width: 2, shape: "hv" }, hovertemplate: "%{y} % left<extra></extra>",
  };
  const layout = base(colour);
  layout.yaxis.range = [Math.min(0, ...values) * 1.1, 105];
  Object.assign(layout.yaxis, { ticksuffix: " %", zeroline: true, zerolinecolor: colour("--border-strong") });
  return { traces: [trace], layout };
}

/** @param {Bars} bars @param {Colour} colour */
function spread(bars, colour) {
  if (!bars.counts.length) return null;
  const low = bars.edges.slice(0, -1);
  const isOver = (/** @type {number} */ i) => bars.target !== null && low[i] >= bars.target;
  const trace = {
    type: "bar", x: low.map((edge, i) => Math.log10(Math.sqrt(edge * bars.edges[i + 1]))), y: bars.counts,
    marker: { color: low.map((_, i) => colour(isOver(i) ? "--s2" : "--s1")) },
    text: low.map((edge, i) => `${duration(edge)} to ${duration(bars.edges[i + 1])}`), textposition: "none",
    hovertemplate: "%{text}: %{y} requests<extra></extra>",
  };
  const layout = base(colour);
  const [first, last] = [Math.log10(bars.edges[0]), Math.log10(bars.edges[bars.edges.length - 1])];
  const ticks = [];
  for (let power = Math.floor(first); power <= last; power += 1) {
    for (const n of last - first < 2.6 ? [1, 2, 5] : [1]) ticks.push(power + Math.log10(n));
  }
  delete layout.xaxis.tickformat;
  delete layout.xaxis.hoverformat;
  Object.assign(layout.xaxis, { type: "linear", range: [first, last], tickmode: "array", tickvals: ticks, ticktext: ticks.map((v) => duration(10 ** v)) });
  // Room above the bars for the target's name.
  layout.yaxis.range = [0, Math.max(...bars.counts) * 1.2];
  layout.bargap = 0.08;
  layout.hovermode = "closest";
  if (bars.target !== null) {
    const at = Math.log10(bars.target);
    line(layout, { x0: at, x1: at, y0: 0, y1: 1, yref: "paper" }, colour("--text"));
    const isRight = at > (first + last) / 2;
    note(layout, { x: at, y: 1, yref: "paper", xanchor: isRight ? "right" : "left", yanchor: "top" }, `target ${duration(bars.target)}`, colour("--text"));
  }
  return { traces: [trace], layout };
}

/** @param {any} layout @param {any} place @param {string} colour */
function line(layout, place, colour) {
  layout.shapes.push({ type: "line", ...place, line: { color: colour, width: 1.25, dash: "dash" } });
}

/** @param {any} layout @param {any} place @param {string} text @param {string} colour */
function note(layout, place, text, colour) {
  layout.annotations.push({ ...place, text, showarrow: false, font: { color: colour, size: 11 } });
}

/** @param {Colour} colour @returns {any} */
function base(colour) {
  const axis = { fixedrange: true, zeroline: false, ticks: "" };
  return {
    margin: { l: 52, r: 14, t: 12, b: 28 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: colour("--text-3") },
    showlegend: false, hovermode: "x unified", dragmode: false,
    hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--border-strong"), font: { color: colour("--text"), size: 11 } },
    shapes: [], annotations: [],
    xaxis: { ...axis, showgrid: false, linecolor: colour("--grid"), nticks: 6, tickformat: "%d %b", hoverformat: "%d %b %H:%M UTC" },
    yaxis: { ...axis, gridcolor: colour("--grid"), nticks: 6 },
  };
}

function draw() {
  const block = byId("slo-data");
  if (!block) return;
  /** @type {Data} */
  const data = JSON.parse(block.textContent ?? "");
  const colour = colours();
  const charts = { attainment: attainment(data, colour), budget: budget(data, colour), ttft: spread(data.ttft, colour), tpot: spread(data.tpot, colour) };
  for (const [key, chart] of Object.entries(charts)) {
    const box = /** @type {HTMLElement} */ (byId(`chart-${key}`));
    if (!window.Plotly) box.textContent = "The chart's library did not load. The table below has the numbers.";
    else if (chart) window.Plotly.react(box, chart.traces, chart.layout, { displayModeBar: false, responsive: false, doubleClick: false });
    else box.textContent = EMPTY;
  }
}

function start() {
  window.Plotly?.setPlotConfig({ logging: 0 });
  draw();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
addEventListener("resize", draw);
if (document.readyState === "complete") start();
else addEventListener("load", start);
