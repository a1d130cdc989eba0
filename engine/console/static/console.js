// What every page has: the key / for the filter, keys that go to pages, times in the reader's zone, and "Copy".
// Pages read and work without it.

import "./axis.js";
import "./brush.js";
import "./complete.js";

/** Whether keys are written into an element. */
export function isTyping(target) {
  return target instanceof HTMLElement && (target.isContentEditable || /^(TEXTAREA|SELECT)$/.test(target.tagName)
    || (target.tagName === "INPUT" && !/^(range|checkbox)$/.test(target.type)));
}

/** An element with a text and properties. */
export function element(tag, text = "", properties = {}) {
  return Object.assign(document.createElement(tag), { textContent: text, ...properties });
}

let wentAt = -Infinity;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (isTyping(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "/") {
    const line = document.querySelector("[data-filter]");
    if (line) { line.focus(); event.preventDefault(); }
  } else if (event.key === "g") {
    wentAt = event.timeStamp;
  } else if (event.timeStamp - wentAt < 1500) {
    wentAt = -Infinity;
    const link = document.querySelector(`.nav a[data-key="${CSS.escape(event.key)}"]`);
    if (link) { link.click(); event.preventDefault(); } // no key of the page, then
  }
});

const menu = document.querySelector(".menu");
document.addEventListener("click", ({ target }) => { if (menu && !menu.contains(target)) menu.open = false; });
menu?.addEventListener("keydown", ({ key }) => { if (key === "Escape") { menu.open = false; menu.firstElementChild.focus(); } });

// A form that opens is written into at once.
document.addEventListener("toggle", ({ target }) => { if (target.open) target.querySelector("form :is(input:not([type=hidden]), select)")?.focus(); }, true);

// The counts of a form follow what is chosen.
const counted = document.querySelector("form[data-counted]");
counted?.addEventListener("change", async () => {
  const asked = new URLSearchParams(["model", "q", "period", "from", "to", "before"].flatMap((name) => counted.elements[name] ? [[name, counted.elements[name].value]] : []));
  const answer = await fetch(`${counted.dataset.counted}&${asked}`).catch(() => null);
  if (!answer?.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const name of ["help-model", "help-q"]) document.getElementById(name)?.replaceChildren(...(page.getElementById(name)?.childNodes ?? []));
});

const sameDay = (a, b) => a.toDateString() === b.toDateString();

/** Write the time of an element in the reader's zone. */
export function showTime(element) {
  const at = new Date(element.dateTime);
  if (Number.isNaN(at.valueOf())) return;
  element.title = `${at.toISOString().replace("T", " ").replace("Z", "")} UTC`;
  const form = element.dataset.form;
  if (form === "ago") return;
  const clock = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(["clock", "minute"].includes(form) ? {} : { second: "2-digit" }) };
  if (form === "day") { element.textContent = at.toLocaleString("en-GB", { day: "numeric", month: "short" }).replace("Sept", "Sep"); return; }
  const isToday = [at, new Date(element.dataset.beside ?? at)].every((end) => sameDay(end, new Date())); // both ends of a span
  const day = isToday || form === "clock" ? {} : { day: "numeric", month: "short" };
  element.textContent = at.toLocaleString("en-GB", { ...day, ...clock });
}

document.querySelectorAll("time[datetime]").forEach(showTime);

for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = button.dataset.done;
    } catch {
      getSelection().selectAllChildren(source); // no access to the clipboard, as without https: the text is marked instead
    }
  });
}

// A page that waits for a job looks again, while somebody sees it.
const waiting = document.querySelector("[data-look-again]");
if (waiting) setInterval(() => { if (!document.hidden) location.reload(); }, Number(waiting.dataset.lookAgain));
