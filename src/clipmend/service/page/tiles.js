// The images in their grids: what each tile says, how it glides to its new place, and which tiles are the same image.

import { thumbnail } from "./api.js";

const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
const number = new Intl.NumberFormat("en");

export const ordinal = (n) => number.format(n);
export const fileName = (path) => path.split("/").pop() || path;

/**
 * What became of a hit between the two lists: what to show, in which colour, and in words.
 * kind: "came", "left", "up", "down", "same" or "" (nothing to compare with).
 */
export function movement(hit, side, shown, depth) {
  const now = hit.rank, then = hit.rank_before;
  const beyond = `beyond ${number.format(depth)}`;
  if (side === "before") {
    if (now === null || now > shown) {
      const to = now === null ? beyond : ordinal(now);
      return { kind: "left", badge: `→ ${to}`, words: now === null ? `now ${beyond}` : `now at ${to}` };
    }
    return now === then ? { kind: "same", badge: "", words: "stayed in place" } : { kind: "stayed", badge: `→ ${now}`, words: `now at ${now}` };
  }
  if (then === null || then > shown) {
    const from = then === null ? beyond : ordinal(then);
    return { kind: "came", badge: `from ${from}`, words: `came from ${then === null ? from : `rank ${from}`}` };
  }
  if (then === now) return { kind: "same", badge: "", words: "stayed in place" };
  const places = Math.abs(then - now);
  return then > now
    ? { kind: "up", badge: `▲ ${places}`, words: `up ${places}, from rank ${then}` }
    : { kind: "down", badge: `▼ ${places}`, words: `down ${places}, from rank ${then}` };
}

function newTile(hit) {
  const item = document.createElement("li");
  item.dataset.id = hit.key;
  item.dataset.of = hit.of ?? "";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "tile";
  button.tabIndex = -1;
  const source = thumbnail(hit);
  if (source) {
    const image = document.createElement("img");
    image.alt = "";
    image.loading = "lazy";
    image.decoding = "async";
    image.addEventListener("load", () => image.classList.add("there"), { once: true });
    image.addEventListener("error", () => image.replaceWith(placeholder(hit)), { once: true });
    image.srcset = `${source} 1x, ${thumbnail(hit, 512)} 2x`;
    image.src = source;
    button.append(image);
  } else {
    button.append(placeholder(hit));
  }
  for (const name of ["rank", "badge", "copies"]) {
    const span = document.createElement("span");
    span.className = name;
    button.append(span);
  }
  const name = document.createElement("span");
  name.className = "name";
  name.ariaHidden = "true"; // the button says it
  name.textContent = fileName(hit.path);
  item.append(button, name);
  return item;
}

function placeholder(hit) {
  const none = document.createElement("span");
  none.className = "none";
  none.textContent = fileName(hit.path);
  return none;
}

function fill(item, hit, place, move) {
  const button = item.firstElementChild;
  const part = (name) => button.querySelector(`.${name}`);
  part("rank").textContent = ordinal(place);
  part("badge").textContent = move?.badge ?? "";
  part("copies").textContent = hit.copies?.length ? `+${hit.copies.length}` : "";
  button.dataset.move = move?.kind ?? "";
  const copies = hit.copies?.length ? `, with ${hit.copies.length} near-duplicate${hit.copies.length > 1 ? "s" : ""}` : "";
  button.setAttribute("aria-label", `${ordinal(place)}: ${fileName(hit.path)}${move ? `, ${move.words}` : ""}${copies}`);
  button.title = hit.path;
}

export class Grid {
  /** side: "before" or "after". */
  constructor(list, side) {
    this.list = list;
    this.side = side;
    this.items = new Map();
    this.hits = [];
  }

  /** shown: how many the other list holds, for what came and left; null where there is no other list. */
  show(hits, { shown = null, depth = 0, ranked = true } = {}) {
    const old = new Map();
    if (!calm.matches) {
      for (const [id, item] of this.items) {
        const box = item.getBoundingClientRect();
        if (box.bottom > -200 && box.top < innerHeight + 200) old.set(id, box);
      }
    }
    const had = this.items.size > 0;
    const items = new Map();
    this.moves = new Map();
    for (const [position, hit] of hits.entries()) {
      const key = hit.key;
      const kept = this.items.get(key);
      const item = kept && kept.dataset.of === (hit.of ?? "") ? kept : newTile(hit);
      const place = this.side === "before" ? hit.rank_before ?? position + 1 : hit.rank;
      const move = shown === null ? null : movement(hit, this.side, shown, depth);
      fill(item, hit, place, move);
      this.moves.set(key, move);
      items.set(key, item);
    }
    this.list.classList.toggle("unranked", !ranked);
    const focused = document.activeElement?.closest?.("li");
    this.list.replaceChildren(...items.values());
    if (focused && this.list.contains(focused)) focused.firstElementChild.focus({ preventScroll: true });
    this.items = items;
    this.hits = hits;
    if (had && !calm.matches) this.glide(old);
  }

  glide(old) {
    for (const [id, item] of this.items) {
      const box = item.getBoundingClientRect();
      if (box.top > innerHeight + 200) break;
      const from = old.get(id);
      if (from) {
        const x = from.left - box.left, y = from.top - box.top;
        if (x || y) item.animate([{ transform: `translate(${x}px, ${y}px)` }, { transform: "none" }], { duration: 320, easing: "cubic-bezier(.2,.7,.2,1)" });
      } else {
        item.animate([{ opacity: 0, transform: "scale(.94)" }, { opacity: 1, transform: "none" }], { duration: 260, easing: "ease-out" });
      }
    }
  }

  tile(key) {
    return this.items.get(key)?.firstElementChild ?? null;
  }
}

/** Point out the same image in the other grid, with a thread between the two. */
export class Twins {
  constructor(results, thread, grids) {
    this.results = results;
    this.thread = thread;
    this.grids = grids;
    results.addEventListener("pointerover", (event) => this.mark(event.target.closest(".tile")));
    results.addEventListener("pointerleave", () => this.mark(null));
    results.addEventListener("focusin", (event) => this.mark(event.target.closest(".tile")));
    results.addEventListener("focusout", () => this.mark(null));
  }

  mark(tile) {
    this.results.querySelectorAll(".twin").forEach((other) => other.classList.remove("twin"));
    this.thread.classList.remove("on");
    if (!tile || !this.results.classList.contains("compare")) return;
    const id = tile.parentElement.dataset.id;
    const [left, right] = this.grids.map((grid) => grid.tile(id));
    if (!left || !right) return;
    (tile === left ? right : left).classList.add("twin");
    const frame = this.results.getBoundingClientRect(), a = left.getBoundingClientRect(), b = right.getBoundingClientRect();
    const [x1, y1] = [a.right - frame.left, (a.top + a.bottom) / 2 - frame.top];
    const [x2, y2] = [b.left - frame.left, (b.top + b.bottom) / 2 - frame.top];
    const bend = Math.max((x2 - x1) / 2, 12);
    this.thread.firstElementChild.setAttribute("d", `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`);
    this.thread.classList.add("on");
  }
}
