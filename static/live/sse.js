// Server-sent events out of a stream of text. Pure.

/** @typedef {{event: string, data: string, id: string}} ServerEvent */

/** Collects text and gives the events that are complete. Comments are left out. */
export class EventParser {
  constructor() {
    this.rest = "";
    this.lastId = "";
  }

  /** @param {string} text @returns {ServerEvent[]} */
  push(text) {
    const parts = (this.rest + text).replaceAll("\r\n", "\n").split("\n\n");
    this.rest = parts.pop() ?? "";
    return parts.map((part) => this.parse(part)).filter((event) => event !== null);
  }

  /** @param {string} block @returns {ServerEvent | null} */
  parse(block) {
    let event = "message";
    /** @type {string[]} */
    const data = [];
    for (const line of block.split("\n")) {
      const colon = line.indexOf(":");
      if (colon <= 0) continue;
      const value = line.slice(colon + 1).replace(/^ /, "");
      const name = line.slice(0, colon);
      if (name === "data") data.push(value);
      else if (name === "event") event = value;
      else if (name === "id") this.lastId = value;
    }
    return data.length ? { event, data: data.join("\n"), id: this.lastId } : null;
  }
}
