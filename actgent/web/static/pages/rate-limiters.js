// Rate limiters of model providers: concurrency windows, waiting calls, and reasons of delays.

import { useEffect, useRef } from "../vendor/hooks.js";
import { get } from "../api.js";
import { Bar, Empty, Failed, Loading, count, counted, html, usePolled } from "../parts.js";
import uPlot from "../vendor/uplot.js";

const EVERY = 2000;
const KEPT = 300; // samples of a rate limiter: ten minutes
const samples = new Map(); // by rate limiter: [times, windows, running, waiting], since the page was first seen

function keepSamples(limiters) {
  const now = Date.now() / 1000;
  for (const { name, total } of limiters) {
    const kept = samples.get(name) || [[], [], [], []];
    const values = [now, total.window, total.running, total.waiting];
    samples.set(name, kept.map((before, place) => [...before.slice(1 - KEPT), values[place]]));
  }
}

const LINES = [["window", "warn", [6, 4]], ["at the provider", "run", []], ["waiting", "wait", [2, 3]]];

// At least the last minute: the time axis of a single sample would span years.
function shownTimes({ data: [times] }) {
  const last = times.at(-1);
  return [Math.max(last - (KEPT * EVERY) / 1000, Math.min(times[0], last - 60)), last];
}

function Plot({ limiter, data }) {
  const place = useRef(null);
  const plot = useRef(null);
  useEffect(() => {
    const here = place.current; // what is drawn in a moment may find the page left
    const colored = (name) => () => getComputedStyle(here.querySelector(`.${name}`)).color;
    const axis = { stroke: colored("dim"), grid: { stroke: colored("line"), width: 1 }, ticks: { show: false } };
    const area = here.querySelector(".area");
    plot.current = new uPlot(
      {
        width: area.clientWidth,
        height: 140,
        legend: { show: false },
        cursor: { show: false },
        scales: { x: { range: shownTimes }, y: { range: (_, __, most) => [0, Math.max(1, most) * 1.1] } },
        axes: [axis, { ...axis, size: 36 }],
        series: [{}, ...LINES.map(([, name, dash]) => ({ stroke: colored(name), width: 1.6, dash, points: { show: false } }))],
      },
      data,
      area,
    );
    const sized = new ResizeObserver(() => plot.current.setSize({ width: area.clientWidth, height: 140 }));
    sized.observe(area);
    const recolored = () => plot.current.redraw();
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", recolored);
    const theme = new MutationObserver(recolored);
    theme.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => {
      sized.disconnect();
      theme.disconnect();
      scheme.removeEventListener("change", recolored);
      plot.current.destroy();
    };
  }, [limiter]);
  useEffect(() => plot.current.setData(data), [data]);
  const [, windows, running, waiting] = data.map((each) => each.at(-1));
  const words = `since ${new Date(data[0][0] * 1000).toLocaleTimeString()}: a window of ${Math.floor(windows)}, ${running} at the provider and ${waiting} waiting now`;
  return html`<div ref=${place} class="plot"><div class="area" role="img" aria-label=${words}></div>
    <p class="legend" aria-hidden="true">${LINES.map(([label, name]) => html`<span class=${name}>${label}</span>`)}</p><span class="dim" hidden></span><span class="line" hidden></span></div>`;
}

const SPENT = (bucket) => Math.max(0, bucket.capacity - bucket.level);

function Buckets({ buckets, of = "" }) {
  return buckets.map((each) => html`<div class="bucket"><span>${each.kind}${of} <span class="dim">${count(Math.round(each.rate * 60))} a minute</span></span><${Bar} used=${SPENT(each)} apart=${0} of=${each.capacity} /></div>`);
}

function stateOf({ total, models }) {
  const paused = Math.max(0, ...models.map((each) => each.paused));
  if (paused) return ["bad", `asked to wait ${paused.toFixed(0)} s`];
  return total.waiting ? ["warn", "slowed down"] : ["ok", "free"];
}

function RateLimiterPanel({ limiter }) {
  const { total, models } = limiter;
  const [kind, words] = stateOf(limiter);
  const urgent = models.reduce((sum, each) => sum + (each.waiting.urgent || 0), 0);
  return html`<section class="panel" aria-label=${limiter.name}>
    <h2>${limiter.name} <span class="sp"></span><span class="tag ${kind}">${words}</span></h2>
    <div class="b stack"><dl class="kv">
      <dt>At the provider</dt><dd>${count(total.running)} of a window of ${count(Math.floor(total.window))}</dd>
      <dt>Wait for admission</dt><dd>${count(total.waiting)}${urgent ? ` (${urgent} urgent)` : ""}</dd>
      <dt>Refused</dt><dd>${count(total.refused)} of ${count(total.admitted)}</dd>
      <dt>Waited, on average</dt><dd>${total.admitted ? (total.waited / total.admitted).toFixed(2) : "0"} s</dd>
      ${models.map((each) => html`<dt>${each.model}</dt><dd>${count(each.running)} of ${count(Math.floor(each.window))}</dd>`)}
    </dl>
    <${Buckets} buckets=${limiter.buckets} />
    ${models.map((each) => html`<${Buckets} buckets=${each.buckets} of=${` of ${each.model}`} />`)}
    ${samples.has(limiter.name) && html`<${Plot} limiter=${limiter.name} data=${samples.get(limiter.name)} />`}
    </div></section>`;
}

export function RateLimiters() {
  const limiters = usePolled(async (signal) => {
    const found = await get("/rate-limiters", {}, { signal });
    keepSamples(found.items);
    return found;
  }, [], { every: EVERY });
  return html`<link rel="stylesheet" href="static/vendor/uplot.css" />
    <div class="head"><h1>Provider limits</h1>${limiters.data && html`<p>${counted(limiters.data.items.length, "key")}, which all agents share</p>`}</div>
    ${limiters.error && html`<${Failed} error=${limiters.error} what="The list of provider limits" again=${limiters.again} since=${limiters.at} />`}
    ${!limiters.data && !limiters.error && html`<${Loading} what="provider limits" />`}
    ${limiters.data?.items.length === 0 && html`<${Empty} title="No limits">Models of providers have them; those of a program's own do not.</${Empty}>`}
    <div class="cards wide">${limiters.data?.items.map((each) => html`<${RateLimiterPanel} key=${each.name} limiter=${each} />`)}</div>`;
}
