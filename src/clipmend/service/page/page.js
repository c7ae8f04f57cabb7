// The page: its state, the questions to the service, and what is shown of the answers.

import * as api from "./api.js";
import { Detail } from "./detail.js";
import { keep, kept } from "./kept.js";
import { pictures } from "./pictures.js";
import { listen } from "./keys.js";
import { compose, filterCount, fromAddress, panel, steered, toAddress, without, withoutCondition, withTerm } from "./query.js";
import { Grid, Twins, ordinal } from "./tiles.js";
import { theme } from "./theme.js";
import * as told from "./told.js";

const $ = (id) => document.getElementById(id);
const PAGE = 24;
const MOST = 192; // side by side: the service gives 200 at most; a multiple of every number of columns
const FEW = 50; // values of a field that has a menu
const NAMES = "clipmend-names";
const FAULTS = [400, 404, 413, 415, 422]; // statuses that are the query's fault
const FURTHEST = 10000; // as far as the service goes page by page

let about = { count: 0, files: true, fields: {}, folders: [], examples: [], patch: null };
let state = fromAddress(location.search);
let answer = null;
let k = PAGE;
let asking = null;

const before = new Grid(document.querySelector("#before .grid"), "before");
const after = new Grid(document.querySelector("#after .grid"), "after");
const results = $("results");
new Twins(results, $("thread"), [before, after]);

// ---- asking --------------------------------------------------------------------------------------------------------------

const asked = () => state.q.trim() !== "" || state.image !== null;
const wantsCompare = () => about.patch !== null && state.view === "compare" && asked();

function request(offset, count) {
  const wanted = { query: compose(state, about.fields), k: count, offset };
  if (about.patch && state.strength !== null) wanted.strength = state.strength;
  if (about.patch && asked()) wanted.compare = wantsCompare();
  if (state.collapse && asked()) wanted.collapse = 0.97;
  if (state.rerank && about.patch?.corrects_scores && asked()) wanted.rerank = 100;
  return wanted;
}

/** Ask, and show the answer. keep: how the address changes ("push", "replace" or "no"); further: add the next page. */
async function ask({ keep = "push", further = false } = {}) {
  asking?.abort();
  const mine = (asking = new AbortController());
  if (keep !== "no") history[keep === "push" ? "pushState" : "replaceState"](null, "", location.pathname + toAddress(state));
  const late = setTimeout(() => $("progress").classList.add("on"), 150);
  results.setAttribute("aria-busy", "true");
  try {
    const adds = further && answer !== null && !wantsCompare();
    const found = await api.search(request(adds ? answer.hits.length : 0, wantsCompare() ? k : PAGE), state.image, mine.signal);
    if (adds) found.hits = api.joined(answer, found);
    if (adds && found.hits === null) return fresh("no");
    answer = found;
    trouble(null);
    show();
  } catch (error) {
    if (error.name !== "AbortError") {
      if (error.param === "image") { // it would fail again with the next words
        upload.clear();
        state.image = null;
        reflect();
      }
      trouble(error, () => ask({ keep: "no", further }));
      outdated(FAULTS.includes(error.status) && !further);
    }
  } finally {
    clearTimeout(late);
    if (asking === mine) {
      $("progress").classList.remove("on");
      results.removeAttribute("aria-busy");
    }
  }
}

/** A new question starts with the first page. */
function fresh(keep = "push") {
  k = PAGE;
  return ask({ keep });
}

let pause = 0, pausing = "replace";
function soon(keep) {
  clearTimeout(pause);
  if (keep === "push") pausing = keep;
  pause = setTimeout(() => {
    const keep = pausing;
    pausing = "replace";
    fresh(keep);
  }, 90);
}

// ---- showing -------------------------------------------------------------------------------------------------------------

