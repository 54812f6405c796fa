// Numbers, ages and names in words; web/templatetags/ferry.py writes the same on the first paint. Pure.

export const DASH = "–";
const NAME_MAX_CHARS = 18;
export const NODE_MAX_CHARS = 9;

/** @param {number} value @param {number} digits */
function grouped(value, digits) {
  return value
    .toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })
    .replace("-", "−");
}

/** Three significant digits, a dash for null. @param {number | null | undefined} value */
export function number(value) {
  if (value === null || value === undefined) return DASH;
  const size = Math.abs(value);
  return grouped(value, size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2);
}

/** One decimal under 100, none above. @param {number | string | null | undefined} value */
export function freeness(value) {
  if (value === null || value === undefined) return DASH;
  if (value === "draining") return "−∞";
  if (value === "idle") return "idle";
  return grouped(/** @type {number} */ (value), Math.abs(/** @type {number} */ (value)) < 100 ? 1 : 0);
}

/** @param {number | null} seconds */
export function age(seconds) {
  if (seconds === null || Number.isNaN(seconds)) return DASH;
  const age_s = Math.max(0, seconds);
  if (age_s < 10) return `${age_s.toFixed(1)} s`;
  if (age_s < 120) return `${age_s.toFixed(0)} s`;
  return age_s < 7200 ? `${(age_s / 60).toFixed(0)} min` : `${(age_s / 3600).toFixed(0)} h`;
}

/** @param {string} state */
export function stateWord(state) {
  const words = state.replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** Leaves out the middle of a long name; its ends tell more. @param {string} name @param {number} [maxChars] */
export function shortName(name, maxChars = NAME_MAX_CHARS) {
  if (name.length <= maxChars) return name;
  const head = Math.floor(maxChars / 2);
  return `${name.slice(0, head)}…${name.slice(-(maxChars - head - 1))}`;
}

/** Compares names so that i-2 stands before i-10. */
const natural = new Intl.Collator("en", { numeric: true });
export const byName = natural.compare;

/** @param {number} unix_s */
export function clock(unix_s) {
  return new Date(unix_s * 1000).toLocaleTimeString("en-GB");
}

/** @param {number} unix_s */
export function fullTime(unix_s) {
  return new Date(unix_s * 1000).toLocaleString("en-GB", {
    dateStyle: "medium",
    timeStyle: "long",
  });
}
