// The charts over time. Plotly draws them; only those in view, once a second at most.

import { byId, ofPool, setText } from "./dom.js";
import { position } from "./drawing.js";
import { number } from "./format.js";
import { GAP_S, HISTORY_S, axisRange, merge, ticks, withGaps } from "./points.js";

const COLOURS = ["--s1", "--s2", "--s3", "--s4", "--s5", "--s6"];
/** Lines that cross and mean different things differ by more than colour; instances have labels. */
const DASHES = { tokens: ["solid", "dash"], kv: ["solid", "dash", "dot"] };
const WORDS_EVERY_S = 10;
const TIMEOUT_MS = 5000;

/** @typedef {{key: string, unit: string, lines: (points: any[]) => Line[], steps?: boolean}} Chart */
/** @typedef {{name: string, values: (number | null)[]}} Line */

/** @type {Chart[]} */
const CHARTS = [
  { key: "freeness", unit: "decode steps", lines: freenessLines, steps: true },
  {
    key: "tokens",
    unit: "tokens/s",
    lines: (points) => [
      { name: "output", values: points.map((p) => p.output_tokens_per_s) },
      { name: "prompt", values: points.map((p) => p.prompt_tokens_per_s) },
    ],
  },
  {
    key: "kv",
    unit: "%",
    lines: (points) => [
      { name: "used", values: points.map((p) => p.used_percent) },
      { name: "virtual", values: points.map((p) => p.virtual_percent) },
      { name: "fullest", values: points.map((p) => p.used_max_percent) },
    ],
  },
];

/** @param {any[]} points @returns {Line[]} */
function freenessLines(points) {
  const names = points.at(-1)?.series ?? [];
  return names.map((/** @type {string} */ name, /** @type {number} */ i) => ({
    name,
    values: points.map((p) => p.freeness[i] ?? null),
  }));
}

export class Charts {
  /** @param {any} snap @param {() => boolean} isPaused */
  constructor(snap, isPaused) {
    this.band = snap.band;
    /** Of the rebalancer: sources are below the first, destinations above the second. */
    this.thresholds = snap.thresholds;
    this.series = snap.series;
    this.isPaused = isPaused;
    /** @type {any[]} */
    this.points = [];
    /** @type {Set<string>} */
    this.inView = new Set();
    /** @type {Map<string, [number, number]>} */
    this.ranges = new Map();
    this.revision = 0;
    this.drawn_s = 0;
    this.words_s = 0;
    this.started = false;
    this.missing = false;
  }

