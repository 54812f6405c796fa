// The pure modules of the pages, without a browser: `node --test tests/web/js`.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ServerClock, ageTone, backoff_s } from "../../../static/live/ages.js";
import { curlCall, pythonCall } from "../../../static/live/calls.js";
import { age, byName, freeness, number, shortName } from "../../../static/live/format.js";
import { spans, takeBlocks } from "../../../static/live/markdown.js";
import { GAP_S, HISTORY_S, axisRange, merge, withGaps } from "../../../static/live/points.js";
import { EventParser } from "../../../static/live/sse.js";
import { applyDelta, applySnapshot, unpack } from "../../../static/live/store.js";

const snapshot = (seq, rows) => ({ t: "snap", topic: "c", seq, at: 0, rows });
const delta = (seq, prev, rows, gone = []) => ({ t: "d", topic: "c", seq, prev, at: 0, rows, gone });

test("a snapshot replaces the set, so that no dead row stays", () => {
  const topics = new Map();
  applySnapshot(topics, snapshot(1, { a: [1], b: [2] }));
  const effect = applySnapshot(topics, snapshot(2, { b: [3] }));
  assert.deepEqual(effect, { changed: ["b"], gone: ["a"] });
  assert.deepEqual([...topics.get("c").rows], [["b", [3]]]);
});

test("a delta changes only the fields of its mask", () => {
  const topics = new Map();
  applySnapshot(topics, snapshot(1, { a: [1, 2, 3] }));
  applyDelta(topics, delta(2, 1, { a: [0b101, 10, 30] }));
  assert.deepEqual(topics.get("c").rows.get("a"), [10, 2, 30]);
  assert.equal(topics.get("c").seq, 2);
});

test("a field may become null", () => {
  assert.deepEqual(unpack([1, 2], [0b10, null]), [1, null]);
});

test("a gap in the sequence is not guessed over", () => {
  const topics = new Map();
  applySnapshot(topics, snapshot(1, { a: [1] }));
  assert.equal(applyDelta(topics, delta(4, 3, { a: [1, 9] })), null);
  assert.deepEqual(topics.get("c").rows.get("a"), [1]);
  assert.equal(applyDelta(new Map(), delta(2, 1, {})), null);
});

test("a partial row of something unknown is not guessed either", () => {
  const topics = new Map();
  applySnapshot(topics, snapshot(1, {}));
  assert.equal(applyDelta(topics, delta(2, 1, { new: [0b10, 5] })), null);
});

test("a removal is explicit", () => {
  const topics = new Map();
  applySnapshot(topics, snapshot(1, { a: [1], b: [2] }));
  const effect = applyDelta(topics, delta(2, 1, {}, ["a"]));
  assert.deepEqual(effect, { changed: [], gone: ["a"] });
  assert.deepEqual([...topics.get("c").rows.keys()], ["b"]);
});

test("the server's clock follows the fastest message", () => {
  let now = 100;
  const clock = new ServerClock(() => now);
  clock.hear(90);
  now = 101;
  clock.hear(91.5);
  assert.equal(clock.now(), 91.5);
  now = 102;
  clock.hear(80);
  assert.equal(clock.now(), 92.5);
});

test("ages turn amber, then red", () => {
  assert.deepEqual([1, 3, 6].map(ageTone), ["", "warn", "bad"]);
});

test("waits before a reconnection grow and vary", () => {
  assert.equal(backoff_s(0, 0.5), 0.5);
  assert.equal(backoff_s(99, 0.5), 15);
  assert.ok(backoff_s(2, 0) < 2 && backoff_s(2, 1) > 2);
});

