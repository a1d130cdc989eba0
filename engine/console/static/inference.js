// The page of one inference: the picture, its tools, the list that mirrors it, and keys. Correcting is in annotate.js.

import { element, isTyping } from "./console.js";
import { GLYPHS, Picture, drawn } from "./draw.js";
import { match, ringsOf } from "./geometry.js";

const main = document.querySelector(".viewer");
export const data = JSON.parse(document.getElementById("inference").textContent);
export const page = { api: main.dataset.inference, next: main.dataset.next, previous: main.dataset.previous };
const stage = document.querySelector("[data-stage]");
const still = document.querySelector("[data-still]");
const scoreInput = document.querySelector("[data-score]");
const layers = Object.fromEntries([...document.querySelectorAll("[data-layer]")].map((box) => [box.dataset.layer, box]));

const isBelow = matchMedia("(max-width: 75rem)"); // the list stands below the image, as in inference.css

const shown = (items, kind) => items.map((item, number) => drawn(item, kind, number, ringsOf(item, data.width, data.height)));

export const state = {
  predictions: shown(data.predictions ?? [], "pred"),
  truth: data.ground_truth === null ? null : shown(data.ground_truth, "truth"),
  isDraft: false, // whether the truth that is shown is only what the model answered, before the first change
  theirs: null, // truth that somebody else stated meanwhile, while both are shown
  least: 0,
};
export const picture = still ? new Picture(stage, data.width, data.height) : null;

/** Predictions from the score on. */
export const accepted = () => state.predictions.filter((item) => (item.score ?? 1) >= state.least);

/** Replace the truth that is shown; null for none. */
export function setTruth(annotations) {
  const number = picture?.chosen?.kind === "truth" ? picture.chosen.number : -1;
  state.truth = annotations === null ? null : shown(annotations, "truth");
  if (number >= 0) choose(state.truth?.[number] ?? null);
  renderTruth();
  refresh();
}

/** Show what is chosen, in the picture and in the list. */
export function choose(item) {
  if (picture) picture.chosen = item;
  for (const button of document.querySelectorAll(".object")) {
    const isChosen = item !== null && button.dataset.kind === item.kind && Number(button.dataset.number) === item.number;
    if (isChosen) {
      button.setAttribute("aria-current", "true");
      if (!isBelow.matches) button.scrollIntoView({ block: "nearest" }); // below the image it would scroll that out of sight
    } else button.removeAttribute("aria-current");
  }
  picture?.draw();
  document.dispatchEvent(new CustomEvent("chosen", { detail: item }));
}

export function refresh() {
  const predictions = accepted();
  match(predictions, state.truth);
  if (state.theirs) for (const item of state.theirs) item.state = "truth";
  const isShown = (kind) => layers[kind]?.checked ?? true;
  for (const [kind, items] of [["pred", state.predictions], ["truth", state.truth ?? []]]) for (const item of items) {
    const button = document.querySelector(`.object[data-kind="${kind}"][data-number="${item.number}"]`);
    if (!button) continue;
    // A matched pair is one row, as it is one outline; while one edits, the truth has its own.
    button.closest("li").hidden = kind === "pred" ? !predictions.includes(item) : item.state === "matched" && !picture?.hasGrips;
    button.dataset.state = item.state;
    button.querySelector(".glyph").textContent = GLYPHS[item.state] ?? (kind === "truth" ? "○" : "");
    const words = state.isDraft ? {} : { matched: "matched", false: "false", missed: "missed" };
    button.querySelector(".how").textContent = words[item.state] ?? "";
  }
  const hasTruthRows = document.querySelector('[data-objects="truth"] li:not([hidden])') !== null;
  document.querySelector("[data-truth-heading]").hidden = !hasTruthRows && Boolean(state.truth?.length);
  const truthCount = state.truth === null ? "" : `${state.truth.length} ${state.isDraft ? "not stored yet" : "true"}, `;
  document.querySelector("[data-counts]").textContent = `${truthCount}${predictions.length} predicted`;
  if (!picture) return;
  // Of a matched pair the prediction is drawn: its line says that, the colour that the truth is the same.
  const truth = (state.truth ?? []).filter((item) => item.state !== "matched" || !isShown("pred") || item === picture.chosen);
  picture.hasLabels = layers.labels?.checked ?? true;
  picture.set([...(isShown("truth") ? [...(state.theirs ?? []), ...truth] : []), ...(isShown("pred") ? predictions : [])]);
}

