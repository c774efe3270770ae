// Requests to the gateway. The token lives in this tab's sessionStorage and goes as a header with each request; there are no cookies.

const KEY = "actgent.key";
const ONCE = "once_";

export class Problem extends Error {
  constructor(status, document) {
    super(document.detail || document.title || `HTTP ${status}`);
    this.status = status;
    this.type = document.type || "";
    this.request = document.instance || "";
    this.retryAfter = document.retry_after;
  }
}

export const key = () => sessionStorage.getItem(KEY);
export const forget = () => sessionStorage.removeItem(KEY);

// Signs in with a token, or with the one-time key of the terminal, which is exchanged for a token.
export async function signIn(text) {
  const token = text.startsWith(ONCE) ? (await ask("POST", "/login", { body: { key: text } })).token : text;
  sessionStorage.setItem(KEY, token);
}

// A key in the fragment of the address never reaches a server or its log; it leaves the address at once.
export function takeKey() {
  const given = /^#key=([\w.~-]+)$/.exec(location.hash);
  if (given) history.replaceState(null, "", location.pathname + "#/");
  return given && given[1];
}

const headers = (more) => (key() === null ? { ...more } : { authorization: `Bearer ${key()}`, ...more });

export function address(path, query = {}) {
  const parts = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const text = parts.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
  return `v1${path}${text && "?" + text}`;
}

let scopes = []; // what the token may, as the gateway says

// Requests the scopes of the token; pages omit controls that need other scopes.
export async function learnScopes(options) {
  const token = await get("/me", {}, options);
  scopes = token.scopes;
  return token;
}

export const may = (scope) => scopes.includes(scope);

// Calls fetch. Its error without an answer has a text of the browser, such as "Failed to fetch".
async function send(target, options) {
  try {
    return await fetch(target, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error("The server does not answer.");
  }
}

export async function ask(verb, path, { query, body, accept, signal, ...more } = {}) {
  const sent = body === undefined ? {} : { "content-type": "application/json" };
  const response = await send(address(path, query), {
    method: verb,
    headers: headers({ ...sent, ...(accept ? { accept } : {}), ...more.headers }),
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    signal,
  });
  if (response.ok) return response.status === 204 ? null : response.json();
  throw new Problem(response.status, await response.json().catch(() => ({})));
}

// Returns an object URL for the bytes of a picture or file. The caller revokes it after use.
export async function blob(path, query, signal) {
  const response = await send(address(path, query), { headers: headers(), signal });
  if (!response.ok) throw new Problem(response.status, await response.json().catch(() => ({})));
  return response.blob();
}

export const get = (path, query, options) => ask("GET", path, { query, ...options });
export const path = (...segments) => "/" + segments.map(encodeURIComponent).join("/");

// Reads a stream of server-sent events until it is aborted; reconnects after the last received record number. A stream without
// record numbers has no `after`. Returns true after the end of the stream.
export async function follow(target, { query, after, onEvent, onState, signal }) {
  let seen = after;
  let pause = 500;
  while (!signal.aborted) {
    try {
      const response = await fetch(address(target, { ...query, after: seen }), {
        headers: headers({ accept: "text/event-stream" }),
        cache: "no-store",
        signal,
      });
      if (!response.ok) throw new Problem(response.status, await response.json().catch(() => ({})));
      onState({ live: true });
      pause = 500;
      for await (const event of events(response.body)) {
        if (event.id !== undefined) seen = Number(event.id);
        if (event.name === "closed") {
          onEvent(event);
          return true;
        }
        if (event.name === "resync" && after !== undefined) {
          onState({ live: false, stale: true });
          return true;
        }
        onEvent(event);
      }
    } catch (error) {
      if (signal.aborted) return false;
      if (error instanceof Problem && [401, 403, 404].includes(error.status)) {
        onState({ live: false, error });
        return true;
      }
    }
    onState({ live: false, again: Date.now() + pause });
    await new Promise((resolve) => {
      const on = () => {
        clearTimeout(timer);
        signal.removeEventListener("abort", on);
        resolve();
      };
      const timer = setTimeout(on, pause);
      signal.addEventListener("abort", on);
    });
    pause = Math.min(pause * 2, 15000);
  }
  return false;
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = { name: "message", data: "" };
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (event.data) yield { ...event, data: JSON.parse(event.data) };
          event = { name: "message", data: "" };
        } else if (line.startsWith("data: ")) event.data += line.slice(6);
        else if (line.startsWith("event: ")) event.name = line.slice(7);
        else if (line.startsWith("id: ")) event.id = line.slice(4);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
