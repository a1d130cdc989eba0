// The live page: new inferences come on top as they are stored. Nothing moves while it is paused, nor while the pointer or the
// focus is in the list. The stream says that something is new; the page, read anew, has the cards and the numbers. Without this
// script it has the newest, and a link to load it anew.

import { isTyping, showTime } from "./console.js";

const bar = document.getElementById("live");
const [list, summary] = ["list", "summary"].map((name) => document.querySelector(`[data-${name}]`));
const [state, pause, more, reload] = ["state", "pause", "more", "reload"].map((name) => bar.querySelector(`[data-${name}]`));
const { query, tail } = bar.dataset;
const most = Number(bar.dataset.most);
const BATCH_MS = 1000, SUMMARY_MS = 5000, NUMBERS_MS = 10_000;

const filled = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);

let isPaused = false, hasEnded = false, isReading = false, lastId = bar.dataset.after, source = null, batch = 0;
let waiting = 0; // how many have arrived and are not shown
let arrived = 0, leftOut = 0;

// --- the list

const isHeld = () => isPaused || list.contains(document.activeElement) || (matchMedia("(hover: hover)").matches && list.matches(":hover"));

/** Read the page anew, for its numbers, and for its list unless that is held and nobody asked for it. */
async function show(isAsked = false) {
  if (isReading) { settleSoon(); return; }
  isReading = true;
  const before = waiting, answer = await fetch(location.href).catch(() => null), text = answer?.ok ? await answer.text().catch(() => "") : "";
  isReading = false;
  const page = new DOMParser().parseFromString(text, "text/html"), newest = page.querySelector("[data-list]"), stats = page.querySelector(".stats");
  if (!newest) return; // the server is away, or the session has ended: what waits goes on waiting
  if (stats) document.querySelector(".stats")?.replaceWith(stats);
  if (isAsked || !isHeld()) {
    const shown = new Map([...list.children].map((card) => [card.pathname, card]));
    list.replaceChildren(...[...newest.children].map((card) => shown.get(card.pathname) ?? card));
    if (list.children.length) document.querySelector("[data-empty]")?.remove();
    waiting -= before;
  }
  document.querySelectorAll("main time").forEach(showTime);
  offer();
}

function offer() {
  more.hidden = waiting === 0;
  more.textContent = filled(bar.dataset.new, { n: waiting < most ? waiting : `${most}+` });
}

function settle() {
  batch = 0;
  if (isHeld()) offer();
  else if (waiting) void show();
}

function settleSoon() { batch ||= setTimeout(settle, BATCH_MS); }

// --- the stream

function tell(text, isWrong = false) {
  state.textContent = text;
  state.className = `tag${isWrong ? " warn" : ""}`;
}

const tellState = () => tell(isPaused ? bar.dataset.paused : bar.dataset.on);

function listen() {
  if (source || hasEnded) return;
  const parameters = new URLSearchParams({ after: lastId, ...(query ? { q: query } : {}) });
  source = new EventSource(`${tail}?${parameters}`);
  source.addEventListener("open", tellState);
  source.addEventListener("inference", (event) => {
    lastId = event.lastEventId || lastId;
    if (list.querySelector(`[href*="/${CSS.escape(JSON.parse(event.data).id)}"]`)) return;
    waiting += 1;
    arrived += 1;
    settleSoon();
  });
  source.addEventListener("skipped", (event) => { leftOut += JSON.parse(event.data).count; });
  source.addEventListener("end", (event) => end(JSON.parse(event.data).error));
  source.addEventListener("error", () => {
    if (source?.readyState === EventSource.CLOSED) end(); // refused, not cut off
    else tell(bar.dataset.waits, true);
  });
}

function stop() {
  source?.close();
  source = null;
}

function end(reason = "") {
  stop();
  hasEnded = true;
  reload.hidden = false;
  tell(`${bar.dataset.ended} ${reason}`, true);
}

// Who does not look takes no place on the server.
document.addEventListener("visibilitychange", () => (document.hidden ? stop() : listen()));
addEventListener("pagehide", stop);
addEventListener("pageshow", listen);

// --- pause

function togglePause() {
  isPaused = !isPaused;
  pause.setAttribute("aria-pressed", String(isPaused));
  if (source) tellState();
  settle();
}

pause.hidden = false;
pause.addEventListener("click", togglePause);
more.addEventListener("click", () => { void show(true); document.getElementById("content").focus({ preventScroll: true }); });
list.addEventListener("pointerleave", settleSoon);
list.addEventListener("focusout", settleSoon);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || isTyping(event.target)) return;
  const isSpace = event.key === " " && !/^(A|BUTTON)$/.test(event.target.tagName ?? "");
  if (event.key !== "p" && !isSpace) return;
  event.preventDefault();
  togglePause();
});

// --- what is read out, and numbers

setInterval(() => {
  if (!arrived && !leftOut) return;
  const words = [filled(bar.dataset.arrived, { n: arrived, time: new Date().toLocaleTimeString("en-GB") })];
  if (leftOut) words.push(filled(bar.dataset.leftOut, { n: leftOut }));
  summary.textContent = words.join(" ");
  arrived = leftOut = 0;
}, SUMMARY_MS);

setInterval(() => { if (!document.hidden && !isPaused && source) void show(); }, NUMBERS_MS);
reload.hidden = true;
tell(bar.dataset.waits);
if (!document.hidden) listen();