function renderTruth() {
  const list = document.querySelector('[data-objects="truth"]');
  list.replaceChildren(...(state.truth ?? []).slice(0, 200).map((item) => {
    const row = element("li"), button = element("button", "", { type: "button", className: "object" }), what = element("span", "", { className: "what" });
    Object.assign(button.dataset, { kind: "truth", number: item.number });
    what.append(element("span", item.label || String(item.source.answer ?? "")), " ", element("span", "", { className: "quiet small how" }));
    button.append(element("span", "", { className: "glyph", ariaHidden: "true" }), what, element("span"), element("span", "–", { className: "num" }));
    row.append(button);
    return row;
  }));
  document.querySelector("[data-truth-note]").textContent = state.truth === null || state.isDraft ? "No truth is stated." : state.truth.length ? "" : "Stated: nothing there.";
}

function setLeast(value) {
  state.least = value;
  document.querySelector("[data-score-text]").textContent = value.toFixed(2);
  refresh();
}

function toggle(layer) {
  layers[layer].checked = !layers[layer].checked;
  refresh();
}

export function go(link) {
  if (link) location.assign(link);
  return Boolean(link);
}

// Keys of the page; annotate.js adds those that change something.
export const keys = new Map([
  ["j", ["next", () => go(page.next)]],
  ["k", ["previous", () => go(page.previous)]],
  ["s", ["skip", () => go(page.next)]],
  ["t", ["truth", () => toggle("truth")]],
  ["p", ["predictions", () => toggle("pred")]],
  ["b", ["labels", () => toggle("labels")]],
  ["+", ["zoom in", () => picture?.zoom(1.4)]],
  ["-", ["zoom out", () => picture?.zoom(1 / 1.4)]],
  ["0", ["fit the image", () => picture?.zoom(0)]],
  [".", ["next object", () => step(1)]],
  [",", ["previous object", () => step(-1)]],
  ["?", ["all shortcuts", showKeys]],
  ["Escape", ["back", back]],
]);

function step(by) {
  const items = picture?.hasGrips ? state.truth ?? [] : [...(state.truth ?? []), ...accepted()];
  if (!items.length) return;
  const at = items.indexOf(picture?.chosen ?? null);
  choose(items[(at + by + items.length + (at < 0 && by < 0 ? 1 : 0)) % items.length]);
}

function back() {
  const dialog = document.querySelector("dialog[open]");
  if (dialog) dialog.close();
  else if (picture?.chosen) choose(null);
  else document.querySelector('[data-key="Escape"]').click();
}

/** Show a dialog until it is closed. */
export function openDialog(...children) {
  const dialog = element("dialog", "", { className: "dialog" });
  dialog.append(...children);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

function showKeys() {
  const list = element("dl", "", { className: "pairs keys" });
  for (const [key, [words]] of keys) {
    if (!words) continue;
    const term = element("dt");
    term.append(element("kbd", key));
    list.append(term, element("dd", words));
  }
  const dialog = openDialog(element("h2", "Shortcuts"), list);
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || isTyping(event.target)) return;
  const found = keys.get(event.key);
  if (!found || (document.querySelector("dialog[open]") && event.key !== "Escape")) return;
  if (event.key.startsWith("Arrow") && event.target.type === "range") return;
  if (found[1](event) !== false) event.preventDefault(); // false: the key did nothing here, and is the browser's
});

document.querySelector(".inspector").addEventListener("click", (event) => {
  const button = event.target.closest(".object");
  if (!button) return;
  const items = button.dataset.kind === "pred" ? state.predictions : state.truth ?? [];
  choose(items[Number(button.dataset.number)] ?? null);
});

if (picture) {
  picture.canvas.setAttribute("aria-label", still.querySelector("img").alt);
  document.querySelector("[data-tools]").hidden = false;
  const first = still.querySelector("img");
  const show = (image) => { picture.image = image; still.hidden = true; picture.draw(); };
  if (first.complete && first.naturalWidth) show(first);
  else first.addEventListener("load", () => show(first), { once: true });
  if (Math.max(data.width, data.height) > 1024) {
    const whole = new Image();
    whole.addEventListener("load", () => show(whole));
    whole.src = `${page.api}/input`;
  }
  scoreInput.addEventListener("input", () => setLeast(Number(scoreInput.value)));
  for (const box of Object.values(layers)) box.addEventListener("change", refresh);
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => picture.zoom({ 0: 0, "+": 1.4, "-": 1 / 1.4 }[button.dataset.zoom]));
  }
  document.querySelector("[data-help]").addEventListener("click", showKeys);
  picture.canvas.addEventListener("click", (event) => {
    if (!picture.isPressed) choose(picture.at(...picture.toImage(event)));
  });
}
refresh();
