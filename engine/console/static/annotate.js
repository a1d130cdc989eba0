// Correcting the ground truth of one inference: each change is stored at once, with the revision that it changes, and can be
// undone. Only pages of who may annotate load it; the server refuses all others anyway.

import { element } from "./console.js";
import { accepted, choose, data, go, keys, openDialog, page, picture, refresh, setTruth, state } from "./inference.js";
import { countPoints, edgeNear, withPointAfter, withPointMoved, withoutPoint } from "./contours.js";
import { boundsOf, ringsOf } from "./geometry.js";
import { boxFrom, contourFrom, dragged, moved, shape, turned } from "./shapes.js";
import { forgetChange, keepChange, keepLabel, keptChange, keptLabel } from "./undo.js";

const KEPT = ["label", "xmin", "ymin", "xmax", "ymax", "cx", "cy", "w", "h", "r", "contour", "prompt", "answer", "answers", "crowd", "difficult", "area", "attributes"];
const LEAST_PX = 3, EDGE_PX = 8, TURN = Math.PI / 90;
const LONGEST_LABEL = 256;
const NO_OBJECT = /^_*(background|void|ignore|unlabell?ed)_*$/i;
const HOW_TO_DRAW = "Click the corners of the object. Enter, or a click on the first corner, closes it; Backspace takes the last one back, Esc all.";
const HOW_TO_DRAG = "Drag from one corner of the object to the opposite one; Esc ends.";
const isText = data.task === "IMAGE_TEXT_TO_TEXT";
const isLabels = data.task === "IMAGE_CLASSIFICATION";
const actions = document.querySelector("[data-actions]"), conflict = document.querySelector("[data-conflict]"), draftNote = document.querySelector("[data-draft]");

let saved = data.ground_truth; // annotations as they were committed last; null for none
let revision = data.revision;
let draft = []; // what the model answered, as it is shown before the first change
let editing = false;
let label = keptLabel(data.labels) ?? data.labels.find((name) => !NO_OBJECT.test(name)) ?? "object"; // of what is drawn next
let isNew = false; // whether the next press begins an object, whatever lies there
let outline = null; // corners of the contour that is being drawn; null while none is
let sending = Promise.resolve(true);
let unsent = 0; // changes on their way to the server, or waiting for their turn
const undone = [], done = [];

const plain = (item) => Object.fromEntries(KEPT.filter((name) => item[name] != null).map((name) => [name, item[name]]));
/** Who did something: `anybody` is the caller of a server that needs no keys. */
const person = (name) => (!name || name === "anybody" ? "somebody" : name);
const current = () => (state.truth ?? []).map(({ source }) => source);

/** What the model answered, as truth: of labels for the whole image the best one. */
function predicted() {
  const items = accepted().map(({ source }) => source);
  if (!isLabels) return items.map(plain);
  const best = [...items].sort((a, b) => (b.score ?? 0) - (a.score ?? 0));
  return (state.least > 0 ? best : best.slice(0, 1)).map(plain);
}

function button(text, key, act) {
  const made = element("button", text, { type: "button" });
  if (key) made.append(element("kbd", key));
  made.addEventListener("click", act);
  return made;
}

const said = document.querySelector("[data-said]");

/** Say below the buttons what happened, until something else does. */
function toast(words, act) {
  const made = element("div", "", { className: "toast row" });
  made.append(element("span", words));
  if (act) made.append(Object.assign(button("Undo", "z", act), { className: "button s" }));
  said.replaceChildren(made);
}

async function request(method, annotations, expected) {
  const condition = expected ? { "If-Match": `"${expected}"` } : { "If-None-Match": "*" };
  const body = annotations === null ? undefined : JSON.stringify({ annotations, source: data.source });
  try {
    return await fetch(`${page.api}/ground-truth`, { method, headers: { "Content-Type": "application/json", ...condition }, body });
  } catch {
    return null; // the server is not there
  }
}

