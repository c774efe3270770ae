// One session: its turns with partial answers, its cost, and controls to send, interrupt and decide.

import { Component } from "../vendor/preact.js";
import { useEffect, useLayoutEffect, useRef, useState } from "../vendor/hooks.js";
import { ask, get, may, path } from "../api.js";
import { Ago, Empty, Failed, Live, Loading, Tag, compareLink, count, counted, html, journalLink, lasted, money, sessionLink, tagLink, traceLink, turnLink, useOpen, usePolled } from "../parts.js";
import { Markdown } from "../markdown.js";
import { AddButton } from "./add-to-dataset.js";
import { Decision } from "./approvals.js";
import { MessageBox, contentOf, filesOf, useFiles, useRequestId } from "./compose.js";
import { Feedback } from "./feedback.js";
import { useStory } from "./feed.js";
import { Media } from "./media.js";
import { timesOf } from "./story.js";

const NEAR = 120; // pixels below the end of the page that still count as its end
const BLOCK = 10; // turns that are rendered together, and only if one of them has changed
const MINUTE = 60000; // after this time unchanged turns are rendered again, because they show their age

function Call({ part, session }) {
  const { call, result } = part;
  const [kind, word] = result ? (result.status === "success" ? ["ok", "success"] : ["bad", result.status.replace("_", " ")]) : part.waits ? ["wait", "waits"] : ["run", "runs"];
  return html`<details class="call">
    <summary><span class="tag ${kind}">${word}</span><b class="mono">${call.name}</b><span class="mono short">${JSON.stringify(call.arguments)}</span></summary>
    <pre tabindex="0">${JSON.stringify(call.arguments, null, 2)}</pre>
    ${result?.origin && html`<p class="source">Untrusted text from ${result.origin}</p>`}
    ${result && html`<pre tabindex="0">${result.error ? `${result.error}\n` : ""}${result.content}${result.truncated ? "\n… (more in the journal)" : ""}</pre>`}
  </details>
  ${part.progress && !result && html`<${Progress} progress=${part.progress} />`}
  ${result?.media?.length > 0 && html`<${Media} media=${result.media} session=${session} who=${call.name} />`}`;
}

// Progress of a running tool: `done` of `total`, and its text.
function Progress({ progress: { done, total, text } }) {
  return html`<p class="progress dim" role="status">${total > 0 && html`<progress value=${done} max=${total} aria-label="Progress of the tool"></progress> `}${[total > 0 ? `${count(done)} of ${count(total)}` : done != null ? count(done) : "", text].filter(Boolean).join(" · ")}</p>`;
}

// Sends another text in place of a message: to a copy of the session that ends before the message.
function Edit({ part, session, onClose }) {
  const [state, setState] = useState({ busy: false, error: null, isLoaded: part.media.length === 0 });
  const files = useFiles();
  const keyOf = useRequestId();
  const open = useOpen();
  useEffect(() => {
    if (!part.media.length) return;
    filesOf(part.media, session).then(
      (found) => (files.add(found), setState((now) => ({ ...now, isLoaded: true }))),
      (error) => setState({ busy: false, error, isLoaded: false }),
    );
  }, []);
  const send = async (event) => {
    event.preventDefault();
    const text = new FormData(event.target).get("text");
    setState({ ...state, busy: true, error: null });
    try {
      const body = { at: part.record - 1, input: await contentOf(text, files.files) };
      open(sessionLink(await ask("POST", path("sessions", session.id, "fork"), { query: { agent: session.agent }, body, headers: { "idempotency-key": keyOf(body) } })));
    } catch (error) {
      setState({ ...state, busy: false, error });
    }
  };
  const keys = (event) => event.key === "Escape" && onClose();
  return html`<form class="stack tight" aria-label="Edit and resend" onSubmit=${send} onKeyDown=${keys}>
    ${state.error && html`<p class="err" role="alert">It was not sent: ${state.error.message}</p>`}
    <${MessageBox} files=${files} label="Edited message" text=${part.text} rows=${Math.min(12, part.text.split("\n").length + 1)} focus=${true} />
    <p class="dim">The edited message goes to a copy of the session as it was before this message. This session does not change.</p>
    <div class="row"><button class="btn main" disabled=${state.busy || !state.isLoaded}>Send to a copy</button><button class="btn" type="button" onClick=${onClose}>Cancel</button></div>
  </form>`;
}

