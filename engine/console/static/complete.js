// Completion of the filter line: a list below the field, by keys and by hand, with the last lines of this browser while the field is empty.
// The text changes only when an item is taken. Without this script the field is as it is.

import { decoded, suggest } from "./suggestions.js";

const MOST_RECENT = 10, MOST_VIEWS = 5, SEARCHED = "quadriga.searched";

/** Call what a browser may refuse, as one that keeps nothing of this page; the answer is null then. */
export function tried(call) {
  try { return call(); } catch { return null; }
}

class Completion {
  constructor(field) {
    Object.assign(this, { field, form: field.form, words: JSON.parse(field.dataset.words), items: [], active: -1 });
    this.facets = null; // until the field has the focus, and where there is no answer
    this.views = []; // so are the saved views
    this.isWanted = false; // open, or so once there is something to offer
    this.recentKey = `quadriga.recent:${new URL(this.form.action).pathname}`;
    this.list = Object.assign(document.createElement("ul"), { id: "suggestions", className: "suggestions", hidden: true, role: "listbox", ariaLabel: "Suggestions" });
    this.status = Object.assign(document.createElement("p"), { className: "hidden", ariaLive: "polite" });
    this.form.append(this.list, this.status);
    for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": "suggestions" })) field.setAttribute(name, value);
    field.addEventListener("focus", () => { this.load(); if (!field.value) this.open(); });
    for (const event of ["input", "click"]) field.addEventListener(event, () => this.open());
    field.addEventListener("blur", () => this.close());
    field.addEventListener("keydown", (event) => this.press(event));
    for (const event of ["pointerdown", "mousedown"]) this.list.addEventListener(event, (down) => down.preventDefault()); // the field keeps the focus
    this.list.addEventListener("click", ({ target }) => this.take(this.items[[...this.list.children].indexOf(target.closest("[role=option]"))]));
    this.form.addEventListener("submit", () => tried(() => sessionStorage.setItem(SEARCHED, "1")));
    const { line } = field.dataset, wasTyped = tried(() => sessionStorage.getItem(SEARCHED)) !== null;
    tried(() => sessionStorage.removeItem(SEARCHED));
    if (!wasTyped || !line || document.querySelector(".field-error")) return;
    const lines = [line, ...this.recent().filter((other) => other !== line)].slice(0, MOST_RECENT);
    tried(() => localStorage.setItem(this.recentKey, JSON.stringify(lines)));
  }

  /** Lines that were typed in this browser and were filters, the last first; they are kept nowhere else. */
  recent() {
    const lines = tried(() => JSON.parse(localStorage.getItem(this.recentKey) ?? "[]"));
    return Array.isArray(lines) ? lines.filter((line) => typeof line === "string").slice(0, MOST_RECENT) : [];
  }

  forget() { tried(() => localStorage.removeItem(this.recentKey)); }

  /** Ask once a page what is stored; where the filter is none, or finds nothing, without it. */
  async load() {
    if (this.isAsked) return;
    this.isAsked = true;
    const { line, facets: all } = this.field.dataset, address = new URL(all, location.href);
    const ask = (url) => fetch(url, { headers: { accept: "application/json" } }).catch(() => null);
    const views = ask(new URL("../views", address));
    address.searchParams.set("q", line);
    for (const url of line ? [address.href, all] : [all]) {
      const answer = await ask(url);
      const facets = answer?.ok ? await answer.text().then(decoded).catch(() => null) : null;
      this.facets = facets ?? this.facets;
      if (facets?.count || !(facets || [400, 404].includes(answer?.status))) break;
    }
    this.views = (await views.then((answer) => answer?.ok && answer.json()))?.views ?? [];
    if (this.isWanted && this.active < 0) this.open(); // never from under what is chosen
  }

  open() {
    const { start, end, items } = suggest(this.field.value, this.field.selectionStart ?? this.field.value.length, this.words, this.facets);
    const typed = this.field.value, whole = { start: 0, end: typed.length, sends: true, replaces: true };
    const recent = typed ? [] : this.recent().filter((line) => line !== this.field.dataset.line).map((line) => ({ ...whole, shown: line, words: "recent", text: line }));
    const views = this.views.filter(({ name }) => name.toLowerCase().includes(typed.trim().toLowerCase())).slice(0, MOST_VIEWS)
      .map(({ name, query }) => ({ ...whole, shown: name, words: `view · ${query}`, text: query }));
    this.isWanted = true;
    this.show([...recent, ...(recent.length ? [{ shown: "Forget these", words: "", forgets: true }] : []), ...views, ...items.map((item) => ({ ...item, start, end }))]);
  }

  close() {
    this.isWanted = false;
    this.show([]);
  }

  show(items) {
    Object.assign(this, { items, active: -1 });
    this.list.replaceChildren(...items.map((item, number) => this.option(item, number)));
    this.list.hidden = !items.length;
    this.list.scrollTop = 0;
    this.status.textContent = items.length ? `${items.length} suggestions` : "";
    this.mark();
  }

  option(item, number) {
    const name = Object.assign(document.createElement(item.forgets ? "span" : "bdi"), { textContent: item.shown, className: item.forgets ? "" : "mono" });
    const count = item.count === undefined ? "" : `${this.facets.exact ? "" : "about "}${item.count.toLocaleString("en-GB")}`;
    const words = Object.assign(document.createElement("span"), { textContent: [item.words, count].filter(Boolean).join(" · "), className: "quiet small" });
    const option = Object.assign(document.createElement("li"), { id: `suggestion-${number}`, role: "option" });
    option.append(name, " ", words);
    return option;
  }

  mark() {
    for (const [number, option] of [...this.list.children].entries()) option.ariaSelected = String(number === this.active);
    this.field.ariaExpanded = String(!this.list.hidden);
    this.field.toggleAttribute("aria-activedescendant", this.active >= 0);
    if (this.active < 0) return;
    this.field.setAttribute("aria-activedescendant", `suggestion-${this.active}`);
    this.list.children[this.active].scrollIntoView({ block: "nearest" });
  }

  press(event) {
    if (event.isComposing || event.ctrlKey || event.metaKey) return;
    const isOpen = !this.list.hidden, step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      if (!isOpen) this.open();
      if (!this.items.length) return;
      this.active = ((this.active < 0 && step < 0 ? 0 : this.active) + step + this.items.length) % this.items.length;
      this.mark();
    } else if (event.key === "Escape" && isOpen) {
      this.close();
      event.stopPropagation(); // a second Esc leaves the field
    } else if ((event.key === "Enter" || (event.key === "Tab" && !event.shiftKey)) && isOpen && this.active >= 0) this.take(this.items[this.active]);
    else return;
    event.preventDefault();
  }

  take(item) {
    if (!item) return;
    if (item.forgets) { this.forget(); this.open(); return; }
    const { start, end, text } = item;
    if (item.replaces) this.form.querySelector("[type=hidden][name=q]")?.remove();
    this.field.setSelectionRange(start, end);
    // This way Ctrl+Z takes it back; where the browser has none of it, the text is set.
    if (!document.execCommand("insertText", false, text)) this.field.setRangeText(text, start, end, "end");
    if (item.goesOn) this.open();
    else this.close();
    if (item.sends) this.form.requestSubmit();
  }
}

const input = document.querySelector("input[data-filter]");
if (input) {
  const completion = new Completion(input);
  for (const form of document.querySelectorAll('form[action$="/console/logout"]')) form.addEventListener("submit", () => completion.forget());
}