/** Store annotations, null for none, after all that is being stored; says whether they are. */
function send(annotations) {
  unsent += 1;
  said.replaceChildren(); // it tells of an earlier change
  sending = sending.then(async (isGoing) => {
    if (!isGoing) return false;
    const answer = annotations === null ? await request("DELETE", null, revision) : await request("PUT", annotations, revision);
    if (answer?.ok) {
      revision = annotations === null ? "" : (answer.headers.get("etag") ?? "").replaceAll('"', "");
      document.querySelector("[data-stated]").textContent = annotations === null ? "removed just now" : `stored just now, by ${person(data.source)}`;
      return true;
    }
    if (answer?.status === 412) await showConflict(annotations);
    else await showRefusal(answer, annotations);
    return false;
  }).finally(() => { unsent -= 1; });
  return sending;
}

function ago(time) {
  const minutes = Math.round((Date.now() - new Date(time)) / 60_000);
  return minutes < 1 ? "just now" : minutes === 1 ? "a minute ago" : minutes < 120 ? `${minutes} minutes ago` : new Date(time).toLocaleString("en-GB");
}

async function showConflict(mine) {
  const answer = await fetch(`${page.api}/ground-truth/history`).catch(() => null);
  if (!answer?.ok) { await showRefusal(answer, mine); return; } // nobody knows what theirs is
  const newest = (await answer.json()).history[0];
  const theirs = newest?.annotations ?? null;
  const keep = button("Keep mine", "", () => {
    revision = theirs === null ? "" : newest.revision;
    settle();
    saved = mine;
    showTruth(mine);
    void send(mine);
  });
  const take = button("Take theirs", "", () => { settle(); location.reload(); });
  const both = button("See both", "", () => {
    state.theirs = (theirs ?? []).map((item, number) => {
      const rings = ringsOf(item, data.width, data.height);
      return { kind: "theirs", number, source: item, label: `${newest.source || "theirs"}: ${item.label ?? ""}`, score: null, rings, bounds: boundsOf(rings), state: "truth" };
    });
    refresh();
    both.disabled = true;
  });
  for (const made of [keep, take, both]) made.className = "button s";
  const row = element("span", "", { className: "row" });
  row.append(both, keep, take);
  const who = person(newest?.source);
  conflict.replaceChildren(element("b", `${who === "somebody" ? "Somebody" : who} changed this ${newest ? ago(newest.created_at) : "meanwhile"}.`), row);
  conflict.scrollIntoView({ block: "nearest" });
}

async function showRefusal(answer, annotations) {
  let words = "The server does not answer.";
  if (answer) words = answer.status === 401 ? "Your session has ended." : (await answer.json().catch(() => ({}))).error ?? `Refused with ${answer.status}.`;
  const again = button("Try again", "", () => { settle(); void send(annotations); });
  again.className = "button s";
  conflict.replaceChildren(element("b", "Not stored."), element("span", words), again);
  conflict.scrollIntoView({ block: "nearest" });
}

/** Take what stands in the way as dealt with: storing goes on. */
function settle() {
  conflict.replaceChildren();
  state.theirs = null;
  sending = Promise.resolve(true);
}

addEventListener("beforeunload", (event) => { if (unsent || conflict?.childElementCount) event.preventDefault(); }); // something is not stored

/** Show annotations as the truth; while one edits, what the model answered where there is none. */
function showTruth(annotations) {
  state.isDraft = annotations === null && editing;
  draft = state.isDraft ? predicted() : [];
  setTruth(state.isDraft ? draft : annotations);
  showMode();
  dispatchEvent(new CustomEvent("truth", { detail: annotations }));
}

/** Say how to draw, and what the first change will store, as long as nothing is; show which of the modes is on. */
function showMode() {
  const items = state.truth?.length ?? 0, isDrawing = isNew || Boolean(outline);
  const draftWords = `Not stored yet. Your first change states ${items === 1 ? "the object that is" : `all ${items} objects that are`} shown as truth, also those that you leave as they are: remove what is wrong.`;
  const words = [isDrawing && (shape === "contour" ? HOW_TO_DRAW : HOW_TO_DRAG), state.isDraft && items && draftWords].filter(Boolean);
  draftNote.hidden = !words.length;
  draftNote.textContent = words.join(" ");
  for (const [mode, isOn] of [["edit", editing && !isDrawing], ["draw", isDrawing]]) actions.querySelector(`[data-do="${mode}"]`).setAttribute("aria-pressed", String(isOn));
}

