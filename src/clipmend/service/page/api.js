// What the page asks of the service, and how it says what went wrong.

const KEY = "clipmend-token";

export class ServiceError extends Error {
  /** status: 0 where nothing answered at all. */
  constructor(status, message, type = "", param = "") {
    super(message);
    this.status = status;
    this.type = type;
    this.param = param;
  }
}

/** Milliseconds for a whole answer: more than the service gives itself, an upload over a slow line included. */
const PATIENCE = 120_000;

const wait = (seconds, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("another question came", "AbortError"));
    });
  });

/** Ids go up to 2^63. A hit has its own as text (key); of its copies those that a number cannot hold stay as they were written. */
const whole = (_, value, context) =>
  typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) && /^\d+$/.test(context?.source ?? "") ? context.source : value;

async function once(path, options) {
  const headers = new Headers(options.headers);
  const token = sessionStorage.getItem(KEY);
  if (token) headers.set("Authorization", `Bearer ${token}`);
  const late = AbortSignal.timeout(PATIENCE);
  const signal = options.signal ? AbortSignal.any([options.signal, late]) : late;
  let response, text;
  try {
    response = await fetch(path, { ...options, headers, signal, credentials: "same-origin" });
    if (response.status === 204) return null;
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (response) throw new ServiceError(0, "The answer broke off. Is the connection to clipmend serve a good one?", "gone");
    throw new ServiceError(0, "The service does not answer. Is clipmend serve still running?", "gone");
  }
  let body = null;
  try {
    body = JSON.parse(text, whole);
  } catch {
    // no answer of the service's own; what that means is said below
  }
  if (response.ok && body !== null && typeof body === "object") return body;
  if (response.ok) throw new ServiceError(0, "What answers at this address is not clipmend serve. A proxy may be in between.", "gone");
  const told = body?.error;
  const refusal = new ServiceError(response.status, told?.message ?? `The service answered with status ${response.status}.`, told?.type, told?.param);
  refusal.after = Number(response.headers.get("Retry-After")) || 0;
  throw refusal;
}

/** A busy service is asked again, twice, before anybody is troubled with it. */
async function call(path, options = {}) {
  for (let tries = 0; ; tries++) {
    try {
      return await once(path, options);
    } catch (error) {
      if (tries === 2 || (error.status !== 429 && error.status !== 503)) throw error;
      await wait(Math.min(error.after || 0.4 * 2 ** tries, 5), options.signal);
    }
  }
}

export const about = () => call("api/about");

/** The values of a field of texts, with their counts. */
export const values = (field) => call(`api/values?field=${encodeURIComponent(field)}`);

/** Why the service does not show an image, in its words; "" where it does. */
export async function refusal(path) {
  const enough = new AbortController();
  try {
    const response = await fetch(path, { credentials: "same-origin", signal: enough.signal });
    return response.ok ? "" : (await response.json()).error.message;
  } catch {
    return "the service does not answer";
  } finally {
    enough.abort(); // the file itself is not wanted
  }
}

/** Each image knows which index it is of: where another takes its place, its number is another image's. */
function marked(answer) {
  const of = String(answer?.edition ?? "").split(".")[0];
  for (const hit of [...(answer?.hits ?? []), ...(answer?.before ?? [])]) hit.of = of;
  return answer;
}

/** The images of two pages, once each: some may have moved to the second meanwhile. null: they are of two indexes. */
export function joined(first, second) {
  if (first.hits.length && second.hits.length && first.hits[0].of !== second.hits[0].of) return null;
  const known = new Set(first.hits.map((hit) => hit.key));
  return [...first.hits, ...second.hits.filter((hit) => !known.has(hit.key))];
}

/** image: a File to search by, or null. */
export const search = async (request, image, signal) => marked(await asked(request, image, signal));

function asked(request, image, signal) {
  if (!image) {
    return call("search", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request), signal });
  }
  const form = new FormData();
  form.append("image", image, image.name || "image");
  form.append("request", JSON.stringify(request));
  return call("search/image", { method: "POST", body: form, signal });
}

/** Sets the cookie that images need, and keeps the token for this tab. Throws a ServiceError of status 401 for a wrong one. */
export async function login(token) {
  await once("login", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }) });
  sessionStorage.setItem(KEY, token);
}

export const storedToken = () => sessionStorage.getItem(KEY);
export const forgetToken = () => sessionStorage.removeItem(KEY);

/** Addresses relative to the page, so that it works behind a path prefix. */
export const thumbnail = (hit, size = 256) =>
  hit.thumbnail ? `${hit.thumbnail.replace(/^\//, "")}?size=${size}${hit.of ? `&of=${hit.of}` : ""}` : null;
/** key: of the image itself, or of one of its near-duplicates. */
export const original = (hit, key = hit.key) => `images/${key}${hit.of ? `?of=${hit.of}` : ""}`;
export const smallCopy = (hit, key) => `thumbnails/${key}?size=128${hit.of ? `&of=${hit.of}` : ""}`;
