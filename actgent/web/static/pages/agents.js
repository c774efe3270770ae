// The agents, those with errors first. A row opens the sessions of the agent.

import { get, may } from "../api.js";
import { Empty, Failed, Loading, count, counted, html, usePolled } from "../parts.js";
import { Team } from "./team.js";

function Warnings({ inbox, now, failures }) {
  const found = [
    now && now.state !== "running" && ["bad", now.state],
    inbox.senders && ["bad", `inbox full: ${inbox.senders} wait for room`],
    now?.restarts && ["bad", `${now.restarts} restart${now.restarts === 1 ? "" : "s"}`],
    inbox.waiting && ["warn", `${inbox.waiting} message${inbox.waiting === 1 ? "" : "s"} wait${inbox.waiting === 1 ? "s" : ""}`],
    failures && ["bad", failures === 1 ? "errors" : `${failures} kinds of errors`, "#/errors"],
    now?.suspended && ["wait", `${now.suspended} wait${now.suspended === 1 ? "s" : ""} for a person`, "#/approvals"],
  ].filter(Boolean);
  return found.length ? found.map(([kind, words, place]) => (place ? html`<a class="tag ${kind}" href=${place}>${words}</a>` : html`<span class="tag ${kind}">${words}</span>`)) : html`<span class="tag ok">well</span>`;
}

const WORDS = { claimed: "Turns running", waiting: "Messages waiting", urgent: "of these urgent", senders: "Waiting senders" };

export function Agents({ now, failed }) {
  const failures = (name) => failed.data?.items.filter((each) => each.agents.includes(name)).length;
  const agents = usePolled((signal) => get("/agents", {}, { signal }), [], { on: ({ name }) => name === "agent" });
  if (!agents.data && !agents.error) return html`<${Loading} what="agents" />`;
  return html`<div class="head"><h1>Agents</h1></div>
    ${agents.error && html`<${Failed} error=${agents.error} what="The list of agents" again=${agents.again} since=${agents.at} />`}
    ${agents.data?.items.length === 0 && html`<${Empty} title="No agents">Start an agent in the runtime of this gateway.</${Empty}>`}
    ${agents.data && html`<${Team} agents=${agents.data.items} />`}
    <div class="cards">
      ${agents.data?.items.map(
        (each) => html`<section class="panel" key=${each.name} aria-label=${each.name}>
          <h2><a href="#/sessions?agent=${encodeURIComponent(each.name)}">${each.name}</a> <${Warnings} inbox=${each.inbox} now=${now?.agents[each.name]} failures=${failures(each.name)} /></h2>
          <div class="b">
            <p>${[each.role, each.goal].filter(Boolean).join(": ") || each.capabilities || html`<span class="dim">No role and no goal.</span>`}</p>
            <dl class="kv">
              ${Object.entries(each.models).map(([role, name]) => html`<dt>${role === "default" ? "Model" : `Model for ${role}`}</dt><dd class="mono">${name}</dd>`)}
              <dt>Sessions in memory</dt><dd>${count(each.sessions)}</dd>
              ${Object.entries(WORDS).map(([name, words]) => html`<dt>${words}</dt><dd>${count(each.inbox[name])}</dd>`)}
              ${each.modes && html`<dt>Modes</dt><dd>${each.modes.join(", ")}</dd>`}
            </dl>
            <details><summary>${counted(each.tools.length, "tool")}</summary>
              <ul>${each.tools.map((tool) => html`<li><b class="mono">${tool.name}</b> ${tool.description}</li>`)}</ul>
            </details>
            ${may("chat") && html`<p><a class="btn" href="#/new?agent=${encodeURIComponent(each.name)}" aria-label="New session with ${each.name}">New session</a></p>`}
          </div>
        </section>`,
      )}
    </div>`;
}
