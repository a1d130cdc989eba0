// Several images at once, or all that the filter finds: tag them, find them again or label them. A tag is the key `tag` of their metadata.

import { isTyping } from "./console.js";
import { valueText } from "./suggestions.js";

const bar = document.querySelector("[data-selection]"), begin = document.querySelector("[data-select]");
const allButton = document.querySelector("[data-select-all]"), AT_ONCE = 4, PAGE = 200;

if (bar) {
  const shots = begin ? [...document.querySelectorAll(".grid .shot")] : []; // of rows and objects all can be chosen, or none
  const words = bar.querySelector("[data-selected]"), note = bar.querySelector("[data-selection-note]");
  const after = bar.querySelector("[data-after]"), undoButton = bar.querySelector("[data-undo]"), taggedLink = bar.querySelector("[data-to-tagged]");
  const { base, line: filter } = bar.dataset, count = Number(bar.dataset.count), most = Number(bar.dataset.most);
  const chosen = new Set();
  let isOn = false, last = -1, isBusy = false;
  let isAll = false; // whether all that the filter finds is chosen, not only what is shown
  let isStopped = false; // whether no further one is to be changed
  let taken = null; // what can be taken back: of each image that was changed its tag before, and the tag that it got

  const idOf = (shot) => new URL(shot.href).pathname.split("/").pop();
  const ids = () => [...new Set([...chosen].map(idOf))];
  const line = () => (isAll ? filter : `id=in:${ids().join(",")}`);
  const listOf = (found) => `${base}/console/inferences?q=${encodeURIComponent(found)}`;

  const show = () => {
    for (const shot of shots) shot.toggleAttribute("data-chosen", isAll || chosen.has(shot));
    words.textContent = isAll ? words.dataset.wordsAll.replace("{n}", count.toLocaleString("en-GB")) : words.dataset.words.replace("{n}", chosen.size);
    bar.hidden = !isOn;
    begin?.setAttribute("aria-pressed", String(isOn));
    for (const control of bar.querySelectorAll("button:not([data-clear], [data-all], [data-undo])")) control.disabled = !(isAll || chosen.size) || isBusy;
    undoButton.disabled = isBusy;
    after.hidden = taken === null;
  };

  const toggle = (shot) => {
    isAll = false;
    last = shots.indexOf(shot);
    if (!chosen.delete(shot)) chosen.add(shot);
    show();
  };

  /** Choose or leave all between the one before and this one, as this one is now. */
  const extend = (shot) => {
    isAll = false;
    const to = shots.indexOf(shot), [from, end] = last < 0 ? [to, to] : [Math.min(last, to), Math.max(last, to)];
    for (const each of shots.slice(from, end + 1)) chosen.add(each);
    last = to;
    show();
  };

  const chooseAll = () => {
    isAll = false;
    for (const shot of shots) chosen.add(shot);
    show();
  };

  const turn = (on) => {
    isOn = on;
    isAll = false;
    if (!on) { chosen.clear(); bar.querySelector("[data-tag]")?.reset(); }
    note.textContent = "";
    taken = null;
    show();
  };

  const post = (path, body) => fetch(`${base}/api/inferences/${path}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }).catch(() => null);

  /** Return the tags of what a filter finds by ids, undefined for those without one, page by page; null if the server does not say. */
  async function tagsOf(where) {
    const tags = new Map();
    for (let cursor = null; tags.size < most;) {
      const answer = await post("query", { where, limit: PAGE, cursor, consistency: "journal" });
      const page = answer?.ok ? await answer.json().catch(() => null) : null;
      if (!page) return null;
      for (const { id, metadata } of page.inferences) if (tags.size < most) tags.set(id, metadata?.tag);
      cursor = page.cursor;
      if (!cursor) break;
    }
    return tags;
  }

  /** Return the tags of some inferences, a few hundred at a time; null if the server does not say. */
  async function tagsOfIds(inferences) {
    const tags = new Map();
    for (let start = 0; start < inferences.length; start += PAGE) {
      const some = await tagsOf({ id: { in: inferences.slice(start, start + PAGE) } });
      if (!some) return null;
      for (const [id, tag] of some) tags.set(id, tag);
    }
    return tags;
  }

  /** Change the metadata of inferences, a few at a time; returns which of them were changed, and how many were not for what reason. */
  async function changeAll(bodies) {
    const waiting = [...bodies], changed = [], reasons = new Map();
    const work = async () => {
      for (let next = waiting.pop(); next && !isStopped; next = waiting.pop()) {
        const [id, body] = next, answer = await post(`${id}/metadata`, body);
        if (answer?.ok) changed.push(id);
        else {
          const why = answer ? (await answer.json().catch(() => ({}))).error || String(answer.status) : bar.dataset.away;
          reasons.set(why, (reasons.get(why) ?? 0) + 1);
        }
        note.textContent = `${changed.length} / ${bodies.length}`;
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    const left = bodies.length - changed.length - [...reasons.values()].reduce((sum, n) => sum + n, 0);
    if (left) reasons.set(bar.dataset.stopped, left);
    return { changed, reasons };
  }

  /** Say how many were changed, and how many were not and why. */
  const say = (done, count, reasons) => {
    const refused = [...reasons].map(([why, n]) => bar.dataset.failed.replace("{n}", n).replace("{why}", () => why));
    note.textContent = [done.replace("{n}", count), ...refused].join(" ");
  };

  /** Run what changes something, unless something is being changed. */
  async function alone(act) {
    if (isBusy) return;
    isBusy = true;
    isStopped = false;
    show();
    try {
      await act();
    } finally {
      isBusy = false;
      show();
    }
  }

  /** Give what is chosen a tag, or none. */
  const tag = (given) => alone(async () => {
    taken = null;
    const before = await (isAll ? tagsOf(filter || {}) : tagsOfIds(ids()));
    if (isAll && !before) { say(bar.dataset.tagged, 0, new Map([[bar.dataset.away, count]])); return; }
    const inferences = isAll ? [...before.keys()] : ids();
    const body = given === null ? { remove: ["tag"] } : { set: { tag: given } };
    const { changed, reasons } = await changeAll(inferences.map((id) => [id, body]));
    if (changed.length && before) taken = { given, before: new Map(changed.map((id) => [id, before.get(id)])) };
    taggedLink.hidden = given === null;
    if (given !== null) taggedLink.href = listOf(`meta.tag=${valueText(given)}`);
    say(given === null ? bar.dataset.untagged : bar.dataset.tagged, changed.length, reasons);
  });

  /** Give the tags back that were there before the last change, to those that nobody changed since; what fails can be tried again. */
  const undo = () => alone(async () => {
    if (!taken) return;
    const { given, before } = taken, reasons = new Map();
    const now = await tagsOfIds([...before.keys()]);
    if (!now) { say(bar.dataset.undone, 0, new Map([[bar.dataset.away, before.size]])); return; }
    const same = [...before].filter(([id]) => now.has(id) && now.get(id) === (given ?? undefined));
    const done = await changeAll(same.map(([id, old]) => [id, old === undefined ? { remove: ["tag"] } : { set: { tag: old } }]));
    if (same.length < before.size) reasons.set(bar.dataset.since, before.size - same.length);
    const left = same.filter(([id]) => !done.changed.includes(id)); // as where the server was away for a moment
    taken = left.length ? { given, before: new Map(left) } : null;
    say(bar.dataset.undone, done.changed.length, new Map([...reasons, ...done.reasons]));
  });

  for (const control of [begin, allButton]) if (control) control.hidden = false;
  allButton?.addEventListener("click", () => {
    turn(true);
    isAll = true;
    show();
    bar.querySelector("[data-tag] input").focus();
  });
  begin?.addEventListener("click", () => turn(!isOn));
  document.addEventListener("click", (event) => {
    const shot = event.target.closest?.(".grid .shot");
    if (!isOn || !shots.includes(shot)) return;
    event.preventDefault();
    if (event.shiftKey) extend(shot);
    else toggle(shot);
  });
  document.addEventListener("keydown", (event) => {
    const shot = event.target.closest?.(".grid .shot");
    if (event.key === " " && shots.includes(shot)) {
      event.preventDefault();
      if (!isOn) turn(true);
      toggle(shot);
    } else if (!isOn || isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
    else if (event.key === "Escape") { if (isBusy) isStopped = true; else turn(false); }
    else if (event.key === "a" && begin) chooseAll();
    else if (event.key === "z") void undo();
  });
  bar.querySelector("[data-tag]")?.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = new FormData(event.target).get("tag").trim();
    if (given && (isAll || chosen.size)) void tag(given);
  });
  bar.querySelector("[data-untag]")?.addEventListener("click", () => void tag(null));
  undoButton.addEventListener("click", () => void undo());
  bar.querySelector("[data-all]")?.addEventListener("click", chooseAll);
  bar.querySelector("[data-find]").addEventListener("click", () => location.assign(listOf(line())));
  bar.querySelector("[data-label]")?.addEventListener("click", () => location.assign(`${base}/console/label?q=${encodeURIComponent(line())}`));
  bar.querySelector("[data-clear]").addEventListener("click", () => { if (isBusy) isStopped = true; else turn(false); });
  show();
}
