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

/** The plain words or the arithmetic of a query, and the filters in it, apart. */
export function split(text, fields) {
  const names = Object.keys(fields).map((name) => name.replace(/[^\w]/g, "\\$&"));
  if (!names.length) return { words: text.trim(), filters: "" };
  const pattern = new RegExp(`"(?:\\\\.|[^"\\\\])*"|(?<!\\S)(?:${names.join("|")})(?::|!=|<=|>=|<|>|=)(?:"(?:\\\\.|[^"\\\\])*"|\\S+)`, "g");
  const filters = [];
  const words = text.replace(pattern, (found) => (found.startsWith('"') ? found : (filters.push(found), "")));
  return { words: words.replace(/\s+/g, " ").trim(), filters: filters.join(" ") };
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
  if (!/^[<>]\d+[kM]B$/.test(state.size)) state.size = "";
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

export const filterCount = (state) =>
  [state.folder, state.from || state.until, state.size, state.collapse, state.rerank].filter(Boolean).length;
