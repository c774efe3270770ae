// Webhooks with their counts, deliveries that are retried, and failed deliveries, which can be sent again.

import { useState } from "../vendor/hooks.js";
import { ask, get, path } from "../api.js";
import { Ago, Empty, Failed, Loading, counted, html, sessionLink, usePolled } from "../parts.js";

function Deliveries({ title, rows, columns, children }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${title}><table>
    <caption>${title}</caption>
    <thead><tr><th scope="col">Session</th>${columns.map(([name]) => html`<th scope="col">${name}</th>`)}${children && html`<th scope="col"><span class="hidden">Action</span></th>`}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.webhook_id || row.agent + row.session_id}>
      <td><a class="mono cut" title=${row.session_id} href=${sessionLink({ id: row.session_id, agent: row.agent })}>${row.session_id}</a> <span class="dim">${row.agent}</span></td>
      ${columns.map(([, value]) => html`<td>${value(row)}</td>`)}${children && html`<td class="r">${children(row)}</td>`}
    </tr>`)}</tbody>
  </table></div>`;
}

function Webhook({ hook, again }) {
  const [state, setState] = useState({ busy: false, error: null, words: "" });
  const send = async (body) => {
    setState({ busy: true, error: null, words: "" });
    try {
      const { items } = await ask("POST", path("webhooks", hook.id, "redelivery"), { body });
      setState({ busy: false, error: null, words: `${counted(items.length, "delivery").replace("deliverys", "deliveries")} queued.` });
      again();
    } catch (error) {
      setState({ busy: false, error, words: "" });
    }
  };
  const name = hook.url || "URLs of clients";
  return html`<section class="panel" aria-label=${name}>
    <h2><span class="mono">${name}</span> <span class="dim">${hook.events.join(", ")}</span></h2>
    <div class="b stack">
      <p>${counted(hook.sent, "notification")} accepted since the start, ${counted(hook.waiting, "session")} with undelivered notifications</p>
      ${state.error && html`<${Failed} error=${state.error} what="The delivery" />`}
      <p role="status" class="dim">${state.words}</p>
      ${hook.late.length > 0 && html`<${Deliveries} title="Retried" rows=${hook.late} columns=${[["Attempts", (row) => row.attempts]]} />`}
      ${hook.failed.length === 0
        ? html`<p class="dim">No delivery failed.</p>`
        : html`<${Deliveries} title="Failed" rows=${hook.failed} columns=${[["Event", (row) => row.event], ["Reason", (row) => row.reason], ["Time", (row) => html`<${Ago} at=${row.at} />`]]}>
              ${(row) => html`<button class="btn" disabled=${state.busy} aria-label="Send ${row.event} of ${row.session_id} again" onClick=${() => send({ webhook_ids: [row.webhook_id] })}>Send again</button>`}
            </${Deliveries}>
            <div><button class="btn" disabled=${state.busy} onClick=${() => send({})}>Send all again</button></div>`}
    </div>
  </section>`;
}

export function Webhooks() {
  const list = usePolled((signal) => get("/webhooks", {}, { signal }), []);
  const hooks = list.data?.items || [];
  return html`<div class="head"><h1>Webhooks</h1><p>notifications to other servers, and failed deliveries</p></div>
    ${list.error && html`<${Failed} error=${list.error} what="The list of webhooks" again=${list.again} since=${list.at} />`}
    ${!list.data && !list.error && html`<${Loading} what="webhooks" />`}
    ${list.data && hooks.length === 0 && html`<${Empty} title="No webhooks are set">Start the server with --notify URL, or pass notify= to open_gateway.</${Empty}>`}
    ${hooks.map((hook) => html`<${Webhook} key=${hook.id} hook=${hook} again=${list.again} />`)}`;
}
