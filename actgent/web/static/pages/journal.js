// The state and conversation of a session after each of its records, and forks from a record.

import { useEffect, useLayoutEffect, useRef, useState } from "../vendor/hooks.js";
import { ask, blob, get, may, path } from "../api.js";
import { Ago, Empty, Failed, Loading, Tag, count, counted, html, journalLink, sessionLink, useOpen, usePolled } from "../parts.js";
import { Modal } from "../modal.js";
import { changesOf, sentenceOf } from "./records.js";

const SPAN = 100; // records before and behind the one that is looked at
const REST = 150; // milliseconds for which the place has to stand before it is asked for

// Data that is requested again after its inputs are unchanged for a moment. The previous data stays until the response.
function useAsked(load, inputs) {
  const [state, setState] = useState({ data: null, error: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const data = await load(abort.signal);
        if (!abort.signal.aborted) setState({ data, error: null });
      } catch (error) {
        if (!abort.signal.aborted) setState((before) => ({ ...before, error }));
      }
    }, state.data ? REST : 0);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [...inputs, turn]);
  return { ...state, again: () => setTurn((now) => now + 1) };
}

function Scrubber({ at, last, digest, go }) {
  return html`<div class="panel"><div class="b scrub">
    <button class="btn" aria-label="The first record" disabled=${at === 1} onClick=${() => go(1)}>|◀</button>
    <button class="btn" aria-label="Previous record" disabled=${at === 1} onClick=${() => go(at - 1)}>◀ <kbd>[</kbd></button>
    <input type="range" min="1" max=${last} value=${at} aria-label="Record" aria-valuetext="record ${at} of ${last}" onInput=${(event) => go(Number(event.target.value))} />
    <button class="btn" aria-label="Next record" disabled=${at === last} onClick=${() => go(at + 1)}>▶ <kbd>]</kbd></button>
    <button class="btn" aria-label="The last record" disabled=${at === last} onClick=${() => go(last)}>▶|</button>
    <span class="mono" role="status">${count(at)} / ${count(last)}</span>
    ${digest && html`<span class="dim mono">digest ${digest.slice(0, 8)}…</span>`}
  </div></div>`;
}

const RECOVERY = new Set(["spent", "due", "delivered", "prompted"]); // records that only serve to go on after a crash

function Records({ rows: given, at, go }) {
  const box = useRef(null);
  const [isWhole, setIsWhole] = useState(false);
  const rows = given.filter((each) => isWhole || each.number === at || !RECOVERY.has(each.record.type));
  useLayoutEffect(() => {
    const row = box.current?.querySelector("[aria-current]");
    if (row) box.current.scrollTop = row.offsetTop - box.current.clientHeight / 2;
  }, [at, given, isWhole]);
  return html`<h2>Records <span class="sp"></span><div class="seg" role="group" aria-label="Shown records">
      <button aria-pressed=${!isWhole} onClick=${() => setIsWhole(false)}>What happened</button><button aria-pressed=${isWhole} onClick=${() => setIsWhole(true)}>All</button>
    </div></h2>
    <div class="records" ref=${box} tabindex="0" role="group" aria-label="Records, by number"><table>
    <thead class="hidden"><tr><th scope="col">Number</th><th scope="col">Time</th><th scope="col">Kind</th><th scope="col">What</th></tr></thead>
    <tbody>${rows.map(
      ({ number, at: time, record }) => html`<tr key=${number} aria-current=${number === at ? "true" : undefined}>
        <td class="r"><button class="link mono" onClick=${() => go(number)} aria-label="Record ${number}">${number}</button></td>
        <td class="mono dim">${time ? time.slice(11, 23) : "–"}</td>
        <td><span class="tag flat">${record.type}</span></td><td class="grow">${sentenceOf(record)}</td>
      </tr>`,
    )}</tbody></table></div>`;
}

