// Completion of the filter line: a list below the field, by keys and by hand, with the last lines of this browser while the field is empty.
// The text changes only when an item is taken. Without this script the field is as it is.

import { decoded, suggest } from "./suggestions.js";

const MOST_RECENT = 10, SEARCHED = "quadriga.searched";
const input = document.querySelector("input[data-filter]");

/** Call what a browser may refuse, as one that keeps nothing of this page; the answer is null then. */
function tried(call) {
  try { return call(); } catch { return null; }
}

/** Lines that found something in this browser, the last first; they are kept nowhere else. */
export class RecentLines {
  constructor(path) { this.key = `quadriga.recent:${path}`; }

  all() {
    const lines = tried(() => JSON.parse(localStorage.getItem(this.key) ?? "[]"));
    return Array.isArray(lines) ? lines.filter((line) => typeof line === "string").slice(0, MOST_RECENT) : [];
  }

  add(line) {
    const lines = [line, ...this.all().filter((other) => other !== line)].slice(0, MOST_RECENT);
    tried(() => localStorage.setItem(this.key, JSON.stringify(lines)));
  }

  forget() { tried(() => localStorage.removeItem(this.key)); }
}

class Completion {
  constructor(field) {
    this.field = field;
    this.form = field.form;
    this.words = JSON.parse(field.dataset.words);
    this.recent = new RecentLines(new URL(this.form.action).pathname);
    this.facets = null; // until the field has the focus, and where there is no answer
    this.items = [];
    this.active = -1;
    this.isWanted = false; // open, or so once there is something to offer
    this.list = document.createElement("ul");
    Object.assign(this.list, { id: "suggestions", className: "suggestions", hidden: true });
    this.list.setAttribute("role", "listbox");
    this.list.setAttribute("aria-label", this.words.texts.suggestions);
    this.status = document.createElement("p");
    this.status.className = "hidden";
    this.status.setAttribute("aria-live", "polite");
    this.form.append(this.list, this.status);
    for (const [name, value] of [["role", "combobox"], ["aria-autocomplete", "list"], ["aria-expanded", "false"], ["aria-controls", "suggestions"]]) field.setAttribute(name, value);
    field.addEventListener("focus", () => { this.load(); if (!field.value) this.open(); });
    field.addEventListener("input", () => this.open());
    field.addEventListener("click", () => this.open());
    field.addEventListener("blur", () => this.close());
    field.addEventListener("keydown", (event) => this.press(event));
    this.list.addEventListener("pointerdown", (event) => event.preventDefault()); // the field keeps the focus
    this.list.addEventListener("mousedown", (event) => event.preventDefault());
    this.list.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) this.take(this.items[Number(option.dataset.number)]);
    });
    this.form.addEventListener("submit", () => tried(() => sessionStorage.setItem(SEARCHED, "1")));
    this.keepLine();
  }

  /** Keep the line that led here, if it was typed and is a filter. */
  keepLine() {
    const wasTyped = tried(() => sessionStorage.getItem(SEARCHED)) !== null;
    tried(() => sessionStorage.removeItem(SEARCHED));
    if (wasTyped && this.field.dataset.line && !document.querySelector(".field-error")) this.recent.add(this.field.dataset.line);
  }

  /** Ask once a page what is stored; where the filter is none, or finds nothing, without it. */
  async load() {
    if (this.isAsked) return;
    this.isAsked = true;
    const all = this.field.dataset.facets, address = new URL(all, location.href);
    address.searchParams.set("q", this.field.dataset.line);
    for (const url of this.field.dataset.line ? [address.href, all] : [all]) {
      const answer = await fetch(url, { headers: { accept: "application/json" } }).catch(() => null);
      const facets = answer?.ok ? await answer.text().then(decoded).catch(() => null) : null;
      if (facets) this.facets = facets;
      if (facets?.count || !(facets || [400, 404].includes(answer?.status))) break;
    }
    if (this.isWanted && this.active < 0) this.open(); // never from under what is chosen
  }

  open() {
    this.isWanted = true;
    const place = this.field.selectionStart ?? this.field.value.length;
    const found = suggest(this.field.value, place, this.words, this.facets);
    const { texts } = this.words, lines = this.field.value ? [] : this.recent.all().filter((line) => line !== this.field.dataset.line);
    const recents = lines.map((line) => ({ shown: line, words: texts.recent, line }));
    const forget = lines.length ? [{ shown: texts.forget_recent, words: "", forgets: true }] : [];
    this.items = [...recents, ...forget, ...found.items.map((item) => ({ ...item, start: found.start, end: found.end }))];
    this.active = -1;
    this.list.replaceChildren(...this.items.map((item, number) => this.option(item, number)));
    this.list.hidden = this.items.length === 0;
    this.list.scrollTop = 0;
    this.status.textContent = this.list.hidden ? "" : texts.suggestions_count.replace("{n}", this.items.length);
    this.mark();
  }

  option(item, number) {
    const option = document.createElement("li"), name = document.createElement(item.forgets ? "span" : "bdi"), words = document.createElement("span");
    option.id = `suggestion-${number}`;
    option.dataset.number = number;
    option.setAttribute("role", "option");
    name.textContent = item.shown;
    name.className = item.forgets ? "" : "mono";
    const about = this.facets?.exact === false ? `${this.words.texts.about} ` : "";
    words.textContent = [item.words, item.count === undefined ? "" : `${about}${item.count.toLocaleString("en-GB")}`].filter(Boolean).join(" · ");
    words.className = "quiet small";
    option.append(name, " ", words);
    return option;
  }

  close() {
    this.isWanted = false;
    this.list.hidden = true;
    this.items = [];
    this.active = -1;
    this.status.textContent = "";
    this.mark();
  }

  mark() {
    for (const [number, option] of [...this.list.children].entries()) option.setAttribute("aria-selected", String(number === this.active));
    this.field.setAttribute("aria-expanded", String(!this.list.hidden));
    if (this.active < 0) { this.field.removeAttribute("aria-activedescendant"); return; }
    this.field.setAttribute("aria-activedescendant", `suggestion-${this.active}`);
    this.list.children[this.active].scrollIntoView({ block: "nearest" });
  }

  press(event) {
    if (event.isComposing || event.ctrlKey || event.metaKey) return;
    const isOpen = !this.list.hidden, step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      if (!isOpen) this.open();
      if (!this.items.length) return;
      const from = this.active < 0 && step < 0 ? 0 : this.active;
      this.active = (from + step + this.items.length) % this.items.length;
      this.mark();
    } else if (event.key === "Escape" && isOpen) {
      this.close();
      event.stopPropagation(); // a second Esc leaves the field
    } else if ((event.key === "Enter" || (event.key === "Tab" && !event.shiftKey)) && isOpen && this.active >= 0) {
      this.take(this.items[this.active]);
    } else return;
    event.preventDefault();
  }

  take(item) {
    if (item.forgets) { this.recent.forget(); this.open(); return; }
    if (item.line !== undefined) { this.go(item.line); return; }
    this.field.setSelectionRange(item.start, item.end);
    // This way Ctrl+Z takes it back; where the browser has none of it, the text is set.
    if (!document.execCommand("insertText", false, item.text)) this.field.setRangeText(item.text, item.start, item.end, "end");
    if (item.goesOn) this.open();
    else this.close();
    if (item.sends) this.form.requestSubmit();
  }

  /** Go to another line instead of that of the page. */
  go(line) {
    const address = new URL(this.form.action);
    for (const [name, value] of new FormData(this.form)) if (name !== "q") address.searchParams.set(name, value);
    address.searchParams.set("q", line);
    tried(() => sessionStorage.setItem(SEARCHED, "1"));
    location.assign(address);
  }
}

if (input) {
  const completion = new Completion(input);
  for (const form of document.querySelectorAll('form[action$="/console/logout"]')) form.addEventListener("submit", () => completion.recent.forget());
}
