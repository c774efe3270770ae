// Pending approvals: one at a time, the oldest first, decided by keys or buttons.

import { useEffect, useLayoutEffect, useRef, useState } from "../vendor/hooks.js";
import { ask, get, may, path } from "../api.js";
import { Modal } from "../modal.js";
import { Ago, Empty, Failed, FocusedField, Loading, counted, html, sessionLink } from "../parts.js";
import { FormFields, fieldsOf, valuesOf } from "../form.js";

const BEFORE = 4; // messages that are read to find what was said before
const GRAVE = ["high", "critical"]; // risks that are looked at one by one, as are forms
const SURPRISE = 1000; // milliseconds for which keys are ignored after the shown call was replaced, not by a decision of this page
const sessionOf = (approval) => ({ id: approval.session_id, agent: approval.agent });

// The last message of the user in the session, and the answer of the agent.
function Before({ approval }) {
  const [said, setSaid] = useState([]);
  useEffect(() => {
    const abort = new AbortController();
    const found = get(path("sessions", approval.session_id, "messages"), { agent: approval.agent, limit: BEFORE }, { signal: abort.signal });
    found.then(({ items }) => setSaid(items.filter((each) => each.text)), () => {}); // the session's page says why it is not there
    return () => abort.abort();
  }, [approval.id]);
  if (!said.length) return null;
  return html`<details class="before" open><summary>Said before</summary>
    ${said.map((each) => html`<p key=${each.message_id}><b class="dim">${each.sender.kind === "assistant" ? approval.agent : each.sender.name || each.sender.kind}</b> ${each.text}</p>`)}</details>`;
}

// Approves several calls after a confirmation, one after the other. Calls that fail stay in the list.
function Several({ calls, onDone, onClose }) {
  const [state, setState] = useState({ busy: false, done: 0, failed: [] });
  const run = async () => {
    const failed = [];
    for (const [place, each] of calls.entries()) {
      setState({ busy: true, done: place, failed });
      try {
        await ask("POST", path("approvals", each.id, "decision"), { body: { approve: {} } });
        onDone(each.id);
      } catch (error) {
        failed.push({ each, error });
      }
    }
    if (failed.length) setState({ busy: false, done: calls.length, failed });
    else onClose();
  };
  const isOver = state.failed.length > 0 && !state.busy;
  return html`<${Modal} label="Approve ${counted(calls.length, "call")}" onClose=${onClose}><div class="stack">
    <h2>Approve ${counted(calls.length, "call")}?</h2>
    <ul class="plain listed" tabindex="0">${calls.map((each) => html`<li key=${each.id}><b class="mono">${each.tool}</b> of ${each.agent} in <span class="mono">${each.session_id}</span>${each.question && html`<p class="said">${each.question}</p>`}
      <p class="mono dim">${JSON.stringify(each.arguments)}</p></li>`)}</ul>
    ${state.failed.map(({ each, error }) => html`<p class="err" role="alert"><b class="mono">${each.tool}</b> ${error.message}</p>`)}
    <div class="row">${!isOver && html`<button class="btn main" disabled=${state.busy} onClick=${run}>${state.busy ? `${state.done} of ${calls.length} …` : "Approve all"}</button>`}
      <button class="btn" autofocus disabled=${state.busy} onClick=${onClose}>${isOver ? "Close" : "Cancel"}</button></div></div></${Modal}>`;
}

