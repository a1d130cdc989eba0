// Several images at once: choose them, tag them, find them again or label them. A tag is the key `tag` of their metadata.

const bar = document.querySelector("[data-selection]"), begin = document.querySelector("[data-select]");
const AT_ONCE = 4;

if (bar && begin) {
  const shots = [...document.querySelectorAll(".grid .shot")];
  const words = bar.querySelector("[data-selected]"), note = bar.querySelector("[data-selection-note]");
  const { base } = bar.dataset;
  const chosen = new Set();
  let isOn = false, last = -1;

  const idOf = (shot) => new URL(shot.href).pathname.split("/").pop();
  const ids = () => [...new Set([...chosen].map(idOf))];
  const line = () => `id=in:${ids().join(",")}`;

  const show = () => {
    for (const shot of shots) shot.toggleAttribute("data-chosen", chosen.has(shot));
    words.textContent = words.dataset.words.replace("{n}", chosen.size);
    bar.hidden = !isOn;
    begin.setAttribute("aria-pressed", String(isOn));
    for (const control of bar.querySelectorAll("button:not([data-clear])")) control.disabled = !chosen.size;
  };

  const toggle = (shot) => {
    last = shots.indexOf(shot);
    if (!chosen.delete(shot)) chosen.add(shot);
    show();
  };

  /** Choose or leave all between the one before and this one, as this one is now. */
  const extend = (shot) => {
    const to = shots.indexOf(shot), [from, end] = last < 0 ? [to, to] : [Math.min(last, to), Math.max(last, to)];
    for (const each of shots.slice(from, end + 1)) chosen.add(each);
    last = to;
    show();
  };

  const turn = (on) => {
    isOn = on;
    if (!on) chosen.clear();
    note.textContent = "";
    show();
  };

  /** Change the metadata of all that are chosen, a few at a time; says how many of them were changed, and why others were not. */
  async function change(body, done) {
    const waiting = ids(), all = waiting.length;
    let changed = 0, problem = "";
    const work = async () => {
      for (let id = waiting.pop(); id; id = waiting.pop()) {
        const answer = await fetch(`${base}/api/inferences/${id}/metadata`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }).catch(() => null);
        if (answer?.ok) changed += 1;
        else problem = answer ? (await answer.json().catch(() => ({}))).error ?? String(answer.status) : bar.dataset.away;
        note.textContent = `${changed} / ${all}`;
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    note.textContent = `${done.replace("{n}", changed)}${problem ? ` ${bar.dataset.failed} ${problem}` : ""}`;
  }

  begin.hidden = false;
  begin.addEventListener("click", () => turn(!isOn));
  document.addEventListener("click", (event) => {
    const shot = event.target.closest?.(".grid .shot");
    if (!isOn || !shot) return;
    event.preventDefault();
    if (event.shiftKey) extend(shot);
    else toggle(shot);
  });
  document.addEventListener("keydown", (event) => {
    const shot = event.target.closest?.(".grid .shot");
    if (event.key === " " && shot) {
      event.preventDefault();
      if (!isOn) turn(true);
      toggle(shot);
    } else if (event.key === "Escape" && isOn && !event.target.closest?.("input")) turn(false);
  });
  bar.querySelector("[data-tag]")?.addEventListener("submit", (event) => {
    event.preventDefault();
    const tag = new FormData(event.target).get("tag").trim();
    if (tag) void change({ set: { tag } }, bar.dataset.tagged);
  });
  bar.querySelector("[data-untag]")?.addEventListener("click", () => void change({ remove: ["tag"] }, bar.dataset.untagged));
  bar.querySelector("[data-find]").addEventListener("click", () => location.assign(`${base}/console/inferences?q=${encodeURIComponent(line())}`));
  bar.querySelector("[data-label]")?.addEventListener("click", () => location.assign(`${base}/console/label?q=${encodeURIComponent(line())}`));
  bar.querySelector("[data-clear]").addEventListener("click", () => turn(false));
  show();
}
