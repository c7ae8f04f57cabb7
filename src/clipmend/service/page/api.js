// What the page asks of the service, and how it says what went wrong.

const KEY = "clipmend-token";

export class ServiceError extends Error {
  /** status: 0 where nothing answered at all. */
  constructor(status, message, type = "") {
    super(message);
    this.status = status;
    this.type = type;
  }
}

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
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError(0, "The service does not answer. Is clipmend serve still running?", "gone");
  }
  if (response.status === 204) return null;
  let body = null;
  try {
    body = JSON.parse(await response.text(), whole);
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (response.ok && body !== null) return body;
  const told = body?.error;
  const refusal = new ServiceError(response.status, told?.message ?? `The service answered with status ${response.status}.`, told?.type);
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

/** image: a File to search by, or null. */
export function search(request, image, signal) {
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
export const thumbnail = (hit, size = 256) => (hit.thumbnail ? `${hit.thumbnail.replace(/^\//, "")}?size=${size}` : null);
export const original = (id) => `images/${id}`;
