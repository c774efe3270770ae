// A picture of the agents that work together: who calls, hands over to, routes to or runs which agent, and their tools.

import { html } from "../parts.js";

const WORDS = { tool: "calls", handoff: "hands over to", route: "routes to", step: "runs" };
const [WIDTH, LINE, GAP_X, GAP_Y, PAD] = [176, 15, 124, 22, 12]; // of boxes and the space between them, in pixels
const MOST_TOOLS = 5; // named in a box

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const heightOf = (agent) => Math.max(58, 34 + LINE * (1 + Math.min(agent.own.length, MOST_TOOLS + 1)));

// Gives each linked agent a column (one more than the agents that lead to it) and a place in the column.
function placesOf(agents) {
  const links = agents.flatMap((each) => each.links.map((link) => ({ ...link, from: each.name })));
  const byName = new Map(agents.map((each) => [each.name, each]));
  const known = links.filter((each) => byName.has(each.agent));
  const depths = new Map();
  for (const { from, agent } of known) depths.set(from, 0).set(agent, 0);
  for (let round = 0; round < depths.size; round += 1) {
    let isChanged = false;
    for (const { from, agent } of known) {
      const next = depths.get(from) + 1;
      if (from !== agent && next > depths.get(agent) && next < depths.size) [isChanged] = [true, depths.set(agent, next)];
    }
    if (!isChanged) break;
  }
  const columns = [...new Set(depths.values())].sort((one, other) => one - other); // cycles leave gaps
  const ends = columns.map(() => PAD);
  const places = new Map();
  for (const [name, depth] of depths) {
    const agent = byName.get(name);
    const linked = new Set(agent.links.filter((each) => each.kind === "tool" || each.kind === "handoff").map((each) => each.name));
    const own = agent.tools.map((tool) => tool.name).filter((tool) => !linked.has(tool));
    const column = columns.indexOf(depth);
    const place = { agent, own, x: PAD + column * (WIDTH + GAP_X), y: ends[column], height: heightOf({ own }) };
    ends[column] += place.height + GAP_Y;
    places.set(name, place);
  }
  return { links: known, places, width: 2 * PAD + columns.length * (WIDTH + GAP_X) - GAP_X, height: Math.max(...ends, 0) - GAP_Y + PAD };
}

function Box({ place: { agent, own, x, y, height } }) {
  const lines = own.length > MOST_TOOLS ? [...own.slice(0, MOST_TOOLS), `and ${own.length - MOST_TOOLS} more`] : own;
  return html`<a href="#/sessions?agent=${encodeURIComponent(agent.name)}">
    <rect class="box" x=${x} y=${y} width=${WIDTH} height=${height} rx="8" />
    <text class="name" x=${x + 12} y=${y + 21}>${short(agent.name, 20)}</text></a>
    <text class="part" x=${x + 12} y=${y + 37}>${short(agent.models.default, 25)}</text>
    ${lines.map((line, place) => html`<text class="part" x=${x + 12} y=${y + 53 + place * LINE}>${short(line, 24)}</text>`)}`;
}

// `place` counts the lines between the same agents, which are drawn below one another.
function Edge({ link, from, to, place }) {
  const isBack = to.x <= from.x;
  const [x1, y1] = [from.x + WIDTH, from.y + 17 + place * LINE];
  const [x2, y2] = [isBack ? to.x + WIDTH : to.x - 6, to.y + 17 + place * LINE + (isBack ? 8 : 0)];
  const bend = isBack ? [x1 + 60, x2 + 60] : [x1 + GAP_X / 2, x2 - GAP_X / 2];
  return html`<path class="edge ${link.kind}" d=${`M${x1},${y1} C${bend[0]},${y1} ${bend[1]},${y2} ${x2},${y2}`} marker-end="url(#arrow)" />
    <text class="part" text-anchor="middle" x=${(x1 + x2) / 2 + (isBack ? 45 : 0)} y=${(y1 + y2) / 2 - 4}>${short(WORDS[link.kind], 16)}</text>`;
}

export function Team({ agents }) {
  const { links, places, width, height } = placesOf(agents);
  if (!links.length) return null;
  // Links of one kind between the same agents are one line.
  const drawn = [...new Map(links.map((each) => [[each.from, each.agent, each.kind].join("\n"), each])).values()];
  const placeOf = (link) => drawn.filter((each) => each.from === link.from && each.agent === link.agent).indexOf(link);
  return html`<section class="panel" aria-label="Agents that work together"><h2>Agents that work together</h2>
    <div class="team" tabindex="0" role="group" aria-label="Picture of the agents">
      <svg width=${width} height=${height} viewBox="0 0 ${width} ${height}">
        <defs><marker id="arrow" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" /></marker></defs>
        ${drawn.map((each) => html`<${Edge} link=${each} from=${places.get(each.from)} to=${places.get(each.agent)} place=${placeOf(each)} />`)}
        ${[...places.values()].map((each) => html`<${Box} place=${each} />`)}
      </svg></div>
    <details class="view"><summary>The same as text</summary><ul>${links.map((each) => html`<li><b>${each.from}</b> ${WORDS[each.kind]} <b>${each.agent}</b> <span class="dim">as <span class="mono">${each.name}</span></span></li>`)}</ul></details>
  </section>`;
}
