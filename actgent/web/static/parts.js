// Shared components: texts for states, times and numbers, and the loading, empty and error states of a page.

import { h } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";
import { hear, linkState } from "./live.js";

export const html = htm.bind(h);

const STATES = {
  idle: ["ok", "idle"],
  working: ["run", "working"],
  waiting: ["run", "waiting"],
  queued: ["run", "queued"],
  suspended: ["wait", "waits for an approval"],
  answered: ["ok", "answered"],
  failed: ["bad", "failed"],
  closed: ["plain", "closed"],
  unfinished: ["run", "working"],
};

export function Tag({ state, words }) {
  const [kind, text] = STATES[state] || ["plain", state];
  return html`<span class="tag ${kind}">${words || text}</span>`;
}

const MOMENTS = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export function Ago({ at }) {
  if (!at) return html`<span class="dim">–</span>`;
  const seconds = Math.max(0, (Date.now() - Date.parse(at)) / 1000);
  const text =
    seconds < 5 ? "now"
    : seconds < 60 ? `${Math.floor(seconds)} s ago`
    : seconds < 3600 ? `${Math.floor(seconds / 60)} min ago`
    : seconds < 86400 ? `${Math.floor(seconds / 3600)} h ago`
    : `${Math.floor(seconds / 86400)} d ago`;
  return html`<time datetime=${at} title=${MOMENTS.format(new Date(at))}>${text}</time>`;
}

export function In({ at }) {
  if (!at) return html`<span class="dim">–</span>`;
  const seconds = Math.max(0, (Date.parse(at) - Date.now()) / 1000);
  const text =
    seconds < 1 ? "now"
    : seconds < 60 ? `in ${Math.floor(seconds)} s`
    : seconds < 3600 ? `in ${Math.floor(seconds / 60)} min`
    : seconds < 86400 ? `in ${Math.floor(seconds / 3600)} h`
    : `in ${Math.floor(seconds / 86400)} d`;
  return html`<time datetime=${at} title=${MOMENTS.format(new Date(at))}>${text}</time>`;
}

// A usage bar with its reserved part. The numbers are in the text next to the bar and in its label.
export function Bar({ used, apart, of }) {
  const share = (value) => (of > 0 ? Math.min(100, (value / of) * 100) : 100);
  const [width, behind] = [share(used), share(used + apart)];
  const words = `${Math.round(width)} % used${apart ? `, ${Math.round(behind - width)} % set apart` : ""}`;
  return html`<svg class="bar ${behind >= 90 ? "bad" : behind >= 66 ? "warn" : ""}" viewBox="0 0 100 7" preserveAspectRatio="none" role="img" aria-label=${words}>
    <rect class="apart" width=${behind} height="7" /><rect width=${width} height="7" />
  </svg>`;
}

export function lasted(milliseconds) {
  if (milliseconds < 59950) return milliseconds < 999.5 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;
  const seconds = Math.round(milliseconds / 1000);
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min ${seconds % 60} s` : `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}
const NUMBERS = new Intl.NumberFormat(); // toLocaleString would make one for each number
export const count = (number) => (number == null ? "–" : NUMBERS.format(number));
export const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
// Formats dollars with enough digits to differ from zero: $12.30, $0.420, $0.00042.
export const money = (dollars) => (dollars == null ? "unknown" : dollars === 0 ? "$0" : `$${dollars.toFixed(dollars >= 1 ? 2 : Math.max(3, 1 - Math.floor(Math.log10(dollars))))}`);

export const ONCE = 2 ** 31 - 1; // the longest timer, for `every`: the request is not repeated
const SOON = 1000; // milliseconds between two times that something is asked for because of what was heard

// True if the same request can succeed later: without an answer, for too many requests, or a fault of the server.
const isTemporary = ({ status }) => !status || status === 429 || status >= 500;

// Data that is requested again on each change event, and every few seconds without events; only while the tab is visible.
// If a request fails, the previous data stays.
export function usePolled(load, inputs, { every = 5000, on = null } = {}) {
  const [state, setState] = useState({ data: null, error: null, at: 0 });
  const again = useRef(() => {});
  useEffect(() => {
    let [over, timer, soon, last, asked, shown, hasFailed] = [false, 0, 0, 0, 0, 0, false];
    const abort = new AbortController();
    const run = async () => {
      clearTimeout(timer);
      clearTimeout(soon);
      [soon, last] = [0, Date.now()];
      if (!document.hidden) {
        const mine = ++asked;
        // A response that arrives after the response to a later request is outdated.
        const show = (next) => {
          if (over || mine < shown) return;
          shown = mine;
          setState(next);
        };
        try {
          const data = await load(abort.signal);
          hasFailed = false;
          show({ data, error: null, at: Date.now() });
        } catch (error) {
          hasFailed = isTemporary(error);
          show((before) => ({ ...before, error }));
        }
      }
      clearTimeout(timer);
      if (!over) timer = setTimeout(run, on && linkState().live && !hasFailed ? 12 * every : every);
    };
    const heard = (event) => {
      if (!on || soon || over) return;
      if (event.name === "resync" || (event.name === "link" && !event.data.live) || on(event)) soon = setTimeout(run, Math.max(0, last + SOON - Date.now()));
    };
    again.current = run;
    setState((before) => ({ ...before, error: null }));
    run();
    const seen = () => document.hidden || run();
    document.addEventListener("visibilitychange", seen);
    const deafen = hear(heard);
    return () => {
      over = true;
      abort.abort();
      clearTimeout(timer);
      clearTimeout(soon);
      deafen();
      document.removeEventListener("visibilitychange", seen);
    };
  }, inputs);
  return { ...state, again: () => again.current() };
}