function State({ past, before }) {
  const rows = changesOf(before?.state || {}, past.state);
  return html`<section class="panel" aria-label="State"><h2>State after ${past.number} ${before && html`<span class="dim">changed since ${before.number}</span>`}</h2>
    ${rows.length === 0
      ? html`<p class="b dim">The state is empty.</p>`
      : html`<pre class="diff" tabindex="0">${rows.map(([sign, name, text]) => html`<span class=${{ "+": "add", "-": "del" }[sign] || "same"}>${sign} ${name}  ${text}${"\n"}</span>`)}</pre>`}
  </section>`;
}

function Said({ past, agent }) {
  const known = new Set(past.history.map((each) => each.message_id));
  const waiting = past.waiting.filter((each) => !known.has(each.message_id)).map((each) => ({ ...each, waits: true }));
  const messages = [...past.history, ...waiting];
  return html`<section class="panel" aria-label="Conversation"><h2>Conversation up to this record <span class="dim">${counted(past.history.length, "message")}${waiting.length ? `, ${waiting.length} wait` : ""}</span></h2>
    <div class="chat bounded" tabindex="0" role="group" aria-label="Messages">${messages.length === 0 && html`<p class="dim">Nothing.</p>`}
      ${messages.map(
        (each) => html`<div class="msg ${each.sender.kind === "user" ? "user" : ""}" key=${each.message_id}><b>${each.sender.kind === "assistant" ? agent : each.sender.name || each.sender.kind}${each.waits ? " (waits)" : ""}</b><div>
          ${each.parts.map((part) => html`<${Part} part=${part} />`)}</div></div>`,
      )}</div></section>`;
}

function Part({ part }) {
  if (part.type === "text") return html`<p>${part.text}</p>`;
  if (part.type === "call") return html`<p class="mono">${part.name}(${JSON.stringify(part.arguments)})</p>`;
  if (part.type === "result") return html`<p class="mono">${part.tool} → ${part.error || part.content}${part.truncated ? " …" : ""}</p>`;
  return html`<p class="dim">${part.type} ${part.name || part.media_type || ""}</p>`;
}

// The next model request, built by the current code of the agent; loaded when it is opened.
function ModelView({ session, at }) {
  const [isOpen, setOpen] = useState(false);
  const view = useAsked((signal) => (isOpen ? get(path("sessions", session.id, "at", String(at), "request"), { agent: session.agent }, { signal }) : null), [at, isOpen]);
  const { request } = view.data || {};
  return html`<section class="panel" aria-label="Next model request"><details class="view" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>Next model request${request && html` <span class="dim">about ${counted(request.tokens, "token")}, ${count(request.messages.length)} of ${counted(request.of_messages, "message")}</span>`}</summary>
    ${isOpen && view.error && html`<${Failed} error=${view.error} what="The request" again=${view.again} />`}
    ${isOpen && !view.data && !view.error && html`<${Loading} what="the request" />`}
    ${view.data && !request && html`<p class="b dim">No model call follows this record.</p>`}
    ${request && html`${!request.is_same_prompt && html`<p class="err">The current system prompt or tools differ from the recorded ones.</p>`}
      ${request.system && html`<pre tabindex="0" aria-label="System prompt">${request.system}</pre>`}
      ${request.tools.length > 0 && html`<p class="b dim">Tools: ${request.tools.map((each) => each.name).join(", ")}</p>`}
      <div class="chat bounded" tabindex="0" role="group" aria-label="Messages of the request">
        ${request.messages.map((each, place) => html`<div class="msg ${each.role === "user" ? "user" : ""}" key=${place}><b>${each.role}</b><div>${each.parts.map((part) => html`<${Part} part=${part} />`)}</div></div>`)}
      </div>`}
  </details></section>`;
}

