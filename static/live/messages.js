// Everything that can arrive on the live socket; mirrors web/messages.py, and a test compares both.

export const PATH = "/ws/live";
export const SUBSCRIBE = "sub";
export const SNAPSHOT = "snap";
export const DELTA = "d";
export const TICK = "tick";
export const ERROR = "err";
export const CLOSE_GOING_AWAY = 1001;
export const CLOSE_NOT_ALLOWED = 1008;

const INSTANCE = [
  "node", "state", "cause", "since_unix_s", "at_unix_s", "capacity_tokens", "used_tokens",
  "virtual_tokens", "bar", "freeness", "running", "waiting", "step_ms", "preemptions_per_min",
  "caption", "tone", "restarts", "moves_in", "moves_out",
  "wanted", "wanted_by",
];

/** The fields of a row in their order, by the kind of topic. */
export const FIELDS = {
  cluster: INSTANCE,
  least: INSTANCE,
  grid: ["node", "state", "level"],
  tiles: ["value", "unit", "context", "tone", "spark"],
  strip: [
    "tone", "headline", "since_unix_s", "detail", "more", "answering", "oldest_report_unix_s",
  ],
  events: ["at_unix_s", "kind", "headline", "detail", "instance", "severity", "link"],
  moves: [
    "request_id", "priority_class", "state", "source", "destination", "started_unix_s", "took_s",
    "pips", "line", "tone",
  ],
  chart: [
    "series", "at_unix_s", "freeness", "used_percent", "virtual_percent", "used_max_percent",
    "output_tokens_per_s", "prompt_tokens_per_s",
  ],
  rebalancing: ["state", "line", "below_steps", "above_steps"],
};

/** Returns a row as an object. @param {string} kind @param {any[]} row */
export function named(kind, row) {
  return Object.fromEntries(FIELDS[kind].map((field, i) => [field, row[i]]));
}
