// What all pages share: words for states, times and numbers, and the states that a page can be in.

import { h } from "./vendor/preact.js";
import { useEffect, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);

const STATES = {
  idle: ["ok", "idle"],
  working: ["run", "working"],
  waiting: ["run", "waiting"],
  queued: ["run", "queued"],
  suspended: ["wait", "waits for a person"],
  answered: ["ok", "answered"],
  failed: ["bad", "failed"],
  closed: ["plain", "closed"],
  unfinished: ["run", "working"],
};

export function Tag({ state, words }) {
  const [kind, text] = STATES[state] || ["plain", state];
  return html`<span class="tag ${kind}">${words || text}</span>`;
}

export function Ago({ at }) {
  if (!at) return html`<span class="dim">–</span>`;
  const seconds = Math.max(0, (Date.now() - Date.parse(at)) / 1000);
  const text =
    seconds < 5 ? "now"
    : seconds < 60 ? `${Math.floor(seconds)} s ago`
    : seconds < 3600 ? `${Math.floor(seconds / 60)} min ago`
    : seconds < 86400 ? `${Math.floor(seconds / 3600)} h ago`
    : `${Math.floor(seconds / 86400)} d ago`;
  return html`<time datetime=${at} title=${new Date(at).toLocaleString()}>${text}</time>`;
}

export const count = (number) => (number == null ? "–" : number.toLocaleString());
export const money = (dollars) => (dollars == null ? "unknown" : `$${dollars.toFixed(dollars < 1 ? 3 : 2)}`);

// Something that is asked again every few seconds while it is seen; what was there stays while it cannot be had.
export function usePolled(load, inputs, every = 5000) {
  const [state, setState] = useState({ data: null, error: null, at: 0 });
  const again = useRef(() => {});
  useEffect(() => {
    let over = false;
    let timer = 0;
    const abort = new AbortController();
    const run = async () => {
      clearTimeout(timer);
      if (!document.hidden) {
        try {
          const data = await load(abort.signal);
          if (!over) setState({ data, error: null, at: Date.now() });
        } catch (error) {
          if (!over) setState((before) => ({ ...before, error }));
        }
      }
      if (!over) timer = setTimeout(run, every);
    };
    again.current = run;
    setState((before) => ({ ...before, error: null }));
    run();
    const seen = () => document.hidden || run();
    document.addEventListener("visibilitychange", seen);
    return () => {
      over = true;
      abort.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, inputs);
  return { ...state, again: () => again.current() };
}

export function Failed({ error, what, again, since }) {
  return html`<div class="err" role="alert">
    <b>${what} could not be had.</b> ${error.message}
    ${since ? html` What you see is from <${Ago} at=${new Date(since).toISOString()} />.` : ""}
    ${error.request ? html` <span class="mono">request ${error.request}</span>` : ""}
    ${again ? html` <button class="btn" onClick=${again}>Try again</button>` : ""}
  </div>`;
}

export const Loading = ({ what }) => html`<p class="empty" role="status">Loading ${what} …</p>`;

export const Empty = ({ title, children }) => html`<div class="empty"><b>${title}</b>${children}</div>`;

export function sessionLink(session) {
  return `#/sessions/${encodeURIComponent(session.id)}?agent=${encodeURIComponent(session.agent)}`;
}
