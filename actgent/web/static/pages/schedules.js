// Scheduled messages, the next due first. A removal can be undone for five seconds.

import { useState } from "../vendor/hooks.js";
import { ask, get, may, path } from "../api.js";
import { Empty, Failed, In, Loading, Pages, html, sessionLink, usePages } from "../parts.js";

const WAYS = { all: "Next due", cron: "Repeated", once: "Once" };
const UNDO = 5000;
const leaving = new Map(); // by schedule: its timer; it outlives the page, and nothing is sent before it is over

const placeOf = (each) => `${each.agent}\n${each.session_id}\n${each.id}`;
const isOf = { all: () => true, cron: (each) => each.cron !== null, once: (each) => each.cron === null };

function Row({ each, again }) {
  const place = placeOf(each);
  const [state, setState] = useState({ leaves: leaving.has(place), error: null });
  const remove = () => {
    setState({ leaves: true, error: null });
    const send = async () => {
      leaving.delete(place);
      try {
        await ask("DELETE", path("sessions", each.session_id, "schedules", each.id), { query: { agent: each.agent } });
        again();
      } catch (error) {
        setState({ leaves: false, error });
      }
    };
    leaving.set(place, setTimeout(send, UNDO));
  };
  const undo = () => {
    clearTimeout(leaving.get(place));
    leaving.delete(place);
    setState({ leaves: false, error: null });
  };
  return html`<tr class=${state.leaves ? "leaves" : ""}>
    <td class="wide">${each.input}<span class="below dim"><span class="mono">${each.cron || "once"}</span>${each.cron ? ` ${each.zone || "UTC"}` : ""}, session <a class="mono" href=${sessionLink({ id: each.session_id, agent: each.agent })}>${each.session_id}</a></span>${state.error && html`<p class="err" role="alert">It was not removed: ${state.error.message}</p>`}</td>
    <td class="mono aside">${each.cron || "once"}</td><td class="aside">${each.zone || "UTC"}</td>
    <td class="r"><${In} at=${each.due} /></td>
    <td class="aside"><a class="mono cut" title=${each.session_id} href=${sessionLink({ id: each.session_id, agent: each.agent })}>${each.session_id}</a> <span class="dim">${each.agent}</span></td>
    <td class="r">${state.leaves
      ? html`<span class="dim" role="status">goes in 5 s</span> <button class="btn" onClick=${undo} aria-label="Keep ${each.input}">Undo</button>`
      : may("chat") && html`<button class="btn bad" onClick=${remove} aria-label="Remove ${each.input}">Remove</button>`}</td>
  </tr>`;
}

export function Schedules() {
  const [way, setWay] = useState("all");
  const list = usePages((query, options) => get("/schedules", { ...query, limit: 100 }, options), []);
  const rows = list.rows.filter(isOf[way]);
  return html`<div class="head"><h1>Schedules</h1><p>messages that sessions receive at a set time, the next first</p></div>
    <div class="filters"><div class="seg" role="group" aria-label="Shown schedules">
      ${Object.entries(WAYS).map(([name, words]) => html`<button aria-pressed=${way === name} onClick=${() => setWay(name)}>${words}</button>`)}
    </div></div>
    ${list.error && html`<${Failed} error=${list.error} what="The list of schedules" again=${list.again} since=${list.at} />`}
    ${!list.isThere && !list.error && html`<${Loading} what="schedules" />`}
    ${list.isThere && rows.length === 0 && html`<${Empty} title="No schedules">${way === "all" ? "Agents create schedules with a tool, programs with session.schedule()." : "No schedules of this kind."}</${Empty}>`}
    ${rows.length > 0 &&
    html`<div class="panel scroll" tabindex="0" role="group" aria-label="Schedules"><table>
      <thead><tr><th scope="col">What</th><th scope="col" class="aside">When</th><th scope="col" class="aside">Zone</th><th scope="col" class="r">Next</th><th scope="col" class="aside">Session</th><th scope="col"><span class="hidden">Remove</span></th></tr></thead>
      <tbody>${rows.map((each) => html`<${Row} key=${placeOf(each)} each=${each} again=${list.again} />`)}</tbody>
    </table></div>`}
    <${Pages} list=${list} />`;
}