function Said({ part, session }) {
  const [edits, setEdits] = useState(false);
  if (edits) return html`<${Edit} part=${part} session=${session} onClose=${() => setEdits(false)} />`;
  const isEditable = may("chat") && part.by === "user" && part.record > 1 && !session.parent;
  return html`${part.text && html`<p>${part.text}</p>`}<${Media} media=${part.media} session=${session} who=${part.who} />
    ${isEditable && html`<button class="link edit" onClick=${() => setEdits(true)}>Edit and resend</button>`}`;
}

function Part({ part, session, onDone }) {
  const { agent } = session;
  const who = part.kind === "said" ? part.who : agent;
  const body = {
    said: () => html`<${Said} part=${part} session=${session} />`,
    answer: () => html`<${Markdown} text=${part.text} />${part.cut ? html`<p class="dim">(cut)</p>` : ""}`,
    call: () => html`<${Call} part=${part} session=${session} />`,
    data: () => html`<details class="call"><summary><b class="mono">${part.name}</b></summary><pre tabindex="0">${JSON.stringify(part.data, null, 2)}</pre></details>`,
    approval: () =>
      part.word
        ? html`<p class="dim">${part.approval.tool} was ${part.word}${part.by ? ` by ${part.by}` : ""}</p>`
        : html`<${Decision} approval=${part.approval} onDone=${onDone} />`,
    failed: () => html`<p class="err"><b>${part.failed}</b> ${part.words.replace(`${part.failed}: `, "")}</p>`,
  }[part.kind];
  return html`<div class="msg ${part.kind === "said" && part.by === "user" ? "user" : ""}"><b>${who}</b><div>${body()}</div></div>`;
}

const OVER = ["answered", "failed"];

function Turn({ turn, session, growing, onDone, number }) {
  const times = timesOf(turn);
  const record = turn.parts.find((each) => each.kind === "said")?.record;
  return html`<article class="turn" data-turn=${turn.id} aria-label=${`Turn ${number}`.trim()} aria-busy=${turn.phase === "working"}>
    <div class="about"><b>${record ? html`<a href=${turnLink(session, record)} title="Link to this turn">Turn ${number}</a>` : `Turn ${number}`}</b> <${Ago} at=${turn.at} /><${Tag} state=${turn.phase} />
      <span class="sp"></span>
      <span>${counted(turn.calls, "model call")}</span><span>${counted(turn.tokens, "token")}</span><span>${money(turn.cost)}</span>
      ${times && html`<span title="From the start of the turn to its end. The wait in the inbox is before the start.">${times}</span>`}
      <a href=${traceLink(session, turn)} aria-label=${`Trace of turn ${number}`.trim()}>Trace</a></div>
    ${turn.parts.map((part, place) => html`<${Part} key=${place} part=${part} session=${session} onDone=${onDone} />`)}
    ${OVER.includes(turn.phase) && html`<${Feedback} turn=${turn} session=${session} />`}
    ${growing && html`<div class="msg"><b>${session.agent}</b><div><${Markdown} text=${growing.text} /><span class="caret"></span></div></div>`}
  </article>`;
}

// Renders its children again only if `stamp` has changed.
class Block extends Component {
  shouldComponentUpdate(next) {
    return next.stamp !== this.props.stamp;
  }

  render({ draw }) {
    return html`<div class="block">${draw()}</div>`;
  }
}

