// Creates a session: its agent, the options that this agent has, and the first message.

import { useRef, useState } from "../vendor/hooks.js";
import { ask, get, may, path } from "../api.js";
import { Empty, Failed, Loading, counted, html, sessionLink, useOpen, usePolled } from "../parts.js";
import { MessageBox, contentOf, useFiles, useRequestId } from "./compose.js";

const BUSY = { queue: "queue it", interrupt: "interrupt the running turn", collect: "answer it together with others" };
const LIMITS = { model_calls: "model calls", tool_calls: "tool calls", tokens: "tokens", cost: "cost in dollars", seconds: "seconds" };
const FRACTIONS = ["cost", "seconds"]; // other limits are whole numbers

function limitsOf(form) {
  const given = Object.keys(LIMITS).filter((name) => form.get(name));
  return given.length ? { limits: Object.fromEntries(given.map((name) => [name, Number(form.get(name))])) } : {};
}

// Tags are separated by commas, because no tag has a comma. Metadata has one `key=value` per line.
function annotationsOf(form) {
  const tags = form.get("tags").split(",").map((each) => each.trim()).filter(Boolean);
  const lines = form.get("metadata").split("\n").map((each) => each.trim()).filter(Boolean);
  const pairs = lines.map((line) => {
    const [, key, value] = /^([^=]*)=(.*)$/.exec(line) || [];
    if (key === undefined) throw new Error(`metadata: "${line}" has no "=": write key=value`);
    return [key.trim(), value.trim()];
  });
  return { ...(tags.length ? { tags } : {}), ...(pairs.length ? { metadata: Object.fromEntries(pairs) } : {}) };
}

function Form({ agents, chosen }) {
  const [agent, setAgent] = useState(agents.find((each) => each.name === chosen) || agents[0]);
  const [state, setState] = useState({ busy: false, error: null });
  const made = useRef(null); // the session that an earlier attempt has created
  const keyOf = useRequestId();
  const idOf = useRequestId();
  const files = useFiles();
  const open = useOpen();
  const send = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const optional = Object.fromEntries(["mode", "on_busy", "owner"].filter((name) => form.get(name)).map((name) => [name, form.get(name)]));
    const id = form.get("id");
    setState({ busy: true, error: null });
    try {
      const body = { agent: agent.name, ...optional, ...limitsOf(form), ...(made.current ? {} : annotationsOf(form)) };
      made.current ||= id ? await ask("PUT", path("sessions", id), { body }) : await ask("POST", "/sessions", { body, headers: { "idempotency-key": keyOf(body) } });
      const text = form.get("text");
      if (text || files.files.length) {
        const content = await contentOf(text, files.files);
        await ask("POST", path("sessions", made.current.id, "messages"), { query: { agent: agent.name }, body: { input: content, message_id: idOf(content) } });
      }
      open(sessionLink(made.current));
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  const isMade = made.current !== null;
  return html`<form class="panel new" aria-label="New session" onSubmit=${send}><div class="b stack">
    ${state.error && html`<p class="err" role="alert">${isMade ? html`The session <a class="mono" href=${sessionLink(made.current)}>${made.current.id}</a> was created, but its message was not accepted: ` : "The session was not created: "}${state.error.message}</p>`}
    <fieldset class="fields" disabled=${isMade}>
      <legend class="hidden">Options</legend>
      <label>Agent <select name="agent" value=${agent.name} onChange=${(event) => setAgent(agents.find((each) => each.name === event.target.value))}>
        ${agents.map((each) => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}</select></label>
      ${agent.modes?.length > 0 && html`<label>Mode <select name="mode" key=${agent.name}><option value="">as the agent begins</option>${agent.modes.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>`}
    </fieldset>
    <p class="dim">${[agent.role, agent.goal].filter(Boolean).join(": ") || agent.capabilities || "This agent has no role and no goal."}</p>
    <${MessageBox} files=${files} label="First message" placeholder="First message to ${agent.name} (optional)" rows=${4} required=${false} focus=${true} />
    <details><summary>More options</summary><fieldset class="fields" disabled=${isMade}><legend class="hidden">More options</legend>
      <label>Messages during a turn <select name="on_busy"><option value="">as the agent decides</option>${Object.entries(BUSY).map(([name, words]) => html`<option key=${name} value=${name}>${words}</option>`)}</select></label>
      <label>Id <input name="id" pattern="[A-Za-z0-9_\\-][A-Za-z0-9._\\-]{0,127}" placeholder="generated" autocomplete="off" /></label>
      ${may("admin") && html`<label>Owner <input name="owner" placeholder="the owner of the token" autocomplete="off" /></label>`}
      <label>Tags, separated by commas <input name="tags" autocomplete="off" maxlength="2100" /></label>
      <label>Metadata, one key=value per line <textarea name="metadata" rows="2"></textarea></label>
      ${Object.entries(LIMITS).map(([name, words]) => html`<label key=${name}>Limit: ${words} <input name=${name} type="number" min=${FRACTIONS.includes(name) ? "0.000001" : "1"} step=${FRACTIONS.includes(name) ? "any" : "1"} placeholder="none" /></label>`)}
    </fieldset></details>
    ${agent.tools.length > 0 && html`<details><summary>${counted(agent.tools.length, "tool")}</summary><ul>${agent.tools.map((tool) => html`<li key=${tool.name}><b class="mono">${tool.name}</b> ${tool.description}</li>`)}</ul></details>`}
    <div class="row"><button class="btn main" disabled=${state.busy}>${isMade ? "Send again" : "Start"} <kbd>Ctrl ⏎</kbd></button><a class="btn" href="#/sessions">Cancel</a></div>
  </div></form>`;
}

export function NewSession({ query }) {
  const agents = usePolled((signal) => get("/agents", {}, { signal }), [], { every: 60000 });
  const items = agents.data?.items;
  return html`<div class="head"><h1>New session</h1></div>
    ${!may("chat") && html`<p class="err">Starting a session requires the scope chat.</p>`}
    ${agents.error && html`<${Failed} error=${agents.error} what="The list of agents" again=${agents.again} since=${agents.at} />`}
    ${!items && !agents.error && html`<${Loading} what="agents" />`}
    ${items?.length === 0 && html`<${Empty} title="No agents">Start an agent in the runtime of this gateway.</${Empty}>`}
    ${items?.length > 0 && may("chat") && html`<${Form} agents=${items} chosen=${query.agent} />`}`;
}
