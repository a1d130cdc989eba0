// "Try it" on the page of a model: an image that is dropped, pasted or chosen is answered and drawn, with the same as JSON, curl and Python.

import { Picture, drawn } from "./draw.js";
import { boundsOf, ringsOf } from "./geometry.js";

const card = document.querySelector("[data-try]");
const part = (name) => card.querySelector(`[data-part="${name}"]`);
const { try: path, url, name: model, key, stored } = card.dataset;
const [score, store, prompt] = ["score", "store", "prompt"].map(part);
let file = null, picture = null, asked = 0;

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const isImage = (type) => type.startsWith("image/");

/** Parameters of the request, as far as they are not the server's own. */
function parameters() {
  return {
    ...(prompt && { prompt: prompt.value }),
    ...(score?.dataset.moved && { score_threshold: Number(score.value) }),
    ...(store && !store.checked && { store: false }),
  };
}

function query() {
  const pairs = new URLSearchParams(Object.entries(parameters())).toString();
  return pairs && `?${pairs}`;
}

function cell(tag, text, isNumber) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (isNumber) made.className = "num";
  if (tag === "th") made.scope = "row";
  return made;
}

/** Row of the table: what was predicted, its score, and where, in pixels of the image. */
function row({ source, label, score: value, rings }) {
  const made = document.createElement("tr");
  const [left, top, right, bottom] = boundsOf(rings).map(Math.round);
  const place = rings.length ? [`${left}, ${top}`, `${right - left} × ${bottom - top}`] : ["–", "–"];
  made.append(cell("th", label || String(source.answer ?? "")), cell("td", value === null ? "–" : value.toFixed(2), true), ...place.map((text) => cell("td", text, true)));
  return made;
}

function commands() {
  const body = isImage(file.type) ? file.type : "image/jpeg", shown = parameters();
  const more = Object.entries(shown).map(([at, value]) => `${JSON.stringify(at)}: ${value === false ? "False" : JSON.stringify(value)}`).join(", ");
  part("curl").textContent = `curl -s ${quoted(url + query())} \\\n  -H 'Content-Type: ${body}'${key ? ` \\\n  -H 'Authorization: Bearer YOUR-KEY'` : ""} \\\n  --data-binary ${quoted(`@${file.name}`)}`;
  part("python").textContent = `import quadriga\n\nwith quadriga.Client(${JSON.stringify(card.dataset.server)}${key ? ', key="YOUR-KEY"' : ""}) as client:\n    print(client.infer(${JSON.stringify(model)}, ${JSON.stringify(file.name)}${more && `, parameters={${more}}`}))`;
}

/** Draw the image with what was predicted; browsers cannot read each format that the server can. */
function draw(bitmap, predictions) {
  const [width, height] = bitmap ? [bitmap.width, bitmap.height] : [1, 1];
  const items = predictions.map((item, number) => drawn(item, "pred", number, ringsOf(item, width, height)));
  picture ??= new Picture(part("stage"), width, height);
  Object.assign(picture, { image: bitmap, width, height, view: null });
  picture.set(bitmap ? items : []);
  picture.canvas.setAttribute("aria-label", `${file.name} with ${items.length} predictions`);
  part("rows").replaceChildren(...items.map(row));
  part("count").textContent = items.length;
  return bitmap ? `${width} × ${height}` : "this browser cannot show the image";
}

function fail(text) {
  part("answer").hidden = true; // it is that of the file before
  part("problem").textContent = text;
  part("problem").hidden = false;
}

/** Send the image, and show the answer; only the answer to the latest request counts. */
async function ask() {
  if (!file) return;
  const number = ++asked, sent = file, begun = performance.now();
  part("problem").hidden = true;
  part("status").textContent = `${sent.name} is being answered`;
  const headers = { "Content-Type": isImage(sent.type) ? sent.type : "image/unknown" };
  const answer = await fetch(path + query(), { method: "POST", headers, body: sent }).catch(() => null);
  const took = performance.now() - begun;
  const [text, bitmap] = await Promise.all([answer?.text().catch(() => null) ?? null, createImageBitmap(sent).catch(() => null)]);
  if (number !== asked) return;
  part("status").textContent = sent.name;
  if (text === null) return fail("The server does not answer.");
  let content = null;
  try { content = JSON.parse(text); } catch { /* a proxy's page */ }
  if (!answer.ok || !content) return fail(content?.error ?? `The server answered ${answer.status}.`);
  const [output] = content.outputs ?? [], predictions = Array.isArray(output?.data?.[0]) ? output.data[0] : [];
  part("empty").hidden = true;
  part("answer").hidden = false;
  const size = draw(bitmap, predictions);
  part("status").textContent = `${sent.name} · ${size} · answered in ${took.toFixed(0)} ms`;
  part("json").textContent = JSON.stringify(content, null, 1);
  commands();
  const id = output?.parameters?.inference_id;
  part("open").hidden = !id;
  if (id) part("open").href = `${stored}/${encodeURIComponent(id)}`;
}

function take(list) {
  const chosen = [...list].find(({ type }) => isImage(type)) ?? list[0];
  if (!chosen) return false;
  file = chosen;
  ask();
  return true;
}

for (const input of card.querySelectorAll('input[type="file"]')) input.addEventListener("change", () => { take(input.files); input.value = ""; });
for (const kind of ["dragover", "dragleave", "drop"]) card.addEventListener(kind, (event) => {
  if (!event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  part("empty").classList.toggle("over", kind === "dragover");
  if (kind === "drop") take(event.dataTransfer.files);
});
document.addEventListener("paste", (event) => {
  if (event.clipboardData?.files.length && take(event.clipboardData.files)) event.preventDefault();
});

part("stored")?.addEventListener("click", async () => {
  const found = await fetch(part("stored").dataset.newest).then((answer) => answer.json()).catch(() => null);
  const [record] = (found?.inferences ?? []).filter(({ input }) => input?.kept);
  const image = record && await fetch(`${part("stored").dataset.images}/${record.id}/input`).catch(() => null);
  if (!image?.ok) return fail("No image of this model is stored.");
  const blob = await image.blob();
  take([new File([blob], `${record.id}.${blob.type.split("/")[1] ?? "jpg"}`, { type: blob.type })]);
});

score?.addEventListener("input", () => {
  score.dataset.moved = "yes";
  part("score-text").textContent = Number(score.value).toFixed(2);
});
for (const control of [score, store, prompt]) control?.addEventListener("change", ask);

for (const tab of card.querySelectorAll("[data-tab]")) tab.addEventListener("click", () => {
  for (const other of card.querySelectorAll("[data-tab]")) {
    other.setAttribute("aria-selected", String(other === tab));
    document.getElementById(other.getAttribute("aria-controls")).hidden = other !== tab;
  }
});
card.hidden = false;
