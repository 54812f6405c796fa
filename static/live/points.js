// The charts' points: kept, merged, with gaps; and the axes' ranges. Pure.

export const HISTORY_S = 600;
/** Two points further apart than this have no line between them. */
export const GAP_S = 5;

/**
 * Merges newer points into older ones, by second; the newer one wins. Keeps ten minutes.
 * @template {{at_unix_s: number}} P @param {P[]} points @param {P[]} more @returns {P[]}
 */
export function merge(points, more) {
  const last = points.at(-1);
  if (more.length === 1 && last && more[0].at_unix_s >= last.at_unix_s) {
    const kept = more[0].at_unix_s === last.at_unix_s ? points.slice(0, -1) : points;
    return trimmed([...kept, more[0]]);
  }
  const bySecond = new Map([...points, ...more].map((p) => [p.at_unix_s, p]));
  return trimmed([...bySecond.values()].sort((a, b) => a.at_unix_s - b.at_unix_s));
}

/** @template {{at_unix_s: number}} P @param {P[]} points @returns {P[]} */
function trimmed(points) {
  const end_s = points.at(-1)?.at_unix_s ?? 0;
  const from = points.findIndex((p) => p.at_unix_s >= end_s - HISTORY_S);
  return from > 0 ? points.slice(from) : points;
}

/**
 * Puts a null between points that are too far apart, so that no line joins them.
 * @param {number[]} times @param {(number | null)[]} values
 */
export function withGaps(times, values) {
  /** @type {{times: number[], values: (number | null)[]}} */
  const out = { times: [], values: [] };
  times.forEach((time, i) => {
    if (i && time - times[i - 1] > GAP_S) {
      out.times.push(times[i - 1] + 1);
      out.values.push(null);
    }
    out.times.push(time);
    out.values.push(values[i]);
  });
  return out;
}

const STEPS = [-6400, -3200, -1600, -500, -160, 0, 160, 500, 960, 2000, 4000, 8000, 16000, 40000, 100000];

/** Round numbers up to which an axis reaches. @param {number} value */
function roundUp(value) {
  const size = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 2.5, 4, 5, 8, 10].map((n) => n * size).find((n) => n >= value) ?? 10 * size;
}

/**
 * The range that holds all values; it only grows, so that the axis does not breathe.
 * @param {string} key @param {number[]} values @param {[number, number] | undefined} before
 * @returns {[number, number]}
 */
export function axisRange(key, values, before) {
  const low = values.length ? Math.min(...values) : 0;
  const high = values.length ? Math.max(...values) : 0;
  if (key === "freeness") {
    const from = STEPS.findLast((s) => s <= low) ?? STEPS[0];
    const to = STEPS.find((s) => s >= high) ?? STEPS[STEPS.length - 1];
    return [Math.min(from, -160, before?.[0] ?? 0), Math.max(to, 2000, before?.[1] ?? 0)];
  }
  if (key === "kv") return [0, Math.max(125, before?.[1] ?? 0)];
  return [0, Math.max(roundUp(high * 1.05), 20, before?.[1] ?? 0)];
}

/** @param {string} key @param {[number, number]} range */
export function ticks(key, [from, to]) {
  if (key === "freeness") return STEPS.filter((s) => s >= from && s <= to);
  if (key === "kv") return [0, 25, 50, 75, 100, 125];
  return [0, 1, 2, 3, 4].map((i) => (to * i) / 4);
}