function Fork({ session, at, onClose }) {
  const [state, setState] = useState({ busy: false, error: null });
  const open = useOpen();
  const send = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const body = { at };
    if (form.get("id")) body.session_id = form.get("id");
    if (form.get("message")) body.input = form.get("message");
    setState({ busy: true, error: null });
    try {
      open(sessionLink(await ask("POST", path("sessions", session.id, "fork"), { query: { agent: session.agent }, body })));
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return html`<${Modal} label="Fork from record ${at}" onClose=${onClose}><form class="stack" onSubmit=${send}>
    <h2>Fork from record ${at}</h2>
    <p class="dim">Creates an independent copy of the session as of this record. An open turn resumes in the copy at once. The original is unchanged.</p>
    ${state.error && html`<p class="err" role="alert">${state.error.message}</p>`}
    <label for="fork-message">Message to the copy</label>
    <textarea id="fork-message" name="message" rows="3" placeholder="empty: send no message"></textarea>
    <label for="fork-id">Its id</label>
    <input id="fork-id" name="id" pattern="[A-Za-z0-9._\\-]{1,128}" placeholder="generated" />
    <div class="row"><button class="btn main" disabled=${state.busy}>Fork</button><button class="btn" type="button" onClick=${onClose}>Cancel</button></div>
  </form></${Modal}>`;
}

function useKeys(keys) {
  const known = useRef(keys);
  known.current = keys;
  useLayoutEffect(() => {
    const pressed = (event) => {
      if (event.target.closest("input:not([type=range]), textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
      const act = known.current[event.key];
      if (!act) return;
      event.preventDefault(); // or the key is typed into the field that it opens
      act();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

function Past({ session, wanted }) {
  const last = session.records;
  const [at, setAt] = useState(Math.min(Math.max(1, wanted || last), last));
  const [forks, setForks] = useState(false);
  const go = (number) => setAt(Math.min(Math.max(1, number), last));
  useKeys({ "[": () => go(at - 1), "]": () => go(at + 1), F: () => may("chat") && setForks(true) });
  // Synchronously: a later update would revert a navigation in between.
  useLayoutEffect(() => history.replaceState(null, "", journalLink(session, at)), [at]);
  const query = { agent: session.agent };
  const begin = Math.max(0, Math.floor((at - 1) / SPAN) * SPAN - SPAN);
  const written = useAsked((signal) => get(path("sessions", session.id, "records"), { ...query, after: begin, limit: 3 * SPAN }, { signal }), [begin, last]);
  const past = useAsked(async (signal) => {
    if (!written.data) return null; // they tell where the turn began
    const begun = written.data.items.findLast((each) => each.number < at && each.record.type === "appended" && !each.record.joins)?.number;
    const [now, before] = await Promise.all([
      get(path("sessions", session.id, "at", String(at)), query, { signal }),
      begun > 1 ? get(path("sessions", session.id, "state"), { ...query, at: begun }, { signal }) : null,
    ]);
    return { now, before };
  }, [at, written.data === null]);
  return html`<div class="head"><h1>Journal</h1><p>session <a class="mono" href=${sessionLink(session)}>${session.id}</a> of ${session.agent}, ${counted(last, "record")}</p><span class="sp"></span>
      <${Compare} session=${session} /><${Export} session=${session} />
      ${may("chat") && html`<button class="btn main" onClick=${() => setForks(true)}>Fork from ${count(at)} <kbd>F</kbd></button>`}</div>
    <${Scrubber} at=${at} last=${last} digest=${past.data?.now.digest} go=${go} />
    ${written.error && html`<${Failed} error=${written.error} what="The list of records" again=${written.again} />`}
    ${past.error && html`<${Failed} error=${past.error} what="The session after record ${at}" again=${past.again} />`}
    <div class="two even">
      <section class="panel" aria-label="Records">${written.data ? html`<${Records} rows=${written.data.items} at=${at} go=${go} />` : !written.error && html`<${Loading} what="records" />`}</section>
      <div class="stack" aria-busy=${past.data?.now.number !== at}>${past.data
        ? html`<${State} past=${past.data.now} before=${past.data.before} /><${Said} past=${past.data.now} agent=${session.agent} /><${ModelView} session=${session} at=${at} />`
        : !past.error && !written.error && html`<${Loading} what="the session after record ${at}" />`}</div>
    </div>
    ${forks && html`<${Fork} session=${session} at=${at} onClose=${() => setForks(false)} />`}`;
}

function Difference({ found }) {
  const { number, difference } = found;
  if (!difference) return html`<p>The current code gives the same results up to record ${number}.</p>`;
  return html`<p>The first difference is at record ${difference.step}.</p>
    <h3>Recorded</h3><pre tabindex="0">${difference.recorded}</pre><h3>Today</h3><pre tabindex="0">${difference.replayed}</pre>`;
}

// The file of `actgent journal export`, saved by the browser.
function Export({ session }) {
  const [state, setState] = useState({ busy: false, error: null });
  const run = async () => {
    setState({ busy: true, error: null });
    try {
      const url = URL.createObjectURL(await blob(path("sessions", session.id, "export"), { agent: session.agent }));
      const link = document.createElement("a");
      Object.assign(link, { href: url, download: `${session.id.replace(/[^\w.-]/g, "_")}.session` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60000);
      setState({ busy: false, error: null });
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return html`<button class="btn" disabled=${state.busy} onClick=${run}>Export</button>${state.error && html`<p class="err" role="alert">${state.error.message}</p>`}`;
}

function Compare({ session }) {
  const [state, setState] = useState({ busy: false, error: null, found: null });
  const run = async () => {
    setState({ busy: true, error: null, found: null });
    try {
      setState({ busy: false, error: null, found: await ask("POST", path("sessions", session.id, "compare"), { query: { agent: session.agent }, body: {} }) });
    } catch (error) {
      setState({ busy: false, error, found: null });
    }
  };
  const close = () => setState({ busy: false, error: null, found: null });
  return html`<button class="btn" disabled=${state.busy} onClick=${run}>Compare with current code</button>
    ${(state.found || state.error) &&
    html`<${Modal} label="Compared with current code" onClose=${close}><div class="stack compared"><h2>Compared with current code</h2>
      ${state.error ? html`<p class="err" role="alert">${state.error.message}</p>` : html`<${Difference} found=${state.found} />`}
      <button class="btn" onClick=${close}>Close</button></div></${Modal}>`}`;
}

function Choice() {
  const list = usePolled((signal) => get("/sessions", { limit: 20 }, { signal }), [], { on: ({ name }) => name === "head" });
  const find = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    location.hash = `#/journal/${encodeURIComponent(form.get("id").trim())}`;
  };
  return html`<div class="head"><h1>Journal</h1><p>the state of a session after each record</p></div>
    <form class="panel" onSubmit=${find}><div class="b row"><label for="journal-id">Session</label><input id="journal-id" name="id" required placeholder="its id" /><button class="btn main">Look</button></div></form>
    ${list.error && html`<${Failed} error=${list.error} what="The list" again=${list.again} since=${list.at} />`}
    ${!list.data && !list.error && html`<${Loading} what="sessions" />`}
    ${list.data && (list.data.items.length === 0
      ? html`<${Empty} title="No sessions here">Sessions appear as soon as an agent receives a message.</${Empty}>`
      : html`<section class="panel" aria-label="Latest changes"><h2>Latest changes</h2><ul class="plain">
          ${list.data.items.map((each) => html`<li key=${each.agent + each.id}><a class="mono" href=${journalLink(each)}>${each.id}</a> <span class="dim">${each.agent} for ${each.owner}, ${counted(each.records, "record")}, <${Ago} at=${each.updated_at} /></span> <${Tag} state=${each.status} /></li>`)}
        </ul></section>`)}`;
}

function Chosen({ id, query }) {
  const head = usePolled((signal) => get(path("sessions", id), { agent: query.agent }, { signal }), [id, query.agent], { on: ({ name, data }) => name === "head" && data.id === id });
  if (!head.data) return head.error ? html`<${Failed} error=${head.error} what="Session ${id}" again=${head.again} />` : html`<${Loading} what="session ${id}" />`;
  return html`${head.error && html`<${Failed} error=${head.error} what="The session" again=${head.again} since=${head.at} />`}
    <${Past} key=${id} session=${head.data} wanted=${Number(query.at)} />`;
}

export function Journal({ parts, query }) {
  if (!may("journal")) return html`<div class="head"><h1>Journal</h1></div><div class="panel"><${Empty} title="This key does not show it">Reading records requires the scope journal.</${Empty}></div>`;
  return parts[1] ? html`<${Chosen} key=${parts[1]} id=${parts[1]} query=${query} />` : html`<${Choice} />`;
}