// Turns in blocks. The browser skips layout and painting of blocks that are not on the screen.
function Turns({ story, isWhole, session, onDone }) {
  const { turns } = story;
  const anchor = useRef(turns[0].id); // blocks are counted from this turn, so that earlier pages do not shift them
  if (!story.byId.has(anchor.current)) anchor.current = turns[0].id; // another part of the session loads
  const blocks = [];
  let begin = 0;
  for (let end = story.byId.get(anchor.current).number % BLOCK || BLOCK; begin < turns.length; end += BLOCK) {
    blocks.push([begin, Math.min(end, turns.length)]);
    begin = end;
  }
  const draw = (begin, end) => () =>
    turns.slice(begin, end).map((turn) => html`<${Turn} key=${turn.id} number=${isWhole ? turn.number + 1 : ""} turn=${turn} session=${session} growing=${story.growing?.turn === turn.id && story.growing} onDone=${onDone} />`);
  return blocks.map(([begin, end]) => {
    const stamp = [isWhole, Math.floor(Date.now() / MINUTE), end - begin, ...turns.slice(begin, end).map((turn) => turn.version), story.growing?.turn === turns[end - 1].id].join();
    return html`<${Block} key=${turns[begin].id} stamp=${stamp} draw=${draw(begin, end)} />`;
  });
}

// The state of the program. Names that begin with an underscore belong to actgent.
const visible = (state) => Object.fromEntries(Object.entries(state).filter(([name]) => !name.startsWith("_")));

function Timeline({ turn, session }) {
  if (!turn?.spans.length) return null;
  const begin = Math.min(...turn.spans.map((each) => each.begin));
  const whole = Math.max(1, Math.max(...turn.spans.map((each) => each.end)) - begin);
  return html`<section class="panel" aria-label="Timeline of the last turn"><h2>Timeline <span class="dim">the last turn</span><span class="sp"></span><a href=${traceLink(session, turn)}>Open the trace</a></h2>
    <div class="tl">
      ${turn.spans.map(
        (each) => html`<span>${each.label}</span>
          <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect class=${each.kind} x=${((each.begin - begin) / whole) * 100} width=${Math.max(0.7, ((each.end - each.begin) / whole) * 100)} height="10" /></svg>
          <span>${lasted(each.end - each.begin)}</span>`,
      )}
    </div></section>`;
}

