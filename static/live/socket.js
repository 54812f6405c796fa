// The one socket of a tab. Modules register handlers by topic; nobody else opens a socket.

import { LOST_AFTER_S, ServerClock, backoff_s } from "./ages.js";
import { ofPool } from "./dom.js";
import * as messages from "./messages.js";
import { applyDelta, applySnapshot } from "./store.js";

const HIDDEN_AFTER_S = 30;
const POLL_AFTER_FAILURES = 3;
const POLL_EVERY_S = 10;

/** @typedef {"connecting" | "live" | "lost" | "login"} State */

class Live {
  constructor() {
    this.clock = new ServerClock(() => Date.now() / 1000);
    /** @type {Map<string, import("./store.js").Topic>} */
    this.topics = new Map();
    /** @type {Map<string, (rows: Map<string, any[]>, changed: Set<string>, gone: Set<string>) => void>} */
    this.handlers = new Map();
    /** @type {Map<string, {changed: Set<string>, gone: Set<string>}>} */
    this.pending = new Map();
    /** @type {Set<() => void>} */
    this.listeners = new Set();
    /** @type {State} */
    this.state = "connecting";
    this.stateSince_s = this.clock.now();
    this.lastHeard_s = this.clock.now();
    this.pausedAt_s = 0;
    this.waiting = 0;
    this.failures = 0;
    this.asleep = false;
    /** @type {WebSocket | null} */
    this.socket = null;
    this.retry = 0;
    this.frame = 0;
    this.polled_s = 0;
  }

  /** Subscribes. @param {string} topic @param {(rows: Map<string, any[]>, changed: Set<string>, gone: Set<string>) => void} handler */
  on(topic, handler) {
    this.handlers.set(topic, handler);
    if (this.topics.has(topic)) this.note(topic, [...this.rows(topic).keys()], []);
    this.subscribe();
  }

  /** Tells of connection, pause and each second. @param {() => void} listener */
  listen(listener) {
    this.listeners.add(listener);
  }

  /** Takes over what the page came with. @param {any} snapshot */
  seed(snapshot) {
    applySnapshot(this.topics, snapshot);
  }

  /** @param {string} topic @returns {Map<string, any[]>} */
  rows(topic) {
    return this.topics.get(topic)?.rows ?? new Map();
  }

  start() {
    this.connect();
    setInterval(() => this.second(), 1000);
    addEventListener("online", () => this.hurry());
    document.addEventListener("visibilitychange", () => this.visibility());
  }

  get paused() {
    return this.pausedAt_s > 0;
  }

  /** Freezes the picture; what comes meanwhile is kept, and shown on going on. */
  togglePause() {
    this.pausedAt_s = this.paused ? 0 : this.clock.now();
    this.waiting = 0;
    this.tell();
    this.flushSoon();
  }

