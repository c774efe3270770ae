// The list of sessions, filtered and paged by the server. New rows wait behind a button, so visible rows never move.

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { get, may } from "../api.js";
import { hear } from "../live.js";
import { Ago, Empty, Failed, Loading, Pages, Tag, count, html, sessionLink, tagLink, useFollow, usePolled } from "../parts.js";

const STATUSES = ["", "working", "suspended", "idle", "closed"];
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

// Parses the filter: `owner:ada status:working agent:clerk tag:urgent ticket=4711`, and the beginning of an id or owner.
function filterOf(text) {
  const found = { q: "", tags: [], metadata: {} };
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const [, name, value] = /^(owner|status|agent|tag):(.+)$/.exec(word) || [null, "q", word];
    const [, key, held] = /^([\w.-]+)=(.*)$/.exec(word) || [];
    if (name === "tag") found.tags.push(value);
    else if (key) found.metadata[key] = held;
    else found[name] = value;
  }
  return found;
}

// Visible rows keep their place: changes are written into them, and new rows wait.
function useRows(load, inputs) {
  const list = usePolled((signal) => load({}, signal), inputs, { on: ({ name }) => name === "head" });
  const [page, setPage] = useState({ rows: null, next: null, error: null });
  const [, setTick] = useState(0);
  const told = useRef(new Map()); // by row: how it is now
  const take = (each) => {
    const before = told.current.get(rowKey(each));
    if (before && before.records <= each.records) told.current.set(rowKey(each), each);
  };
  const show = (rows, next) => {
    told.current = new Map(rows.map((each) => [rowKey(each), told.current.get(rowKey(each)) || each]));
    rows.forEach(take);
    setPage({ rows, next, error: null });
  };
  const [follow, restart] = useFollow(
    () => load({ after: page.next }),
    ({ items, next }) => show([...page.rows, ...items.filter((each) => !told.current.has(rowKey(each)))], next),
    (error) => setPage((now) => ({ ...now, error })),
  );
  useEffect(() => {
    restart();
    told.current = new Map();
    setPage({ rows: null, next: null, error: null });
  }, inputs);
  const begin = () => {
    restart();
    show(list.data.items, list.data.next);
  };
  useEffect(() => {
    if (!list.data) return;
    if (!page.rows?.length) begin();
    list.data.items.forEach(take);
  }, [list.data]);
  useEffect(() => {
    let frame = 0; // many changes are drawn at once
    const deafen = hear(({ name, data }) => {
      if (name !== "head" || !told.current.has(rowKey(data))) return;
      take(data);
      frame ||= requestAnimationFrame(() => setTick((tick) => ((frame = 0), tick + 1)));
    });
    return () => (deafen(), cancelAnimationFrame(frame));
  }, []);
  const rows = page.rows?.map((each) => told.current.get(rowKey(each)) || each);
  const listed = new Set(list.data?.items.map(rowKey));
  const fresh = rows ? [...listed].filter((each) => !told.current.has(each)).length : 0;
  const hasGone = list.data?.next === null && rows?.some((each) => !listed.has(rowKey(each)));
  const isOld = hasGone || rows?.some((each, place) => place && each.updated_at > rows[place - 1].updated_at);
  return { ...list, rows, next: page.next, failure: page.error, follow, begin, fresh, isOld };
}

const FRESH = { 0: "Newest first", [PAGE]: `Show ${PAGE} and more new` };

