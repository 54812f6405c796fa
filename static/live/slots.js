// Places of a list whose rows must not move while others come and go. Pure.

/**
 * Returns who stands in which place: who is there stays, who is gone leaves a gap (null), who comes
 * takes the first gap. An idle list begins anew.
 * @param {(string | null)[]} slots @param {string[]} keys @param {number} most @returns {(string | null)[]}
 */
export function placed(slots, keys, most) {
  if (!keys.length) return [];
  const wanted = new Set(keys);
  const next = slots.map((key) => (key !== null && wanted.has(key) ? key : null));
  const standing = new Set(next);
  for (const key of keys) {
    if (standing.has(key)) continue;
    const gap = next.indexOf(null);
    if (gap >= 0) next[gap] = key;
    else if (next.length < most) next.push(key);
  }
  return next;
}