/** What a change to a draft stores besides: the predictions that were left as they were. */
function storedBesides(annotations) {
  const drafts = new Set(draft.map((item) => JSON.stringify(item)));
  const left = annotations.filter((item) => drafts.has(JSON.stringify(item))).length;
  const predictions = draft.slice(0, annotations.length); // what was drawn besides is none
  return left ? ` ${count(predictions)} stored as truth: ${predictions.length - left} changed, ${left} as predicted.` : "";
}

/** Change the truth, and say what happened. */
function commit(annotations, words, { isAccepted = false } = {}) {
  if (conflict.childElementCount) { conflict.scrollIntoView({ block: "nearest" }); showTruth(saved); return Promise.resolve(false); }
  const before = saved, said = words + (state.isDraft && !isAccepted ? storedBesides(annotations) : "");
  done.push(before);
  undone.length = 0;
  saved = annotations;
  showTruth(annotations);
  return send(annotations).then((isStored) => {
    if (isStored) toast(said, undo);
    if (isStored && saved === annotations) keepChange({ api: page.api, before, revision, words: said });
    return isStored;
  });
}

function travel(from, to, words) {
  if (conflict.childElementCount) return;
  to.push(saved);
  const target = from.pop();
  saved = target;
  showTruth(target);
  void send(target).then((isStored) => {
    if (!isStored) return;
    toast(words);
    if (saved === target && done.length) keepChange({ api: page.api, before: done.at(-1), revision, words });
    else forgetChange();
  });
}

function undo() {
  if (done.length) travel(done, undone, "Undone.");
  else void undoEarlier();
}

function redo() {
  if (undone.length) travel(undone, done, "Done again.");
  else toast("Nothing to do again.");
}

/** Change the truth and go on to the next inference, from where it can be undone. */
async function commitAndGo(annotations, words) {
  if (!(await commit(annotations, words, { isAccepted: true }))) return;
  if (!page.next) { toast(`${words} This was the last one.`, undo); return; }
  go(page.next);
}

/** Undo what was done on the page before, and go back there. */
async function undoEarlier() {
  await sending; // else its words would stand over those about this
  const kept = keptChange(page.api);
  if (!kept) { toast("Nothing to undo."); return; }
  forgetChange();
  const body = kept.before === null ? undefined : JSON.stringify({ annotations: kept.before, source: data.source });
  const headers = { "Content-Type": "application/json", "If-Match": `"${kept.revision}"` };
  const answer = await fetch(`${kept.api}/ground-truth`, { method: kept.before === null ? "DELETE" : "PUT", headers, body }).catch(() => null);
  if (!answer?.ok) toast(answer?.status === 412 ? "It was changed since, and stays." : "It could not be undone.");
  else location.assign(kept.link);
}

const count = (items) => (items.length === 1 ? "1 prediction" : `${items.length} predictions`);
const accept = () => { const items = predicted(); return commitAndGo(items, `${count(items)} accepted as truth.`); };
const nothing = () => commitAndGo([], "Stated: nothing there.");

/** Begin or end editing; it begins with the truth, or, where there is none, with what the model answered. */
function edit(isOn = !editing) {
  if (!shape && isOn) return;
  editing = isOn && Boolean(picture);
  isNew = false;
  setOutline(null);
  if (picture) Object.assign(picture, { hasGrips: editing, isPressed: editing });
  if (picture) picture.canvas.classList.toggle("editing", editing);
  if (saved === null) showTruth(null);
  if (editing && picture.chosen?.kind !== "truth") choose(state.truth.find((item) => data.meant.includes(item.label)) ?? state.truth[0] ?? null);
  showLabels();
  showMode();
  refresh();
}

