// Tool calls that wait for people: one at a time, the oldest first, by keys or buttons.

import { useLayoutEffect, useState } from "../vendor/hooks.js";
import { ask, path } from "../api.js";
import { Ago, Empty, Failed, Loading, html } from "../parts.js";

export function Decision({ approval, onDone, keys = false }) {
  const [way, setWay] = useState("");
  const [text, setText] = useState("");
  const [state, setState] = useState({ busy: false, error: null });
  const begin = (next) => {
    setWay(next);
    setText(next === "edit" ? JSON.stringify(approval.arguments, null, 2) : "");
  };
  const decide = async (body) => {
    setState({ busy: true, error: null });
    try {
      await ask("POST", path("approvals", approval.id, "decision"), { body });
      onDone(approval.id);
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
    if (!keys) return undefined;
    const pressed = (event) => {
      if (event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey) return;
      if (event.key === "a") decide({ approve: {} });
      else if (event.key in { e: 1, w: 1, r: 1 }) {
        event.preventDefault();
        begin({ e: "edit", w: "respond", r: "reject" }[event.key]);
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [approval.id, keys]);
  const labels = { edit: "Arguments, as JSON", respond: "What the agent is answered instead", reject: "Why not" };
  return html`<div class="ask">
    <p><b class="mono">${approval.tool}</b> of <b>${approval.agent}</b> asked <${Ago} at=${approval.created_at} />${approval.deadline && html`, until ${new Date(approval.deadline).toLocaleString()}`}</p>
    ${approval.question && html`<p class="said">${approval.question}</p>`}
    <pre>${JSON.stringify(approval.arguments, null, 2)}</pre>
    ${state.error && html`<p class="err" role="alert">${state.error.message}</p>`}
    ${way
      ? html`<form onSubmit=${send}>
          <label for="text-${approval.id}">${labels[way]}</label>
          <textarea id="text-${approval.id}" rows=${way === "edit" ? 8 : 2} value=${text} onInput=${(event) => setText(event.target.value)} autofocus></textarea>
          <div class="row"><button class="btn main" disabled=${state.busy}>${{ edit: "Approve with these", respond: "Answer", reject: "Reject" }[way]}</button>
            <button class="btn" type="button" onClick=${() => setWay("")}>Back</button></div>
        </form>`
      : html`<div class="row">
          <button class="btn main" disabled=${state.busy} onClick=${() => decide({ approve: {} })}>Approve ${keys && html`<kbd>a</kbd>`}</button>
          <button class="btn" onClick=${() => begin("edit")}>Edit ${keys && html`<kbd>e</kbd>`}</button>
          <button class="btn" onClick=${() => begin("respond")}>Answer ${keys && html`<kbd>w</kbd>`}</button>
          <button class="btn bad" onClick=${() => begin("reject")}>Reject ${keys && html`<kbd>r</kbd>`}</button>
        </div>`}
  </div>`;
}

export function Approvals({ asked }) {
  const [done, setDone] = useState([]);
  if (!asked.data && !asked.error) return html`<${Loading} what="approvals" />`;
  const oldestFirst = (one, other) => Date.parse(one.created_at) - Date.parse(other.created_at);
  const open = (asked.data?.items || []).filter((each) => !done.includes(each.id)).sort(oldestFirst);
  const first = open[0];
  return html`<div class="head"><h1>Approvals</h1><p role="status">${open.length} wait${open.length === 1 ? "s" : ""} for a person</p></div>
    ${asked.error && html`<${Failed} error=${asked.error} what="The list of approvals" again=${asked.again} since=${asked.at} />`}
    ${!first && asked.data && html`<${Empty} title="Nobody is waited for">Tool calls that need a person appear here.</${Empty}>`}
    ${first &&
    html`<section class="panel" aria-label="The oldest">
      <h2>In session <a class="mono" href="#/sessions/${encodeURIComponent(first.session_id)}?agent=${encodeURIComponent(first.agent)}">${first.session_id}</a></h2>
      <${Decision} key=${first.id} approval=${first} keys=${true} onDone=${(id) => setDone([...done, id])} />
    </section>`}
    ${open.length > 1 &&
    html`<section class="panel" aria-label="Behind it"><h2>Behind it</h2><ul class="plain">
      ${open.slice(1).map((each) => html`<li key=${each.id}><b class="mono">${each.tool}</b> of ${each.agent} in <span class="mono">${each.session_id}</span>, <${Ago} at=${each.created_at} /></li>`)}
    </ul></section>`}`;
}
