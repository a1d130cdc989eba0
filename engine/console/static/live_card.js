// Cards of inferences as the grid has them, made from the records of the API. Whatever clients sent goes in as text.

import { showTime } from "./console.js";
import { ringsOf } from "./geometry.js";

const SVG = "http://www.w3.org/2000/svg";
const MAX_OUTLINES = 80, MAX_WORDS = 4, MAX_LABEL = 24, MAX_VALUE = 60;

const texts = document.getElementById("live")?.dataset ?? {};
const ratios = (texts.ratios ?? "100").split(" ").map(Number);

const listed = (value) => (Array.isArray(value) ? value.filter((item) => item !== null && typeof item === "object") : []);
const oneLine = (value, most) => {
  const line = String(value ?? "").split(/\s+/).join(" ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
};

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null)); // strings become text
  return made;
}

function drawing(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** Class of the style sheet for an image of this size. */
function ratioOf(width, height) {
  const percent = width && height ? (100 * width) / height : 100;
  const distance = (ratio) => Math.max(ratio / percent, percent / ratio);
  return `a${ratios.reduce((best, ratio) => (distance(ratio) < distance(best) ? ratio : best))}`;
}

function pathOf(item, width, height) {
  const rings = ringsOf(item, width, height);
  const isDrawn = rings.length > 0 && rings.flat(2).every(Number.isFinite);
  return isDrawn ? rings.map((ring) => `M${ring.map((point) => point.map((at) => +at.toPrecision(5)).join(" ")).join("L")}Z`).join("") : "";
}

/** What was found: labels with their numbers, or the text of what has no place. */
function wordsOf(items) {
  const counts = new Map();
  for (const item of items) {
    if (!ringsOf(item, 1, 1).length) continue;
    const label = oneLine(item.label, MAX_LABEL);
    counts.set(label, (counts.get(label) ?? 0) + 1);
  }
  if (!counts.size) {
    const [first] = items;
    if (!first) return "";
    const score = typeof first.score === "number" ? ` ${first.score.toFixed(2)}` : "";
    return first.answer ? oneLine(first.answer, 200) : oneLine(first.label, MAX_LABEL) + score;
  }
  const shown = [...counts].sort(([, a], [, b]) => b - a).map(([label, n]) => (n === 1 ? label : `${label} ×${n}`));
  const extra = shown.length - MAX_WORDS;
  return [...shown.slice(0, MAX_WORDS), ...(extra > 0 ? [`${extra} more`] : [])].join(" · ");
}

function outlines(items, width, height) {
  const best = [...items].sort((a, b) => (b.score ?? 0) - (a.score ?? 0)).slice(0, MAX_OUTLINES);
  const paths = best.map((item) => pathOf(item, width, height)).filter(Boolean);
  if (!paths.length) return null;
  const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  for (const path of paths) svg.append(drawing("path", { class: "rim", d: path }), drawing("path", { class: "mark o-pred pred", d: path }));
  return svg;
}

function picture(record, items) {
  const { kept, width, height } = record.input;
  const media = element("span", `media ${ratioOf(width, height)}`);
  if (kept && width && height) {
    const image = element("img", "");
    const source = `${texts.base}/api/inferences/${record.id}/input`;
    Object.assign(image, { alt: "", loading: "lazy", decoding: "async", srcset: `${source}?w=256 1x, ${source}?w=512 2x`, src: `${source}?w=256` });
    const svg = outlines(items, width, height);
    media.append(image, ...(svg ? [svg] : []));
  } else {
    media.append(element("span", "no-image", texts.noImage));
  }
  if (record.status >= 400) media.append(element("span", "badge", element("span", "no", "▲"), ` ${texts.failed}`));
  return media;
}

function firstValue(metadata) {
  const isPlain = (value) => ["string", "number", "boolean"].includes(typeof value);
  const value = Object.values(metadata ?? {}).find(isPlain);
  return value === undefined ? null : oneLine(value, MAX_VALUE);
}

/** The card of a record: a link with the picture, what was found, and when. */
export function cardOf(record) {
  const items = listed(record.predictions), failed = record.status >= 400;
  const scores = items.map((item) => item.score).filter((score) => typeof score === "number");
  const time = element("time", "");
  time.dateTime = record.created_at;
  showTime(time);
  const found = record.task === "TENSOR" && !failed ? texts.tensors : wordsOf(items);
  const words = found || (failed ? texts.failed : texts.nothing);
  const isOne = scores.length === 1;
  const score = scores.length ? element("span", "quiet", `${isOne ? "" : `${texts.lowest} `}${Math.min(...scores).toFixed(2)}`) : null;
  if (score) score.title = isOne ? texts.oneScore : texts.lowestOf.replace("{n}", scores.length);
  const lines = element("span", "words",
    element("span", "", element("b", "", words), score),
    element("span", "quiet", element("span", "", firstValue(record.metadata) ?? record.model.name), time));
  const card = element("a", `shot ${ratioOf(record.input.width, record.input.height)}`, picture(record, items), lines);
  card.href = `${texts.inferences}/${record.id}${texts.query ? `?q=${encodeURIComponent(texts.query)}` : ""}`;
  return card;
}
