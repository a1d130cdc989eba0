// The live page: new inferences come on top as they are stored. Nothing moves while it is paused, nor while the pointer or the
// focus is in the list. Without it the page has the newest, and a link to load it anew.

import { cardOf } from "./live_card.js";

const bar = document.getElementById("live");
const [list, summary] = ["list", "summary"].map((name) => document.querySelector(`[data-${name}]`));
const [state, pause, more, reload] = ["state", "pause", "more", "reload"].map((name) => bar.querySelector(`[data-${name}]`));
const { query, tail, base } = bar.dataset;
const most = Number(bar.dataset.most);
const BATCH_MS = 250, SUMMARY_MS = 5000, NUMBERS_MS = 10_000;

const filled = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
const idOf = (card) => card.pathname.slice(card.pathname.lastIndexOf("/") + 1);
const isNewer = (a, b) => a.length - b.length || (a < b ? -1 : a > b ? 1 : 0); // ids are texts of digits, too large for numbers

const shown = new Set([...list.children].map(idOf));
let waiting = new Map(); // what has arrived and is not shown, by id
let isPaused = false, hasEnded = false, lastId = bar.dataset.after, source = null, batch = 0;
let arrived = 0, leftOut = 0;

// --- the list

const isHeld = () => isPaused || list.contains(document.activeElement) || (matchMedia("(hover: hover)").matches && list.matches(":hover"));

function show() {
  const records = [...waiting.values()].sort((a, b) => isNewer(a.id, b.id));
  waiting = new Map();
  for (const record of records) {
    const after = [...list.children].find((card) => isNewer(idOf(card), record.id) < 0) ?? null;
    list.insertBefore(cardOf(record), after);
    shown.add(record.id);
  }
  while (list.children.length > most) {
    shown.delete(idOf(list.lastElementChild));
    list.lastElementChild.remove();
  }
  if (list.children.length) document.querySelector("[data-empty]")?.remove();
  offer();
}

function offer() {
  more.hidden = waiting.size === 0;
  more.textContent = filled(bar.dataset.new, { n: waiting.size < most ? waiting.size : `${most}+` });
}

function settle() {
  batch = 0;
  if (isHeld()) offer();
  else if (waiting.size) show();
}

const settleSoon = () => { batch ||= setTimeout(settle, BATCH_MS); };

function take(record) {
  if (shown.has(record.id) || waiting.has(record.id)) return;
  waiting.set(record.id, record);
  if (waiting.size > most) waiting.delete([...waiting.keys()].reduce((oldest, id) => (isNewer(id, oldest) < 0 ? id : oldest)));
  arrived += 1;
  settleSoon();
}

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
    take(JSON.parse(event.data));
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
more.addEventListener("click", () => { show(); document.getElementById("content").focus({ preventScroll: true }); });
list.addEventListener("pointerleave", settleSoon);
list.addEventListener("focusout", settleSoon);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const { target } = event;
  if (target instanceof HTMLElement && /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
  const isSpace = event.key === " " && !/^(A|BUTTON)$/.test(target.tagName ?? "");
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

const precise = (value) => String(Number(value.toPrecision(3)));
const milliseconds = (value) => (value === null ? "–" : value >= 1000 ? `${precise(value / 1000)} s` : `${precise(value)} ms`);

async function readNumbers() {
  const rate = document.querySelector("[data-rate]");
  if (document.hidden || isPaused || !source || !rate) return;
  const now = Date.now(), start = Math.floor(now / 60_000) * 60_000 - 60_000; // whole minutes are added up already
  const since = { ts: { ge: new Date(start).toISOString() } };
  const body = JSON.stringify({ where: { and: query ? [since, query] : [since] }, metrics: ["count", "error_rate", "latency_p95"] });
  const answer = await fetch(`${base}/api/inferences/aggregate`, { method: "POST", body }).catch(() => null);
  if (!answer?.ok) return;
  const { groups: [numbers] } = await answer.json();
  const perMinute = (numbers.count * 60_000) / (now - start), failed = 100 * (numbers.error_rate ?? 0);
  rate.textContent = perMinute >= 10 ? Math.round(perMinute).toLocaleString("en-US") : precise(perMinute);
  const share = document.querySelector("[data-failed-share]");
  share.textContent = `${failed.toFixed(2)} %`;
  share.className = failed ? "warn" : "";
  document.querySelector("[data-p95]").textContent = milliseconds(numbers.latency_p95);
  const clock = document.querySelector("[data-since]");
  clock.dateTime = new Date(start).toISOString();
  clock.textContent = new Date(start).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

setInterval(readNumbers, NUMBERS_MS);
reload.hidden = true;
tell(bar.dataset.waits);
if (!document.hidden) listen();
