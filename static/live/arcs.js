// Where the arcs of moves run in the gutter beside the instance rows. Pure.

export const ARCS_MAX = 12;
export const GUTTER_PX = 52;
const LANE_PX = 14;
const FIRST_PX = 14;
const ARROW_PX = 6;

/**
 * @typedef {{key: string, from: number, to: number}} Move rows' middles, in px from the top
 * @typedef {{key: string, path: string, arrow: string, dot: [number, number]}} Arc
 */

/**
 * Lays arcs out: the shortest innermost, no two over each other; none at all when there are too many.
 * @param {Move[]} moves @returns {Arc[]}
 */
export function layout(moves) {
  const drawn = moves.filter((m) => m.from !== m.to);
  if (!drawn.length || drawn.length > ARCS_MAX) return [];
  const length = (/** @type {Move} */ m) => Math.abs(m.from - m.to);
  const ordered = [...drawn].sort((a, b) => length(a) - length(b) || a.key.localeCompare(b.key));
  /** @type {[number, number][][]} */
  const lanes = [];
  const placed = ordered.map((move) => {
    const span = /** @type {[number, number]} */ ([Math.min(move.from, move.to), Math.max(move.from, move.to)]);
    let lane = lanes.findIndex((spans) => spans.every(([a, b]) => b < span[0] || a > span[1]));
    if (lane < 0) lane = lanes.push([]) - 1;
    lanes[lane].push(span);
    return { move, lane };
  });
  const step = Math.min(LANE_PX, (GUTTER_PX - FIRST_PX - 4) / Math.max(1, lanes.length - 1));
  const offsets = ends(placed.map(({ move }) => move));
  return placed.map(({ move, lane }) => {
    const x = FIRST_PX + lane * step;
    const from = move.from + (offsets.get(`${move.key}/from`) ?? 0);
    const to = move.to + (offsets.get(`${move.key}/to`) ?? 0);
    const turn = Math.sign(to - from) || 1;
    const round = Math.min(5, Math.abs(to - from) / 2, x - 3);
    const path = `M3 ${from}H${x - round}Q${x} ${from} ${x} ${from + turn * round}V${to - turn * round}Q${x} ${to} ${x - round} ${to}H${ARROW_PX}`;
    return { key: move.key, path, arrow: `M0 ${to}l${ARROW_PX} -3.5v7z`, dot: [3, from] };
  });
}

/** Ends that meet at one row stand beside each other. @param {Move[]} moves */
function ends(moves) {
  /** @type {Map<number, string[]>} */
  const atRow = new Map();
  for (const move of moves) {
    for (const end of /** @type {const} */ (["from", "to"])) {
      atRow.set(move[end], [...(atRow.get(move[end]) ?? []), `${move.key}/${end}`]);
    }
  }
  /** @type {Map<string, number>} */
  const offsets = new Map();
  for (const keys of atRow.values()) {
    const step = Math.min(9, 30 / keys.length);
    keys.forEach((key, i) => offsets.set(key, Math.round((i - (keys.length - 1) / 2) * step * 10) / 10));
  }
  return offsets;
}
