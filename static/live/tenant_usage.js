// The charts of a tenant's usage: tokens as stacked bars, cost beside them. The tables have the numbers.

import { colours } from "./charts.js";
import { byId, dataBlock } from "./dom.js";

/** @typedef {{step: string, at: string[], prompt: number[], cached: number[], output: number[], cost: number[]}} Data */
/** @typedef {(name: string) => string} Colour */

/** @param {Data} data @param {string} name @param {number[]} y @param {string} colour @param {string} unit */
const bars = (data, name, y, colour, unit) => ({
  type: "bar", name, x: data.at, y, marker: { color: colour },
  hovertemplate: `%{x|%d %b %H:%M}: %{y:,.4~g} ${unit}<extra>${name}</extra>`,
});

/** What stands under the bars: one line, in UTC. */
/** @type {Record<string, string>} */
const TICKS = { hour: "%d %b %H:%M", day: "%d %b", month: "%b %Y" };
const DAY_BARS = 25;

/** @param {Data} data */
const ticksOf = (data) => (data.step === "hour" && data.at.length > DAY_BARS ? TICKS.day : TICKS[data.step]);

/** @param {Colour} colour @param {Data} data @returns {any} */
const layoutOf = (colour, data) => ({
  barmode: "stack", bargap: 0.15, showlegend: false, dragmode: false, hovermode: "closest",
  margin: { l: 56, r: 24, t: 10, b: 26 },
  paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
  font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: colour("--text-3") },
  hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--border-strong"), font: { color: colour("--text"), size: 11 } },
  xaxis: { type: "date", fixedrange: true, showgrid: false, zeroline: false, linecolor: colour("--grid"), ticks: "", nticks: 8, tickformat: ticksOf(data) },
  yaxis: { fixedrange: true, rangemode: "tozero", zeroline: false, gridcolor: colour("--grid"), separatethousands: true, nticks: 5 },
});

function draw() {
  const [tokens, cost] = [byId("chart-tokens"), byId("chart-cost")];
  if (!tokens || !cost) return;
  if (!window.Plotly) {
    for (const box of [tokens, cost]) box.textContent = "The chart's library did not load. The table below has the numbers.";
    return;
  }
  window.Plotly.setPlotConfig({ logging: 0 });
  const colour = colours();
  /** @type {Data} */
  const data = dataBlock("usage-data");
  const config = { displayModeBar: false, responsive: false, doubleClick: false };
  const traces = [
    bars(data, "prompt", data.prompt, colour("--s1"), "tokens"),
    bars(data, "cached", data.cached, colour("--class-3"), "tokens"),
    bars(data, "output", data.output, colour("--s3"), "tokens"),
  ];
  window.Plotly.react(tokens, traces, layoutOf(colour, data), config);
  window.Plotly.react(cost, [bars(data, "cost", data.cost, colour("--s1"), "")], layoutOf(colour, data), config);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
addEventListener("resize", draw);
if (document.readyState === "complete") draw();
else addEventListener("load", draw);