// A form field that gets the focus when it appears. Browsers apply the attribute autofocus only once per page, except in dialogs.
export function FocusedField({ tag = "input", ...attributes }) {
  const field = useRef(null);
  useLayoutEffect(() => field.current.focus(), []);
  return h(tag, { ref: field, ...attributes });
}

// Runs a request that changes something, and keeps its state: `busy` while it runs, and the `error` of the last one.
export function useChange(onDone) {
  const [state, setState] = useState({ busy: false, error: null });
  const isRunning = useRef(false); // a second click can arrive before the button is disabled
  const change = async (send) => {
    if (isRunning.current) return;
    isRunning.current = true;
    setState({ busy: true, error: null });
    try {
      const result = await send();
      setState({ busy: false, error: null });
      onDone(result);
    } catch (error) {
      setState({ busy: false, error });
    }
    isRunning.current = false;
  };
  return { ...state, change };
}

// Returns a function that opens an address of the dashboard, unless its component was removed before: the user is on another page.
export function useOpen() {
  const isShown = useRef(true);
  useEffect(() => () => (isShown.current = false), []);
  return (place) => {
    if (isShown.current) location.hash = place;
  };
}

// Returns a function that loads the next page of a list. It ignores calls during a request, and a response after `restart`.
export function useFollow(load, onPage, onError) {
  const request = useRef(null);
  const follow = async () => {
    if (request.current) return;
    const mine = (request.current = {});
    const [page, error] = await load().then((page) => [page, null], (error) => [null, error]);
    if (request.current !== mine) return;
    request.current = null;
    if (error) onError(error);
    else onPage(page);
  };
  return [follow, () => (request.current = null)];
}

// True if the event stream of all sessions is connected.
export function useLink() {
  const [link, setLink] = useState(linkState());
  useEffect(() => hear((event) => event.name === "link" && setLink(event.data)), []);
  return link;
}

// A paged list. The first page is polled while the tab is visible; the other pages are loaded on request.
export function usePages(load, inputs, options) {
  const first = usePolled((signal) => load({}, { signal }), inputs, options);
  const [more, setMore] = useState({ items: [], next: null, error: null });
  const next = more.items.length ? more.next : first.data?.next;
  const [follow, restart] = useFollow(
    () => load({ after: next }, {}),
    (page) => setMore((now) => ({ items: [...now.items, ...page.items], next: page.next, error: null })),
    (error) => setMore((now) => ({ ...now, error })),
  );
  const begin = () => {
    restart();
    setMore({ items: [], next: null, error: null });
  };
  useEffect(begin, inputs);
  const again = () => {
    begin();
    first.again();
  };
  return { ...first, again, isThere: first.data !== null, rows: [...(first.data?.items || []), ...more.items], next, follow, failure: more.error };
}

export function Pages({ list }) {
  return html`${list.failure && html`<${Failed} error=${list.failure} what="The next page" />`}
    ${list.next && html`<button class="btn" onClick=${list.follow}>Show more</button>`}`;
}

// Connection state of a stream or list, with the time of the next attempt.
export function Live({ live, again, words }) {
  const [, setTick] = useState(0);
  useEffect(() => {
    if (live || !again) return undefined;
    const timer = setInterval(() => setTick((tick) => tick + 1), 1000);
    return () => clearInterval(timer);
  }, [live, again]);
  const left = again ? Math.ceil((again - Date.now()) / 1000) : 0;
  return html`<span class="live ${live ? "" : "off"}" role="status">${live ? "live" : words || (again ? "reconnecting" : "connecting")}${!live && left > 0 && html`<span aria-hidden="true">, ${left} s</span>`}</span>`;
}

export function Failed({ error, what, again, since }) {
  return html`<div class="err" role="alert">
    <b>${what} could not be loaded.</b> ${error.message}
    ${since ? html` What you see is from <${Ago} at=${new Date(since).toISOString()} />.` : ""}
    ${error.request ? html` <span class="mono">request ${error.request}</span>` : ""}
    ${again ? html` <button class="btn" onClick=${again}>Try again</button>` : ""}
  </div>`;
}

export const Loading = ({ what }) => html`<p class="empty" role="status">Loading ${what} …</p>`;

export const Empty = ({ title, children }) => html`<div class="empty"><b>${title}</b>${children}</div>`;

export const tagLink = (tag) => `#/sessions?tags=${encodeURIComponent(tag)}`;

export function sessionLink(session) {
  return `#/sessions/${encodeURIComponent(session.id)}?agent=${encodeURIComponent(session.agent)}`;
}

// A link that opens the session at the turn that has the record.
export const turnLink = (session, record) => `${sessionLink(session)}&at=${record}`;

export function journalLink(session, at) {
  return `#/journal/${encodeURIComponent(session.id)}?agent=${encodeURIComponent(session.agent)}${at ? `&at=${at}` : ""}`;
}

// The trace of a turn; of the last turn without one. The record of its message makes it quick to find in a long session.
export function traceLink(session, turn) {
  const record = turn?.parts.find((each) => each.kind === "said")?.record;
  return `#/sessions/${encodeURIComponent(session.id)}/trace?agent=${encodeURIComponent(session.agent)}${turn ? `&turn=${encodeURIComponent(turn.id)}` : ""}${record ? `&at=${record}` : ""}`;
}

export function compareLink(one, other) {
  const names = { a: one.id, aa: one.agent, b: other?.id, ba: other?.agent };
  return `#/compare?${Object.entries(names).filter(([, value]) => value).map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&")}`;
}
