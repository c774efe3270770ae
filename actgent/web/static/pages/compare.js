// Two sessions side by side: their figures, and their turns step by step.

import { useState } from "../vendor/hooks.js";
import { get, path } from "../api.js";
import { Ago, Empty, Failed, Loading, Tag, compareLink, count, counted, html, lasted, money, sessionLink, traceLink, usePolled } from "../parts.js";
import { figuresOf, turnsBeside } from "./differences.js";
import { readEvents, storyOf } from "./feed.js";

const MOST_RECORDS = 5000; // of each session: the first ones
const MOST_TURNS = 100; // that are shown at first

async function readSession(id, agent, signal) {
  const head = await get(path("sessions", id), { agent }, { signal });
  const last = Math.min(head.records, MOST_RECORDS);
  return { head, story: storyOf(await readEvents(id, head.agent, 0, last, signal)), isCut: last < head.records };
}

const FIGURES = [
  ["Models", "models", String], ["Turns", "turns", count], ["Failed turns", "failed", count], ["Model calls", "modelCalls", count], ["Tool calls", "toolCalls", count],
  ["Failed tool calls", "toolErrors", count], ["Tokens", "tokens", count], ["Cost", "cost", money], ["Time of the turns", "time", lasted], ["Time of the models", "modelTime", lasted],
];

function change(one, other, show) {
  if (typeof one !== "number" || typeof other !== "number" || one === other) return "";
  const share = one > 0 ? ` (${other > one ? "+" : "−"}${Math.round((Math.abs(other - one) / one) * 100)} %)` : "";
  return `${other > one ? "+" : "−"}${show(Math.abs(other - one))}${share}`;
}

function Figures({ sessions }) {
  const [one, other] = sessions.map((each) => figuresOf(each.story));
  return html`<div class="panel" role="group" aria-label="Figures"><table class="figures">
    <thead><tr><th scope="col"><span class="hidden">Figure</span></th>${sessions.map(({ head }) => html`<th scope="col"><a class="mono" href=${sessionLink(head)}>${head.id}</a> <span class="dim">${head.agent}</span></th>`)}<th scope="col" class="r">Difference</th></tr></thead>
    <tbody>${FIGURES.map(([words, name, show]) => html`<tr key=${name}><th scope="row">${words}</th><td>${show(one[name])}</td><td>${show(other[name])}</td><td class="r">${one[name] === other[name] ? html`<span class="dim">same</span>` : change(one[name], other[name], show) || "differs"}</td></tr>`)}</tbody>
  </table></div>`;
}

function Step({ step }) {
  if (!step) return html`<div class="step none"><span class="dim">no such step</span></div>`;
  return html`<div class="step"><b>${step.label}</b><pre tabindex="0" role="group" aria-label=${step.label}>${step.text}</pre></div>`;
}

function TurnPair({ pair, sessions, onlyDifferences }) {
  const { number, turns, texts, steps, times, differs } = pair;
  const shown = steps.filter((each) => each.differs || !onlyDifferences);
  return html`<article class="turn" aria-label="Turn ${number}"><div class="about"><b>Turn ${number}</b> <span class="tag flat ${differs ? "warn" : "ok"}">${differs ? "differs" : "same"}</span>
      <span class="sp"></span>${turns[0] && turns[1] && html`<span>time ${change(times[0], times[1], lasted) || "same"}</span><span>tokens ${change(turns[0].tokens, turns[1].tokens, count) || "same"}</span><span>cost ${change(turns[0].cost, turns[1].cost, money) || "same"}</span>`}</div>
    <div class="beside">${turns.map((turn, side) => html`<div class="step"><b>${turn ? "message" : "no such turn"}</b>${turn && html` <${Tag} state=${turn.phase} /> <span class="dim">${lasted(times[side])}, ${count(turn.tokens)} tokens, ${money(turn.cost)}</span> <a href=${traceLink(sessions[side].head, turn)} aria-label="Trace of turn ${number} of ${sessions[side].head.id}">Trace</a><p>${texts[side]}</p>`}</div>`)}</div>
    ${shown.map((each, place) => html`<div class="beside ${each.differs ? "differs" : ""}" key=${place} role="group" aria-label=${each.differs ? "Different step" : "Same step"}>${each.pair.map((step) => html`<${Step} step=${step} />`)}</div>`)}
    ${shown.length < steps.length && html`<p class="b dim">${count(steps.length - shown.length)} equal steps are hidden.</p>`}
  </article>`;
}

