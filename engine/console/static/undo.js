// What this browser's tab keeps from page to page: the last change, so that the page after it can take it back and lead to where it
// was made, and the label that was used last.

import { tried } from "./complete.js";

const NAME = "quadriga-undo", LABEL = "quadriga-label", KEPT_MS = 120_000;

/** Keep a change: the address of its inference, the truth before it, the revision that it made, and words about it. */
export const keepChange = (change) => tried(() => sessionStorage.setItem(NAME, JSON.stringify({ link: location.href, at: Date.now(), ...change })));

export const forgetChange = () => tried(() => sessionStorage.removeItem(NAME));

/** The last change, if it was made on another page than that of `api`, and not long ago; null for none. */
export function keptChange(api) {
  const kept = tried(() => JSON.parse(sessionStorage.getItem(NAME)));
  return kept && kept.api !== api && Date.now() - kept.at < KEPT_MS ? kept : null;
}

export const keepLabel = (label) => tried(() => sessionStorage.setItem(LABEL, label));

/** The label that was used last, if it is one of these; undefined for none. */
export const keptLabel = (labels) => labels.find((label) => label === tried(() => sessionStorage.getItem(LABEL)));
