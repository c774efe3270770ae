// Results of one evaluation by case, next to those of another evaluation of the dataset. The address has the choices.

import { useMemo, useState } from "../vendor/hooks.js";
import { get, path } from "../api.js";
import { Empty, Failed, Loading, ONCE, count, counted, html, lasted, money, usePolled } from "../parts.js";
import { datasetLink } from "./add-to-dataset.js";

const LIMIT = 50; // cases that are shown at first
const MOST_CHARACTERS = 600; // of a text that is shown at first
const MOST_WORDS = 400; // of an answer whose changed words are marked
const NONE = "none"; // as `against` in the address: without another evaluation

export const evaluationLink = (name, id, query = {}) => {
  const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  return `${datasetLink(name)}/${encodeURIComponent(id)}${given && `?${given}`}`;
};

const MOMENTS = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

export const momentOf = (summary) => (summary.at ? MOMENTS.format(new Date(summary.at)) : summary.id);

export const passed = (row) => html`<span class="tag count ${row.passed === row.trials ? "ok" : "bad"}">${count(row.passed)} of ${count(row.trials)}</span>`;

export function LongText({ text, children }) {
  const [isWhole, setWhole] = useState(false);
  if (text.length <= MOST_CHARACTERS) return html`<p>${children || text}</p>`;
  return html`<p>${isWhole ? children || text : `${text.slice(0, MOST_CHARACTERS)} …`} <button class="link" aria-expanded=${isWhole} onClick=${() => setWhole(!isWhole)}>${isWhole ? "Show less" : "Show all"}</button></p>`;
}

// --- comparison ----------------------------------------------------------------------------

const shareOf = ({ passed, trials }) => (trials ? passed / trials : 0);

// The change of a case: [its name, the kind of its tag].
function changeOf(now, before) {
  if (!before) return ["new", "flat"];
  const [one, other] = [shareOf(before), shareOf(now)];
  if (other === one) return ["same", "flat"];
  if (other > one) return [other === 1 ? "passes now" : "better", "ok"];
  return [one === 1 ? "fails now" : "worse", "bad"];
}

// Pairs of the cases of two evaluations. If each has one variant, its name does not matter: the model may have changed.
function pairsOf(found, other) {
  const isSingle = [found, other].every((each) => !each || each.summary.variants.length === 1);
  const keyOf = (item) => JSON.stringify(isSingle ? [item.name] : [item.name, item.variant]);
  const known = new Map((other?.items || []).map((item) => [keyOf(item), item]));
  return found.items.map((item) => {
    const before = known.get(keyOf(item));
    return { item, before, change: other ? changeOf(item.figures, before?.figures) : null };
  });
}

const removedOf = (found, other) => {
  const names = new Set(found.items.map((each) => each.name));
  return [...new Set((other?.items || []).map((each) => each.name))].filter((each) => !names.has(each));
};

// Splits two texts into [part, isChanged]: changed parts have the words that only one text has (longest common subsequence).
function changedWords(one, other) {
  const words = [one, other].map((text) => text.split(/(?<=\s)/));
  if (words.some((each) => each.length > MOST_WORDS)) return null;
  const numbers = new Map(); // comparing numbers is faster than comparing words
  const [a, b] = words.map((list) => list.map((word) => numbers.get(word.trim()) ?? numbers.set(word.trim(), numbers.size).size - 1));
  const lengths = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) for (let j = b.length - 1; j >= 0; j -= 1) lengths[i][j] = a[i] === b[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  const marked = [a.map(() => true), b.map(() => true)];
  for (let [i, j] = [0, 0]; i < a.length && j < b.length; )
    if (a[i] === b[j]) [marked[0][i++], marked[1][j++]] = [false, false];
    else if (lengths[i + 1][j] >= lengths[i][j + 1]) i += 1;
    else j += 1;
  return words.map((list, side) => {
    const parts = [];
    list.forEach((word, place) => (parts.at(-1)?.[1] === marked[side][place] ? (parts.at(-1)[0] += word) : parts.push([word, marked[side][place]])));
    return parts;
  });
}

const Marked = ({ parts }) => parts.map(([text, isChanged]) => (isChanged ? html`<mark>${text}</mark>` : text));

// --- parts of the page ---------------------------------------------------------------------

