// The live state and the status strip, for who may see the pools.

import { STALE_AFTER_S } from "./ages.js";
import { dataBlock, find, setAttr, setText, speak } from "./dom.js";
import { age, clock } from "./format.js";
import { named } from "./messages.js";
import { live } from "./socket.js";

const frame = dataBlock("frame");
const strip = find(document, "#strip");
const part = Object.fromEntries(
  ["headline", "since", "detail", "help", "more", "answering", "oldest"].map((name) => [
    name,
    find(strip, `.${name}`),
  ]),
);
const title = document.title;
let shown = named("strip", frame.strip);

function drawStrip() {
  const now_s = live.clock.now();
  const away_s = now_s - live.stateSince_s;
  document.documentElement.toggleAttribute(
    "data-lost",
    live.state !== "live" && now_s - live.lastHeard_s > STALE_AFTER_S,
  );
  if (live.state === "lost") {
    write("bad", "Connection lost", `${age(away_s)} ago, trying again.`, "", "", "");
  } else if (live.state === "login") {
    write("warn", "Your session ended.", "", "What stands here is old. Load the page again to log in.", "", "");
  } else {
    const since = shown.since_unix_s === null ? "" : `for ${age(now_s - shown.since_unix_s)}.`;
    const oldest = shown.oldest_report_unix_s;
    write(
      shown.tone, shown.headline, since, shown.detail, shown.answering,
      oldest === null ? "" : `, oldest report ${age(now_s - oldest)}`,
    );
  }
  const ours = live.state === "lost" || live.state === "login";
  part.help.toggleAttribute("hidden", ours || shown.tone === "ok");
  setText(part.more, !ours && shown.more ? `+${shown.more} more` : "");
  document.title = !ours && shown.tone === "bad" && document.hidden ? `(!) ${title}` : title;
}

/** @param {string} tone @param {string} headline @param {string} since @param {string} detail @param {string} answering @param {string} oldest */
function write(tone, headline, since, detail, answering, oldest) {
  setAttr(strip, "data-tone", tone);
  setText(part.headline, headline);
  setText(part.since, since);
  setText(part.detail, detail);
  setText(part.answering, answering);
  setText(part.oldest, oldest);
}

const state = find(document, "#live");
const pause = find(document, "#pause");
const WORDS = { connecting: "Connecting", live: "Live", lost: "Lost", login: "Logged out" };

function drawState() {
  const now_s = live.clock.now();
  setAttr(state, "data-state", live.paused ? "paused" : live.state);
  setText(find(state, ".word"), live.paused ? "Paused" : WORDS[live.state]);
  const at = live.paused ? ` at ${clock(live.pausedAt_s)}, ${live.waiting} waiting` : "";
  setText(find(state, ".age"), at || (live.state === "live" ? age(now_s - live.lastHeard_s) : ""));
  setAttr(pause, "aria-pressed", String(live.paused));
  setAttr(pause, "title", live.paused ? "Go on (.)" : "Pause the live picture (.)");
  setAttr(find(pause, "use"), "href", live.paused ? "#ic-play" : "#ic-pause");
  setText(find(pause, ".vh"), live.paused ? "Go on with the live picture" : "Pause the live picture");
}

/** @type {string} */
let spokenState = "connecting";
function speakState() {
  if (live.state === spokenState) return;
  if (live.state === "lost") speak("Connection lost");
  if (live.state === "live" && spokenState === "lost") speak("Connected again");
  spokenState = live.state;
}

live.clock.hear(frame.at);
live.on("strip", (rows) => {
  const row = rows.get("strip");
  if (!row) return;
  const next = named("strip", row);
  if (next.headline !== shown.headline) speak(next.headline);
  shown = next;
  drawStrip();
});
live.listen(() => {
  drawState();
  drawStrip();
  speakState();
});
pause.removeAttribute("hidden");
pause.addEventListener("click", () => live.togglePause());
live.start();