  start() {
    if (this.started) return;
    this.started = true;
    if (!window.Plotly) {
      for (const { key } of CHARTS) problem(key, "The chart's library did not load. Load the page again.");
      return;
    }
    window.Plotly.setPlotConfig({ logging: 0 });
    this.fill().then(() => this.draw(true));
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const key = entry.target.id.replace("chart-", "");
        if (entry.isIntersecting) this.inView.add(key);
        else this.inView.delete(key);
      }
      this.draw(true);
    });
    for (const { key } of CHARTS) seen.observe(/** @type {Element} */ (byId(`chart-${key}`)));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(true));
    addEventListener("resize", () => this.draw(true));
    document.addEventListener("click", (event) => this.press(event));
  }

  /** Fetches the points that are missing, all of them in one call. */
  async fill() {
    const since = Math.floor(this.points.at(-1)?.at_unix_s ?? 0);
    const url = `/api/v1/history?${ofPool()}${since ? `&since_unix_s=${since}` : ""}`;
    this.missing = false;
    try {
      const answer = await fetch(url, { signal: AbortSignal.timeout(TIMEOUT_MS) });
      if (!answer.ok) return;
      const { series, points } = await answer.json();
      const named = points.map((/** @type {any} */ p) => ({ ...p, series }));
      const isSame = series.join() === this.series.join();
      this.series = series;
      this.points = isSame ? merge(this.points, named) : named;
    } catch {
      // The store or the connection is away: the gap stays a gap, and live points follow.
    }
  }

  /** Draws the thresholds of now from the next drawing on. @param {[number, number]} thresholds */
  use(thresholds) {
    this.thresholds = thresholds;
  }

  /** Takes the point of now. @param {any} point */
  add(point) {
    const last = this.points.at(-1);
    const hasGap = last && point.at_unix_s - last.at_unix_s > GAP_S;
    if ((hasGap || point.series.join() !== this.series.join()) && this.started && !this.missing) {
      if (point.series.join() !== this.series.join()) {
        this.series = point.series;
        this.points = [];
      }
      this.missing = true;
      this.fill().then(() => this.draw(true));
    }
    this.points = merge(this.points, [point]);
    this.draw(false);
  }

  /** @param {boolean} now also when the last drawing is younger than a second */
  draw(now) {
    const now_s = Date.now() / 1000;
    if (!this.started || !window.Plotly || document.hidden) return;
    if (!now && (now_s - this.drawn_s < 0.9 || this.isPaused())) return;
    this.drawn_s = now_s;
    const speaks = now_s - this.words_s > WORDS_EVERY_S;
    if (speaks) this.words_s = now_s;
    for (const chart of CHARTS) {
      const element = /** @type {HTMLElement} */ (byId(`chart-${chart.key}`));
      // Under the pointer the axis must not move.
      if (!this.inView.has(chart.key) || (!now && element.matches(":hover"))) continue;
      const lines = chart.lines(this.points);
      this.drawOne(chart, element, lines);
      if (speaks) {
        setText(/** @type {Element} */ (byId(`chart-${chart.key}-words`)), inWords(lines, chart.unit));
        if (!byId(`chart-${chart.key}-table`)?.hidden) this.table(chart);
      }
    }
  }

  /** @param {Chart} chart @param {HTMLElement} element @param {Line[]} lines */
  drawOne(chart, element, lines) {
    const colour = colours();
    const known = lines.flatMap((l) => l.values.filter((v) => v !== null));
    const before = this.ranges.get(chart.key);
    const range = axisRange(chart.key, known, before);
    this.ranges.set(chart.key, range);
    const scale = chart.steps ? position : (/** @type {number} */ v) => v;
    const end_s = this.points.at(-1)?.at_unix_s ?? Date.now() / 1000;
    const emphasised = this.emphasised(chart, lines);
    const traces = lines.map((line, i) => {
      const at = emphasised.indexOf(line.name);
      const gapped = withGaps(this.points.map((p) => p.at_unix_s), line.values);
      return {
        x: gapped.times.map(localIso),
        y: gapped.values.map((v) => (v === null ? null : scale(v))),
        text: gapped.values.map((v) => number(v)),
        name: line.name,
        mode: "lines",
        connectgaps: false,
        hovertemplate: `${line.name}: %{text}<extra></extra>`,
        line: {
          color: at < 0 ? colour("--border-strong") : colour(COLOURS[at]),
          width: at < 0 ? 1 : 1.5,
          dash: DASHES[chart.key]?.[at] ?? "solid",
        },
        opacity: at < 0 ? 0.5 : 1,
        zorder: at < 0 ? 0 : i + 1,
      };
    });
    const height = element.clientHeight;
    const labels = this.labels(lines, emphasised, range, scale, height, colour);
    const layout = this.layout(chart, range, scale, end_s, colour);
    layout.annotations.push(...labels);
    if (!known.length) layout.annotations.push(emptyWords(chart, this.points.at(-1), colour));
    this.revision += 1;
    window.Plotly.react(element, traces, { ...layout, datarevision: this.revision }, {
      displayModeBar: false, responsive: false, doubleClick: false,
    });
  }

  /** Which lines have a colour and a label: all up to six, else the least free now. @param {Chart} chart @param {Line[]} lines */
  emphasised(chart, lines) {
    if (lines.length <= COLOURS.length) return lines.map((l) => l.name);
    const now = lines.map((l) => ({ name: l.name, last: l.values.findLast((v) => v !== null) ?? Infinity }));
    return now.sort((a, b) => a.last - b.last).slice(0, COLOURS.length).map((l) => l.name);
  }

  /** Labels at the lines' ends, pushed apart where they would overlap. */
  labels(lines, emphasised, range, scale, height, colour) {
    const plot = Math.max(1, height - 38);
    const low = scale(range[0]);
    const perPixel = (scale(range[1]) - low) / plot;
    const wanted = lines
      .filter((l) => emphasised.includes(l.name) && l.values.at(-1) !== null && l.values.length)
      .map((l) => ({ name: l.name, y: scale(l.values.at(-1)) }))
      .sort((a, b) => a.y - b.y);
    const gap = 13 * perPixel;
    wanted.forEach((label, i) => {
      const floor = i ? wanted[i - 1].y + gap : low + gap / 3;
      label.y = Math.max(label.y, floor);
    });
    const top = scale(range[1]) - gap / 3;
    for (let i = wanted.length - 1, ceiling = top; i >= 0; i -= 1) {
      wanted[i].y = Math.min(wanted[i].y, ceiling);
      ceiling = wanted[i].y - gap;
    }
    return wanted.map(({ name, y }) => ({
      xref: "paper", x: 1, xanchor: "left", xshift: 6, yref: "y", y, yanchor: "middle",
      text: name, showarrow: false,
      font: { size: 11, color: colour(COLOURS[emphasised.indexOf(name)]) },
    }));
  }

  /** @param {Chart} chart @param {[number, number]} range @param {(v: number) => number} scale @param {number} end_s @param {(name: string) => string} colour */
  layout(chart, range, scale, end_s, colour) {
    const at = ticks(chart.key, range);
    const text = colour("--text-3");
    const shapes = [];
    const annotations = [];
    const note = (/** @type {number} */ y, /** @type {string} */ words) => annotations.push({
      xref: "paper", x: 0, xanchor: "left", xshift: 3, yref: "y", y, yanchor: "bottom",
      text: words, showarrow: false, font: { size: 11, color: colour("--text-2") },
    });
    if (chart.steps) {
      const [from, to] = this.band;
      shapes.push({
        type: "rect", xref: "paper", x0: 0, x1: 1, y0: scale(from), y1: scale(to),
        fillcolor: colour("--band"), line: { width: 0 }, layer: "below",
      });
      note(scale(to), `scaling band ${from}–${to}`);
      const [below, above] = this.thresholds;
      shapes.push(threshold(scale(below), colour));
      if (above !== below) shapes.push(threshold(scale(above), colour));
      if (range[0] < below) note(scale(below), `gives requests away below ${number(below)}`);
      if (range[0] < above && above !== below) note(scale(above), `takes some above ${number(above)}`);
    } else if (chart.key === "kv") {
      shapes.push(threshold(100, colour));
    }
    return {
      margin: { l: 46, r: 78, t: 12, b: 26 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: text },
      showlegend: false,
      hovermode: "x unified",
      hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--border-strong"), font: { color: colour("--text"), size: 11 } },
      dragmode: false,
      uirevision: chart.key,
      shapes,
      annotations,
      xaxis: {
        type: "date", range: [localIso(end_s - HISTORY_S), localIso(end_s)], fixedrange: true,
        tickformat: "%H:%M", hoverformat: "%H:%M:%S", dtick: 120000, showgrid: false, zeroline: false,
        linecolor: colour("--grid"), ticks: "", showline: false,
      },
      yaxis: {
        range: [scale(range[0]), scale(range[1])], fixedrange: true, zeroline: false,
        gridcolor: colour("--grid"), tickmode: "array", tickvals: at.map(scale),
        ticktext: at.map((v) => number(v)),
      },
    };
  }

  /** @param {MouseEvent} event */
  press(event) {
    const button = /** @type {Element} */ (event.target).closest("[data-chart]");
    const chart = CHARTS.find((c) => c.key === button?.getAttribute("data-chart"));
    if (!button || !chart) return;
    if (button.classList.contains("chart-csv")) {
      download(`ferry-${chart.key}.csv`, csv(this.points, chart));
      return;
    }
    const table = /** @type {HTMLElement} */ (byId(`chart-${chart.key}-table`));
    table.hidden = !table.hidden;
    button.setAttribute("aria-pressed", String(!table.hidden));
    if (!table.hidden) this.table(chart);
  }

  /** Writes the newest minute as a table. @param {Chart} chart */
  table(chart) {
    const lines = chart.lines(this.points);
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const name of ["Time", ...lines.map((l) => `${l.name}, ${chart.unit}`)]) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = name;
      head.append(cell);
    }
    const body = table.createTBody();
    for (let i = this.points.length - 1; i >= Math.max(0, this.points.length - 60); i -= 1) {
      const row = body.insertRow();
      row.insertCell().textContent = new Date(this.points[i].at_unix_s * 1000).toLocaleTimeString("en-GB");
      for (const line of lines) row.insertCell().textContent = number(line.values[i]);
    }
    byId(`chart-${chart.key}-table`)?.replaceChildren(table);
  }
}

