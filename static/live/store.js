// The reducer of the live messages: what a topic's rows are after each of them. Pure, no browser.

/**
 * @typedef {{seq: number, rows: Map<string, any[]>}} Topic
 * @typedef {{changed: string[], gone: string[]}} Effect
 */

/**
 * Replaces a topic by a snapshot. Rows that it does not hold are gone, so that no dead row can stay.
 * @param {Map<string, Topic>} topics @param {any} message @returns {Effect}
 */
export function applySnapshot(topics, message) {
  const before = topics.get(message.topic);
  const rows = new Map(Object.entries(message.rows));
  topics.set(message.topic, { seq: message.seq, rows });
  const gone = before ? [...before.rows.keys()].filter((key) => !rows.has(key)) : [];
  return { changed: [...rows.keys()], gone };
}

/**
 * Applies a delta. Returns null when it does not build upon what is here: then ask for a snapshot.
 * @param {Map<string, Topic>} topics @param {any} message @returns {Effect | null}
 */
export function applyDelta(topics, message) {
  const topic = topics.get(message.topic);
  if (!topic || topic.seq !== message.prev) return null;
  for (const [key, packed] of Object.entries(message.rows)) {
    const row = unpack(topic.rows.get(key), packed);
    if (!row) return null;
    topic.rows.set(key, row);
  }
  for (const key of message.gone) topic.rows.delete(key);
  topic.seq = message.seq;
  return { changed: Object.keys(message.rows), gone: message.gone };
}

/**
 * Returns the row after a packed change, null when fields of a new row are missing.
 * @param {any[] | undefined} before @param {any[]} packed [mask, changed values in order]
 */
export function unpack(before, packed) {
  const row = before ? before.slice() : [];
  let at = 1;
  for (let bit = 0; at < packed.length; bit += 1) {
    if (packed[0] & (1 << bit)) {
      row[bit] = packed[at];
      at += 1;
    } else if (bit >= row.length) {
      return null;
    }
  }
  return row;
}
