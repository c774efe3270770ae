// Long-term memories of an owner: search, list in pages, correct, forget one or all. The address has the query.

import { useState } from "../vendor/hooks.js";
import { ask, get, may, path } from "../api.js";
import { Ago, Empty, Failed, FocusedField, Loading, ONCE, Pages, count, counted, html, sessionLink, useChange, usePages, usePolled } from "../parts.js";
import { Modal } from "../modal.js";
import { useRequestId } from "./compose.js";

const LIMIT = 50;
const EVERY = 30000; // milliseconds between two requests of a list

export const memoriesLink = (query) => `#/memories?${new URLSearchParams(Object.entries(query).filter(([, value]) => value))}`;

const failed = (words, error) => error && html`<p class="err" role="alert">${words}: ${error.message}</p>`;

const localTime = (at) => (at ? new Date(Date.parse(at) - new Date(at).getTimezoneOffset() * 60000).toISOString().slice(0, 16) : "");

function Edit({ memory, target, query, onDone, onCancel }) {
  const { busy, error, change } = useChange(onDone);
  const idOf = useRequestId();
  const send = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const until = form.get("until");
    const body = { text: form.get("text"), kind: form.get("kind").trim(), importance: Number(form.get("importance")), is_kept: form.has("is_kept") };
    if (until !== localTime(memory.valid_until)) body.valid_until = until ? new Date(until).toISOString() : null;
    change(() => ask("PATCH", target, { query, body, headers: { "idempotency-key": idOf(body) } }));
  };
  return html`<form class="stack tight" aria-label="Correct the memory" onSubmit=${send}>
    <label>Text <${FocusedField} tag="textarea" name="text" rows="3" required maxlength="8000" defaultValue=${memory.text} /></label>
    <fieldset class="fields"><legend class="hidden">Fields</legend>
      <label>Kind <input name="kind" required maxlength="200" defaultValue=${memory.kind} /></label>
      <label>Importance, 0 to 1 <input name="importance" type="number" min="0" max="1" step="any" required defaultValue=${memory.importance} /></label>
      <label>Valid until <input name="until" type="datetime-local" defaultValue=${localTime(memory.valid_until)} /></label>
    </fieldset>
    <p class="row"><label class="check"><input type="checkbox" name="is_kept" defaultChecked=${memory.is_kept} /> Pinned: never evicted</label></p>
    ${failed("It was not corrected", error)}
    <div class="row"><button class="btn main" disabled=${busy}>Save</button><button class="btn" type="button" onClick=${onCancel}>Cancel</button></div>
  </form>`;
}

function Forget({ memory, target, query, onDone, onCancel }) {
  const { busy, error, change } = useChange(onDone);
  return html`<${Modal} label="Forget a memory" onClose=${onCancel}><div class="stack">
    <h2>Forget this memory?</h2>
    <p class="listed snippet">${memory.text}</p>
    <p class="dim">Its earlier versions are deleted too. This cannot be undone.</p>
    ${failed("It was not forgotten", error)}
    <div class="row"><button class="btn bad" disabled=${busy} onClick=${() => change(() => ask("DELETE", target, { query }))}>Forget</button><button class="btn" autofocus onClick=${onCancel}>Cancel</button></div>
  </div></${Modal}>`;
}

// Earlier versions and links of a memory, loaded when they are opened.
function Versions({ target, query, id }) {
  const found = usePolled((signal) => get(target, query, { signal }), [target], { every: ONCE });
  if (!found.data) return found.error ? html`<${Failed} error=${found.error} what="The history" again=${found.again} />` : html`<${Loading} what="history" />`;
  const earlier = found.data.versions.filter((each) => each.id !== id);
  return html`${earlier.map((each) => html`<p key=${each.id} class="snippet dim">${each.text} <${Ago} at=${each.created_at} /></p>`)}
    ${found.data.links.map((each) => html`<p key=${each.id + each.relation}>${each.is_from_here ? "→" : "←"} ${each.relation} <span class="mono">${each.id}</span></p>`)}
    ${earlier.length + found.data.links.length === 0 && html`<p class="dim">No earlier versions, no links.</p>`}`;
}

