// One image, large, with everything that is known of it and why it stands where it stands.

import { original, refusal, smallCopy, thumbnail } from "./api.js";
import { sentence } from "./told.js";
import { fileName, ordinal } from "./tiles.js";

const $ = (id) => document.getElementById(id);
const SHOWN = /\.(jpe?g|png|gif|webp|avif|bmp)$/i; // by browsers
const score = (value) => (typeof value === "number" ? value.toFixed(4) : "–");

function bytes(size) {
  for (const [unit, step] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (size >= step) return `${(size / step).toFixed(1)} ${unit}`;
  return `${size} bytes`;
}

function readable(value, type) {
  if (type === "time") return new Date(1000 * value).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  if (type === "size") return bytes(value);
  return String(value);
}

function row(term, description) {
  const dt = document.createElement("dt");
  const dd = document.createElement("dd");
  dt.textContent = term;
  dd.textContent = description;
  return [dt, dd];
}

export class Detail {
  /** onLike(key, how): how is "only", "+" or "-". onMove(grid, key): the image that was looked at last. */
  constructor({ onLike, onMove }) {
    this.dialog = $("detail");
    this.grid = null;
    this.position = 0;
    $("previous").addEventListener("click", () => this.step(-1));
    $("next").addEventListener("click", () => this.step(1));
    this.dialog.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") this.step(-1);
      else if (event.key === "ArrowRight") this.step(1);
      else if (event.key === "Enter" && !event.target.closest("a, .pill, .round")) this.dialog.close();
      else return;
      event.preventDefault();
    });
    this.dialog.querySelector(".actions").addEventListener("click", (event) => {
      const how = event.target.dataset.like;
      if (!how) return;
      this.dialog.close();
      onLike(this.grid.hits[this.position].key, how);
    });
    this.dialog.addEventListener("close", () => onMove(this.grid, this.grid.hits[this.position].key));
    $("detail-image").addEventListener("error", () => this.unseen(this.grid.hits[this.position]));
  }

  open(grid, key, { fields, compared, ranked, depth }) {
    this.grid = grid;
    this.fields = fields;
    this.compared = compared;
    this.ranked = ranked;
    this.depth = depth;
    this.position = grid.hits.findIndex((hit) => hit.key === key);
    this.fill();
    this.dialog.showModal();
    this.dialog.focus();
  }

  step(by) {
    const to = this.position + by;
    if (to < 0 || to >= this.grid.hits.length) return;
    this.position = to;
    this.fill();
  }

  fill() {
    const hit = this.grid.hits[this.position];
    const image = $("detail-image");
    image.alt = fileName(hit.path);
    image.hidden = false;
    $("detail-none").textContent = "";
    $("detail-open").hidden = hit.thumbnail === null;
    if (hit.thumbnail === null) this.unseen(hit);
    else {
      image.src = thumbnail(hit, 1024);
      if (!SHOWN.test(hit.path)) this.check(hit);
    }
    $("previous").disabled = this.position === 0;
    $("next").disabled = this.position === this.grid.hits.length - 1;
    $("detail-title").textContent = fileName(hit.path);
    $("detail-open").href = original(hit);
    const place = (rank) => (rank === null ? `beyond ${ordinal(this.depth)}` : ordinal(rank));
    const moved = $("detail-rank");
    moved.replaceChildren();
    if (this.compared) {
      const then = document.createElement("span");
      const now = document.createElement("strong");
      then.textContent = `before ${place(hit.rank_before)}`;
      now.textContent = `after ${place(hit.rank)}`;
      moved.append(then, " → ", now);
      moved.dataset.move = this.grid.moves.get(hit.key)?.kind ?? "";
    } else if (this.ranked) {
      moved.textContent = `rank ${place(hit.rank)}`;
    }
    const rows = [];
    if (this.ranked) {
      if (this.compared) rows.push(row("score before", score(hit.score_before)));
      rows.push(row(this.compared ? "score after" : "score", score(hit.score)));
      if (typeof hit.correction === "number") rows.push(row("score correction", score(hit.correction)));
    }
    rows.push(row("path", hit.path), row("number", hit.key));
    if (hit.width && hit.height) rows.push(row("pixels", `${hit.width} × ${hit.height}`));
    for (const [name, value] of Object.entries(hit.fields ?? {})) {
      if (!["name", "width", "height", "folder"].includes(name)) rows.push(row(name, readable(value, this.fields[name])));
    }
    $("detail-facts").replaceChildren(...rows.flat());
    this.copies(hit);
  }

  /** Say why there is no picture; a file that is not shown is not offered either. */
  async unseen(hit) {
    $("detail-image").hidden = true;
    $("detail-open").hidden = true;
    const why = await refusal(thumbnail(hit, 1024) ?? original(hit));
    if (this.grid.hits[this.position] === hit) $("detail-none").textContent = sentence(why || "this image cannot be shown");
  }

  /** A file of a kind that browsers do not show has a thumbnail alone. */
  async check(hit) {
    $("detail-open").hidden = true;
    const why = await refusal(original(hit));
    if (this.grid.hits[this.position] === hit && $("detail-none").textContent === "") $("detail-open").hidden = why !== "";
  }

  copies(hit) {
    const place = $("detail-copies");
    place.replaceChildren();
    if (!hit.copies?.length) return;
    const title = document.createElement("h3");
    title.textContent = hit.copies.length === 1 ? "A near-duplicate" : `${hit.copies.length} near-duplicates`;
    place.append(title);
    for (const id of hit.copies.slice(0, 24)) {
      const link = document.createElement("a");
      link.href = original(hit, id);
      link.target = "_blank";
      link.rel = "noopener";
      const image = document.createElement("img");
      image.src = smallCopy(hit, id);
      image.alt = `image ${id}`;
      image.loading = "lazy";
      image.addEventListener("error", () => link.removeAttribute("href"), { once: true });
      link.append(image);
      place.append(link);
    }
  }
}
