// The trace of one turn: a waterfall of its model calls, tools, waits, approvals and child sessions, and what each span has done.

import { useEffect, useLayoutEffect, useRef, useState } from "../vendor/hooks.js";
import { get, may, path } from "../api.js";
import { Empty, Failed, Loading, Tag, count, counted, html, lasted, money, sessionLink, traceLink, useOpen, usePolled } from "../parts.js";
import { Markdown } from "../markdown.js";
import { eventPage } from "./feed.js";
import { timesOf } from "./story.js";
import { childrenOf, readTurn, rowsOf, turnBefore } from "./spans.js";

const ZOOM = 1.5;
const MOST_ZOOM = 10000;

const clock = (at) => `${new Date(at).toLocaleTimeString([], { hour12: false })}.${String(Math.floor(at % 1000)).padStart(3, "0")}`;
const said = (turn) => turn.parts.find((each) => each.kind === "said");

// The visible part of the time axis, in milliseconds after the begin of the turn.
function useWindow(whole) {
  const [view, setView] = useState([0, 1]); // shares of the whole
  const clamp = ([from, to]) => {
    const width = Math.min(1, Math.max(1 / MOST_ZOOM, to - from));
    const begin = Math.min(1 - width, Math.max(0, from));
    return [begin, begin + width];
  };
  const zoom = (factor, center = 0.5) => setView(([from, to]) => clamp([from + (to - from) * center * (1 - 1 / factor), to - (to - from) * (1 - center) * (1 - 1 / factor)]));
  const pan = (share) => setView(([from, to]) => clamp([from + (to - from) * share, to + (to - from) * share]));
  const show = (from, to) => setView(clamp([from / whole - 0.02 * ((to - from) / whole), to / whole + 0.02 * ((to - from) / whole)]));
  return { from: view[0] * whole, to: view[1] * whole, isWhole: view[1] - view[0] > 0.999, zoom, pan, show, fit: () => setView([0, 1]) };
}

function Axis({ view }) {
  const marks = [0, 0.25, 0.5, 0.75, 1].map((share) => view.from + (view.to - view.from) * share);
  return html`<div class="axis" aria-hidden="true"><span></span><div>${marks.map((each) => html`<span>${lasted(each)}</span>`)}</div><span></span></div>`;
}

function Row({ row, begin, view, isSelected, onSelect }) {
  const scale = 1000 / (view.to - view.from);
  const x = (row.begin - begin - view.from) * scale;
  const width = Math.max(3, (row.end - row.begin) * scale);
  const [word] = row.kind.split(" ");
  const name = `${row.kind === "child" ? `session of ${row.label}` : row.label}${row.kind.endsWith("bad") ? ", failed" : ""}${row.isOpen ? ", not ended" : ""}`;
  return html`<button class="span d${Math.min(row.depth, 8)}" aria-pressed=${isSelected} data-key=${row.key} onClick=${() => onSelect(row)} onDblClick=${() => view.show(row.begin - begin, row.end - begin)}>
    <span class="cut ${row.kind.endsWith("bad") ? "failed" : ""}" title=${row.label}>${name}</span>
    <svg viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true"><rect class="${row.kind} ${row.isOpen ? "open" : ""}" x=${Math.min(1e6, Math.max(-1e6, x))} width=${Math.min(2e6, width)} height="10" /></svg>
    <span class="r">${lasted(row.end - row.begin)}<span class="hidden"> ${word}, begins after ${lasted(row.begin - begin)}</span></span>
  </button>`;
}

