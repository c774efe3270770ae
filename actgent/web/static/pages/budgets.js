// Remaining limits of loaded sessions and their turns, the most used first.

import { get } from "../api.js";
import { Bar, Empty, Failed, Loading, Pages, count, html, money, sessionLink, usePages } from "../parts.js";

const amount = (name, value) => (name === "cost" ? money(value) : name === "seconds" ? `${value.toFixed(0)} s` : count(value));

function rowsOf(budget) {
  return Object.entries(budget.limits).map(([name, limit]) => {
    const [used, apart] = [budget.spent[name] || 0, budget.reserved[name] || 0];
    return { budget, name, limit, used, apart, share: limit ? (used + apart) / limit : 1 };
  });
}

function Row({ row: { budget, name, limit, used, apart } }) {
  const session = { id: budget.session_id, agent: budget.agent };
  const taken = `${amount(name, used)}${apart ? ` + ${amount(name, apart)} set apart` : ""}`;
  return html`<tr>
    <td class="wide">${budget.turn && html`<span title=${budget.turn}>a turn of </span>`}<a class="mono cut" title=${budget.session_id} href=${sessionLink(session)}>${budget.session_id}</a> <span class="dim">${budget.agent} for ${budget.owner}</span>
      <div class="below">${name.replaceAll("_", " ")}: ${taken} of ${amount(name, limit)}<${Bar} used=${used} apart=${apart} of=${limit} /></div></td>
    <td class="aside">${name.replaceAll("_", " ")}</td>
    <td class="aside"><${Bar} used=${used} apart=${apart} of=${limit} /></td>
    <td class="r aside">${taken}</td><td class="r aside">${amount(name, limit)}</td>
  </tr>`;
}

export function Budgets() {
  const list = usePages((query, options) => get("/budgets", { ...query, limit: 100 }, options), []);
  const rows = list.rows.flatMap(rowsOf).sort((one, other) => other.share - one.share);
  return html`<div class="head"><h1>Budgets</h1><p>remaining limits of turns and sessions in memory, the most used first</p></div>
    ${list.error && html`<${Failed} error=${list.error} what="The list of budgets" again=${list.again} since=${list.at} />`}
    ${!list.isThere && !list.error && html`<${Loading} what="budgets" />`}
    ${list.isThere && rows.length === 0 && html`<${Empty} title="No limits are set">Set limits=Limits(...) on an agent, or create a session with limits.</${Empty}>`}
    ${rows.length > 0 &&
    html`<div class="panel scroll" tabindex="0" role="group" aria-label="Budgets"><table>
      <thead><tr><th scope="col">Whose</th><th scope="col" class="aside">Limit</th><th scope="col" class="aside">Share</th><th scope="col" class="r aside">Used</th><th scope="col" class="r aside">Of</th></tr></thead>
      <tbody>${rows.map((row) => html`<${Row} key=${row.budget.agent + row.budget.session_id + row.budget.turn + row.name} row=${row} />`)}</tbody>
    </table></div>`}
    <${Pages} list=${list} />`;
}