  connect() {
    clearTimeout(this.retry);
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}${messages.PATH}?${ofPool()}`);
    this.socket = socket;
    socket.onopen = () => this.subscribe();
    socket.onmessage = (event) => {
      if (this.socket === socket) this.receive(JSON.parse(event.data));
    };
    socket.onclose = (event) => {
      if (this.socket === socket) this.closed(event.code);
    };
  }

  subscribe() {
    if (this.socket?.readyState !== WebSocket.OPEN) return;
    /** @type {Record<string, number>} */
    const topics = {};
    for (const topic of this.handlers.keys()) {
      if (!this.asleep || topic === "strip") topics[topic] = this.topics.get(topic)?.seq ?? 0;
    }
    this.socket.send(JSON.stringify({ t: messages.SUBSCRIBE, topics }));
  }

  /** @param {any} message */
  receive(message) {
    if (message.at) this.clock.hear(message.at);
    this.lastHeard_s = this.clock.now();
    this.failures = 0;
    this.become("live");
    this.apply(message);
  }

  /** @param {any} message */
  apply(message) {
    if (message.t === messages.SNAPSHOT) {
      const effect = applySnapshot(this.topics, message);
      this.note(message.topic, effect.changed, effect.gone);
    } else if (message.t === messages.DELTA) {
      const effect = applyDelta(this.topics, message);
      if (effect) {
        this.note(message.topic, effect.changed, effect.gone);
      } else {
        // A gap: forget the topic, so that the subscription asks for all of it.
        this.topics.delete(message.topic);
        this.subscribe();
      }
    } else if (message.t === messages.ERROR) {
      console.warn("live socket:", message.message);
    }
  }

  /** @param {string} topic @param {string[]} changed @param {string[]} gone */
  note(topic, changed, gone) {
    const pending = this.pending.get(topic) ?? { changed: new Set(), gone: new Set() };
    for (const key of changed) {
      pending.changed.add(key);
      pending.gone.delete(key);
    }
    for (const key of gone) {
      pending.gone.add(key);
      pending.changed.delete(key);
    }
    this.pending.set(topic, pending);
    if (this.paused && topic !== "strip") this.waiting += 1;
    this.flushSoon();
  }

  flushSoon() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.flush());
  }

  flush() {
    this.frame = 0;
    for (const [topic, { changed, gone }] of this.pending) {
      if (this.paused && topic !== "strip") continue;
      this.pending.delete(topic);
      this.handlers.get(topic)?.(this.rows(topic), changed, gone);
    }
  }

  /** @param {number} code */
  closed(code) {
    this.socket = null;
    if (code === messages.CLOSE_NOT_ALLOWED) {
      this.become("login");
      return;
    }
    // A server that is being replaced: others are there already. Not all pages in the same moment.
    const isReplaced = code === messages.CLOSE_GOING_AWAY && !this.failures;
    const wait_s = isReplaced ? 0.3 * Math.random() : backoff_s(this.failures, Math.random());
    this.failures += 1;
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.connect(), wait_s * 1000);
  }

  /** Tries again at once, when there is a reason to believe that it works now. */
  hurry() {
    if (this.socket || this.state === "login") return;
    this.failures = 0;
    this.connect();
  }

  visibility() {
    if (document.hidden) {
      setTimeout(() => {
        if (!document.hidden) return;
        this.asleep = true;
        this.subscribe();
      }, HIDDEN_AFTER_S * 1000);
      return;
    }
    if (this.asleep) {
      this.asleep = false;
      // Everything but the strip went on without us.
      for (const topic of this.handlers.keys()) if (topic !== "strip") this.topics.delete(topic);
      this.subscribe();
    }
    this.hurry();
  }

  second() {
    const silent_s = this.clock.now() - this.lastHeard_s;
    if (this.state !== "login" && silent_s > LOST_AFTER_S) {
      this.become("lost");
      // A dead connection may look open for minutes; a new one tells within seconds.
      if (this.socket?.readyState === WebSocket.OPEN && silent_s > 2 * LOST_AFTER_S) {
        this.socket.onclose = null;
        this.socket.close();
        this.closed(0);
      }
      if (this.failures >= POLL_AFTER_FAILURES) this.poll();
    }
    this.tell();
  }

  /** Where WebSockets do not pass, plain requests may. */
  async poll() {
    const now_s = Date.now() / 1000;
    if (document.hidden || now_s - this.polled_s < POLL_EVERY_S) return;
    this.polled_s = now_s;
    const topics = [...this.handlers.keys()].join(",");
    try {
      const answer = await fetch(`/live/snapshot/?${ofPool()}&topics=${encodeURIComponent(topics)}`, {
        headers: { Accept: "application/json" },
        signal: AbortSignal.timeout(5000),
      });
      if (answer.redirected || answer.status === 403) this.become("login");
      else if (answer.ok) for (const message of (await answer.json()).messages) this.apply(message);
    } catch {
      // Still away; the strip says so, and the next try follows.
    }
  }

  /** @param {State} state */
  become(state) {
    if (this.state === state) return;
    this.state = state;
    this.stateSince_s = this.clock.now();
    this.tell();
  }

  tell() {
    for (const listener of this.listeners) listener();
  }
}

export const live = new Live();