export function Sessions({ query, now }) {
  const typed = filterOf(query.q || "");
  const [status, setStatus] = useState(typed.status || "");
  const [agent, setAgent] = useState(typed.agent || query.agent || "");
  const { q, owner } = typed;
  const tags = [query.tags, ...typed.tags].filter(Boolean).join(); // the address has tags with spaces apart from the text
  const metadata = Object.keys(typed.metadata).length ? JSON.stringify(typed.metadata) : "";
  const list = useRows((more, signal) => get("/sessions", { q, owner, status, agent, tags, metadata, limit: PAGE, ...more }, { signal }), [q, owner, status, agent, tags, metadata]);
  useEffect(() => {
    setStatus(typed.status || "");
    setAgent(typed.agent || query.agent || "");
  }, [query.q, query.agent]);
  const find = (event) => {
    event.preventDefault();
    const text = new FormData(event.target).get("q");
    location.hash = `#/sessions?${new URLSearchParams({ q: text, ...(query.tags ? { tags: query.tags } : {}) })}`;
  };
  const { rows } = list;
  const selected = useArrows(rows || []);
  return html`<div class="head"><h1>Sessions</h1>${(query.q || query.tags) && html`<p>that fit <b class="mono">${[query.q, query.tags && `tags ${query.tags}`].filter(Boolean).join(", ")}</b> · <a href="#/sessions">all</a></p>`}
      <span class="sp"></span>${(list.fresh > 0 || list.isOld) && html`<button class="btn fresh" onClick=${list.begin}>${FRESH[list.fresh] || `Show ${list.fresh} new`}</button>`}${may("chat") && html`<a class="btn main" href="#/new${agent && `?agent=${encodeURIComponent(agent)}`}">New session</a>`}</div>
    <div class="filters">
      <form class="narrow" role="search" aria-label="Find sessions" onSubmit=${find}><input name="q" aria-label="Find sessions" placeholder="an id, owner:ada, tag:urgent, ticket=4711" defaultValue=${query.q || ""} /></form>
      <div class="seg" role="group" aria-label="Status">
        ${STATUSES.map(
          (each) => html`<button aria-pressed=${status === each} onClick=${() => setStatus(each)}>
            ${WORDS[each]} ${each && now?.sessions?.[each] !== undefined ? count(now.sessions[each]) : ""}
          </button>`,
        )}
      </div>
      <label>Agent <select value=${agent} onChange=${(event) => setAgent(event.target.value)}>
        <option value="">all</option>
        ${Object.keys(now?.agents || {}).map((name) => html`<option value=${name}>${name}</option>`)}
      </select></label>
    </div>
    ${list.error && html`<${Failed} error=${list.error} what="The list" again=${list.again} since=${list.at} />`}
    ${!rows
      ? !list.error && html`<${Loading} what="sessions" />`
      : rows.length === 0
        ? html`<${Empty} title="No sessions here">${q || status || agent || tags || metadata ? "No session matches this filter." : "Sessions appear as soon as an agent receives a message."}</${Empty}>`
        : html`<div class="panel scroll" tabindex="0" role="group" aria-label="Sessions"><table>
            <caption class="hidden">Sessions, the newest change first</caption>
            <thead><tr><th scope="col">Session</th><th scope="col" class="aside">Agent</th><th scope="col" class="aside">Owner</th><th scope="col">Status</th><th scope="col" class="r aside">Records</th><th scope="col" class="r">Changed</th></tr></thead>
            <tbody>
              ${rows.map(
                (each, place) => html`<tr key=${rowKey(each)} class="opens" aria-selected=${place === selected} onClick=${(event) => event.target.closest("a") || String(getSelection()) || (location.hash = sessionLink(each))}>
                  <td class="mono"><a class="cut" href=${sessionLink(each)} title=${each.id}>${each.id}</a><span class="below dim cut">${each.agent} · ${each.owner}</span>${each.tags.map((tag) => html` <a class="tag flat" key=${tag} href=${tagLink(tag)}>${tag}</a>`)}</td>
                  <td class="aside"><span class="cut" title=${each.agent}>${each.agent}</span></td><td class="aside"><span class="cut" title=${each.owner}>${each.owner}</span></td>
                  <td><${Tag} state=${each.status} /></td>
                  <td class="r aside">${count(each.records)}</td><td class="r"><${Ago} at=${each.updated_at} /></td>
                </tr>`,
              )}
            </tbody></table></div>
          <${Pages} list=${list} />`}`;
}