// `onHold` is called with the approval as long as its card must stay, and then with null: while a decision is written, and after an
// error. `isGone` is true if the call was decided elsewhere. Keys are ignored until `quietUntil`.
export function Decision({ approval, onDone, onHold = () => {}, isGone = false, keys = false, quietUntil = 0 }) {
  const [way, setWay] = useState("");
  const [text, setText] = useState("");
  const [state, setState] = useState({ busy: false, error: null });
  const isSent = useRef(false); // a second key press can arrive before the response
  const begin = (next) => {
    setWay(next);
    onHold(next ? approval : null);
    setText(next === "edit" ? JSON.stringify(approval.arguments, null, 2) : "");
  };
  const decide = async (body) => {
    if (isSent.current) return;
    isSent.current = true;
    setState({ busy: true, error: null });
    try {
      await ask("POST", path("approvals", approval.id, "decision"), { body });
      onHold(null);
      onDone(approval.id);
    } catch (error) {
      isSent.current = false;
      setState({ busy: false, error });
      onHold(approval);
    }
  };
  const asked = fieldsOf(approval.form);
  const fill = async (event) => {
    event.preventDefault();
    const form = event.target;
    try {
      const values = await valuesOf(asked, form);
      await decide(approval.again ? { approve: values } : { respond: values });
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  const send = (event) => {
    event.preventDefault();
    if (way !== "edit") return decide({ [way]: text });
    let edited;
    try {
      edited = JSON.parse(text);
    } catch (error) {
      return setState({ busy: false, error });
    }
    return decide({ edit: edited });
  };
  useLayoutEffect(() => {
    if (!keys || isGone || !may("approve")) return undefined;
    const pressed = (event) => {
      if (event.target.closest("input, textarea, select, dialog") || document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey || event.repeat || performance.now() < quietUntil) return;
      if (event.key === "a") decide({ approve: {} });
      else if (event.key in { e: 1, w: 1, r: 1 }) {
        event.preventDefault();
        begin({ e: "edit", w: "respond", r: "reject" }[event.key]);
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [approval.id, keys, isGone, quietUntil]);
  const labels = { edit: "Arguments, as JSON", respond: "Answer to the agent instead of the call", reject: "Why not" };
  return html`<div class="ask">
    <p><b class="mono">${approval.tool}</b> of <b>${approval.agent}</b> asked <${Ago} at=${approval.created_at} />${approval.deadline && html`, until ${new Date(approval.deadline).toLocaleString()}`}</p>
    ${approval.question && html`<p class="said">${approval.question}</p>`}
    ${approval.risk && html`<p class="risk ${approval.risk}">Risk: ${approval.risk}</p>`}
    <pre>${JSON.stringify(approval.arguments, null, 2)}</pre>
    ${state.error && html`<p class="err" role="alert">${state.error.message}</p>`}
    ${isGone && html`<p class="err" role="alert">This call does not wait any more: it was decided elsewhere, or its session was stopped.</p>`}
    ${!may("approve") && html`<p class="dim">Deciding requires the scope approve.</p>`}
    ${may("approve") && asked.length > 0 && !way && !isGone && html`<form aria-label="Requested values" onSubmit=${fill}>
      <${FormFields} asked=${asked} id=${approval.id} />
      <div class="row"><button class="btn main" disabled=${state.busy}>${approval.again ? "Approve with this" : "Send this"}</button></div>
    </form>`}
    ${may("approve") && (way
      ? html`<form onSubmit=${send}>
          <label for="text-${approval.id}">${labels[way]}</label>
          <${FocusedField} tag="textarea" id="text-${approval.id}" rows=${way === "edit" ? 8 : 2} value=${text} onInput=${(event) => setText(event.target.value)} />
          <div class="row"><button class="btn main" disabled=${state.busy || isGone}>${{ edit: "Approve with these", respond: "Answer", reject: "Reject" }[way]}</button>
            <button class="btn" type="button" onClick=${() => begin("")}>${isGone ? "Continue" : "Back"}</button></div>
        </form>`
      : isGone ? html`<div class="row"><button class="btn" onClick=${() => begin("")}>Continue</button></div>`
      : html`<div class="row">
          <button class="btn main" disabled=${state.busy} onClick=${() => decide({ approve: {} })}>Approve ${keys && html`<kbd>a</kbd>`}</button>
          <button class="btn" onClick=${() => begin("edit")}>Edit ${keys && html`<kbd>e</kbd>`}</button>
          <button class="btn" onClick=${() => begin("respond")}>Answer ${keys && html`<kbd>w</kbd>`}</button>
          <button class="btn bad" onClick=${() => begin("reject")}>Reject ${keys && html`<kbd>r</kbd>`}</button>
        </div>`)}
  </div>`;
}

export function Approvals({ asked }) {
  const [done, setDone] = useState([]);
  const [several, setSeveral] = useState(null);
  const [held, setHeld] = useState(null);
  const shown = useRef({ id: "", quietUntil: 0 });
  if (!asked.data && !asked.error) return html`<${Loading} what="approvals" />`;
  const oldestFirst = (one, other) => Date.parse(one.created_at) - Date.parse(other.created_at);
  const open = (asked.data?.items || []).filter((each) => !done.includes(each.id)).sort(oldestFirst);
  const first = held || open[0];
  if (first && shown.current.id !== first.id) {
    const isSurprise = shown.current.id && !done.includes(shown.current.id); // a key that is pressed now is meant for the card before
    shown.current = { id: first.id, quietUntil: isSurprise ? performance.now() + SURPRISE : 0 };
  }
  const plain = open.filter((each) => fieldsOf(each.form).length === 0 && !GRAVE.includes(each.risk));
  const next = open.filter((each) => each.id !== first?.id);
  const isDone = (id) => setDone((before) => [...before, id]);
  return html`<div class="head"><h1>Approvals</h1><p role="status">${open.length} wait${open.length === 1 ? "s" : ""} for a person</p></div>
    ${asked.error && html`<${Failed} error=${asked.error} what="The list of approvals" again=${asked.again} since=${asked.at} />`}
    ${!first && asked.data && html`<${Empty} title="No pending approvals">Tool calls that need an approval appear here.</${Empty}>`}
    ${first &&
    html`<section class="panel" aria-label="The oldest">
      <h2>In session <a class="mono" href=${sessionLink(sessionOf(first))}>${first.session_id}</a></h2>
      <${Decision} key=${first.id} approval=${first} keys=${true} quietUntil=${shown.current.quietUntil} isGone=${first === held && !open.some((each) => each.id === held.id)} onHold=${setHeld} onDone=${isDone} />
      <${Before} key=${`before ${first.id}`} approval=${first} />
    </section>`}
    ${next.length > 0 &&
    html`<section class="panel" aria-label="Next approvals"><h2>Next approvals <span class="sp"></span>${plain.length > 1 && may("approve") && html`<button class="btn" onClick=${() => setSeveral(plain)}>Approve ${plain.length === open.length ? "all " : ""}${plain.length} …</button>`}</h2><ul class="plain">
      ${next.map((each) => html`<li key=${each.id}><b class="mono">${each.tool}</b> of ${each.agent} in <a class="mono" href=${sessionLink(sessionOf(each))}>${each.session_id}</a>, <${Ago} at=${each.created_at} />${each.question && html`<br />${each.question}`}</li>`)}
    </ul></section>`}
    ${several && html`<${Several} calls=${several} onDone=${isDone} onClose=${() => setSeveral(null)} />`}`;
}
