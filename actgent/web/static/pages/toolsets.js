// MCP servers and other toolsets with a connection. The address has the agent, and the toolset whose tools are open.

import { get } from "../api.js";
import { Ago, Empty, Failed, Loading, count, counted, html, usePolled } from "../parts.js";

const KINDS = { connected: "ok", connecting: "run", lost: "warn", failed: "bad" };
const NAMES = { mcp: "MCP" };

const place = (query) => {
  const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  return `#/toolsets${given && `?${given}`}`;
};

const Tool = ({ tool }) => html`<li>
  <b class="mono">${tool.name}</b> ${tool.description}
  <details><summary>Arguments of ${tool.name}</summary><pre tabindex="0">${JSON.stringify(tool.parameters, null, 2)}</pre></details>
</li>`;

function Toolset({ toolset, query }) {
  const isOpen = query.name === toolset.name;
  const toggle = (event) => {
    if (event.target.open !== isOpen) location.hash = place({ ...query, name: event.target.open ? toolset.name : "" });
  };
  const facts = [
    ["Agents", toolset.agents.join(", ")],
    ["Address", toolset.address],
    ["Server", toolset.server],
    ["Protocol", [NAMES[toolset.kind] || toolset.kind, toolset.protocol].filter(Boolean).join(" ")],
    ["Reconnections", count(toolset.reconnects)],
  ].filter(([, value]) => value);
  return html`<section class="panel" aria-label=${toolset.name}>
    <h2><span class="mono">${toolset.name}</span> <span class="tag ${KINDS[toolset.state] || ""}">${toolset.state}</span></h2>
    <div class="b stack">
      <dl class="kv">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
      ${toolset.error && html`<p class=${toolset.state === "connected" ? "dim" : "err"}>Last error, <${Ago} at=${toolset.failed_at} />: <span class="mono">${toolset.error_text || toolset.error}</span></p>`}
      ${toolset.tools.length === 0
        ? html`<p class="dim">No tools were listed.</p>`
        : html`<details open=${isOpen} onToggle=${toggle}><summary>${counted(toolset.tools.length, "tool")} of ${toolset.name}</summary>
            ${isOpen && html`<ul class="plain">${toolset.tools.map((tool) => html`<${Tool} key=${tool.name} tool=${tool} />`)}</ul>`}</details>`}
    </div>
  </section>`;
}

export function Toolsets({ query }) {
  const list = usePolled((signal) => get("/toolsets", {}, { signal }), []);
  const items = list.data?.items || [];
  const agents = [...new Set(items.flatMap((each) => each.agents))].sort();
  const shown = items.filter((each) => !query.agent || each.agents.includes(query.agent));
  return html`<div class="head"><h1>Tool servers</h1><p>MCP servers and other toolsets with a connection</p></div>
    ${list.error && html`<${Failed} error=${list.error} what="The list of tool servers" again=${list.again} since=${list.at} />`}
    ${!list.data && !list.error && html`<${Loading} what="tool servers" />`}
    ${(agents.length > 1 || query.agent) &&
    html`<div class="filters"><label>Agent <select value=${query.agent || ""} onChange=${(event) => (location.hash = place({ agent: event.target.value }))}>
      <option value="">all</option>${agents.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label></div>`}
    ${list.data && shown.length === 0 && html`<${Empty} title="No tool servers">Pass MCPServer(...) in tools= of an agent.</${Empty}>`}
    <div class="cards wide">${shown.map((each) => html`<${Toolset} key=${each.name + each.agents} toolset=${each} query=${query} />`)}</div>`;
}
