// The last change of this browser's tab, so that the page after it can take it back and lead to where it was made.

const NAME = "quadriga-undo", KEPT_MS = 120_000;

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