function chosenTruth() {
  const chosen = picture?.chosen;
  return editing && chosen?.kind === "truth" ? chosen : null;
}

function setLabel(name) {
  label = name;
  keepLabel(name);
  if (isLabels) { void commit([{ label: name }], `Stated: ${name}.`); return; }
  if (!editing) {
    const { kind, number } = picture?.chosen ?? {};
    edit(true);
    if (!editing) return;
    if (kind === "truth") choose(state.truth[number] ?? null);
  }
  const chosen = chosenTruth();
  if (outline) showLabels();
  if (!chosen) return;
  void commit(current().map((item, number) => (number === chosen.number ? { ...item, label: name } : item)), `Now a ${name}.`);
}

/** The chosen contour, as it is stored, while one edits; null without one. */
function chosenContour() {
  const chosen = chosenTruth();
  return chosen?.source.contour?.length ? chosen : null;
}

/** Store the chosen contour with changed points; one without points is removed. */
function commitPoints(item, words) {
  const { number, label: name } = chosenContour();
  void commit(current().toSpliced(number, 1, ...(item ? [item] : [])), item ? words : `A ${name} removed from the truth.`);
}

/** Choose the next point of the chosen contour, for the keys that move and remove it. */
function nextPoint() {
  const chosen = chosenContour();
  if (!chosen) return;
  picture.grip = (picture.grip + 1) % countPoints(chosen.source);
  picture.draw();
}

function insertPoint() {
  const chosen = chosenContour();
  if (!chosen || picture.grip < 0) return;
  commitPoints(withPointAfter(chosen.source, picture.grip), "A point added.");
  picture.grip += 1;
}

/** Remove a point, and choose the one before it. */
function removePoint(number) {
  commitPoints(withoutPoint(chosenContour().source, number), "A point removed.");
  picture.grip = chosenContour() ? Math.max(number - 1, 0) : -1;
  picture.draw();
}

function remove() {
  if (picture?.grip >= 0 && chosenContour()) { removePoint(picture.grip); return; }
  if (!editing && picture?.chosen?.kind === "truth") edit(true);
  const chosen = chosenTruth();
  if (!chosen) return;
  void commit(current().filter((_, number) => number !== chosen.number), `A ${chosen.label} removed from the truth.`);
  choose(state.truth[Math.min(chosen.number, state.truth.length - 1)] ?? null);
}

/** Ask for a text in a dialog; an empty one, and Escape, change nothing. */
function ask(title, field, act) {
  const form = element("form", "", { method: "dialog", className: "stack-s" });
  const heading = element("h2", title, { id: "asked" });
  field.setAttribute("aria-labelledby", heading.id);
  field.autofocus = true;
  const store = element("button", "Store", { className: "button first" });
  form.append(heading, field, store);
  form.addEventListener("submit", () => { if (field.value.trim()) act(field.value.trim()); });
  field.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.ctrlKey) form.requestSubmit(); });
  openDialog(form).setAttribute("aria-labelledby", heading.id);
  return form;
}

/** Ask for a label, also one that nobody has given yet; the browser completes those that the model and the truth have. */
function typeLabel() {
  const field = element("input", "", { maxLength: LONGEST_LABEL, autocomplete: "off", spellcheck: false });
  const known = element("datalist", "", { id: "known-labels" });
  known.append(...data.labels.map((name) => element("option", "", { value: name })));
  field.setAttribute("list", known.id);
  const form = ask("Label", field, (name) => {
    if (!data.labels.includes(name)) data.labels.push(name);
    setLabel(name);
  });
  form.append(known);
}

/** Edit an answer as text: the chosen one, else the first of the truth, or of what the model answered. */
function editText() {
  const items = state.truth?.length ? current() : predicted();
  const chosen = picture?.chosen, number = Math.min(chosen?.number ?? 0, Math.max(items.length - 1, 0));
  const before = items[number] ?? { answer: "" };
  const field = element("textarea", "", { rows: 6, value: String(before.answer ?? "") });
  ask(before.prompt ? `Answer to: ${before.prompt}` : "Answer", field, (answer) => {
    if (state.truth?.length && answer === before.answer) return;
    void commit(items.toSpliced(number, 1, { ...before, answer }), "Answer stated.");
  });
}

