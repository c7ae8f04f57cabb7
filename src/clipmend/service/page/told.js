// What the page says about an answer, in words.

import { ordinal } from "./tiles.js";

const element = (name, className, text) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.textContent = text;
  return made;
};

export function button(words, act) {
  const made = element("button", "pill", words);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

/** An error of the service, which begins in lower case as it does on a terminal. */
export const sentence = (message) => message.replace(/^[a-z](?!\w*(?::|[<>!=]|\.\d))/, (letter) => letter.toUpperCase());

export function headline(answer) {
  const total = `${ordinal(answer.total)} ${answer.total === 1 ? "image" : "images"}`;
  return answer.terms.length ? `Best of ${total}` : total;
}

/** What came, what left, what stayed: the sentence over the two lists, and the key to their colours. */
export function summary(before, after) {
  const kinds = [...after.moves.values()].map((move) => move.kind);
  const left = [...before.moves.values()].filter((move) => move.kind === "left").length;
  const came = kinds.filter((kind) => kind === "came").length;
  const same = kinds.filter((kind) => kind === "same").length;
  const n = kinds.length;
  const sentence =
    came + left === 0
      ? same === n ? "Nothing moved" : `The same ${n} images, in another order`
      : came === n ? `All of the first ${n} are new` : `${came} of the first ${n} ${came === 1 ? "is" : "are"} new`;
  const key = [["left", left], ["stayed", n - came], ["came", came]];
  return [element("strong", "", sentence), ...key.map(([kind, count]) => element("span", `key ${kind}`, `${count} ${kind}`))];
}

export const unseenSummary = (answer) =>
  element("span", "unseen", `${answer.hits.length} images shown${answer.terms.length ? ", best first" : ""}`);

const READS = { "=": "is", "!=": "is not", under: "in", like: "like", ">=": "from", "<=": "up to", ">": "over", "<": "under" };

const READS_TIME = { ...READS, ">=": "from", "<=": "until", ">": "after", "<": "before" };

function condition({ field, op, value }, type) {
  const shown =
    type === "time" ? new Date(1000 * value).toLocaleDateString([], { dateStyle: "medium" })
    : type === "size" ? (value >= 1e6 ? `${+(value / 1e6).toFixed(2)} MB` : `${+(value / 1e3).toFixed(2)} kB`)
    : value;
  return `${op === "under" ? "" : `${field} `}${(type === "time" ? READS_TIME : READS)[op] ?? op} ${shown}`;
}

/** How the service read a query of several parts: one chip for each; those of filters are buttons that remove(position) it. */
export function understood(answer, fields, remove) {
  const chips = [];
  if (answer.terms.length > 1 || answer.terms.some((term) => term.weight !== 1)) {
    for (const { weight, kind, value } of answer.terms) {
      const size = Math.abs(weight) === 1 ? "" : `${Math.abs(weight)} × `;
      const what = kind === "text" ? `“${value}”` : kind === "image" && value === "upload" ? "your image" : `${kind} ${value}`;
      chips.push(element("li", `chip ${weight < 0 ? "minus" : "plus"}`, `${weight < 0 ? "−" : "+"} ${size}${what}`));
    }
  }
  for (const [position, one] of answer.where.entries()) {
    const words = condition(one, fields[one.field]);
    const chip = element("button", "chip where", words);
    chip.type = "button";
    chip.title = "Remove this filter";
    chip.setAttribute("aria-label", `Remove the filter: ${words}`);
    chip.addEventListener("click", () => remove(position));
    chip.addEventListener("keydown", (event) => ["Delete", "Backspace"].includes(event.key) && remove(position));
    const item = document.createElement("li");
    item.append(chip);
    chips.push(item);
  }
  return chips;
}

/** The gate has left every word as it is, so that no strength changes anything; null where it has not. */
export function gated(answer) {
  const texts = answer.terms.filter((term) => term.kind === "text");
  if (!texts.length || texts.some((term) => term.mended !== false)) return null;
  return "No word here says what must not be there, so the patch leaves this query as the model reads it.";
}

/** Nothing was found, and what can be done. */
export function emptiness(about, clear) {
  if (!about.count) {
    const way = "Add images to it: clipmend index MODEL FOLDER -o INDEX, then load this page again.";
    return [element("h2", "", "This index is empty"), element("p", "", way)];
  }
  const said = [element("h2", "", "No image fits"), element("p", "", `None of the ${ordinal(about.count)} images fulfils every filter.`)];
  return clear ? [...said, button("Clear the filters", clear)] : said;
}

/** Where the service says that a query could be meant in two ways it writes both out: each is a button. */
export function readings(message, ask) {
  const both = /as arithmetic, (.+), or as one text, (.+)$/s.exec(message);
  if (!both) return [];
  const choices = element("span", "choices", "Ask");
  choices.append(button(both[1], () => ask(both[1])), "or", button(both[2], () => ask(both[2])));
  return [choices];
}
