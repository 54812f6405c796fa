// How old a value is and what that means; the server's clock as seen from here. Pure.

export const OLD_AFTER_S = 2;
export const STALE_AFTER_S = 5;
export const SILENT_AFTER_S = 15;
/** No tick for this long: the connection counts as lost. Ticks come each second. */
export const LOST_AFTER_S = 3;

/** @param {number} age_s @returns {"" | "warn" | "bad"} */
export function ageTone(age_s) {
  if (age_s > STALE_AFTER_S) return "bad";
  return age_s > OLD_AFTER_S ? "warn" : "";
}

/** Estimates the server's clock from the fastest message of the last minute. */
export class ServerClock {
  /** @param {() => number} now_s our own clock in seconds */
  constructor(now_s) {
    this.now_s = now_s;
    /** @type {[number, number][]} */
    this.heard = [];
    this.offset_s = 0;
  }

  /** @param {number} at_s the server's time in a message that arrived just now */
  hear(at_s) {
    const arrived_s = this.now_s();
    this.heard.push([arrived_s, arrived_s - at_s]);
    while (this.heard.length > 120 || this.heard[0][0] < arrived_s - 60) this.heard.shift();
    this.offset_s = Math.min(...this.heard.map(([, late_s]) => late_s));
  }

  /** The server's time now, in unix seconds. */
  now() {
    return this.now_s() - this.offset_s;
  }
}

const WAITS_S = [0.5, 1, 2, 4, 8, 15];

/** How long to wait before the next try. @param {number} failures @param {number} random 0-1 */
export function backoff_s(failures, random) {
  const wait_s = WAITS_S[Math.min(failures, WAITS_S.length - 1)];
  return wait_s * (0.7 + 0.6 * random);
}