function Waterfall({ rows, begin, whole, selected, onSelect }) {
  const box = useRef(null);
  const view = useWindow(whole);
  const known = useRef(view);
  known.current = view;
  useEffect(() => {
    const wheel = (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // plain scrolling moves the page
      event.preventDefault();
      const track = box.current.querySelector("svg")?.getBoundingClientRect();
      known.current.zoom(event.deltaY < 0 ? ZOOM : 1 / ZOOM, track ? Math.min(1, Math.max(0, (event.clientX - track.left) / track.width)) : 0.5);
    };
    const { current } = box;
    current.addEventListener("wheel", wheel, { passive: false });
    return () => current.removeEventListener("wheel", wheel);
  }, []);
  const keys = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const act = { "+": () => view.zoom(ZOOM), "=": () => view.zoom(ZOOM), "-": () => view.zoom(1 / ZOOM), 0: view.fit, ArrowRight: () => view.pan(0.25), ArrowLeft: () => view.pan(-0.25) }[event.key];
    if (!move && !act) return;
    event.preventDefault();
    if (act) return act();
    const buttons = [...box.current.querySelectorAll("button.span")];
    const at = buttons.includes(document.activeElement) ? document.activeElement : buttons.find((each) => each.getAttribute("aria-pressed") === "true");
    const next = buttons[Math.min(buttons.length - 1, Math.max(0, buttons.indexOf(at) + move))];
    next?.focus();
    next?.click();
  };
  useKeys(Object.fromEntries(["ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight", "+", "=", "-", "0"].map((key) => [key, (event) => box.current.contains(event.target) || event.target.closest("pre, button, a, summary") || keys(event)])));
  return html`<section class="panel" aria-label="Waterfall"><h2>Waterfall <span class="sp"></span>
      <div class="row zoom" role="group" aria-label="Zoom"><button class="btn" aria-label="Earlier" disabled=${view.isWhole} onClick=${() => view.pan(-0.5)}>◀</button><button class="btn" aria-label="Zoom out" disabled=${view.isWhole} onClick=${() => view.zoom(1 / ZOOM)}>−</button>
      <button class="btn" aria-label="Zoom in" onClick=${() => view.zoom(ZOOM)}>+</button><button class="btn" aria-label="Later" disabled=${view.isWhole} onClick=${() => view.pan(0.5)}>▶</button><button class="btn" disabled=${view.isWhole} onClick=${view.fit}>Whole turn</button></div></h2>
    <div class="spans" ref=${box} onKeyDown=${keys} role="group" aria-label="Spans; arrow keys select, + and - zoom">
      <${Axis} view=${view} />
      ${rows.map((row) => html`<${Row} key=${row.key} row=${row} begin=${begin} view=${view} isSelected=${row.key === selected} onSelect=${onSelect} />`)}
    </div></section>`;
}

const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));
const Code = ({ label, value }) => html`<h3>${label}</h3><pre tabindex="0" role="group" aria-label=${label}>${pretty(value)}</pre>`;

// Content that is requested when its heading is opened.
function Loaded({ title, load, show }) {
  const [state, setState] = useState({ isLoaded: false, error: null });
  const open = (event) => {
    if (!event.currentTarget.open || state.isLoaded) return;
    setState({ isLoaded: false, error: null });
    load().then((data) => setState({ isLoaded: true, data, error: null }), (error) => setState({ isLoaded: false, error }));
  };
  return html`<details class="view" onToggle=${open}><summary>${title}</summary>
    ${state.error ? html`<${Failed} error=${state.error} what=${title} />` : state.isLoaded ? show(state.data) : html`<${Loading} what=${title.toLowerCase()} />`}</details>`;
}

function Request({ request }) {
  if (!request) return html`<p class="b dim">The request cannot be rebuilt: no answer of the model follows this record.</p>`;
  const settings = Object.entries(request.settings).filter(([, value]) => value !== null);
  return html`<div class="b stack">
    ${!request.is_same_prompt && html`<p class="err">The current system prompt or tools of the agent differ from those of the call. The differences are not recorded.</p>`}
    <p class="dim">About ${counted(request.tokens, "token")}, ${count(request.messages.length)} of ${counted(request.of_messages, "message")}, memory ${request.memory}</p>
    ${settings.length > 0 ? html`<${Code} label="Settings" value=${Object.fromEntries(settings)} />` : html`<p class="dim">No settings: the defaults of the provider.</p>`}
    ${request.system && html`<${Code} label="System prompt" value=${request.system} />`}
    ${request.messages.map((each, place) => html`<${Code} key=${place} label="${place + 1}. ${each.role}" value=${each.parts.length === 1 && each.parts[0].type === "text" ? each.parts[0].text : each.parts} />`)}
    ${request.tools.map((each) => html`<${Code} key=${each.name} label="Tool ${each.name}" value=${{ description: each.description, parameters: each.parameters }} />`)}
  </div>`;
}

