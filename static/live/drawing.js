// Geometry of the KV bar, the gauge and the sparkline; mirrors web/drawing.py, and a test compares both.

export const BAR_KINDS = ["class-1", "class-2", "class-3", "head-1", "head-2", "head-3", "queued"];
export const FILLS = {
  "head-1": "url(#pt-head-1)",
  "head-2": "url(#pt-head-2)",
  "head-3": "url(#pt-head-3)",
  queued: "url(#pt-queued)",
  drain: "url(#pt-drain)",
  starting: "url(#pt-none)",
};
const FULL = 80;
const GAUGE_FROM_STEPS = -640;
const GAUGE_TO_STEPS = 8000;
const GAUGE_SCALE_STEPS = 160;
const SPARK_POINTS = 40;
export const SHORT_BELOW_STEPS = 48;
export const BAND_STEPS = [160, 960];
let band = BAND_STEPS;

/** The band of the pool's own scaling counts from now on. @param {number[]} wanted */
export function useBand(wanted) {
  band = wanted;
}

/** @param {number} value @param {number} digits */
const rounded = (value, digits) => Math.round(value * 10 ** digits) / 10 ** digits;

/** Segments from left to right. @param {number[]} bar per mille of the capacity @param {string} state */
export function barRects(bar, state) {
  if (state === "starting") return [["starting", 0, FULL]];
  /** @type {[string, number, number][]} */
  const rects = [];
  let x = 0;
  bar.forEach((part, i) => {
    const width = Math.min((part * FULL) / 1000, 100 - x);
    if (width > 0) {
      rects.push([BAR_KINDS[i], rounded(x, 2), rounded(width, 2)]);
      x += width;
    }
  });
  if (bar.length && state === "draining") rects.push(["drain", rounded(x, 2), rounded(100 - x, 2)]);
  else if (x > FULL) rects.push(["over", FULL, rounded(x - FULL, 2)]);
  return rects;
}

/** The freeness axis: about linear up to the band, logarithmic beyond. @param {number} steps */
export const position = (steps) => Math.asinh(steps / GAUGE_SCALE_STEPS);

/** Where the mark stands, 0-100. @param {number | string | null} freeness */
export function gaugePercent(freeness) {
  if (freeness === null) return null;
  if (freeness === "idle") return 100;
  if (freeness === "draining") return 0;
  const low = position(GAUGE_FROM_STEPS);
  const share = (position(/** @type {number} */ (freeness)) - low) / (position(GAUGE_TO_STEPS) - low);
  return rounded(Math.min(100, Math.max(0, 100 * share)), 1);
}

/** @param {number | string | null} freeness */
export function gaugeTone(freeness) {
  if (freeness === null) return "none";
  if (freeness === "idle") return "spare";
  if (freeness === "draining") return "drain";
  if (freeness < Math.min(SHORT_BELOW_STEPS, band[0])) return "short";
  if (freeness < band[0]) return "low";
  return freeness <= band[1] ? "band" : "spare";
}

/** An SVG path of 100 x 20, newest at the right, with gaps. @param {(number | null)[]} values */
export function sparkPath(values) {
  const known = /** @type {number[]} */ (values.filter((v) => v !== null));
  if (known.length < 2) return "";
  const low = Math.min(...known);
  const span = Math.max(...known) - low || 1;
  const step = 100 / (SPARK_POINTS - 1);
  const first = SPARK_POINTS - values.length;
  let path = "";
  let penDown = false;
  values.forEach((value, i) => {
    if (value !== null) {
      const y = 18 - (16 * (value - low)) / span;
      path += `${penDown ? "L" : "M"}${((first + i) * step).toFixed(1)} ${y.toFixed(1)}`;
    }
    penDown = value !== null;
  });
  return path;
}