function Compared({ sessions }) {
  const [onlyDifferences, setOnly] = useState(false);
  const [most, setMost] = useState(MOST_TURNS);
  const pairs = turnsBeside(sessions[0].story, sessions[1].story);
  const differing = pairs.filter((each) => each.differs);
  const shown = onlyDifferences ? differing : pairs;
  return html`<${Figures} sessions=${sessions} />
    ${sessions.filter((each) => each.isCut).map(({ head }) => html`<p class="err">Only the first ${count(MOST_RECORDS)} of ${count(head.records)} records of ${head.id} are compared.</p>`)}
    <div class="row"><h2>${differing.length ? `${count(differing.length)} of ${count(pairs.length)} turns differ` : "All turns are the same"}</h2><span class="sp"></span>
      <label><input type="checkbox" checked=${onlyDifferences} onChange=${(event) => setOnly(event.target.checked)} /> Only differences</label></div>
    ${shown.slice(0, most).map((each) => html`<${TurnPair} key=${each.number} pair=${each} sessions=${sessions} onlyDifferences=${onlyDifferences} />`)}
    ${shown.length > most && html`<button class="btn" onClick=${() => setMost(most + MOST_TURNS)}>Show more turns</button>`}`;
}

function Choice({ one, other = "" }) {
  const list = usePolled(async (signal) => {
    const [same, all] = await Promise.all([{ agent: one?.agent || "" }, {}].map((filter) => get("/sessions", { limit: 50, ...filter }, { signal })));
    return [same.items, all.items.filter((each) => each.agent !== one?.agent)].map((items) => items.filter((each) => each.id !== one?.id || each.agent !== one?.agent));
  }, [one?.id], { every: 60000 });
  const send = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const name = (field) => form.get(field).trim();
    location.hash = one ? compareLink(one, { id: name("other"), agent: "" }) : compareLink({ id: name("one"), agent: "" }, { id: name("other"), agent: "" });
  };
  const groups = one && list.data ? [[`Latest sessions of ${one.agent}`, list.data[0]], ["Latest sessions of other agents", list.data[1]]] : [];
  return html`<form class="panel" aria-label="Sessions to compare" onSubmit=${send}><div class="b row">
      ${one ? html`<span>Compare <b class="mono">${one.id}</b> with</span>` : html`<label>First session <input name="one" required /></label>`}
      <label>${one ? "" : "Second session "}<input name="other" aria-label="Second session" required placeholder="its id" defaultValue=${other} /></label><button class="btn main">Compare</button></div></form>
    ${list.error && html`<${Failed} error=${list.error} what="The list of sessions" again=${list.again} since=${list.at} />`}
    ${groups.filter(([, sessions]) => sessions.length > 0).map(
      ([title, sessions]) => html`<section class="panel" key=${title} aria-label=${title}><h2>${title}</h2><ul class="plain">${sessions.map(
        (each) => html`<li key=${each.agent + each.id}><a class="mono" href=${compareLink(one, each)}>${each.id}</a> <span class="dim">${each.agent} for ${each.owner}, ${counted(each.records, "record")}, changed <${Ago} at=${each.updated_at} /></span></li>`,
      )}</ul></section>`,
    )}`;
}

// Two sessions. The component has them as its key.
function Pair({ query: { a, b, aa, ba } }) {
  const read = usePolled((signal) => Promise.all([readSession(a, aa, signal), readSession(b, ba, signal)]), [], {
    on: ({ name, data }) => name === "head" && (data.id === a || data.id === b),
  });
  return html`${read.data ? html`${read.error && html`<${Failed} error=${read.error} what="A session" again=${read.again} since=${read.at} />`}${read.data[0].story.turns.length + read.data[1].story.turns.length ? html`<${Compared} sessions=${read.data} />` : html`<${Empty} title="No turns">Neither session has a turn yet.</${Empty}>`}`
      : read.error ? html`<${Failed} error=${read.error} what="A session" again=${read.again} /><${Choice} one=${{ id: a, agent: aa }} other=${b} />` : html`<${Loading} what="both sessions" />`}`;
}

export function Compare({ query }) {
  const { a, b, aa } = query;
  return html`<div class="head"><h1>Compare sessions</h1></div>
    ${a && b ? html`<${Pair} key=${JSON.stringify(query)} query=${query} />` : html`<${Choice} one=${a ? { id: a, agent: aa } : null} />`}`;
}
