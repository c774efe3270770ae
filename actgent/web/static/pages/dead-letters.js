// Messages that no agent or actor processed, which can be sent again.

import { useState } from "../vendor/hooks.js";
import { ask, get, path } from "../api.js";
import { Ago, Empty, Failed, Loading, html, sessionLink, usePolled } from "../parts.js";

function Letter({ letter, again }) {
  const [state, setState] = useState({ busy: false, error: null });
  const send = async () => {
    setState({ busy: true, error: null });
    try {
      await ask("POST", path("dead-letters", letter.id, "redelivery"), { body: {} });
    } catch (error) {
      setState({ busy: false, error });
      return;
    }
    again();
  };
  return html`<section class="panel" aria-label="Message to ${letter.actor}">
    <h2>${letter.actor} <span class="dim">${letter.error} <${Ago} at=${letter.at} /></span></h2>
    <div class="b stack">
      <p class="snippet">${letter.text}</p>
      <p>${letter.reason}</p>
      ${letter.session_id && html`<p class="dim">session <a class="mono" href=${sessionLink({ id: letter.session_id, agent: letter.actor })}>${letter.session_id}</a>${letter.owner && ` of ${letter.owner}`}</p>`}
      ${state.error && html`<p class="err" role="alert">${state.error.message}</p>`}
      <div><button class="btn" disabled=${state.busy} onClick=${send}>Send again</button></div>
    </div>
  </section>`;
}

export function DeadLetters() {
  const list = usePolled((signal) => get("/dead-letters", {}, { signal }), []);
  const letters = list.data?.items || [];
  return html`<div class="head"><h1>Dead letters</h1><p>messages that no agent or actor processed since the start, the newest first</p></div>
    ${list.error && html`<${Failed} error=${list.error} what="The list of dead letters" again=${list.again} since=${list.at} />`}
    ${!list.data && !list.error && html`<${Loading} what="dead letters" />`}
    ${list.data && letters.length === 0 && html`<${Empty} title="No dead letters">A message is listed here if its agent or actor failed repeatedly, or does not run.</${Empty}>`}
    ${letters.map((letter) => html`<${Letter} key=${letter.id} letter=${letter} again=${list.again} />`)}`;
}
