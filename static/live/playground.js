// The playground: sends the conversation, shows tokens as they come, goes on after a lost connection.

import { backoff_s } from "./ages.js";
import { curlCall, pythonCall } from "./calls.js";
import { byId, dataBlock, find, setText, speak } from "./dom.js";
import { number } from "./format.js";
import { Journey } from "./journey.js";
import { AnswerView } from "./render.js";
import { EventParser } from "./sse.js";

const NEAR_END_PX = 64;
const RESUMES_MAX = 5;

const config = dataBlock("playground-config");
const scroll = /** @type {HTMLElement} */ (byId("scroll"));
const talk = /** @type {HTMLElement} */ (byId("talk"));
const prompt = /** @type {HTMLTextAreaElement} */ (byId("prompt"));
const send = /** @type {HTMLButtonElement} */ (byId("send"));
const toEnd = /** @type {HTMLButtonElement} */ (byId("to-end"));
const field = (/** @type {string} */ id) => /** @type {HTMLInputElement} */ (byId(id));
const token = /** @type {HTMLInputElement} */ (find(document, "#composer input[name=csrfmiddlewaretoken]")).value;

/** @type {{role: string, content: string}[]} */
let messages = [];
/** @type {Answer | null} */
let running = null;
let callKind = "curl";
let follows = true;

/** @param {string} text the message that is not sent yet */
function bodyOf(text) {
  const system = field("system").value.trim();
  return {
    model: config.model,
    messages: [
      ...(system ? [{ role: "system", content: system }] : []),
      ...messages,
      ...(text ? [{ role: "user", content: text }] : []),
    ],
    temperature: field("temperature").valueAsNumber,
    max_tokens: field("max-tokens").valueAsNumber,
    stream: true,
  };
}

function settingsError() {
  for (const [id, name] of [["temperature", "Temperature"], ["max-tokens", "Max. tokens"]]) {
    const input = field(id);
    if (!input.checkValidity() || Number.isNaN(input.valueAsNumber)) {
      return `${name}: a ${id === "max-tokens" ? "whole " : ""}number from ${input.min} to ${Number(input.max).toLocaleString("en-US")}.`;
    }
  }
  return "";
}

function drawCall() {
  const error = settingsError();
  const line = /** @type {HTMLElement} */ (byId("settings-error"));
  line.hidden = !error;
  setText(line, error);
  if (error) return;
  const body = bodyOf(prompt.value.trim() || (messages.length ? "" : "Hello"));
  const write = callKind === "curl" ? curlCall : pythonCall;
  setText(/** @type {HTMLElement} */ (byId("call")), write(body, config.base_url));
}

/** @param {string} role */
function turn(role) {
  const template = /** @type {HTMLTemplateElement} */ (byId("tpl-turn"));
  const element = find(/** @type {DocumentFragment} */ (template.content.cloneNode(true)), "article");
  element.classList.add(role);
  setText(find(element, ".who"), role === "user" ? "You" : config.model);
  talk.append(element);
  byId("no-talk")?.setAttribute("hidden", "");
  return /** @type {HTMLElement} */ (element);
}

function followEnd() {
  if (follows) scroll.scrollTop = scroll.scrollHeight;
  toEnd.hidden = follows;
}

class Answer {
  /** @param {any} body */
  constructor(body) {
    this.body = body;
    this.element = turn("assistant");
    this.element.setAttribute("aria-busy", "true");
    this.view = new AnswerView(/** @type {HTMLElement} */ (find(this.element, ".text")), followEnd);
    this.parser = new EventParser();
    this.abort = new AbortController();
    this.facts = find(this.element, ".facts");
    this.journey = new Journey(this.facts, token);
    /** @type {any} */
    this.ending = null;
    this.chunks = 0;
    this.isDone = false;
    this.isStopped = false;
    this.startedAt_ms = performance.now();
    this.firstAt_ms = 0;
  }

  async run() {
    for (let resumes = 0; !this.isDone && !this.isStopped; resumes += 1) {
      if (resumes) {
        if (!this.parser.lastId || resumes > RESUMES_MAX) {
          this.fail("The connection was lost, and the answer could not be resumed.");
          break;
        }
        await new Promise((next) => setTimeout(next, backoff_s(resumes - 1, Math.random()) * 1000));
      }
      try {
        await this.read(resumes > 0);
      } catch (error) {
        // A lost connection: the next round resumes. Everything else has ended the answer.
        if (!(error instanceof TypeError) && !this.isStopped) throw error;
      }
    }
    this.finish();
  }