function Model({ row, session }) {
  const { data, record } = row;
  if (!data) return html`<p class="b">${row.isOpen ? "The model has not answered yet." : html`The call failed: ${row.failure?.error?.text || row.failure?.failed || "no answer"}`}</p>`;
  const { usage } = data;
  const query = { agent: session.agent };
  const facts = {
    Model: data.model || "unknown", "Stop reason": data.stop || "–",
    "Waited for rate limits": data.waited ? lasted(data.waited * 1000) : null, "Failed attempts before the answer": data.failures || null, "Repeated after unreadable answers": data.repairs || null,
    "Input tokens": count(usage.input_tokens), "of these cached": usage.cached_tokens ? count(usage.cached_tokens) : null, "written to the cache": usage.cache_write_tokens ? count(usage.cache_write_tokens) : null,
    "Output tokens": count(usage.output_tokens), "of these reasoning": usage.reasoning_tokens ? count(usage.reasoning_tokens) : null, Cost: money(usage.cost),
  };
  return html`<div class="b stack"><${Facts} facts=${facts} />
      ${data.text && html`<h3>Answer</h3><${Markdown} text=${data.text} />`}
      ${data.calls.map((each) => html`<${Code} key=${each.id} label="Calls ${each.name}" value=${each.arguments} />`)}</div>
    ${may("journal") && html`<${Loaded} key=${`request ${record}`} title="Request as it was sent" load=${() => get(path("sessions", session.id, "at", String(record), "request"), query)} show=${(found) => html`<${Request} request=${found.request} />`} />
    <${Loaded} key=${`answer ${record}`} title="Answer as it was received" load=${() => get(path("sessions", session.id, "records"), { ...query, after: record - 1, limit: 1 })} show=${(found) => html`<div class="b stack"><${Code} label="Record ${record}" value=${found.items[0]?.record} /></div>`} />`}`;
}