function show() {
  const ranked = answer.terms.length > 0;
  // A patch changes how words are read: where the query has none there is nothing to compare.
  const compared = wantsCompare() && answer.hits.length > 0 && answer.terms.some((term) => term.kind === "text");
  results.classList.toggle("compare", compared);
  $("before").hidden = !compared;
  const title = $("after-title");
  title.textContent = compared ? "After " : answer.hits.length ? told.headline(answer) : "";
  if (compared) {
    const small = document.createElement("small");
    small.textContent = `with the patch ${about.patch.name}`;
    title.append(small);
  }
  const options = compared ? { shown: Math.max(answer.before.length, answer.hits.length), depth: answer.depth } : {};
  before.show(compared ? answer.before : [], options);
  after.show(answer.hits, { ...options, ranked });
  const tile = results.querySelector('.tile[tabindex="0"]') ?? after.list.querySelector(".tile");
  if (tile) tile.tabIndex = 0;
  $("summary").replaceChildren(...(compared ? told.summary(before, after) : answer.hits.length ? [told.unseenSummary(answer)] : []));
  $("understood").replaceChildren(...told.understood(answer, about.fields, (position) => set(withoutCondition({ ...state, ...typed() }, answer.where, position, about.fields))));
  const hint = answer.hint ?? told.gated(answer) ?? "";
  $("hint").textContent = hint;
  $("hint").hidden = !hint;
  $("hint").classList.toggle("calm", !answer.hint);
  $("empty").hidden = answer.hits.length > 0;
  $("empty").replaceChildren(...(answer.hits.length ? [] : told.emptiness(about, filterCount(state, about.fields) ? clearFilters : null)));
  $("more").hidden = !answer.hits.length || answer.hits.length >= Math.min(answer.total, compared ? MOST : FURTHEST);
  $("examples").hidden = asked() || !about.examples.length;
  document.title = state.q.trim() ? `${state.q.trim()} · clipmend` : "clipmend";
}

/** What is shown answers an earlier question: it goes where this one was refused, and is said to be old where it had no answer. */
function outdated(refused) {
  $("understood").replaceChildren();
  $("hint").hidden = true;
  if (!refused) {
    if (answer && !$("banner").hidden) $("banner").firstChild.append(` What is shown below is the answer to ${answer.query ? `“${answer.query}”` : "an earlier question"}.`);
    return;
  }
  answer = null;
  for (const grid of [before, after]) grid.show([]);
  results.classList.remove("compare");
  for (const id of ["before", "more", "empty"]) $(id).hidden = true;
  for (const id of ["after-title", "summary"]) $(id).replaceChildren();
}

/** Say what went wrong where it belongs: a query's fault under the query, the service's above the results. */
function trouble(error, again = start) {
  const banner = $("banner"), problem = $("problem");
  banner.replaceChildren();
  banner.hidden = true;
  problem.textContent = "";
  $("query").removeAttribute("aria-invalid");
  results.classList.toggle("stale", error !== null);
  if (!error) return;
  if (error.status === 401) {
    askToken(api.storedToken() ? "The service no longer takes this token." : "");
    return;
  }
  if (FAULTS.includes(error.status)) {
    problem.append(told.sentence(error.message), ...told.readings(error.message, (q) => set({ q })));
    $("query").setAttribute("aria-invalid", "true");
    return;
  }
  const words = document.createElement("span");
  words.textContent =
    error.status === 429 || error.status === 503 ? `The service is busy: ${error.message}`
    : error instanceof api.ServiceError ? told.sentence(error.message)
    : `Something went wrong on this page (${error.message}).`;
  banner.append(words, told.button("Try again", again));
  banner.hidden = false;
}

// ---- the controls --------------------------------------------------------------------------------------------------------

/** Set every control to what the state says. */
function reflect() {
  $("query").value = state.q;
  $("clear").hidden = !state.q && !state.image;
  const shown = panel(state, about.fields);
  for (const control of document.querySelectorAll("#filters [data-control]")) {
    const value = shown[control.dataset.control] ?? "";
    if (value && control.options && ![...control.options].some((option) => option.value === value)) control.add(new Option(value, value));
    control.value = value;
  }
  $("collapse").checked = state.collapse;
  $("rerank").checked = state.rerank;
  document.querySelector(`[name=view][value=${state.view}]`).checked = true;
  const strength = state.strength ?? about.patch?.strength ?? 1;
  $("strength").value = strength;
  $("strength-value").textContent = strength.toFixed(2).replace(/\.?0+$/, "");
  $("strength").setAttribute("aria-valuetext", strength === 0 ? "0, the patch is off" : String(strength));
  $("strength").style.setProperty("--part", `${(100 * strength) / 3}%`);
  const count = filterCount(state, about.fields);
  $("filters-count").textContent = count;
  $("filters-count").hidden = !count;
}

