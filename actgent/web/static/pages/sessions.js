// The list of sessions: filtered and paged by the server; new rows wait above and never move what is read.

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { get } from "../api.js";
import { Ago, Empty, Failed, Loading, Tag, count, html, sessionLink, usePolled } from "../parts.js";

const STATES = ["", "working", "suspended", "idle", "closed"];
const WORDS = { "": "All", working: "Working", suspended: "Waiting for a person", idle: "Idle", closed: "Closed" };
const PAGE = 100;

const rowKey = (session) => `${session.agent}\n${session.id}`;

function useArrows(rows) {
  const [selected, setSelected] = useState(-1);
  const seen = useRef(rows);
  seen.current = rows;
  useEffect(() => {
    const pressed = (event) => {
      if (event.target.closest("input, textarea, select")) return;
      const step = { j: 1, k: -1 }[event.key];
      if (step) setSelected((now) => Math.max(0, Math.min(seen.current.length - 1, now + step)));
      if (event.key === "Enter" && event.target === document.body)
        setSelected((now) => {
          if (seen.current[now]) location.hash = sessionLink(seen.current[now]);
          return now;
        });
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
  useEffect(() => document.querySelector("tr[aria-selected=true]")?.scrollIntoView({ block: "nearest" }), [selected]);
  return selected;
}

// What was typed: `owner:ada state:working agent:clerk`, and how an id or owner begins.
function filterOf(text) {
  const found = { q: "" };
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const [, name, value] = /^(owner|state|agent):(.+)$/.exec(word) || [null, "q", word];
    found[name] = value;
  }
  return found;
}

export function Sessions({ query, now }) {
  const typed = filterOf(query.q || "");
  const [state, setState] = useState(typed.state || "");
  const [agent, setAgent] = useState(typed.agent || query.agent || "");
  const [more, setMore] = useState({ items: [], next: null, error: null });
  const [shown, setShown] = useState(null);
  const { q, owner } = typed;
  const asked = { q, owner, state, agent, limit: PAGE };
  const list = usePolled((signal) => get("/sessions", asked, { signal }), [q, owner, state, agent]);
  useEffect(() => {
    setShown(null);
    setMore({ items: [], next: null, error: null });
  }, [q, owner, state, agent]);
  useEffect(() => {
    setState(typed.state || "");
    setAgent(typed.agent || query.agent || "");
  }, [query.q, query.agent]);
  const find = (event) => {
    event.preventDefault();
    location.hash = `#/sessions?q=${encodeURIComponent(new FormData(event.target).get("q"))}`;
  };
  useEffect(() => {
    if (list.data && (shown === null || scrollTop() < 40)) setShown(list.data);
  }, [list.data]);
  const rows = [...(shown?.items || []), ...more.items];
  const selected = useArrows(rows);
  const waiting = shown && list.data ? fresh(shown.items, list.data.items) : 0;
  const load = async () => {
    const after = more.items.length ? more.next : shown.next;
    try {
      const page = await get("/sessions", { ...asked, after });
      setMore({ items: [...more.items, ...page.items], next: page.next, error: null });
    } catch (error) {
      setMore({ ...more, error });
    }
  };
  const next = more.items.length ? more.next : shown?.next;
  return html`<div class="head"><h1>Sessions</h1>${query.q && html`<p>that fit <b class="mono">${query.q}</b> · <a href="#/sessions">all</a></p>`}</div>
    <div class="filters">
      <form class="narrow" role="search" aria-label="Find sessions" onSubmit=${find}><input name="q" aria-label="Find sessions" placeholder="an id, owner:ada" defaultValue=${query.q || ""} /></form>
      <div class="seg" role="group" aria-label="State">
        ${STATES.map(
          (each) => html`<button aria-pressed=${state === each} onClick=${() => setState(each)}>
            ${WORDS[each]} ${each && now?.sessions?.[each] !== undefined ? count(now.sessions[each]) : ""}
          </button>`,
        )}
      </div>
      <label>Agent <select value=${agent} onChange=${(event) => setAgent(event.target.value)}>
        <option value="">all</option>
        ${Object.keys(now?.agents || {}).map((name) => html`<option value=${name}>${name}</option>`)}
      </select></label>
      ${waiting > 0 && html`<button class="btn" onClick=${() => setShown(list.data)}>Show ${waiting} new</button>`}
    </div>
    ${list.error && html`<${Failed} error=${list.error} what="The list" again=${list.again} since=${list.at} />`}
    ${shown === null
      ? !list.error && html`<${Loading} what="sessions" />`
      : rows.length === 0
        ? html`<${Empty} title="No sessions here">${q || state || agent ? "Nothing fits this filter." : "They appear as soon as somebody talks to an agent."}</${Empty}>`
        : html`<div class="panel scroll" tabindex="0" role="group" aria-label="Sessions"><table>
            <caption class="hidden">Sessions, the newest change first</caption>
            <thead><tr><th scope="col">Session</th><th scope="col">Agent</th><th scope="col">Owner</th><th scope="col">State</th><th scope="col" class="r">Records</th><th scope="col" class="r">Changed</th></tr></thead>
            <tbody>
              ${rows.map(
                (each, place) => html`<tr key=${rowKey(each)} aria-selected=${place === selected}>
                  <td class="mono"><a href=${sessionLink(each)}>${each.id}</a></td>
                  <td>${each.agent}</td><td>${each.owner}</td>
                  <td><${Tag} state=${each.state} /></td>
                  <td class="r">${count(each.records)}</td><td class="r"><${Ago} at=${each.updated_at} /></td>
                </tr>`,
              )}
            </tbody></table></div>
          ${more.error && html`<${Failed} error=${more.error} what="The next page" />`}
          ${next && html`<button class="btn" onClick=${load}>Show more</button>`}`}`;
}

const scrollTop = () => document.querySelector("main")?.scrollTop || 0;

function fresh(before, now) {
  const known = new Set(before.map((each) => rowKey(each) + each.updated_at));
  return now.filter((each) => !known.has(rowKey(each) + each.updated_at)).length;
}
