// What this browser keeps for the page; one that lets nothing be kept forgets it with the page.

export function kept(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

/** value: a text, or null to keep nothing. */
export function keep(key, value) {
  try {
    if (value === null) localStorage.removeItem(key);
    else localStorage.setItem(key, value);
  } catch {
    // it holds for this page then
  }
}