/** What was typed and not sent yet is asked along with whatever else is changed: it would be lost otherwise. */
const typed = () => ({ q: $("query").value });

function set(changes, keep = "push") {
  Object.assign(state, typed(), changes);
  reflect();
  return fresh(keep);
}

function clearFilters() {
  return set({ q: without($("query").value, about.fields), folder: "", from: "", until: "", size: "", collapse: false, rerank: false });
}

function strengthen(by) {
  if (!about.patch) return;
  const now = state.strength ?? about.patch.strength ?? 1;
  slide(Math.round(100 * Math.min(3, Math.max(0, now + by))) / 100);
}

function slide(strength) {
  const keep = typed().q === state.q ? "replace" : "push";
  Object.assign(state, typed(), { strength });
  reflect();
  soon(keep);
}

function openHelp() {
  const extra = Object.keys(about.fields).filter((name) => !["folder", "name", "date", "size", "width", "height"].includes(name));
  $("help-fields").textContent = extra.length ? `Also known here: ${extra.map((name) => `${name}:…`).join("  ")}` : "";
  $("help").showModal();
}

$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  set({ q: $("query").value });
});
$("query").addEventListener("input", () => ($("clear").hidden = !$("query").value && !state.image));
$("clear").addEventListener("click", () => {
  upload.clear();
  set({ q: "", image: null });
  $("query").focus();
});
$("examples").addEventListener("click", (event) => {
  const example = event.target.closest("button")?.textContent;
  if (example) set({ q: example });
});
$("filters-open").addEventListener("click", () => {
  $("filters").hidden = !$("filters").hidden;
  $("filters-open").setAttribute("aria-expanded", String(!$("filters").hidden));
  if (!$("filters").hidden) menus();
});
$("filters").addEventListener("change", ({ target }) => {
  if (target === $("names")) name(target.checked);
  else if (target.dataset.control) set(steered({ ...state, ...typed() }, target.dataset.control, target.value, about.fields));
  else set({ collapse: $("collapse").checked, rerank: $("rerank").checked });
});

/** Show the images' names, or not: of this browser, not of the address. */
function name(on) {
  results.classList.toggle("named", on);
  $("names").checked = on;
  keep(NAMES, on ? "1" : null);
}

let menued = false;
/** A menu for each field of texts with few values; asked for once the filters are looked at. */
async function menus() {
  if (menued) return;
  menued = true;
  for (const field of Object.keys(about.fields).filter((one) => about.fields[one] === "text" && one !== "name")) {
    const { values, more } = await api.values(field).catch(() => ({ values: [], more: true })); // typing it works all the same
    if (more || values.length < 2 || values.length > FEW) continue;
    const label = document.createElement("label");
    const menu = document.createElement("select");
    menu.dataset.control = `=${field}`;
    menu.append(new Option("Any", ""), ...values.map(([value, count]) => new Option(`${value} (${ordinal(count)})`, value)));
    label.append(field, menu);
    $("menus").append(label);
  }
  reflect();
}
$("filters-clear").addEventListener("click", clearFilters);
$("strength").addEventListener("input", () => slide(Number($("strength").value)));
document.querySelectorAll("[name=view]").forEach((choice) => choice.addEventListener("change", () => set({ view: choice.value })));
$("more").addEventListener("click", () => {
  if (wantsCompare()) k = Math.min(k + PAGE, MOST);
  ask({ keep: "no", further: true });
});
$("help-open").addEventListener("click", openHelp);
document.querySelectorAll("dialog .close").forEach((cross) => cross.addEventListener("click", () => cross.closest("dialog").close()));
document.querySelectorAll("dialog:not(#token)").forEach((dialog) =>
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()),
);
addEventListener("popstate", () => {
  const image = state.image;
  state = { ...fromAddress(location.search), image };
  reflect();
  fresh("no");
});

