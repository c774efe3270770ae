// Errors of all agents, grouped by kind and class, the newest first, with remedies and sessions.

import { Ago, Empty, Failed, Loading, count, counted, html, sessionLink } from "../parts.js";

const ADVICE = {
  model: "Check the provider limits, the model's name and its key. A session resumes with its next message.",
  limit: "Raise the named limit, or give the agent a smaller task.",
  context: "Show the model less: use a summarizing memory, or return shorter tool results.",
  parse: "The model does not follow the answer format: check its last answers, or use another model.",
  handler: "A handler of the program raised an exception: the log has its traceback.",
  guard: "A guard rejected the message: its text states the reason.",
  deadline: "The message waited too long: check what its agent was doing.",
  journal: "The journal could not be written: check its disk or server.",
  internal: "An error in the program or in actgent: the log has its traceback.",
  tool: "The model received the error and may have continued without the result: check the session and the tool.",
  "dead letter": "No agent with this name accepted the message: start the agent, then call runtime.send_again().",
};

function Group({ group }) {
  const [newest] = group.sessions;
  return html`<section class="panel" aria-label="${group.kind} ${group.error}">
    <h2>${group.kind} <span class="tag bad flat">${count(group.count)}</span> <span class="dim mono">${group.error}</span></h2>
    <div class="b stack">
      <p class="err">${group.cause || group.text || "It was raised by code outside of actgent: the scope journal shows its words."}</p>
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
    ${failed.data && html`<div class="panel"><${Empty} title=${groups.length ? "Nothing else went wrong" : "No errors"}>New errors appear here immediately.</${Empty}></div>`}`;
}