function Memory({ memory, agent, again }) {
  const [way, setWay] = useState("");
  const [open, setOpen] = useState(false);
  const target = path("agents", agent, "memories", memory.id);
  const query = { owner: memory.owner, owner_kind: memory.owner_kind };
  const done = () => {
    setWay("");
    again();
  };
  const back = () => setWay("");
  const isOver = memory.valid_until && Date.parse(memory.valid_until) <= Date.now();
  const isComing = memory.valid_from && Date.parse(memory.valid_from) > Date.now();
  return html`<li class="panel hit">
    <div><span class="tag flat">${memory.kind}</span>
      ${memory.sources.length > 0 && html`<span class="tag warn" title="The text depends on text from outside">from ${memory.sources.join(", ")}</span>`}
      ${memory.readers && html`<span class="tag wait">readers: ${memory.readers.join(", ") || "no owner"}</span>`}
      ${memory.is_kept && html`<span class="tag flat ok">pinned</span>`}
      ${memory.is_shared && html`<span class="tag wait">shared with all owners</span>`}
      ${isOver && html`<span class="tag flat">not valid any more</span>`}${isComing && html`<span class="tag flat">not valid yet</span>`}
      <span class="sp"></span><span class="dim">stored <${Ago} at=${memory.created_at} /></span></div>
    ${way === "edit"
      ? html`<${Edit} memory=${memory} target=${target} query=${query} onDone=${done} onCancel=${back} />`
      : html`<p class="snippet">${memory.text}</p>`}
    <p class="dim">${memory.agent ? html`by ${memory.agent}` : "by a program"}${memory.session_id && html` in <a class="mono" href=${sessionLink({ id: memory.session_id, agent: memory.agent || agent })}>${memory.session_id}</a>`},
      importance ${memory.importance}, recalled ${counted(memory.uses, "time")}${memory.uses > 0 && html`, last <${Ago} at=${memory.last_used_at} />`}${memory.valid_until && html`, valid until ${new Date(memory.valid_until).toLocaleString()}`}</p>
    ${way !== "edit" && html`<div class="row">
      ${may("chat") && html`<button class="btn" onClick=${() => setWay("edit")}>Correct</button><button class="btn bad" onClick=${() => setWay("forget")}>Forget</button>`}
      <button class="link" aria-expanded=${open} onClick=${() => setOpen(!open)}>History and links</button></div>`}
    ${open && html`<${Versions} target=${target} query=${query} id=${memory.id} />`}
    ${way === "forget" && html`<${Forget} memory=${memory} target=${target} query=${query} onDone=${done} onCancel=${back} />`}
  </li>`;
}