// Labels beside the chosen object, with their digits.
let pop = null, placed = {};
function showLabels() {
  pop?.remove();
  pop = null;
  const chosen = chosenTruth();
  if (!chosen && !outline && !(isLabels && picture)) return;
  pop = element("div", "", { className: "pop" });
  pop.setAttribute("role", "toolbar");
  pop.setAttribute("aria-label", outline ? "Label of the object that is drawn" : "Label of the chosen object");
  data.labels.forEach((name, number) => {
    const made = button("", number < 9 ? String(number + 1) : "", () => setLabel(name));
    made.append(name);
    made.setAttribute("aria-pressed", String(name === (outline ? label : (chosen ?? state.truth?.[0])?.label)));
    pop.append(made);
  });
  const typed = button("", "l", typeLabel);
  typed.append("other");
  pop.append(typed);
  if (chosen) { const made = button("", "x", remove); made.append("remove"); pop.append(made); }
  document.querySelector("[data-stage]").append(pop);
  place();
}

function place() {
  const chosen = chosenTruth();
  if (!pop) return;
  const [width, height] = [picture.stage.clientWidth, picture.stage.clientHeight];
  const [w, h] = [pop.offsetWidth, pop.offsetHeight];
  const fit = ([x, y]) => [Math.max(6, Math.min(x, width - w - 6)), Math.max(6, Math.min(y, height - h - 6))];
  const corners = [[6, height], [width, height], [6, 6], [width, 6]];
  const box = chosen?.rings.length ? picture.onStage(chosen) : null;
  const beside = box ? [[box[0], box[3] + 10], [box[2] + 10, box[1]], [box[0] - w - 10, box[1]], [box[0], box[1] - h - 30]] : [];
  // Of the places beside the object and in the corners that which covers the least of any object; the first, if several do. Labels stay
  // where they are beside an object, as long as they do not cover it: what jumps is missed by the hand.
  const covered = ([x, y]) => picture.items.reduce((sum, item) => sum + picture.covers(item, [x, y, x + w, y + h]) * (item === chosen ? 10 : 1), 0);
  const places = [...beside, ...corners].map(fit).map((at, number) => ({ at, number, covered: covered(at) }));
  const held = places[placed.number], best = places.reduce((least, each) => (each.covered < least.covered ? each : least));
  const isSame = held && chosen && placed.object === chosen.number && picture.covers(chosen, [...held.at, held.at[0] + w, held.at[1] + h]) === 0;
  const { at: [left, top], number } = isSame || held?.covered === best.covered ? held : best;
  placed = { object: chosen?.number, number };
  pop.style.left = `${left}px`;
  pop.style.top = `${top}px`;
}

/** Begin to draw an object: a contour corner by corner, a box by a drag. */
function beginNew() {
  if (!editing) edit(true);
  if (!editing) return;
  choose(null);
  isNew = true;
  if (shape === "contour") setOutline([]);
  showMode();
  picture.canvas.focus({ preventScroll: true });
}

/** Show the corners of the contour that is being drawn; null ends it. */
function setOutline(points) {
  const wasDrawing = Boolean(outline);
  outline = points;
  if (!picture || (!points && !wasDrawing)) return;
  picture.outline = points;
  if (Boolean(points) !== wasDrawing) showLabels();
  if (!points) isNew = false;
  showMode();
  picture.draw();
}

/** Add a corner; the first one again closes the contour. */
function addCorner(point) {
  const [first, last] = [outline[0], outline.at(-1)];
  if (last && picture.isSame(last, point) && outline.length < 3) return; // the second half of a double click
  if (first && outline.length > 2 && (picture.isSame(first, point) || picture.isSame(last, point))) closeOutline();
  else setOutline([...outline, point]);
}

