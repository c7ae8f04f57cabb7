// Everything by keyboard. In a grid one tile is in the tab order at a time; the arrows go from tile to tile as they lie.

const typing = (target) => target.closest?.("input:not([type=range]):not([type=radio]):not([type=checkbox]), select, textarea") !== null;

/** The nearest tile in a direction, across both grids. */
function neighbour(tiles, from, key) {
  const a = from.getBoundingClientRect();
  const [ax, ay] = [(a.left + a.right) / 2, (a.top + a.bottom) / 2];
  let best = null, least = Infinity;
  for (const tile of tiles) {
    if (tile === from) continue;
    const b = tile.getBoundingClientRect();
    const dx = (b.left + b.right) / 2 - ax, dy = (b.top + b.bottom) / 2 - ay;
    const [along, across] =
      key === "ArrowRight" ? [dx, dy] : key === "ArrowLeft" ? [-dx, dy] : key === "ArrowDown" ? [dy, dx] : [-dy, dx];
    if (along < 4) continue;
    if ((key === "ArrowRight" || key === "ArrowLeft") && Math.abs(across) > a.height / 2) continue;
    const distance = along + 3 * Math.abs(across);
    if (distance < least) [best, least] = [tile, distance];
  }
  return best;
}

/** actions: help(), compare(), names(), weaker(), stronger(). */
export function listen({ query, results, actions }) {
  const tiles = () => [...results.querySelectorAll(".pane:not([hidden]) .tile")];

  const enter = (tile) => {
    if (!tile) return false;
    results.querySelectorAll('.tile[tabindex="0"]').forEach((other) => (other.tabIndex = -1));
    tile.tabIndex = 0;
    tile.focus();
    tile.scrollIntoView({ block: "nearest" });
    return true;
  };

  results.addEventListener("focusin", (event) => {
    const tile = event.target.closest(".tile");
    if (!tile || tile.tabIndex === 0) return;
    results.querySelectorAll('.tile[tabindex="0"]').forEach((other) => (other.tabIndex = -1));
    tile.tabIndex = 0;
  });

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const target = event.target;
    if (target === query) {
      if (event.key === "ArrowDown" && enter(results.querySelector("#after .tile"))) event.preventDefault();
      else if (event.key === "Escape") query.select();
      return;
    }
    if (typing(target)) return;
    const tile = target.closest?.(".tile");
    const key = event.key;
    let done = true;
    if (key === "/") {
      query.focus();
      query.select();
      scrollTo({ top: 0 });
    } else if (key === "?") actions.help();
    else if (key === "c") actions.compare();
    else if (key === "n") actions.names();
    else if (key === "[") actions.weaker();
    else if (key === "]") actions.stronger();
    else if (key === "Escape" && (tile || target === results)) query.focus();
    else if (key.startsWith("Arrow") && tile) {
      if (!enter(neighbour(tiles(), tile, key)) && key === "ArrowUp") query.focus();
    } else if (key === "Home" && tile) enter(tiles()[0]);
    else if (key === "End" && tile) enter(tiles().at(-1));
    else done = false;
    if (done) event.preventDefault();
  });

  return { enter };
}
