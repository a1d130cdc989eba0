// What this browser's tab keeps from page to page: the last change, so that the page after it can take it back and lead to where it
// was made, and the label that was used last.

const NAME = "quadriga-undo", LABEL = "quadriga-label", KEPT_MS = 120_000;

/** Keep a change: the address of its inference, the truth before it, the revision that it made, and words about it. */
export function keepChange(change) {
  try {
    sessionStorage.setItem(NAME, JSON.stringify({ ...change, link: location.href, at: Date.now() }));
  } catch { /* the browser keeps nothing, or not so much: only this page can take it back then */ }
}

export function forgetChange() {
  try { sessionStorage.removeItem(NAME); } catch { /* nothing was kept */ }
}

/** The last change, if it was made on another page than that of `api`, and not long ago; null for none. */
export function keptChange(api) {
  try {
    const kept = JSON.parse(sessionStorage.getItem(NAME));
    return kept && kept.api !== api && Date.now() - kept.at < KEPT_MS ? kept : null;
  } catch {
    return null;
  }
}

export function keepLabel(label) {
  try { sessionStorage.setItem(LABEL, label); } catch { /* the next page begins anew */ }
}

/** The label that was used last, if it is one of these; undefined for none. */
export function keptLabel(labels) {
  try { return labels.find((label) => label === sessionStorage.getItem(LABEL)); } catch { return undefined; }
}