function closeOutline() {
  if (!outline) return false;
  if (outline.length < 3) { toast("An object needs three corners or more."); return true; }
  const item = contourFrom(label, outline), items = current();
  setOutline(null);
  void commit([...items, item], `A ${label} added to the truth.`);
  choose(state.truth?.[items.length] ?? null);
  return true;
}

function takeCornerBack() {
  if (!outline) return false;
  setOutline(outline.length ? outline.slice(0, -1) : null);
  return true;
}

function press(event, point) {
  if (!editing) return false;
  if (outline) { addCorner(point); return true; }
  const grip = isNew ? -1 : picture.gripAt(...point);
  if (grip < 0) choose(isNew ? null : picture.at(...point, state.truth ?? []));
  if (shape === "contour" && !picture.chosen) { setOutline([point]); return true; }
  const chosen = picture.chosen?.kind === "truth" ? picture.chosen : null;
  if (grip >= 0 && chosenContour()) {
    if (event.altKey) { removePoint(grip); return true; }
    picture.grip = grip;
    picture.draw();
  }
  const before = current(), number = chosen ? chosen.number : before.length;
  let after = null;
  const { canvas } = picture;
  const shift = (move) => {
    const to = picture.toImage(move), [dx, dy] = [to[0] - point[0], to[1] - point[1]];
    if (after === null && Math.hypot(dx, dy) * picture.current().scale < LEAST_PX) return;
    const item = !chosen ? boxFrom(label, point, to) : grip >= 0 ? dragged(before[number], grip, to, move.shiftKey) : moved(before[number], dx, dy);
    after = before.toSpliced(number, chosen ? 1 : 0, item);
    setTruth(after);
    picture.chosen = state.truth[number];
    place();
  };
  const end = () => {
    for (const [name, listener] of [["pointermove", shift], ["pointerup", end], ["pointercancel", end]]) canvas.removeEventListener(name, listener);
    isNew = false;
    showMode();
    if (after === null) return;
    const name = after[number].label;
    void commit(after, chosen ? `A ${name} changed.` : `A ${name} added to the truth.`);
    choose(state.truth?.[number] ?? null);
  };
  canvas.setPointerCapture(event.pointerId);
  for (const [name, listener] of [["pointermove", shift], ["pointerup", end], ["pointercancel", end]]) canvas.addEventListener(name, listener);
  return true;
}

/** Leave the points of a contour: keys are of the object again. */
function leavePoint() {
  picture.grip = -1;
  picture.draw();
}

function nudge(dx, dy) {
  return (event) => {
    const chosen = chosenTruth();
    if (!chosen) return false;
    const step = event.shiftKey ? 10 : 1;
    if (picture.grip >= 0 && chosenContour()) {
      commitPoints(withPointMoved(chosen.source, picture.grip, dx * step, dy * step), "A point moved.");
      return true;
    }
    void commit(current().map((item, n) => (n === chosen.number ? moved(item, dx * step, dy * step) : item)), `A ${chosen.label} moved.`);
    return true;
  };
}

function turn(by) {
  const chosen = chosenTruth();
  if (chosen) void commit(current().map((item, n) => (n === chosen.number ? turned(item, by) : item)), `A ${chosen.label} turned.`);
}

/** Take over the truth of the same image that is stated at another inference of it. */
async function takeTruth({ dataset }) {
  const note = document.querySelector("[data-take-note]");
  const answer = await fetch(`${dataset.takeTruth}/ground-truth`).catch(() => null);
  const stated = answer?.ok ? await answer.json().catch(() => null) : null;
  if (!stated?.annotations) { note.textContent = answer ? note.dataset.gone : note.dataset.away; return; }
  note.textContent = "";
  await commit(stated.annotations, dataset.taken, { isAccepted: true });
}

/** Lead "previous" to the inference that was changed last, where the filter has none before this: what was labelled may have left it. */
function leadBack(link) {
  page.previous = link;
  const grey = document.querySelector(".stage-bar .off"), made = element("a", "← ", { className: "button s", href: link, rel: "prev" });
  made.setAttribute("aria-label", "Back to the one that was changed");
  made.append(element("kbd", "k"));
  if (grey?.textContent.includes("←")) grey.replaceWith(made);
}