function Say({ id, agent, closed }) {
  const [state, setState] = useState({ busy: false, error: null });
  const box = useRef(null);
  const files = useFiles();
  const idOf = useRequestId();
  const sent = useRef(0); // messages that were accepted: an equal text after them is another message
  const send = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const text = box.current.value;
    const attached = files.files;
    setState({ busy: true, error: null });
    try {
      const body = { input: await contentOf(text, attached), priority: form.get("priority"), on_busy: form.get("on_busy") };
      await ask("POST", path("sessions", id, "messages"), { query: { agent }, body: { ...body, message_id: idOf({ ...body, sent: sent.current }) } });
      sent.current += 1;
      if (!box.current) return; // another page is shown
      if (box.current.value.startsWith(text)) box.current.value = box.current.value.slice(text.length); // the rest was typed during the request
      event.target.elements.priority.value = "normal"; // the next message must not stop a turn by accident
      attached.forEach(files.remove);
      setState({ busy: false, error: null });
      if (document.activeElement === document.body) box.current.focus(); // the disabled button has lost the focus
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  if (closed) return html`<p class="empty">This session is closed.</p>`;
  return html`<form class="say" onSubmit=${send}>
    ${state.error && html`<p class="err" role="alert">It was not sent: ${state.error.message}</p>`}
    <${MessageBox} files=${files} label="Message" placeholder="Message to ${agent}" box=${box} />
    <div class="row">
      <select name="priority" aria-label="Priority"><option value="normal">Normal</option><option value="urgent">Urgent: stops the running turn</option><option value="high">High</option><option value="low">Low</option></select>
      <select name="on_busy" aria-label="During a running turn"><option value="queue">is queued</option><option value="interrupt">interrupts</option><option value="collect">is answered with others</option></select>
      <span class="sp"></span><button class="btn main" disabled=${state.busy}>Send <kbd>Ctrl ⏎</kbd></button>
    </div>
  </form>`;
}

// Loads earlier events when their button comes near the window, and keeps what is shown in its place.
function Earlier({ begin, earlier, error }) {
  const box = useRef(null);
  const load = async () => {
    const main = document.querySelector("main");
    const first = main.querySelector(".turn");
    const before = first?.getBoundingClientRect().top;
    await earlier();
    requestAnimationFrame(() =>
      requestAnimationFrame(() => {
        const moved = first?.isConnected ? first.getBoundingClientRect().top - before : 0;
        if (main.scrollTop < 2 && moved > 0) main.scrollTop += moved; // browsers keep the place themselves unless at the top
      }),
    );
  };
  useEffect(() => {
    const observer = new IntersectionObserver((found) => found.some((each) => each.isIntersecting) && load(), { root: document.querySelector("main"), rootMargin: "400px 0px 0px" });
    observer.observe(box.current);
    return () => observer.disconnect();
  }, [begin]);
  return html`<button class="btn wide" ref=${box} onClick=${load}>${error ? `Earlier turns could not be loaded (${error.message}). Try again` : `Show earlier (${counted(begin, "record")} before)`}</button>`;
}

// The tags and metadata of a session. One field adds a tag, or sets a value with `key=value`.
function Annotations({ session, again }) {
  const [state, setState] = useState({ busy: false, error: null });
  const change = async (body) => {
    setState({ busy: true, error: null });
    try {
      await ask("PATCH", path("sessions", session.id), { query: { agent: session.agent }, body });
      again();
      setState({ busy: false, error: null });
      return true;
    } catch (error) {
      setState({ busy: false, error });
      return false;
    }
  };
  const add = async (event) => {
    event.preventDefault();
    const form = event.target;
    const text = new FormData(form).get("annotation").trim();
    const [, key, value] = /^([\w.-]+)=(.*)$/.exec(text) || [];
    if (text && (await change(key ? { metadata: { [key]: value } } : { add_tags: [text] }))) form.reset();
  };
  const gone = (words, body) => may("chat") && html` <button class="link" disabled=${state.busy} aria-label="Remove ${words}" onClick=${() => change(body)}>×</button>`;
  return html`<section class="panel" aria-label="Tags"><h2>Tags</h2><div class="b stack tight">
    ${state.error && html`<p class="err" role="alert">It was not changed: ${state.error.message}</p>`}
    ${session.tags.length > 0 && html`<p class="row">${session.tags.map((tag) => html`<span key=${tag}><a class="tag flat" href=${tagLink(tag)}>${tag}</a>${gone(`the tag ${tag}`, { remove_tags: [tag] })}</span>`)}</p>`}
    ${Object.keys(session.metadata).length > 0 && html`<dl class="kv">${Object.entries(session.metadata).map(([key, value]) => html`<dt>${key}</dt><dd>${value}${gone(key, { metadata: { [key]: null } })}</dd>`)}</dl>`}
    ${may("chat")
      ? html`<form class="row" onSubmit=${add}><input name="annotation" aria-label="A tag, or key=value" placeholder="a tag, or key=value" autocomplete="off" maxlength="600" /><button class="btn" disabled=${state.busy}>Add</button></form>`
      : session.tags.length + Object.keys(session.metadata).length === 0 && html`<p class="dim">This session has no tags.</p>`}
  </div></section>`;
}

const STOPPABLE = ["working", "waiting", "suspended", "queued"];

const SCROLL_INPUTS = ["wheel", "touchmove", "keydown", "pointerdown"];

// Scrolls to the turn that has the record as soon as it is loaded, and marks it. Until the user scrolls or types, the turn
// keeps its place while other turns load. Returns a function that scrolls to that turn again, or returns false.
function useTarget(story, at) {
  const target = useRef({ at: 0, id: null, kept: false });
  const article = () => document.querySelector(`article[data-turn="${CSS.escape(target.current.id)}"]`);
  const keep = () => target.current.kept && (article()?.scrollIntoView({ block: "start" }), true);
  useEffect(() => {
    const main = document.querySelector("main");
    const release = () => (target.current.kept = false);
    for (const each of SCROLL_INPUTS) main.addEventListener(each, release, { passive: true });
    return () => SCROLL_INPUTS.forEach((each) => main.removeEventListener(each, release));
  }, []);
  useEffect(() => {
    if (at && target.current.at !== at && story?.last >= at) {
      const recordOf = (turn) => turn.parts.find((each) => each.kind === "said")?.record || Infinity;
      const turn = story.turns.findLast((each) => recordOf(each) <= at);
      if (turn) {
        target.current = { at, id: turn.id, kept: true };
        requestAnimationFrame(() => (keep(), requestAnimationFrame(keep))); // the first one renders the blocks in between
      }
    }
    const marked = document.querySelector(".turn.target"); // earlier turns that load can replace the element
    if (target.current.id === null || marked?.dataset.turn === target.current.id) return;
    marked?.classList.remove("target");
    article()?.classList.add("target");
  });
  return keep;
}

export function Session({ id, agent, query }) {
  const at = Number(query.at) || 0;
  const [oldest, setOldest] = useState(at);
  const head = usePolled((signal) => get(path("sessions", id), { agent }, { signal }), [id, agent], { on: ({ name, data }) => name === "head" && data.id === id });
  const [first, setFirst] = useState(undefined);
  const [failure, setFailure] = useState(null);
  useEffect(() => {
    if (head.data && first === undefined) setFirst(head.data.records);
  }, [head.data]);
  const { story, link, first: begin, earlier, error: missed } = useStory(id, head.data?.agent, first, oldest);
  useEffect(() => {
    if (at && at <= begin) setOldest(at); // a link to a turn that is not loaded
  }, [at]);
  const end = useRef(null);
  const isAtEnd = useRef(!at); // the view is at the end of the messages, and follows new ones
  const keepTarget = useTarget(story, at);
  useEffect(() => {
    const main = document.querySelector("main");
    const scrolled = () => {
      const [place, seen] = [end.current?.getBoundingClientRect().top, main.getBoundingClientRect()];
      isAtEnd.current = place === undefined || (place > seen.top && place < seen.bottom + NEAR);
    };
    main.addEventListener("scroll", scrolled, { passive: true });
    return () => main.removeEventListener("scroll", scrolled);
  }, []);
  const isThere = Boolean(head.data);
  useLayoutEffect(() => {
    if (!isThere) return undefined;
    const grown = new ResizeObserver(() => keepTarget() || (isAtEnd.current && end.current?.scrollIntoView({ block: "end" }))); // also by pictures
    grown.observe(end.current.previousElementSibling);
    return () => grown.disconnect();
  }, [isThere]);
  if (!head.data) return head.error ? html`<${Failed} error=${head.error} what="Session ${id}" again=${head.again} />` : html`<${Loading} what="session ${id}" />`;
  const about = head.data;
  const act = (verb, target, body) => async () => {
    try {
      setFailure(null);
      await ask(verb, target, { query: { agent: about.agent }, body });
      head.again();
    } catch (error) {
      setFailure(error);
    }
  };
  const close = () => confirm(`Close session ${id}? Its running turn is stopped.`) && act("POST", path("sessions", id, "close"), {})();
  const status = story?.closed ? "closed" : about.status;
  const isTold = story?.turns.length > 0;
  const stop = act("POST", path("sessions", id, "interrupt"), { reason: "by a person" });
  return html`<div class="head fixed"><h1 class="mono">${id}</h1><p>${about.agent} for ${about.owner}</p>
      <span class="sp"></span><div class="row"><${Tag} state=${status} />
      <${Live} live=${link.live} again=${link.again} words=${story?.closed ? "ended" : undefined} />
      ${may("journal") && html`<a class="btn" href=${journalLink(about)}>Journal</a>`}
      <a class="btn" data-shortcut="t" href=${traceLink(about, story?.turns.at(-1))}>Trace <kbd>t</kbd></a>
      <a class="btn" href=${compareLink(about)}>Compare</a>
      ${OVER.includes(story?.turns.at(-1)?.phase) && may("admin") && html`<${AddButton} session=${about} turn=${story.turns.at(-1)} isWhole=${true} />`}
      ${STOPPABLE.includes(status) && may("chat") && html`<button class="btn bad" onClick=${stop}>Stop</button>`}
      ${status !== "closed" && may("chat") && html`<button class="btn" onClick=${close}>Close</button>`}</div></div>
    ${failure && html`<p class="err" role="alert">${failure.message}</p>`}
    ${head.error && html`<${Failed} error=${head.error} what="The session" again=${head.again} since=${head.at} />`}
    ${link.stale && html`<p class="err" role="alert">An older copy of the journal was restored: <a href="" onClick=${() => location.reload()}>load again</a>.</p>`}
    <div class="two"><section class="panel" aria-label="Conversation">
      ${begin > 0 && isTold && html`<${Earlier} begin=${begin} earlier=${earlier} error=${missed} />`}
      <div class="chat" role=${isTold ? "feed" : "status"} aria-label="Turns">
        ${isTold
          ? html`<${Turns} key=${oldest} story=${story} isWhole=${begin === 0} session=${about} onDone=${head.again} />`
          : link.live || story?.closed ? html`<${Empty} title="No messages yet">${may("chat") ? "Send a message below." : "Messages appear here."}</${Empty}>` : html`<${Loading} what="messages" />`}
      </div>
      <div class="end" ref=${end}></div>
      ${(may("chat") || status === "closed") && html`<${Say} id=${id} agent=${about.agent} closed=${status === "closed"} />`}
    </section>
    <div class="stack">
      <${Timeline} turn=${story?.turns.at(-1)} session=${about} />
      <section class="panel" aria-label="Session"><h2>Session</h2><div class="b"><dl class="kv">
        <dt>Agent</dt><dd>${about.agent}</dd><dt>Owner</dt><dd>${about.owner}</dd>
        ${about.mode && html`<dt>Mode</dt><dd>${about.mode}</dd>`}
        <dt>Opened</dt><dd><${Ago} at=${about.created_at} /></dd><dt>Records</dt><dd>${count(about.records)}</dd>
        ${about.usage && html`<dt>Tokens</dt><dd>${count(about.usage.total.input_tokens + about.usage.total.output_tokens)}</dd><dt>Cost</dt><dd>${money(about.usage.total.cost)}</dd>`}
        ${about.budget && Object.entries(about.budget).map(([name, left]) => html`<dt>${name.replaceAll("_", " ")} left</dt><dd>${count(left)}</dd>`)}
        ${about.parent && html`<dt>Works for</dt><dd><a href=${sessionLink(about.parent)}>${about.parent.id}</a></dd>`}
      </dl></div></section>
      <${Annotations} session=${about} again=${head.again} />
      ${about.children?.length > 0 && html`<section class="panel" aria-label="Children"><h2>Child sessions</h2><ul class="plain">${about.children.map((each) => html`<li><a class="mono" href=${sessionLink(each)}>${each.id}</a> <${Tag} state=${each.status} /></li>`)}</ul></section>`}
      ${about.schedules?.length > 0 && html`<section class="panel" aria-label="Schedules"><h2>Schedules</h2><ul class="plain">${about.schedules.map((each) => html`<li>${each.input} <span class="dim">${each.cron || new Date(each.due).toLocaleString()}</span></li>`)}</ul></section>`}
      ${story && Object.keys(visible(story.state)).length > 0 && html`<section class="panel" aria-label="State"><h2>State</h2><pre class="b" tabindex="0">${JSON.stringify(visible(story.state), null, 2)}</pre></section>`}
    </div></div>`;
}