/** @param {number} y @param {(name: string) => string} colour */
function threshold(y, colour) {
  return {
    type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, layer: "below",
    line: { color: colour("--border-strong"), width: 1, dash: "dash" },
  };
}

/** @param {Chart} chart @param {any} last the newest point @param {(name: string) => string} colour */
function emptyWords(chart, last, colour) {
  let words = "No points yet. They come one a second.";
  if (last) words = "No instance reports.";
  if (chart.steps && last && last.used_percent !== null) words = "Nothing runs, so every instance is as free as can be.";
  return {
    xref: "paper", x: 0.5, yref: "paper", y: 0.5, text: words, showarrow: false,
    bgcolor: colour("--surface"), borderpad: 6, font: { size: 12, color: colour("--text-2") },
  };
}

/** @param {string} key @param {string} words */
function problem(key, words) {
  const box = document.createElement("div");
  box.className = "problem";
  box.textContent = words;
  byId(`chart-${key}`)?.replaceChildren(box);
}

/** Resolves the tokens of the present theme. */
export function colours() {
  const probe = document.createElement("i");
  document.body.append(probe);
  /** @type {Map<string, string>} */
  const known = new Map();
  queueMicrotask(() => probe.remove());
  return (/** @type {string} */ name) => {
    if (!known.has(name)) {
      probe.style.setProperty("color", `var(${name})`);
      known.set(name, getComputedStyle(probe).color);
    }
    return /** @type {string} */ (known.get(name));
  };
}