  /** @param {boolean} isResume */
  async read(isResume) {
    const response = await fetch(`/playground/stream/${config.query}`, {
      method: "POST",
      headers: {
        "Content-Type": "application/json",
        "X-CSRFToken": token,
        ...(isResume ? { "Last-Event-ID": this.parser.lastId } : {}),
      },
      body: isResume ? "{}" : JSON.stringify({ ...this.body, stream_options: { include_usage: true } }),
      signal: this.abort.signal,
    });
    if (!response.ok || !response.body) {
      this.fail(await refusal(response));
      return;
    }
    if (isResume) this.note(`reconnected at token ${this.chunks}`);
    this.parser.rest = "";
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      for (const event of this.parser.push(value)) this.take(event);
    }
  }

  /** @param {import("./sse.js").ServerEvent} event */
  take(event) {
    if (event.data === "[DONE]") {
      this.isDone = true;
      return;
    }
    const data = JSON.parse(event.data);
    if (event.event === "ferry") {
      this.journey.take(data);
      this.drawFacts();
      if ("output_tokens" in data) this.ending = data;
    } else if (data.error) {
      // One that can be resumed comes from a server that is being replaced: the next round resumes.
      if (!data.error.resumable) this.fail(data.error.message);
    } else {
      const text = data.choices?.[0]?.delta?.content;
      if (!text) return;
      if (!this.firstAt_ms) this.firstAt_ms = performance.now();
      this.chunks += 1;
      this.view.add(text);
      if (this.chunks % 8 === 1) this.drawFacts();
    }
  }

  drawFacts() {
    this.facts.removeAttribute("hidden");
    const { ending } = this;
    const ttft_ms = ending?.ttft_ms ?? (this.firstAt_ms ? this.firstAt_ms - this.startedAt_ms : null);
    const decode_s = (performance.now() - this.firstAt_ms) / 1000;
    const speed = ending ? ending.tokens_per_s : this.chunks > 1 ? (this.chunks - 1) / decode_s : null;
    const tokens = ending?.output_tokens ?? this.chunks;
    const parts = [`TTFT ${number(ttft_ms && Math.round(ttft_ms))} ms`, `${number(speed)} tokens/s`, `${number(tokens)} tokens`];
    if (ending) parts.push(`${number(ending.prompt_tokens)} prompt tokens`);
    if (this.isStopped) parts.push("stopped");
    setText(find(this.facts, ".numbers"), parts.join(" · "));
  }

  /** @param {string} text */
  note(text) {
    const note = document.createElement("span");
    note.className = "note";
    note.textContent = text;
    find(this.facts, ".numbers").after(note);
  }

  get requestId() {
    return this.journey.requestId;
  }

  /** @param {string} message */
  fail(message) {
    this.isDone = true;
    const alert = document.createElement("div");
    alert.className = "alert";
    alert.setAttribute("role", "alert");
    alert.textContent = this.requestId ? `${message}\n${this.requestId}` : message;
    this.element.append(alert);
  }

  async stop() {
    this.isStopped = true;
    // Said first: otherwise the engine would go on for a while, so that we could come back.
    await fetch(`/playground/stop/${config.query}`, {
      method: "POST",
      headers: { "X-CSRFToken": token, "X-Stream-Id": this.requestId },
      signal: AbortSignal.timeout(2000),
    }).catch(() => null);
    this.abort.abort();
  }

  finish() {
    this.journey.finish();
    this.view.finish();
    this.element.setAttribute("aria-busy", "false");
    if (this.chunks || this.ending) this.drawFacts();
    if (this.view.whole) messages.push({ role: "assistant", content: this.view.whole });
    const tokens = this.ending?.output_tokens ?? this.chunks;
    speak(this.isStopped ? "Answer stopped" : `Answer finished, ${tokens} tokens`);
    followEnd();
  }
}

/** @param {Response} response */
async function refusal(response) {
  if (response.redirected) return "Your session ended. Load the page again to log in.";
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}. Load the page again.`;
  }
}

/** @param {boolean} isRunning */
function drawButton(isRunning) {
  send.classList.toggle("stop", isRunning);
  send.classList.toggle("primary", !isRunning);
  setText(find(send, ".word"), isRunning ? "Stop" : "Send");
  find(send, "use").setAttribute("href", isRunning ? "#ic-stop" : "#ic-send");
}

async function submit() {
  if (running) {
    await running.stop();
    return;
  }
  const text = prompt.value.trim();
  if (!text || settingsError()) return;
  const body = bodyOf(text);
  messages.push({ role: "user", content: text });
  setText(find(turn("user"), ".text"), text);
  prompt.value = "";
  follows = true;
  running = new Answer(body);
  drawButton(true);
  followEnd();
  try {
    await running.run();
  } catch (error) {
    running.fail(`The answer could not be shown: ${error instanceof Error ? error.message : error}`);
    running.finish();
  } finally {
    running = null;
    drawButton(false);
    drawCall();
    prompt.focus();
  }
}

byId("composer")?.addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !running) {
    event.preventDefault();
    submit();
  }
});
scroll.addEventListener("scroll", () => {
  follows = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR_END_PX;
  toEnd.hidden = follows;
});
toEnd.addEventListener("click", () => {
  follows = true;
  followEnd();
});
byId("clear")?.addEventListener("click", async () => {
  if (running) await running.stop();
  messages = [];
  talk.replaceChildren();
  byId("no-talk")?.removeAttribute("hidden");
  drawCall();
  prompt.focus();
});
byId("toggle-settings")?.addEventListener("click", (event) => {
  const isWide = byId("playground")?.classList.toggle("wide");
  /** @type {Element} */ (event.currentTarget).setAttribute("aria-expanded", String(!isWide));
});
for (const button of document.querySelectorAll("[data-call]")) {
  button.addEventListener("click", () => {
    callKind = button.getAttribute("data-call") ?? "curl";
    for (const other of document.querySelectorAll("[data-call]")) {
      other.setAttribute("aria-pressed", String(other === button));
    }
    drawCall();
  });
}
byId("copy-call")?.addEventListener("click", async () => {
  await navigator.clipboard.writeText(byId("call")?.textContent ?? "");
  speak("Copied");
});
for (const id of ["system", "temperature", "max-tokens", "prompt"]) byId(id)?.addEventListener("input", drawCall);
drawCall();
prompt.focus();