const Facts = ({ facts }) => html`<dl class="kv">${Object.entries(facts).filter(([, value]) => value !== null).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;

function ToolCall({ row, session }) {
  const { data, record } = row;
  const whole = async () => (await eventPage(session.id, { agent: session.agent, after: record - 1, limit: 1, whole: "true" })).items.find((each) => each.data.call_id === row.call.id)?.data;
  return html`<div class="b stack">
    <${Facts} facts=${{ Status: data ? data.status.replace("_", " ") : "runs", "Untrusted text from": data?.origin || null }} />
    <${Code} label="Arguments" value=${row.call.arguments} />
    ${data?.error && html`<${Code} label="Error" value=${data.error} />`}
    ${data && !(data.error && !data.content) && html`<${Code} label="Result" value=${data.content} />`}</div>
    ${data?.truncated && html`<${Loaded} key=${record} title="The whole result" load=${whole} show=${(found) => html`<div class="b stack"><${Code} label="Whole result" value=${found?.error || found?.content || ""} /></div>`} />`}`;
}

function Wait({ row }) {
  const { data, waitsFor } = row;
  if (!data) return html`<div class="b stack"><p>${row.kind === "limit" ? "The call waited for the rate limit of the provider." : row.kind === "queue" ? "The message waited for its turn." : "The turn was suspended until approvals or outcomes of other sessions arrived."}</p>${waitsFor?.length > 0 && html`<${Code} label="Waits for" value=${waitsFor} />`}</div>`;
  return html`<div class="b stack"><${Facts} facts=${{ Tool: data.tool, Risk: data.risk || null, Decision: data.word || "open", By: data.by || null }} />
    ${data.question && html`<p class="said">${data.question}</p>`}<${Code} label="Arguments" value=${data.arguments} /></div>`;
}

function Child({ row }) {
  const { session, turn } = row;
  const first = said(turn);
  return html`<div class="b stack"><${Facts} facts=${{ Agent: session.agent, "Model calls": count(turn.calls), Tokens: count(turn.tokens), Cost: money(turn.cost) }} />
    <p><a href=${sessionLink(session)}>Session <span class="mono">${session.id}</span></a> · <a href=${traceLink(session, turn)}>its trace</a></p>
    ${first && html`<${Code} label="Message" value=${first.text} />`}</div>`;
}

const DETAILS = { model: Model, tool: ToolCall, child: Child };

function Detail({ row, begin, session }) {
  const [kind] = row.kind.split(" ");
  return html`<section class="panel detail" aria-label="Selected span"><h2>${row.label} <span class="dim">${clock(row.begin)} – ${row.isOpen ? "now" : clock(row.end)}, ${lasted(row.end - row.begin)}, after ${lasted(row.begin - begin)}</span></h2>
    <${DETAILS[kind] || Wait} key=${row.key} row=${row} session=${row.session || session} /></section>`;
}

function useKeys(keys) {
  const known = useRef(keys);
  known.current = keys;
  useLayoutEffect(() => {
    const pressed = (event) => {
      if (event.target.closest("input, textarea, select, dialog") || document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey || event.altKey) return;
      known.current[event.key]?.(event);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

const isOf = (id) => ({ name, data }) => name === "head" && (data.id === id || data.parent?.id === id);

export function Trace({ id, agent, query }) {
  const shown = useRef({}); // without a turn in the address: the turn that was the last one, also after later turns begin
  if (shown.current.of !== query.turn) shown.current = { of: query.turn, turn: query.turn, at: Number(query.at) || 0 };
  const [selected, setSelected] = useState("");
  const [missing, setMissing] = useState("");
  const read = usePolled(async (signal) => {
    const wanted = shown.current;
    const found = await readTurn(id, agent, wanted.turn, wanted.at, signal);
    if (found.turn) Object.assign(wanted, { turn: found.turn.id, at: said(found.turn)?.record || 0 });
    const children = found.turn ? await childrenOf(found.head, found.turn, signal) : [];
    return { ...found, children, now: Date.now() };
  }, [id, agent, query.turn], { on: isOf(id) });
  const { data } = read;
  const turn = data?.turn;
  const record = turn && said(turn)?.record;
  const session = data?.head || { id, agent };
  const open = useOpen();
  const go = (next, words) => (next ? open(traceLink(session, next)) : setMissing(words));
  const following = turn && data.story.turns.slice(turn.number + 1).find((each) => said(each));
  const previous = () => record && turnBefore(id, session.agent, record).then((found) => go(found, "This is the first turn."), (error) => setMissing(`The previous turn could not be loaded: ${error.message}`));
  useKeys({ "[": previous, "]": () => turn && go(following, "This is the last turn.") });
  useEffect(() => {
    setSelected("");
    setMissing("");
  }, [query.turn]);
  const head = html`<div class="head fixed"><h1>Trace</h1><p>of a turn of <a class="mono" href=${sessionLink(session)}>${id}</a>${turn && html` · ${new Date(turn.at).toLocaleString()}`}</p><span class="sp"></span>
    ${turn && html`<div class="row"><${Tag} state=${turn.phase} /><button class="btn" onClick=${previous}>Previous <kbd>[</kbd></button><button class="btn" disabled=${!following} onClick=${() => go(following, "")}>Next <kbd>]</kbd></button></div>`}</div>
    ${missing && html`<p class="dim" role="status">${missing}</p>`}`;
  if (!data) return html`${head}${read.error ? html`<${Failed} error=${read.error} what="The trace" again=${read.again} />` : html`<${Loading} what="the trace" />`}`;
  if (!turn) return html`${head}<div class="panel"><${Empty} title="No such turn">The session has no turn at this place.</${Empty}></div>`;
  const begin = Date.parse(turn.accepted || turn.at);
  const rows = rowsOf(turn, data.children, data.now);
  const whole = Math.max(1, ...rows.map((each) => each.end - begin));
  const chosen = rows.find((each) => each.key === selected) || rows.reduce((most, each) => (!most || (each.depth === 0 && each.end - each.begin > most.end - most.begin) ? each : most), null);
  return html`${head}
    ${read.error && html`<${Failed} error=${read.error} what="The trace" again=${read.again} since=${read.at} />`}
    <p class="facts">${counted(turn.calls, "model call")} · ${counted(turn.tokens, "token")} · ${money(turn.cost)} · ${timesOf(turn) || `${lasted(whole)} so far`}${said(turn)?.text && html` · <span class="cut">${said(turn).text}</span>`}</p>
    <div class="traces">
      ${rows.length ? html`<${Waterfall} key=${turn.id} rows=${rows} begin=${begin} whole=${whole} selected=${chosen.key} onSelect=${(row) => setSelected(row.key)} />` : html`<div class="panel"><${Empty} title="Nothing has happened yet">The turn has no spans.</${Empty}></div>`}
      ${chosen && html`<${Detail} row=${chosen} begin=${begin} session=${session} />`}
    </div>`;
}
