// What failed, in all agents: by kind and class, the newest first, with what to do and where it was.

import { Ago, Empty, Failed, Loading, count, counted, html, sessionLink } from "../parts.js";

const ADVICE = {
  model: "Look at the provider limits, the model's name and its key; sessions go on when they are told something again.",
  limit: "Raise the limit that is named, or give the agent a smaller task.",
  context: "Let the agent keep less in sight: a memory that summarizes, or shorter tool results.",
  parse: "The model does not keep to the form: look at its last answers, or take another model.",
  handler: "A handler of the program raised: the log has its traceback.",
  guard: "A guard refused: its words say why.",
  deadline: "It waited too long: look at what its agent was doing.",
  journal: "The journal could not be written: look at its disk or server.",
  internal: "A mistake in the program or in actgent: the log has its traceback.",
  tool: "The model was told, and may have gone on without it: look at the session, and at the tool.",
  "dead letter": "Nobody of that name took it: start the agent, then send it again with runtime.send_again().",
};

function Group({ group }) {
  const [newest] = group.sessions;
  return html`<section class="panel" aria-label="${group.kind} ${group.error}">
    <h2>${group.kind} <span class="tag bad flat">${count(group.count)}</span> <span class="dim mono">${group.error}</span></h2>
    <div class="b stack">
      <p class="err">${group.cause || group.words || "It was raised by code outside of actgent: the scope journal shows its words."}</p>
      ${group.tools?.length > 0 && html`<p>${group.tools.length === 1 ? "Tool" : "Tools"}: <span class="mono">${group.tools.join(", ")}</span></p>`}
      ${ADVICE[group.kind] && html`<p>${ADVICE[group.kind]}</p>`}
      <p class="dim">${group.agents.join(", ")} · first <${Ago} at=${group.first_at} />, last <${Ago} at=${group.last_at} /></p>
      ${newest &&
      html`<details><summary>${counted(group.sessions.length, "session")}, the newest first</summary>
        <ul class="plain">${group.sessions.map((each) => html`<li><a class="mono" href=${sessionLink(each)}>${each.id}</a> <span class="dim">${each.agent}</span></li>`)}</ul>
      </details>`}
    </div>
  </section>`;
}

export function Errors({ failed }) {
  const groups = failed.data?.items || [];
  const whole = groups.reduce((sum, each) => sum + each.count, 0);
  return html`<div class="head"><h1>Errors</h1>${failed.data && html`<p role="status">${count(whole)} of ${counted(groups.length, "kind")}</p>`}</div>
    ${failed.error && html`<${Failed} error=${failed.error} what="The list of errors" again=${failed.again} since=${failed.at} />`}
    ${!failed.data && !failed.error && html`<${Loading} what="errors" />`}
    ${groups.map((each) => html`<${Group} key=${each.kind + each.error} group=${each} />`)}
    ${failed.data && html`<div class="panel"><${Empty} title=${groups.length ? "Nothing else went wrong" : "Nothing went wrong"}>What fails from now on appears here at once.</${Empty}></div>`}`;
}