function Run({ run, parts, number }) {
  return html`<div class="trial"><span class="tag ${run.passed ? "ok" : "bad"}">${run.passed ? "passed" : "failed"}</span>${number && html` <span class="dim">run ${number}</span>`} <span class="dim">${lasted(run.seconds * 1000)}${run.calls.length > 0 && `, calls ${run.calls.join(", ")}`}</span>
    ${run.error && html`<p class="err">${run.error}</p>`}
    ${run.text && html`<${LongText} text=${run.text}>${parts && html`<${Marked} parts=${parts} />`}</${LongText}>`}
    ${run.failures.map((each) => html`<p class="bad">${each}</p>`)}</div>`;
}

const Side = ({ label, runs, parts, isNone }) => html`<div class="step" role="group" aria-label=${label}><b class="dim">${label}</b>
  ${isNone ? html`<p class="dim">The case was not in it.</p>` : runs.map((run, place) => html`<${Run} key=${place} run=${run} parts=${parts[place]} number=${runs.length > 1 && place + 1} />`)}</div>`;

function CaseResult({ pair, hasVariants, other }) {
  const { item, before, change } = pair;
  const both = useMemo(() => item.runs.map((run, place) => (before?.runs[place] ? changedWords(before.runs[place].text, run.text) : null)), [item, before]);
  return html`<article class="turn" aria-label=${item.name}><div class="about"><b>${item.name}</b>${hasVariants && html`<span class="tag flat">${item.variant}</span>`}
      <span class="sp"></span>${change && html`<span class="tag flat ${change[1]}">${change[0]}</span>`}${passed(item.figures)}${item.runs.length > 1 && html`<span>score ${item.figures.score.toFixed(2)}</span>`}</div>
    <dl class="kv keys case b">${item.input.length > 0 && html`<dt>Input</dt><dd>${item.input.map((text) => html`<${LongText} text=${text} />`)}</dd>`}
      ${item.expected !== null && html`<dt>Expected</dt><dd><${LongText} text=${typeof item.expected === "string" ? item.expected : JSON.stringify(item.expected)} /></dd>`}</dl>
    <div class="beside ${other ? "" : "single"}">${other && html`<${Side} label="Earlier" runs=${before?.runs || []} parts=${both.map((each) => each?.[0])} isNone=${!before} />`}
      <${Side} label=${other ? "This evaluation" : "Answer"} runs=${item.runs} parts=${both.map((each) => each?.[1])} /></div>
  </article>`;
}

// The difference of two figures as text; empty if they look the same.
const signed = (value, earlier, show) => (show(value) === show(earlier) ? "" : `${value > earlier ? "+" : "−"}${show(Math.abs(value - earlier))}`);

// Name, value and text of each figure; `aside` figures are below the name of the variant in a narrow window.
const COLUMNS = [
  ["Passed", (each) => 100 * shareOf(each), (value) => `${Math.round(value)} %`],
  ["Score", (each) => each.score, (value) => value.toFixed(2), "aside"],
  ["Errors", (each) => each.errors, count, "aside"],
  ["Cost", (each) => each.cost, money],
  ["Median", (each) => each.p50 * 1000, lasted, "aside"],
  ["p95", (each) => each.p95 * 1000, lasted, "aside"],
];

function Figures({ summary, other }) {
  const isSingle = summary.variants.length === 1 && other?.variants.length === 1;
  const beforeOf = (row) => (isSingle ? other.variants[0] : other?.variants.find((each) => each.name === row.name));
  const cell = (row, before, of, show) => {
    const [value, earlier] = [of(row), before ? of(before) : null];
    const change = value === null || earlier === null ? "" : signed(value, earlier, show);
    return html`${value === null ? "unknown" : show(value)}${change && html` <span class="dim change">${change}</span>`}`;
  };
  return html`<div class="panel scroll" tabindex="0" role="group" aria-label="Figures"><table>
    <thead><tr><th scope="col">Variant</th>${COLUMNS.map(([name, , , aside = ""]) => html`<th scope="col" class="r ${aside}">${name}</th>`)}</tr></thead>
    <tbody>${summary.variants.map((row) => {
      const before = beforeOf(row);
      return html`<tr key=${row.name}><td class="wide">${row.name}${before && before.name !== row.name && html` <span class="dim">earlier ${before.name}</span>`}
          <div class="below dim">${COLUMNS.filter((each) => each[3]).map(([name, of, show]) => `${name} ${show(of(row))}`).join(", ")}</div></td>
        ${COLUMNS.map(([name, of, show, aside = ""]) => html`<td key=${name} class="r ${aside}">${cell(row, before, of, show)}</td>`)}</tr>`;
    })}</tbody></table></div>`;
}