const upload = pictures({
  onPicture: (file) => set({ image: file, q: $("query").value }),
  onRemoved: () => set({ image: null }),
  onRefused: (words) => trouble(new api.ServiceError(415, words)),
});

const keys = listen({
  query: $("query"),
  results,
  actions: {
    help: openHelp,
    names: () => name(!$("names").checked),
    compare: () => about.patch && set({ view: state.view === "compare" ? "after" : "compare" }),
    weaker: () => strengthen(-0.25),
    stronger: () => strengthen(0.25),
  },
});

const detail = new Detail({
  onLike: (key, how) => {
    if (how === "only") {
      upload.clear();
      set({ q: `like:${key}`, image: null });
    } else set({ q: withTerm(state.q, `${how} like:${key}`, about.fields) });
    scrollTo({ top: 0 });
  },
  onMove: (grid, key) => keys.enter(grid.tile(key)),
});
results.addEventListener("click", (event) => {
  const tile = event.target.closest(".tile");
  if (!tile) return;
  const grid = before.list.contains(tile) ? before : after;
  const compared = results.classList.contains("compare");
  detail.open(grid, tile.parentElement.dataset.id, { fields: about.fields, compared, ranked: answer.terms.length > 0, depth: answer.depth });
});

// ---- the start -----------------------------------------------------------------------------------------------------------

function askToken(words) {
  locked = true;
  $("token-problem").textContent = words;
  if (!$("token").open) $("token").showModal();
  $("token-value").select();
}
// Escape would leave a page that can do nothing; a browser may close the dialog all the same: then it opens again.
let locked = false;
$("token").addEventListener("close", () => locked && $("token").showModal());
$("token-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await api.login($("token-value").value);
    locked = false;
    $("token").close();
    start();
  } catch (error) {
    $("token-problem").textContent = error.status === 401 ? "That is not the token." : error.message;
    $("token-value").select();
  }
});

function introduce() {
  const parts = [`${ordinal(about.count)} ${about.count === 1 ? "image" : "images"}`, about.model];
  parts.push(about.patch ? `patch ${about.patch.name}` : "no patch");
  $("about").textContent = parts.join(" · ");
  $("about").title = about.name;
  $("no-files").hidden = about.files || !about.count;
  $("mending").hidden = !about.patch;
  $("rerank-label").hidden = !about.patch?.corrects_scores;
  for (const label of document.querySelectorAll("#filters [data-field]")) label.hidden = !(label.dataset.field in about.fields) || (label.dataset.field === "folder" && !about.folders.length);
  $("folder").replaceChildren(new Option("All folders", ""), ...about.folders.filter(([name]) => name).map(([name, count]) => new Option(`${name} (${ordinal(count)})`, name)));
  document.querySelector(".range").style.setProperty("--fitted", (about.patch?.strength ?? 1) / 3);
  $("examples").replaceChildren(
    ...about.examples.map((example) => {
      const item = document.createElement("li");
      const chip = document.createElement("button");
      chip.type = "button";
      chip.className = "chip";
      chip.textContent = example;
      item.append(chip);
      return item;
    }),
  );
}

async function start() {
  try {
    const token = api.storedToken();
    if (token) {
      try {
        await api.login(token); // the cookie for images may be gone
      } catch (error) {
        if (error.status === 401) api.forgetToken();
        else throw error;
      }
    }
    about = await api.about();
  } catch (error) {
    trouble(error);
    return;
  }
  introduce();
  reflect();
  if (filterCount(state, about.fields) && $("filters").hidden && !matchMedia("(max-width: 720px)").matches) $("filters-open").click();
  await ask({ keep: "no" });
}

theme($("theme"));
name(kept(NAMES) !== null);
if (!matchMedia("(hover: none)").matches) $("query").focus();
start();
