// Statistics by day, agent, model or owner, with a chart by day, and a filter by name. The address has the choice, so that it can be kept and shared.

import { get, may } from "../api.js";
import { Empty, Failed, Loading, count, html, lasted, money, usePolled } from "../parts.js";

const GROUPS = { day: "Day", agent: "Agent", model: "Model", owner: "Owner" };
const FILTERS = { agent: "Agent", model: "Model", owner: "Owner" };
const FIGURES = {
  turns: { name: "Turns", of: (each) => each.turns, text: count },
  cost: { name: "Cost", of: (each) => each.cost, text: money },
  tokens: { name: "Tokens", of: (each) => each.input_tokens + each.output_tokens, text: count },
  p50: { name: "Duration p50", of: (each) => (each.p50 || 0) * 1000, text: lasted },
  p95: { name: "Duration p95", of: (each) => (each.p95 || 0) * 1000, text: lasted },
  p99: { name: "Duration p99", of: (each) => (each.p99 || 0) * 1000, text: lasted },
  errors: { name: "Errors", of: (each) => each.errors, text: count },
  tool_failures: { name: "Tool failures", of: (each) => each.tool_failures, text: count },
};
const DAYS = { 7: "7 days", 30: "30 days", 90: "90 days", "": "all" };
const [WIDTH, HEIGHT, FEWEST, MOST] = [640, 120, 14, 120];
const DAY = 86400000;

// The days up to the last one, without gaps: from the first one, but at least FEWEST and at most MOST.
function daysOf(items) {
  const known = new Map(items.map((each) => [each.name, each]));
  const last = Date.parse(items.at(-1).name);
  const first = Math.max(Math.min(Date.parse(items[0].name), last - (FEWEST - 1) * DAY), last - (MOST - 1) * DAY);
  const days = [];
  for (let at = first; at <= last; at += DAY) {
    const name = new Date(at).toISOString().slice(0, 10);
    days.push([name, known.get(name)]);
  }
  return days;
}

function Chart({ items, figure }) {
  const days = daysOf(items);
  const values = days.map(([, each]) => (each ? figure.of(each) : 0));
  const highest = Math.max(...values, 0);
  const step = WIDTH / days.length;
  const words = `${figure.name} by day, from ${days[0][0]} to ${days.at(-1)[0]}; highest ${figure.text(highest)}`;
  return html`<figure class="panel trend"><svg class="chart" viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label=${words}>
      ${days.map(([name], place) => {
        const height = highest ? (values[place] / highest) * HEIGHT : 0;
        return html`<rect key=${name} x=${place * step} y=${HEIGHT - height} width=${Math.max(1, step - 2)} height=${height}><title>${name}: ${figure.text(values[place])}</title></rect>`;
      })}
    </svg><figcaption class="dim">${words}</figcaption></figure>`;
}

function Row({ each, figure, highest, name }) {
  return html`<tr>
    <td class="wide">${name}<div class="below">${figure.text(figure.of(each))}</div></td>
    <td class="aside"><svg class="bar" viewBox="0 0 100 7" preserveAspectRatio="none" aria-hidden="true"><rect width=${highest ? (figure.of(each) / highest) * 100 : 0} height="7" /></svg></td>
    ${Object.values(FIGURES).map((column) => html`<td class="r aside">${column.text(column.of(each))}</td>`)}
  </tr>`;
}

const Seg = ({ label, choices, value, onChoose }) => html`<div class="seg" role="group" aria-label=${label}>
  ${Object.entries(choices).map(([each, words]) => html`<button key=${each} aria-pressed=${each === value} onClick=${() => onChoose(each)}>${words.name || words}</button>`)}
</div>`;

// The statistics of one choice. The component has the choice as its key, so that the figures of another choice are never shown.
function Statistics({ by, since, filter, figure }) {
  const load = async (signal) => {
    const ask = (by) => get("/trends", { by, since, ...filter }, { signal });
    const [grouped, daily] = await Promise.all([ask(by), by === "day" ? null : ask("day")]);
    return { grouped, daily: daily || grouped };
  };
  const found = usePolled(load, [], { every: 15000 });
  const items = found.data?.grouped.items || [];
  const days = found.data?.daily.items || [];
  const rows = by === "day" ? [...items].reverse() : items;
  const highest = Math.max(...items.map(figure.of), 0);
  return html`${found.error && html`<${Failed} error=${found.error} what="The statistics" again=${found.again} since=${found.at} />`}
    ${!found.data && !found.error && html`<${Loading} what="statistics" />`}
    ${found.data?.grouped.is_complete === false && html`<p class="dim" role="status">The index is being built: sessions may be missing.</p>`}
    ${found.data && items.length === 0 && html`<${Empty} title="No turns in this period">Choose a longer period${Object.values(filter).some(Boolean) && ", or fewer filters"}.</${Empty}>`}
    ${days.length > 0 && html`<${Chart} items=${days} figure=${figure} />`}
    ${items.length > 0 &&
    html`<div class="panel scroll" tabindex="0" role="group" aria-label="Statistics"><table>
        <thead><tr><th scope="col">${GROUPS[by]}</th><th scope="col" class="aside">Share</th>${Object.values(FIGURES).map((column) => html`<th scope="col" class="r aside">${column.name}</th>`)}</tr></thead>
        <tbody>${rows.map((each) => html`<${Row} key=${each.name} each=${each} figure=${figure} highest=${highest} name=${each.name || "without a model call"} />`)}</tbody>
        <tfoot><${Row} each=${found.data.grouped.total} figure=${figure} highest=${0} name="Total" /></tfoot>
      </table></div>`}`;
}

export function Trends({ query }) {
  const by = query.by in GROUPS ? query.by : "day";
  const days = query.days in DAYS ? query.days : "30";
  const chosen = query.figure in FIGURES ? query.figure : "turns";
  const filters = Object.keys(FILTERS).filter((name) => name !== "owner" || may("admin"));
  const filter = Object.fromEntries(filters.map((name) => [name, query[name] || ""]));
  const go = (change) => {
    const next = { by, days, figure: chosen, ...filter, ...change };
    location.hash = `#/trends?${new URLSearchParams(Object.entries(next).filter(([name, value]) => value || name === "days"))}`;
  };
  const find = (event) => {
    event.preventDefault();
    go(Object.fromEntries(new FormData(event.target)));
  };
  const since = days && new Date(Date.now() - (days - 1) * DAY).toISOString().slice(0, 10) + "T00:00:00Z";
  return html`<div class="head"><h1>Trends</h1><p>cost, tokens, durations and errors by ${GROUPS[by].toLowerCase()}, days in UTC</p></div>
    <div class="filters">
      <${Seg} label="Group" choices=${GROUPS} value=${by} onChoose=${(each) => go({ by: each })} />
      <${Seg} label="Period" choices=${DAYS} value=${days} onChoose=${(each) => go({ days: each })} />
      <${Seg} label="Figure" choices=${FIGURES} value=${chosen} onChoose=${(each) => go({ figure: each })} />
    </div>
    <form class="filters" key=${JSON.stringify(filter)} onSubmit=${find} aria-label="Filter">
      ${filters.map((name) => html`<label key=${name}>${FILTERS[name]} <input name=${name} defaultValue=${filter[name]} placeholder="all" /></label>`)}
      <button class="btn main">Filter</button>
    </form>
    <${Statistics} key=${JSON.stringify([by, since, filter])} by=${by} since=${since} filter=${filter} figure=${FIGURES[chosen]} />`;
}