if (["IMAGE_CLASSIFICATION", "OBJECT_DETECTION", "ORIENTED_OBJECT_DETECTION", "IMAGE_SEGMENTATION", "IMAGE_TEXT_TO_TEXT"].includes(data.task)) {
  actions.hidden = false;
  if (!isText && (!shape || !picture)) actions.querySelector('[data-do="edit"]').hidden = true;
  if (isText || !shape || !picture) actions.querySelector('[data-do="draw"]').hidden = true;
  const named = { accept, edit: isText ? editText : () => edit(), draw: beginNew, nothing };
  for (const made of actions.querySelectorAll("[data-do]")) made.addEventListener("click", () => named[made.dataset.do]());
  const back = keys.get("Escape")[1];
  keys.set("a", ["accept the predictions as truth, next", accept]);
  keys.set("n", ["nothing there, next", nothing]);
  keys.set("e", [shape ? "edit" : isText ? "edit the answer" : "", isText ? editText : () => edit()]);
  if (!isText) keys.set("l", ["type a label", typeLabel]);
  keys.set("x", ["remove the chosen object", remove]);
  keys.set("Delete", ["", remove]);
  if (shape && picture) {
    keys.set("d", ["draw a new object", beginNew]);
    keys.set("Enter", [shape === "contour" ? "close the contour that is drawn" : "", closeOutline]);
    keys.set("Backspace", [shape === "contour" ? "take its last corner back" : "", takeCornerBack]);
  }
  keys.set("z", ["undo", () => takeCornerBack() || undo()]);
  keys.set("Z", ["redo", redo]);
  data.labels.slice(0, 9).forEach((name, number) => keys.set(String(number + 1), [name, () => setLabel(name)]));
  for (const [key, dx, dy] of [["ArrowLeft", -1, 0], ["ArrowRight", 1, 0], ["ArrowUp", 0, -1], ["ArrowDown", 0, 1]]) keys.set(key, [shape ? "move the chosen object" : "", nudge(dx, dy)]);
  if (shape === "oriented") { keys.set("[", ["turn left", () => turn(-TURN)]); keys.set("]", ["turn right", () => turn(TURN)]); }
  if (shape === "contour") { keys.set("v", ["next point of the contour", nextPoint]); keys.set("i", ["insert a point after it", insertPoint]); }
  keys.set("Escape", ["back", () => (document.querySelector("dialog[open]") ? back() : outline ? setOutline(null) : picture?.grip >= 0 && editing ? leavePoint() : editing ? edit(false) : back())]);
  if (picture) {
    picture.onPress = press;
    picture.onDraw = place;
    picture.canvas.addEventListener("pointermove", (event) => {
      if (!outline?.length) return;
      picture.outline = [...outline, picture.toImage(event)];
      picture.draw();
    });
    let shown = -1;
    document.addEventListener("chosen", () => {
      const number = chosenTruth()?.number ?? -1;
      if (number !== shown) leavePoint();
      shown = number;
      showLabels();
    });
    picture.canvas.addEventListener("dblclick", (event) => {
      if (outline) return;
      const chosen = chosenContour(), at = picture.toImage(event);
      const edge = chosen ? edgeNear(chosen.rings, at, EDGE_PX / picture.current().scale) : -1;
      if (edge >= 0 && picture.gripAt(...at) < 0) commitPoints(withPointAfter(chosen.source, edge, at), "A point added.");
    });
    if (isLabels) showLabels();
  }
  for (const take of document.querySelectorAll("[data-take-truth]")) {
    take.hidden = false;
    take.addEventListener("click", () => void takeTruth(take));
    addEventListener("truth", (event) => { take.hidden = event.detail !== null; }); // it is offered as long as this one has no truth
  }
  const kept = keptChange(page.api);
  if (kept && !kept.isSaid) toast(`The image before: ${kept.words}`, undo);
  if (kept) keepChange({ ...kept, isSaid: true });
  if (kept && !page.previous) leadBack(kept.link);
}