const isFailed = ({ item }) => item.figures.passed < item.figures.trials;

const FILTERS = { "": ["All", () => true], failed: ["Failed", isFailed], changed: ["Changed", ({ change }) => change && change[0] !== "same"] };

function Compared({ name, id, query, found, other }) {
  const [most, setMost] = useState(LIMIT);
  const pairs = useMemo(() => pairsOf(found, other), [found, other]);
  const removed = useMemo(() => removedOf(found, other), [found, other]);
  const chosen = query.show in FILTERS ? query.show : "";
  const shown = pairs.filter(FILTERS[chosen][1]);
  const hasVariants = found.summary.variants.length > 1;
  const draw = () => shown.slice(0, most).map((pair) => html`<${CaseResult} key=${pair.item.name + pair.item.variant} pair=${pair} hasVariants=${hasVariants} other=${other} />`);
  const list = useMemo(draw, [pairs, chosen, most]); // the frame is rendered every few seconds: equal elements are skipped then
  const filters = Object.entries(FILTERS).filter(([each]) => other || each !== "changed");
  return html`<${Figures} summary=${found.summary} other=${other?.summary} />
    <div class="row"><h2>Cases</h2><span class="sp"></span><div class="seg" role="group" aria-label="Shown cases">
      ${filters.map(([each, [words, isShown]]) => html`<button key=${each} aria-pressed=${each === chosen} onClick=${() => (location.hash = evaluationLink(name, id, { ...query, show: each }))}>${words} ${count(pairs.filter(isShown).length)}</button>`)}</div></div>
    ${removed.length > 0 && html`<p class="dim">Only in the earlier evaluation: ${removed.join(", ")}</p>`}
    ${shown.length === 0 && html`<${Empty} title="No cases">${pairs.length ? "No case of this kind." : "The evaluation has no runs."}</${Empty}>`}
    ${list}
    ${shown.length > most && html`<button class="btn" onClick=${() => setMost(most + LIMIT)}>Show more cases</button>`}`;
}

export function Results({ name, id, query }) {
  const target = (each) => path("datasets", name, "evaluations", each);
  const list = usePolled((signal) => get(path("datasets", name, "evaluations"), {}, { signal }), [name], { every: ONCE });
  const read = async (signal) => {
    const found = await get(target(id), {}, { signal });
    const against = query.against || found.before?.id || NONE;
    return { found, against, other: against === NONE ? null : await get(target(against), {}, { signal }) };
  };
  const both = usePolled(read, [name, id, query.against], { every: ONCE }); // a stored evaluation does not change
  const others = (list.data?.items || []).filter((each) => each.id !== id);
  const choose = (event) => {
    location.hash = evaluationLink(name, id, { ...query, against: event.target.value });
  };
  return html`<div class="head"><h1>Evaluation of <a href=${datasetLink(name)}>${name}</a></h1>${both.data && html`<p>${momentOf(both.data.found.summary)}, ${counted(both.data.found.items.length, "result")}</p>`}</div>
    ${list.error && html`<${Failed} error=${list.error} what="The list of evaluations" again=${list.again} since=${list.at} />`}
    ${both.error && html`<${Failed} error=${both.error} what="The evaluation" again=${both.again} since=${both.at} />`}
    ${!both.data && !both.error && html`<${Loading} what="the evaluation" />`}
    ${both.data && others.length > 0 &&
    html`<div class="filters"><label>Compared with <select class="auto" value=${both.data.against} onChange=${choose}>
      ${others.map((each) => html`<option key=${each.id} value=${each.id}>${momentOf(each)}</option>`)}<option value=${NONE}>no other evaluation</option></select></label></div>`}
    ${both.data && html`<${Compared} name=${name} id=${id} query=${query} found=${both.data.found} other=${both.data.other} />`}`;
}
