// Where an answer came from, without a browser.

import assert from "node:assert/strict";
import { test } from "node:test";

import { arrivalWords, withEvent } from "../../../static/live/journey.js";

const move = (from, to, at_token, gap_ms = null) => ({ request_id: "r", from, to, at_token, gap_ms });
const names = (stops) => stops.map((stop) => stop.instance);

test("the instances stand in the order of the visits, also one that is visited again", () => {
  let stops = withEvent([], { request_id: "r", instance: "i-01" });
  stops = withEvent(stops, move("i-01", "i-02", 212, 9.4));
  stops = withEvent(stops, move("i-02", "i-01", 300, 8));
  assert.deepEqual(names(stops), ["i-01", "i-02", "i-01"]);
});

test("what a resumed stream says again changes nothing", () => {
  const once = withEvent(withEvent([], { instance: "i-01" }), move("i-01", "i-02", 212, 9));
  assert.deepEqual(withEvent(withEvent(once, { instance: "i-01" }), move("i-01", "i-02", 212)), once);
});

test("a move that is told before the first instance names both", () => {
  assert.deepEqual(names(withEvent([], move("i-01", "i-02", 0))), ["i-01", "i-02"]);
});

test("a move says at which token and how long its reader waited", () => {
  const words = (atToken, gap_ms) => arrivalWords({ instance: "i", atToken, gap_ms });
  assert.equal(words(212, 8.6), "at token 212, 9 ms");
  assert.equal(words(1212, 120.7), "at token 1,212, 121 ms");
  assert.equal(words(212, null), "at token 212");
  assert.equal(words(0, null), "before the first token");
  assert.equal(words(null, null), "");
});
