// From what is set on the page to a query in the service's grammar, and to the page's address and back. No DOM here.

export const quote = (text) => `"${text.replace(/["\\]/g, "\\$&")}"`;

/** A value after "field:", in quotes where it needs them. */
const value = (text) => (/^[\w./-]+$/.test(text) ? text : quote(text));

const NUMBER = String.raw`(?:\d+\.?\d*|\.\d+)`;
const QUOTED = String.raw`["“”„](?:\\.|[^"“”„\\])*["“”]`;
const TERM = String.raw`(?:${NUMBER}(?:\s*\*\s*|\s+))?(?:${QUOTED}|(?:image|like):(?:${QUOTED}|\S+))`;
const ARITHMETIC = new RegExp(String.raw`^\s*[+-]?\s*${TERM}(?:\s*[+-]\s*${TERM})*\s*$`);

/** Whether the text is arithmetic already (terms in quotes, image: or like:, with signs between), not plain words. */
export const isArithmetic = (text) => ARITHMETIC.test(text);

/** What is in quotes, passed over, and filters: their field, operator and value. */
function pattern(fields) {
  const names = Object.keys(fields).map((name) => name.replace(/[^\w]/g, "\\$&"));
  const quoted = String.raw`"(?:\\.|[^"\\])*"`;
  return new RegExp(`${quoted}${names.length ? `|(?<!\\S)(${names.join("|")})(:|!=|<=|>=|<|>|=)(${quoted}|\\S+)` : ""}`, "g");
}

/** The filters in a query, in order. */
export function filtersOf(text, fields) {
  return [...text.matchAll(pattern(fields))]
    .filter((found) => found[1])
    .map(([text, field, op, given]) => ({ text, field, op, value: /^".*"$/s.test(given) ? given.slice(1, -1).replace(/\\(.)/gs, "$1") : given }));
}

/** The query without the filters that gone(filter, position) names. */
export function without(text, fields, gone = () => true) {
  const filters = filtersOf(text, fields);
  if (!filters.some(gone)) return text.trim();
  let position = -1;
  const left = text.replace(pattern(fields), (found, field) => (field && gone(filters[++position], position) ? "" : found));
  return left.replace(/\s+/g, " ").trim();
}

/** The plain words or the arithmetic of a query, and the filters in it, apart. */
export function split(text, fields) {
  const filters = filtersOf(text, fields).map((filter) => filter.text);
  return { words: without(text, fields), filters: filters.join(" ") };
}

/** First and last day of 2024, 2024-05 or 2024-05-31; null for anything else. */
function days(text) {
  const [, year, month, day] = /^(\d{4})(?:-(\d\d?)(?:-(\d\d?))?)?$/.exec(text) ?? [];
  if (!year) return null;
  const pad = (part) => String(part).padStart(2, "0");
  const last = day ?? new Date(Date.UTC(Number(year), Number(month ?? 12), 0)).getUTCDate();
  return [`${year}-${pad(month ?? 1)}-${pad(day ?? 1)}`, `${year}-${pad(month ?? 12)}-${pad(last)}`];
}

const SIZE = /^[<>]\d+(?:\.\d+)?[kMG]B$/;

/** What a filter of the query is in the filter panel, by the names of its controls; {} where the panel has none for it. */
function inPanel({ field, op, value }, fields) {
  const plain = (op === ":" && !/[*?]/.test(value)) || op === "=";
  if (fields[field] === "folder") return field === "folder" && op === ":" && plain ? { folder: value } : {};
  if (field === "date" && fields.date === "time") {
    const [first, last] = days(value) ?? [];
    return !first ? {} : op === ">=" ? { from: first } : op === "<=" ? { until: last } : op === ":" ? { from: first, until: last } : {};
  }
  if (field === "size") return SIZE.test(op + value) ? { size: op + value } : {};
  return fields[field] === "text" && plain ? { [`=${field}`]: value } : {};
}

/** What the filter panel shows: what is set in it, or else what the query says of it. Fields of the gallery's own are "=NAME". */
export function panel(state, fields) {
  const said = Object.assign({}, ...filtersOf(state.q, fields).map((filter) => inPanel(filter, fields)).reverse());
  for (const name of ["folder", "from", "until", "size"]) said[name] = state[name] || said[name] || "";
  return said;
}

