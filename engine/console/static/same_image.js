// Truth of the same image, stated at another inference of it, taken over as the truth of this one. It can be undone as any change:
// it is offered as long as this one has no truth.

import { commit } from "./annotate.js";

const button = document.querySelector("[data-take-truth]");

async function take() {
  const note = document.querySelector("[data-take-note]");
  const answer = await fetch(`${button.dataset.takeTruth}/ground-truth`).catch(() => null);
  const stated = answer?.ok ? await answer.json().catch(() => null) : null;
  if (!stated?.annotations) { note.textContent = answer ? note.dataset.gone : note.dataset.away; return; }
  note.textContent = "";
  await commit(stated.annotations, button.dataset.taken, { isAccepted: true });
}

if (button) {
  button.hidden = false;
  button.addEventListener("click", () => void take());
  addEventListener("truth", (event) => { button.hidden = event.detail !== null; });
}