test("numbers, ages and names are written as on the first paint", () => {
  assert.deepEqual([null, 0, 18.24, 4812.4, -25].map(number), ["–", "0", "18.2", "4,812", "−25"]);
  assert.deepEqual([null, "idle", "draining", -25.14, 204.4].map(freeness), ["–", "idle", "−∞", "−25.1", "204"]);
  assert.deepEqual([null, 0.42, 36, 200, 8000].map(age), ["–", "0.4 s", "36 s", "3 min", "2 h"]);
  assert.equal(shortName("a".repeat(30) + "-tail"), "aaaaaaaaa…aaa-tail");
  assert.deepEqual(["i-10", "i-2"].sort(byName), ["i-2", "i-10"]);
});

test("events are found in pieces of a stream", () => {
  const parser = new EventParser();
  assert.deepEqual(parser.push("id: r:1\nda"), []);
  const [first] = parser.push('ta: {"a":1}\n\n: ping\n\nevent: ferry\ndata: x\n');
  assert.deepEqual(first, { event: "message", data: '{"a":1}', id: "r:1" });
  assert.deepEqual(parser.push("\n"), [{ event: "ferry", data: "x", id: "r:1" }]);
});

test("complete blocks leave the front, the rest waits", () => {
  const [blocks, rest] = takeBlocks("# Title\nSome *text*\nmore\n\n- one\n- two\n\nunfini", false);
  assert.deepEqual(blocks.map((b) => b.kind), ["heading", "paragraph", "list"]);
  assert.equal(rest, "unfini");
});

test("code stays out until its fence closes", () => {
  const [none, rest] = takeBlocks("```py\nprint(1)\n\nprint(2)\n", false);
  assert.deepEqual(none, []);
  const [blocks] = takeBlocks(`${rest}\`\`\`\n`, false);
  assert.deepEqual(blocks, [{ kind: "code", text: "print(1)\n\nprint(2)" }]);
});

test("block by block gives the same as all at once", () => {
  const text = "Intro\n\n1. a\n2. b\n\n> said\n> so\n\n```\nx\n```\nend **bold**\n\n---\n\n## H\nlast";
  const [whole] = takeBlocks(text, true);
  const pieces = [];
  let tail = "";
  for (const char of text) {
    const [blocks, rest] = takeBlocks(tail + char, false);
    pieces.push(...blocks);
    tail = rest;
  }
  pieces.push(...takeBlocks(tail, true)[0]);
  assert.deepEqual(pieces, whole);
});

test("only web links become links", () => {
  assert.deepEqual(spans("see [a](https://x.y) or [b](javascript:z)"), [
    { kind: "text", text: "see " },
    { kind: "link", text: "a", href: "https://x.y" },
    { kind: "text", text: " or [b](javascript:z)" },
  ]);
});

test("points merge by second and stay within ten minutes", () => {
  const point = (at_unix_s, v = 0) => ({ at_unix_s, v });
  const merged = merge([point(1), point(2)], [point(2, 9), point(3)]);
  assert.deepEqual(merged.map((p) => p.v), [0, 9, 0]);
  assert.equal(merge([point(0)], [point(HISTORY_S + 1)]).length, 1);
  assert.deepEqual(merge([point(5)], [point(5, 7)]), [point(5, 7)]);
});

test("a gap is a gap, not a line", () => {
  assert.deepEqual(withGaps([0, 1, 2 + GAP_S], [1, 2, 3]).values, [1, 2, null, 3]);
});

test("an axis only grows", () => {
  const first = axisRange("tokens", [900], undefined);
  assert.deepEqual(first, [0, 1000]);
  assert.deepEqual(axisRange("tokens", [10], first), first);
  assert.ok(axisRange("freeness", [-700, 3000], undefined)[0] <= -700);
});

test("the call can be pasted into a shell and into Python", () => {
  const body = { model: "m", messages: [{ role: "user", content: "it's \"so\"" }], temperature: 1, max_tokens: 9, stream: true };
  assert.match(curlCall(body, "http://h/v1"), /it'\\''s/);
  assert.match(pythonCall(body, "http://h/v1"), /"it's \\"so\\""/);
});