/** What changes when a control of the panel is set: what the query itself says of the same goes, or both would hold. */
export function steered(state, name, to, fields) {
  const told = panel(state, fields);
  const dates = ["from", "until"];
  const of = dates.includes(name) ? dates : [name];
  const q = without(state.q, fields, (filter) => Object.keys(inPanel(filter, fields)).some((one) => of.includes(one)));
  if (name.startsWith("=")) return { q: to ? `${q} ${name.slice(1)}${/[*?]/.test(to) ? "=" : ":"}${value(to)}`.trim() : q };
  return { q, ...Object.fromEntries(of.map((one) => [one, one === name ? to : told[one]])) };
}

/** What changes when one of the conditions that a query was read as goes. */
export function withoutCondition(state, where, position, fields) {
  const { field } = where[position];
  const typed = filtersOf(state.q, fields).map((filter, at) => ({ field: filter.field, at }));
  const set = [["folder", "folder"], ["from", "date"], ["until", "date"], ["size", "size"]]
    .filter(([name]) => state[name])
    .map(([name, field]) => ({ field, name }));
  const sources = [...typed, ...set].filter((source) => source.field === field);
  const same = where.filter((one) => one.field === field);
  // "date:2024" is two conditions: then all that is said of the field goes.
  const gone = sources.length === same.length ? [sources[same.indexOf(where[position])]] : sources;
  const changes = { q: without(state.q, fields, (_, at) => gone.some((source) => source.at === at)) };
  for (const { name } of gone) if (name) changes[name] = "";
  return changes;
}

/** Put a further term beside what is asked, quoting plain words so that the whole is arithmetic. */
export function withTerm(text, term, fields) {
  const { words, filters } = split(text, fields);
  const base = !words || isArithmetic(words) ? words : quote(words);
  return [base, base || term.startsWith("-") ? term : term.replace(/^\+ /, ""), filters].filter(Boolean).join(" ");
}

/** The query that is sent: the words, the image if there is one, and the filters that are set. */
export function compose(state, fields) {
  let text = state.q.trim();
  if (state.image && text && !/image:upload\b/.test(text)) {
    const { words, filters } = split(text, fields);
    if (words) {
      const rest = isArithmetic(words) ? words : quote(words);
      text = `image:upload ${/^[+-]/.test(rest) ? "" : "+ "}${rest} ${filters}`.trim();
    } else {
      text = `image:upload ${filters}`;
    }
  } else if (state.image && !text) {
    text = "image:upload";
  }
  const parts = [text];
  if (state.folder) parts.push(`folder:${value(state.folder)}`);
  if (state.from) parts.push(`date>=${state.from}`);
  if (state.until) parts.push(`date<=${state.until}`);
  if (state.size) parts.push(`size${state.size}`);
  return parts.filter(Boolean).join(" ");
}

const PLAIN = ["q", "folder", "from", "until", "size"];

export function fromAddress(search) {
  const given = new URLSearchParams(search);
  const state = { image: null, strength: null, view: given.get("view") === "after" ? "after" : "compare" };
  for (const name of PLAIN) state[name] = given.get(name) ?? "";
  for (const name of ["from", "until"]) if (!/^\d{4}-\d\d-\d\d$/.test(state[name])) state[name] = "";
  if (!SIZE.test(state.size)) state.size = "";
  const strength = given.has("strength") ? Number(given.get("strength")) : NaN;
  if (strength >= 0 && strength <= 3) state.strength = strength;
  state.collapse = given.has("collapse");
  state.rerank = given.has("rerank");
  return state;
}

/** An image cannot be part of an address; everything else is. */
export function toAddress(state) {
  const wanted = new URLSearchParams();
  for (const name of PLAIN) if (state[name]) wanted.set(name, state[name]);
  if (state.strength !== null) wanted.set("strength", String(state.strength));
  if (state.view !== "compare") wanted.set("view", state.view);
  if (state.collapse) wanted.set("collapse", "1");
  if (state.rerank) wanted.set("rerank", "1");
  const text = wanted.toString();
  return text ? `?${text}` : "";
}

/** Fields with a filter, typed or set, and what else narrows. */
export const filterCount = (state, fields) =>
  new Set(
    [state.folder && "folder", (state.from || state.until) && "date", state.size && "size", state.collapse && "collapse:", state.rerank && "rerank:"]
      .concat(filtersOf(state.q, fields).map((filter) => filter.field))
      .filter(Boolean),
  ).size;
