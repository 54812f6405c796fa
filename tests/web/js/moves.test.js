// Places of moves: in the panel, and of their arcs. `node --test tests/web/js`.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ARCS_MAX, GUTTER_PX, layout } from "../../../static/live/arcs.js";
import { placed } from "../../../static/live/slots.js";

test("a move that goes leaves a gap, and nobody moves up", () => {
  assert.deepEqual(placed(["a", "b", "c"], ["a", "c"], 6), ["a", null, "c"]);
});

test("who comes takes the first gap", () => {
  assert.deepEqual(placed(["a", null, "c"], ["a", "c", "d"], 6), ["a", "d", "c"]);
  assert.deepEqual(placed(["a"], ["a", "b"], 6), ["a", "b"]);
});

test("an idle list begins anew", () => {
  assert.deepEqual(placed(["a", null, "c"], [], 6), []);
});

test("no more than fit are placed", () => {
  assert.deepEqual(placed([], ["a", "b", "c"], 2), ["a", "b"]);
  assert.deepEqual(placed(["a", "b"], ["b", "c"], 2), ["c", "b"]);
});

const across = (key, from, to) => ({ key, from, to });

/** The farthest an arc goes to the right. */
const reach = (arc) => Math.max(...arc.path.split("Q").slice(1).map((part) => Number(part.split(" ")[0])));

test("the shortest arc is the innermost", () => {
  const arcs = layout([across("long", 20, 300), across("short", 100, 140)]);
  assert.deepEqual(arcs.map((a) => a.key), ["short", "long"]);
  assert.ok(reach(arcs[0]) < reach(arcs[1]));
});

test("arcs that do not overlap share a lane", () => {
  const arcs = layout([across("a", 20, 60), across("b", 100, 140)]);
  assert.equal(reach(arcs[0]), reach(arcs[1]));
});

test("all stay inside the gutter", () => {
  const arcs = layout(Array.from({ length: ARCS_MAX }, (_, i) => across(`m${i}`, 20, 40 + 30 * i)));
  assert.equal(arcs.length, ARCS_MAX);
  assert.ok(arcs.every((arc) => reach(arc) < GUTTER_PX));
});

test("too many arcs are none", () => {
  assert.deepEqual(layout(Array.from({ length: ARCS_MAX + 1 }, (_, i) => across(`m${i}`, 20, 400))), []);
  assert.deepEqual(layout([]), []);
});

test("an arrow points at the destination, a dot stands at the source", () => {
  const [arc] = layout([across("a", 20, 60)]);
  assert.equal(arc.dot[1], 20);
  assert.match(arc.arrow, /^M0 60/);
});

test("ends at one row stand beside each other", () => {
  const [a, b] = layout([across("a", 20, 60), across("b", 20, 100)]);
  assert.notEqual(a.dot[1], b.dot[1]);
});
