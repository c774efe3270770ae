// Publishes changes of all sessions to the pages of this tab. Tabs with the same key share one stream: one tab reads it and
// forwards the events. If that tab closes, hangs, or was hidden for a minute, another tab reads.

import { follow, key } from "./api.js";

const WATCHED = "heads,agents,approvals,errors";
const BEAT = 5000; // milliseconds after which the tab that reads says that it is there
const SILENT = 12000; // after which it is taken for one that hangs
const HIDDEN = 60000; // after which a tab that nobody sees reads no more

let state = { live: false };
const hearers = new Set();

export const linkState = () => state;
export function hear(hearer) {
  hearers.add(hearer);
  return () => hearers.delete(hearer);
}

function take({ event, state: next }) {
  if (next) state = next;
  for (const each of hearers) each(event || { name: "link", data: state });
}

// Resolves when the tab is visible; immediately if it is visible now.
const seen = (signal) =>
  new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      signal.removeEventListener("abort", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look);
    look();
  });

// Aborts with an outer signal, and after the tab was hidden for a minute.
function untilHidden(outer) {
  const stop = new AbortController();
  let timer = 0;
  const end = () => stop.abort();
  const look = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(end, HIDDEN);
  };
  document.addEventListener("visibilitychange", look);
  outer.addEventListener("abort", end);
  stop.signal.addEventListener("abort", () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", look);
    outer.removeEventListener("abort", end);
  });
  look();
  if (outer.aborted) end();
  return stop;
}

const aborted = (signal) => signal.aborted || new Promise((resolve) => signal.addEventListener("abort", resolve));

// Runs a function whenever the tab is visible, until it returns true: browsers allow six connections per server.
export async function whileSeen(signal, run) {
  while (!signal.aborted) {
    await seen(signal);
    const stop = untilHidden(signal);
    if (await run(stop)) return stop.abort();
    await aborted(stop.signal);
  }
}

// Reads the stream. After each connect, all lists are requested again, because this stream has no cursor.
const read = (signal, out) =>
  follow("/events", {
    query: { watch: WATCHED },
    signal,
    onEvent: (event) => out({ event }),
    onState: (next) => {
      out({ state: next });
      if (next.live) out({ event: { name: "resync", data: {} } });
    },
  });

async function channelName() {
  if (!("BroadcastChannel" in self && navigator.locks && crypto.subtle)) return null; // old browsers, and plain http from afar
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(key()));
  return `actgent.${[...new Uint8Array(digest)].map((each) => each.toString(16).padStart(2, "0")).join("")}`;
}

async function share(name, signal) {
  const channel = new BroadcastChannel(name);
  let [reads, heard, steals, stop] = [false, Date.now(), false, null];
  channel.onmessage = ({ data }) => {
    if (reads && data.hello) channel.postMessage({ state });
    if (reads || data.hello) return;
    heard = Date.now();
    if (data.event || data.state) take(data);
  };
  const out = (said) => {
    channel.postMessage(said);
    take(said);
  };
  const watch = setInterval(() => {
    if (reads) channel.postMessage({ beat: true });
    else if (document.hidden) heard = Date.now();
    else if (Date.now() - heard > SILENT) {
      steals = true;
      stop?.abort();
    }
  }, BEAT);
  const lead = async () => {
    reads = true;
    try {
      await read(stop.signal, out);
      await aborted(stop.signal);
    } finally {
      reads = false;
    }
  };
  channel.postMessage({ hello: true });
  await whileSeen(signal, async (mine) => {
    stop = mine;
    const options = steals ? { steal: true } : { signal: stop.signal };
    [steals, heard] = [false, Date.now()];
    await navigator.locks.request(name, options, lead).catch(() => {}); // aborted, or stolen by another tab
    stop.abort();
  });
  clearInterval(watch);
  channel.close();
}

// Subscribes with the current key. Returns a function that unsubscribes.
export function start() {
  const stop = new AbortController();
  state = { live: false };
  channelName()
    .catch(() => null)
    .then((name) => (name ? share(name, stop.signal) : whileSeen(stop.signal, (mine) => read(mine.signal, take))));
  return () => stop.abort();
}
