// Nodes and partitions of the cluster, as `actgent cluster status` prints them. The address has the node and the filter.

import { get } from "../api.js";
import { Ago, Empty, Failed, Loading, count, counted, html, usePolled } from "../parts.js";

const place = (query) => `#/cluster?${new URLSearchParams(Object.entries(query).filter(([, value]) => value))}`;

const sum = (rows, name) => rows.reduce((total, each) => total + each[name], 0);

const lagOf = (rows) => Math.max(0, ...rows.filter((each) => each.unfinished).map((each) => each.lag));

const isIdle = (each) => each.is_served && !each.pending && !each.unfinished;

const Node = ({ node, rows, here, isMixed, all }) => html`<tr>
  <td class="wide"><a class="mono" href=${place({ node: node.name, all })}>${node.name}</a>${node.name === here && html` <span class="tag flat">this server</span>`}
    <div class="below">${counted(node.partitions, "partition")} · ${node.release} · ${node.address} · ${node.agents.join(", ") || "no agents"}</div></td>
  <td><span class="tag ${node.is_leaving ? "warn" : "ok"}">${node.is_leaving ? "draining" : "serving"}</span></td>
  <td class="aside mono">${node.address}</td>
  <td class="aside grow">${node.agents.join(", ") || html`<span class="dim">none</span>`}</td>
  <td class="aside">${isMixed ? html`<span class="tag warn">${node.release}</span>` : node.release}</td>
  <td class="r aside">${count(node.partitions)}</td><td class="r">${count(sum(rows, "unfinished"))}</td><td class="r aside">${count(sum(rows, "pending"))}</td>
</tr>`;

const Partition = ({ each }) => html`<tr>
  <td class="wide"><b>${each.partition}</b> <span class="mono">${each.owner || "none"}</span> <span class="below dim">since <${Ago} at=${each.since} />, epoch ${each.epoch}${each.pending > 0 && `, ${counted(each.pending, "message")} waiting`}</span></td>
  <td>${each.is_served ? html`<span class="tag ok">served</span>` : html`<span class="tag bad">not served</span>`}</td>
  <td class="r aside">${count(each.epoch)}</td><td class="aside"><${Ago} at=${each.since} /></td>
  <td class="r">${count(each.unfinished)}</td><td class="r aside">${count(each.pending)}</td><td class="r aside">${each.unfinished ? `${each.lag.toFixed(0)} s` : ""}</td>
</tr>`;

function Status({ status, query, here }) {
  const { nodes, partitions } = status;
  const unserved = partitions.filter((each) => !each.is_served).length;
  const isMixed = new Set(nodes.map((each) => each.release)).size > 1;
  const ofNode = partitions.filter((each) => !query.node || each.owner === query.node);
  const shown = query.all ? ofNode : ofNode.filter((each) => !isIdle(each));
  const unhosted = Object.entries(status.unhosted).sort();
  const rowsOf = (node) => partitions.filter((each) => each.owner === node.name && each.is_served);
  return html`<div class="cards"><section class="panel" aria-label="Summary"><dl class="kv b">
      <dt>State</dt><dd><span class="tag ${status.is_whole ? "ok" : "bad"}">${status.is_whole ? "complete" : "incomplete"}</span></dd>
      <dt>Partitions not served</dt><dd>${count(unserved)} of ${count(partitions.length)}</dd>
      <dt>Unfinished sessions</dt><dd>${count(sum(partitions, "unfinished"))}${lagOf(partitions) > 0 && html`, oldest progress ${lagOf(partitions).toFixed(0)} s ago`}</dd>
      <dt>Messages that wait for an owner</dt><dd>${count(sum(partitions, "pending"))}</dd>
      <dt>Suspect sessions</dt><dd>${count(status.suspects)}</dd>
      <dt>Dead messages</dt><dd>${count(status.dead)}</dd>
      <dt>Generation, record format</dt><dd>${status.generation}, ${status.record_format}</dd>
    </dl></section>
    ${unhosted.length > 0 &&
    html`<section class="panel" aria-label="Agents without a node"><h2>Agents without a node</h2>
      <ul class="plain">${unhosted.map(([agent, sessions]) => html`<li key=${agent}><a href="#/sessions?agent=${encodeURIComponent(agent)}">${agent}</a> <span class="tag bad">${counted(sessions, "open session")}</span></li>`)}</ul></section>`}</div>
    ${nodes.length === 0
      ? html`<${Empty} title="No node is running">The sessions resume when a node starts.</${Empty}>`
      : html`<div class="panel scroll" tabindex="0" role="group" aria-label="Nodes"><table>
          <caption>Nodes</caption>
          <thead><tr><th scope="col">Node</th><th scope="col">State</th><th scope="col" class="aside">Address</th><th scope="col" class="aside">Agents</th><th scope="col" class="aside">Version</th><th scope="col" class="r aside">Partitions</th><th scope="col" class="r">Unfinished</th><th scope="col" class="r aside">Waiting</th></tr></thead>
          <tbody>${nodes.map((node) => html`<${Node} key=${node.name} node=${node} rows=${rowsOf(node)} here=${here} isMixed=${isMixed} all=${query.all} />`)}</tbody></table></div>`}
    <div class="head"><h2>Partitions</h2>${query.node && html`<p>of <b class="mono">${query.node}</b> · <a href=${place({ all: query.all })}>of all nodes</a></p>`}
      <span class="sp"></span><div class="seg" role="group" aria-label="Partitions">
        <button aria-pressed=${!query.all} onClick=${() => (location.hash = place({ node: query.node }))}>Active or not served</button>
        <button aria-pressed=${Boolean(query.all)} onClick=${() => (location.hash = place({ node: query.node, all: "1" }))}>All</button>
      </div></div>
    ${shown.length === 0
      ? html`<p class="dim">${ofNode.length ? "Each of these partitions is served and has no unfinished session." : "No partition belongs to this node."}</p>`
      : html`<div class="panel scroll" tabindex="0" role="group" aria-label="Partitions"><table>
          <thead><tr><th scope="col">Partition and owner</th><th scope="col">State</th><th scope="col" class="r aside">Epoch</th><th scope="col" class="aside">Since</th><th scope="col" class="r">Unfinished</th><th scope="col" class="r aside">Waiting</th><th scope="col" class="r aside">Lag</th></tr></thead>
          <tbody>${shown.map((each) => html`<${Partition} key=${each.partition} each=${each} />`)}</tbody></table></div>`}`;
}

export function Cluster({ query, now }) {
  const cluster = usePolled((signal) => get("/cluster", {}, { signal }), [], { every: 10000 });
  const status = cluster.data?.cluster;
  return html`<div class="head"><h1>Cluster</h1><p>nodes and the partitions of sessions that they own</p></div>
    ${cluster.error && html`<${Failed} error=${cluster.error} what="The cluster" again=${cluster.again} since=${cluster.at} />`}
    ${!cluster.data && !cluster.error && html`<${Loading} what="the cluster" />`}
    ${status === null && html`<${Empty} title="This server is not in a cluster">Start several servers with --cluster NAME and the same PostgreSQL journal.</${Empty}>`}
    ${status && html`<${Status} status=${status} query=${query} here=${now?.node} />`}`;
}
