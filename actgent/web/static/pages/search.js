// Search over the messages of all sessions. The address has the query and its filters, so that it can be kept and shared.

import { get } from "../api.js";
import { Ago, Empty, Failed, FocusedField, Loading, Pages, counted, html, lasted, money, turnLink, usePages } from "../parts.js";

const FIELDS = ["q", "role", "agent", "owner", "tags", "status", "has_errors", "min_cost", "max_cost", "min_seconds", "max_seconds", "since", "until"];
const LIMIT = 50;

// Dates in the address are days; the server takes times.
function parametersOf(query) {
  const found = Object.fromEntries(FIELDS.map((name) => [name, query[name] || ""]));
  for (const name of ["since", "until"]) if (found[name]) found[name] = `${found[name]}T00:00:00Z`;
  return found;
}

// The text of a snippet with its matches marked. Indices count code points, as the server's do.
function Snippet({ text, marks }) {
  const characters = [...text];
  const parts = [];
  let at = 0;
  for (const [start, stop] of marks) {
    parts.push(characters.slice(at, start).join(""), html`<mark>${characters.slice(start, stop).join("")}</mark>`);
    at = stop;
  }
  return html`<p class="snippet">${parts}${characters.slice(at).join("")}</p>`;
}

function Hit({ hit }) {
  const session = { id: hit.session_id, agent: hit.agent };
  return html`<li class="panel hit">
    <div><a class="mono cut" title=${hit.session_id} href=${turnLink(session, hit.record)}>${hit.session_id}</a> <span class="dim">${hit.agent} for ${hit.owner}</span>
      <span class="sp"></span><span class="dim">${hit.role === "assistant" ? "answer" : "message"}, <${Ago} at=${hit.at} /></span></div>
    <${Snippet} text=${hit.snippet} marks=${hit.marks} />
    <p class="dim">The whole session: ${counted(hit.turns, "turn")}, ${money(hit.cost)}, ${lasted(hit.seconds * 1000)} of work${hit.errors > 0 && html`, <b class="bad">${counted(hit.errors, "error")}</b>`}</p>
  </li>`;
}

function Choice({ name, label, value, choices }) {
  return html`<label>${label}
    <select name=${name}>${choices.map(([each, words]) => html`<option value=${each} selected=${each === (value || "")}>${words}</option>`)}</select>
  </label>`;
}

const Field = ({ name, label, value, ...more }) => html`<label>${label} <input name=${name} defaultValue=${value || ""} ...${more} /></label>`;
const Words = ({ value, ...more }) => html`<label>Words <${value ? "input" : FocusedField} name="q" defaultValue=${value || ""} type="search" ...${more} /></label>`;

function Results({ query }) {
  const given = parametersOf(query);
  const list = usePages((more, options) => get("/search", { ...given, ...more, limit: LIMIT }, options), [JSON.stringify(given)]);
  return html`${list.error && html`<${Failed} error=${list.error} what="The search" again=${list.again} since=${list.at} />`}
    ${!list.isThere && !list.error && html`<${Loading} what="hits" />`}
    ${list.data?.is_complete === false && html`<p class="dim" role="status">The index is being built: older messages may be missing.</p>`}
    ${list.isThere && list.rows.length === 0 && !list.next && html`<${Empty} title="No message matches">Try fewer words or filters, or the beginning of a word with a star: parc*</${Empty}>`}
    <ul class="hits">${list.rows.map((hit) => html`<${Hit} key=${hit.agent + hit.session_id + hit.message_id} hit=${hit} />`)}</ul>
    <${Pages} list=${list} />`;
}

export function Search({ query }) {
  const find = (event) => {
    event.preventDefault();
    const given = [...new FormData(event.target)].filter(([, value]) => value.trim());
    location.hash = `#/search?${new URLSearchParams(given)}`;
  };
  return html`<div class="head"><h1>Search</h1><p>finds messages of all sessions by words, by filters, or by both; the newest first</p></div>
    <form class="filters" key=${JSON.stringify(query)} onSubmit=${find} aria-label="Search">
      <${Words} value=${query.q} maxlength="500" placeholder='parcel "to Oslo" -invoice' />
      <${Choice} name="role" label="In" value=${query.role} choices=${[["", "all messages"], ["user", "messages of users"], ["assistant", "answers"]]} />
      <${Field} name="agent" label="Agent" value=${query.agent} />
      <${Field} name="owner" label="Owner" value=${query.owner} />
      <${Field} name="tags" label="Tags" value=${query.tags} placeholder="urgent,billing" />
      <${Choice} name="status" label="Status" value=${query.status} choices=${[["", "any"], ["idle", "idle"], ["working", "working"], ["suspended", "suspended"], ["closed", "closed"]]} />
      <${Choice} name="has_errors" label="Errors" value=${query.has_errors} choices=${[["", "any"], ["true", "with errors"], ["false", "without errors"]]} />
      <${Field} name="min_cost" label="Cost from $" value=${query.min_cost} type="number" min="0" step="any" />
      <${Field} name="max_cost" label="Cost to $" value=${query.max_cost} type="number" min="0" step="any" />
      <${Field} name="min_seconds" label="Seconds from" value=${query.min_seconds} type="number" min="0" step="any" />
      <${Field} name="max_seconds" label="Seconds to" value=${query.max_seconds} type="number" min="0" step="any" />
      <${Field} name="since" label="From" value=${query.since} type="date" />
      <${Field} name="until" label="Before" value=${query.until} type="date" />
      <button class="btn main">Search</button>
    </form>
    ${FIELDS.some((name) => query[name]) && html`<${Results} key=${JSON.stringify(query)} query=${query} />`}`;
}
