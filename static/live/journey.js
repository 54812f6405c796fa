// Where an answer came from: the instances in time order, and "Move it now" while it streams.

import { find, setText } from "./dom.js";
import { number } from "./format.js";

/** @typedef {{instance: string, atToken: number | null, gap_ms: number | null}} Stop */

const WATCH_EVERY_MS = 500;
const WATCH_MAX_MS = 30_000;
const REASON = "from the playground";

/** What stands behind an instance's chip: when the answer came there. Pure. @param {Stop} stop */
export function arrivalWords({ atToken, gap_ms }) {
  if (atToken === null) return "";
  const when = atToken === 0 ? "before the first token" : `at token ${number(atToken)}`;
  return gap_ms === null ? when : `${when}, ${number(Math.round(gap_ms))} ms`;
}

/**
 * Adds what an event says to the instances so far; an event that came twice changes nothing. Pure.
 * @param {Stop[]} stops @param {any} data @returns {Stop[]}
 */
export function withEvent(stops, data) {
  if (data.to) {
    const isKnown = stops.some((stop) => stop.instance === data.to && stop.atToken === data.at_token);
    const start = stops.length ? stops : [{ instance: data.from, atToken: null, gap_ms: null }];
    return isKnown ? stops : [...start, { instance: data.to, atToken: data.at_token, gap_ms: data.gap_ms }];
  }
  if (data.instance && !stops.length) return [{ instance: data.instance, atToken: null, gap_ms: null }];
  return stops;
}

export class Journey {
  /** @param {Element} facts @param {string} token the CSRF token */
  constructor(facts, token) {
    this.chips = find(facts, ".chips");
    this.button = /** @type {HTMLButtonElement} */ (find(facts, ".move"));
    this.result = find(facts, ".move-result");
    this.link = /** @type {HTMLAnchorElement} */ (find(facts, ".request-link"));
    this.token = token;
    this.requestId = "";
    this.isOver = false;
    /** @type {Stop[]} */
    this.stops = [];
    this.button.addEventListener("click", () => this.move());
  }

  /** Takes one of the server's events about the answer. @param {any} data */
  take(data) {
    this.requestId = data.request_id;
    this.link.href = `/requests/${encodeURIComponent(this.requestId)}/`;
    this.link.hidden = false;
    if (data.to) {
      setText(this.result, "");
      this.button.disabled = false;
    }
    this.stops = withEvent(this.stops, data);
    this.button.hidden = this.isOver;
    while (this.chips.childElementCount < this.stops.length) this.addChip(this.stops[this.chips.childElementCount]);
  }

  /** @param {Stop} stop */
  addChip(stop) {
    const part = document.createElement("span");
    const chip = document.createElement("span");
    chip.className = "chip";
    chip.textContent = stop.instance;
    chip.title = stop.atToken === null ? "The instance that took the request" : "The instance that it moved to";
    if (stop.atToken !== null) part.append("→ ");
    part.append(chip);
    const words = arrivalWords(stop);
    if (words) part.append(` ${words}`);
    this.chips.append(part);
  }

  async move() {
    this.button.disabled = true;
    setText(this.result, "asked");
    try {
      const response = await fetch(`/api/v1/requests/${encodeURIComponent(this.requestId)}/migrate`, {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-CSRFToken": this.token },
        body: JSON.stringify({ destination: null, reason: REASON }),
      });
      const body = await response.json();
      if (response.status !== 202) this.say(body.error?.message ?? `The server answered ${response.status}.`);
      else await this.watch(body.migration_id);
    } catch {
      this.say("The move could not be asked for: the server did not answer.");
    }
  }

  /** Says when a move is given up; one that succeeds is told by the stream. @param {string} migrationId */
  async watch(migrationId) {
    const asked = this.stops.length;
    for (let waited_ms = 0; waited_ms < WATCH_MAX_MS && !this.isOver; waited_ms += WATCH_EVERY_MS) {
      await new Promise((next) => setTimeout(next, WATCH_EVERY_MS));
      if (this.stops.length !== asked) return;
      const response = await fetch(`/api/v1/migrations/${encodeURIComponent(migrationId)}`);
      if (!response.ok) continue;
      const move = await response.json();
      if (move.state === "aborted") {
        this.say(`It stayed: ${move.abort_reason || move.abort_code}`);
        return;
      }
    }
    if (!this.isOver) this.say("Not confirmed yet.");
  }

  /** @param {string} text */
  say(text) {
    if (this.isOver) return;
    setText(this.result, text);
    this.button.disabled = false;
  }

  /** The answer has ended: nothing is left to move. */
  finish() {
    this.isOver = true;
    this.button.hidden = true;
    if (this.result.textContent === "asked") setText(this.result, "");
  }
}