function ForgetAll({ agent, owner, onDone, onCancel }) {
  const { busy, error, change } = useChange(onDone);
  const [typed, setTyped] = useState("");
  const send = (event) => {
    event.preventDefault();
    const sessions = new FormData(event.target).has("sessions") ? "true" : "";
    change(() => ask("DELETE", path("agents", agent, "memories"), { query: { owner: owner.owner, owner_kind: owner.owner_kind, sessions } }));
  };
  return html`<${Modal} label="Forget all memories" onClose=${onCancel}><form class="stack" onSubmit=${send}>
    <h2>Forget all memories of ${owner.owner}?</h2>
    <p>All that the long-term memory of ${agent} has stored about this owner is deleted, with earlier versions. This cannot be undone.</p>
    ${may("admin")
      ? html`<p class="row"><label class="check"><input type="checkbox" name="sessions" /> Also close and erase the owner's sessions of all agents. Agents could store their content again.</label></p>`
      : html`<p class="dim">The sessions stay. Agents could store their content again.</p>`}
    <p class="tight"><label>The name of the owner, to confirm <input autocomplete="off" autofocus required value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label></p>
    ${failed("They were not forgotten", error)}
    <div class="row"><button class="btn bad" disabled=${busy || typed !== owner.owner}>Forget all</button><button class="btn" type="button" onClick=${onCancel}>Cancel</button></div>
  </form></${Modal}>`;
}

const nameOf = (owner) => (owner.owner_kind === "user" ? owner.owner : `${owner.owner} (${owner.owner_kind})`);

function Owners({ agent }) {
  const list = usePages((more, options) => get(path("agents", agent, "memory-owners"), { limit: 100, ...more }, options), [agent], { every: EVERY });
  return html`${list.error && html`<${Failed} error=${list.error} what="The list of owners" again=${list.again} since=${list.at} />`}
    ${!list.isThere && !list.error && html`<${Loading} what="owners" />`}
    ${list.isThere && list.rows.length === 0 && html`<${Empty} title="No memories yet">Agents store memories with the tool remember.</${Empty}>`}
    ${list.rows.length > 0 && html`<div class="panel scroll" tabindex="0" role="group" aria-label="Owners"><table>
      <thead><tr><th scope="col">Owner</th><th scope="col" class="r">Memories</th></tr></thead>
      <tbody>${list.rows.map((each) => html`<tr key=${each.owner_kind + each.owner}><td class="grow"><a href=${memoriesLink({ agent, owner: each.owner, owner_kind: each.owner_kind })}>${nameOf(each)}</a></td><td class="r">${count(each.memories)}</td></tr>`)}</tbody>
    </table></div>`}
    <${Pages} list=${list} />`;
}

function List({ agent, owner, query }) {
  const { q = "", kind = "" } = query;
  const [all, setAll] = useState(null);
  const list = usePages((more, options) => get(path("agents", agent, "memories"), { ...owner, q, kind, limit: LIMIT, ...more }, options), [agent, JSON.stringify(owner), q, kind], { every: q ? ONCE : EVERY }); // a search may call a paid embedding model
  const erased = (result) => {
    setAll({ result });
    list.again();
  };
  return html`<div class="row"><h2>${q || kind ? "Matching memories" : "Memories"} of ${nameOf(owner)}</h2><span class="sp"></span>
      ${may("chat") && html`<button class="btn bad" onClick=${() => setAll({ asks: true })}>Forget all of ${nameOf(owner)}</button>`}</div>
    ${all?.result && html`<p class="row" role="status">Erased: ${counted(all.result.memories, "memory").replace(/memorys$/, "memories")}${all.result.sessions > 0 && html`, ${counted(all.result.sessions, "session")} with their child sessions`}.</p>`}
    ${list.error && html`<${Failed} error=${list.error} what="The list of memories" again=${list.again} since=${list.at} />`}
    ${!list.isThere && !list.error && html`<${Loading} what="memories" />`}
    ${list.isThere && list.rows.length === 0 && html`<${Empty} title="No memories">${q || kind ? "No memory matches." : "Agents store memories with the tool remember."}</${Empty}>`}
    <ul class="hits">${list.rows.map((each) => html`<${Memory} key=${each.id} memory=${each} agent=${agent} again=${list.again} />`)}</ul>
    <${Pages} list=${list} />
    ${all?.asks && html`<${ForgetAll} agent=${agent} owner=${owner} onDone=${erased} onCancel=${() => setAll((now) => (now?.asks ? null : now))} />`}`; // the dialog closes after the result is shown
}

export function Memories({ query, token }) {
  const known = usePolled((signal) => get("/agents", {}, { signal }), [], { every: EVERY });
  if (!known.data) return known.error ? html`<${Failed} error=${known.error} what="The list of agents" again=${known.again} />` : html`<${Loading} what="memories" />`;
  const agents = known.data.items.filter((each) => each.has_long_term_memory).map((each) => each.name);
  const agent = query.agent || agents[0];
  const owner = query.owner || (may("admin") ? "" : token.owner);
  const find = (event) => {
    event.preventDefault();
    location.hash = memoriesLink(Object.fromEntries(new FormData(event.target)));
  };
  return html`<div class="head"><h1>Memories</h1><p>what agents remember of an owner, over all sessions</p></div>
    ${known.error && html`<${Failed} error=${known.error} what="The list of agents" again=${known.again} since=${known.at} />`}
    ${!agent
      ? html`<${Empty} title="No agent has a long-term memory">A program gives an agent one with long_term_memory=.</${Empty}>`
      : html`<form class="filters" key=${JSON.stringify(query)} onSubmit=${find} aria-label="Find memories">
        ${owner && html`<label>Words <input name="q" type="search" maxlength="500" defaultValue=${query.q || ""} /></label>`}
        <label>Memory of <select name="agent">${[...new Set([agent, ...agents])].sort().map((each) => html`<option value=${each} selected=${each === agent}>${each}</option>`)}</select></label>
        ${may("admin") && html`<label>Owner <input name="owner" defaultValue=${query.owner || ""} placeholder="all" /></label>
          <label>is <select name="owner_kind">${["", "agent", "assistant", "tool", "system"].map((each) => html`<option value=${each} selected=${each === (query.owner_kind === "user" ? "" : query.owner_kind || "")}>${each || "user"}</option>`)}</select></label>`}
        ${owner && html`<label>Kind <input name="kind" maxlength="200" defaultValue=${query.kind || ""} placeholder="any" /></label>`}
        <button class="btn main">Find</button>
      </form>
      ${owner ? html`<${List} key=${[agent, owner, query.owner_kind].join("\n")} agent=${agent} owner=${{ owner, owner_kind: query.owner_kind || "user" }} query=${query} />` : html`<${Owners} agent=${agent} />`}`}`;
}