/** Plotly shows times as they are written, so they are written in the reader's zone. @param {number} unix_s */
function localIso(unix_s) {
  const at = new Date(unix_s * 1000);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}

/** @param {Line[]} lines @param {string} unit */
function inWords(lines, unit) {
  return lines
    .map(({ name, values }) => {
      const known = /** @type {number[]} */ (values.filter((v) => v !== null));
      if (!known.length) return `${name}: no value`;
      const now = values.at(-1) ?? null;
      return `${name}: now ${number(now)} ${unit}, lowest ${number(Math.min(...known))}, highest ${number(Math.max(...known))}`;
    })
    .join(". ");
}

/** Exactly the points drawn, ISO times, units in the header. @param {any[]} points @param {Chart} chart */
export function csv(points, chart) {
  const lines = chart.lines(points);
  const quoted = (/** @type {string} */ text) => `"${text.replaceAll('"', '""')}"`;
  const head = ["time", ...lines.map((l) => quoted(`${l.name} (${chart.unit})`))];
  const rows = points.map((p, i) => [
    new Date(p.at_unix_s * 1000).toISOString(), ...lines.map((l) => l.values[i] ?? ""),
  ]);
  return [head, ...rows].map((row) => row.join(",")).join("\r\n");
}

/** @param {string} name @param {string} text */
function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
