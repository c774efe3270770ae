// Evaluations: the datasets of the server, the cases and evaluations of one, and the results of one evaluation. The address has the choices.

import { useMemo, useState } from "../vendor/hooks.js";
import { ask, get, path } from "../api.js";
import { Modal } from "../modal.js";
import { Ago, Empty, Failed, FocusedField, Loading, count, counted, html, lasted, money, sessionLink, useChange, usePolled } from "../parts.js";
import { datasetLink } from "./add-to-dataset.js";
import { LongText, Results, evaluationLink, momentOf, passed } from "./results.js";

const EVERY = 15000; // milliseconds between two requests of a list
const MOST_BARS = 40; // evaluations in a chart: the latest
const [WIDTH, HEIGHT] = [320, 64];
const LIMIT = 50; // cases, or rows of the table, that are shown at first

const sum = (rows, name) => rows.reduce((total, each) => (total === null || each[name] === null ? null : total + each[name]), 0);

// Figures of all variants of an evaluation together.
const totalOf = (summary) => ({ trials: sum(summary.variants, "trials"), passed: sum(summary.variants, "passed"), cost: sum(summary.variants, "cost") });

function DatasetRow({ each }) {
  const last = each.last && totalOf(each.last);
  return html`<tr>
    <td class="wide"><a href=${datasetLink(each.name)}>${each.name}</a><div class="below">${counted(each.cases, "case")}, ${counted(each.evaluations, "evaluation")}</div></td>
    <td class="r aside">${count(each.cases)}</td><td class="r aside">${count(each.evaluations)}</td>
    <td>${last ? html`<a href=${evaluationLink(each.name, each.last.id)}><${Ago} at=${each.last.at} /></a>` : html`<span class="dim">none</span>`}</td>
    <td>${last && passed(last)}</td>
    <td class="r aside">${last && money(last.cost)}</td><td class="aside"><${Ago} at=${each.changed_at} /></td>
  </tr>`;
}

function Datasets() {
  const list = usePolled((signal) => get("/datasets", {}, { signal }), [], { every: EVERY });
  const items = list.data?.items || [];
  return html`<div class="head"><h1>Evaluations</h1><p>datasets of cases, and how agents did on them</p></div>
    ${list.error && html`<${Failed} error=${list.error} what="The list of datasets" again=${list.again} since=${list.at} />`}
    ${!list.data && !list.error && html`<${Loading} what="datasets" />`}
    ${list.data && !list.data.is_enabled && html`<${Empty} title="This server has no datasets">Start it with <code>actgent serve --datasets FOLDER</code>.</${Empty}>`}
    ${list.data?.is_enabled && items.length === 0 && html`<${Empty} title="No datasets yet">Open a session and add it to a dataset, or put a file NAME.jsonl with cases into the folder.</${Empty}>`}
    ${items.length > 0 &&
    html`<div class="panel scroll" tabindex="0" role="group" aria-label="Datasets"><table>
      <thead><tr><th scope="col">Dataset</th><th scope="col" class="r aside">Cases</th><th scope="col" class="r aside">Evaluations</th><th scope="col">Latest</th><th scope="col">Passed</th><th scope="col" class="r aside">Cost</th><th scope="col" class="aside">Changed</th></tr></thead>
      <tbody>${items.map((each) => html`<${DatasetRow} key=${each.name} each=${each} />`)}</tbody>
    </table></div>`}`;
}

// --- history -------------------------------------------------------------------------------

const FIGURES = [
  { name: "Passed", of: (each) => (each.trials ? (100 * each.passed) / each.trials : 0), text: (value) => `${Math.round(value)} %`, highest: 100 },
  { name: "Cost", of: (each) => each.cost, text: money },
  { name: "Duration p95, median", of: (each) => each.p95 * 1000, inner: (each) => each.p50 * 1000, text: lasted },
];

// Bars of one figure by evaluation, the latest on the right. `inner` is a second figure in the same bar.
function Chart({ points, figure }) {
  const values = points.map(({ row }) => figure.of(row));
  const known = values.filter((each) => each !== null);
  const highest = figure.highest || Math.max(...known, 0);
  const step = WIDTH / Math.max(points.length, 8);
  const bar = (value, x, name) => html`<rect class=${name} x=${x} y=${HEIGHT - (value / highest) * HEIGHT} width=${Math.max(1, step - 3)} height=${(value / highest) * HEIGHT} />`;
  const newest = known.length ? `latest ${figure.text(values.at(-1) ?? known.at(-1))}${figure.inner ? `, ${figure.text(figure.inner(points.at(-1).row))}` : ""}` : "unknown";
  const range = known.length > 1 ? `; ${figure.text(Math.min(...known))} to ${figure.text(Math.max(...known))} in ${counted(points.length, "evaluation")}` : "";
  return html`<figure class="panel trend"><svg class="chart low" viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label="${figure.name}: ${newest}${range}">
      ${points.map(({ id, at, row }, place) => html`<g key=${id}><title>${momentOf({ id, at })}: ${values[place] === null ? "unknown" : figure.text(values[place])}</title>
        ${values[place] > 0 && bar(values[place], place * step, figure.inner ? "apart" : "")}${figure.inner && highest > 0 && bar(figure.inner(row), place * step, "")}</g>`)}
    </svg><figcaption class="dim">${figure.name}: ${newest}</figcaption></figure>`;
}

function History({ name, query, list }) {
  const [most, setMost] = useState(LIMIT);
  const variants = [...new Set(list.flatMap((each) => each.variants.map((one) => one.name)))];
  const variant = variants.includes(query.variant) ? query.variant : variants[0];
  const points = list.flatMap(({ id, at, variants: rows }) => rows.filter((row) => row.name === variant).map((row) => ({ id, at, row }))).slice(0, MOST_BARS).reverse();
  const rows = list.flatMap((each) => each.variants.map((row) => ({ each, row })));
  return html`<div class="row filters"><h2>Evaluations</h2><span class="sp"></span>${variants.length > 1 &&
      html`<label>Charts of <select class="auto" value=${variant} onChange=${(event) => (location.hash = placeOf(name, { ...query, variant: event.target.value }))}>${variants.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>`}</div>
    ${points.length > 0 && html`<div class="cards three">${FIGURES.map((figure) => html`<${Chart} key=${figure.name} points=${points} figure=${figure} />`)}</div>`}
    <div class="panel scroll" tabindex="0" role="group" aria-label="Evaluations"><table>
      <thead><tr><th scope="col">Evaluation</th><th scope="col" class="aside">Variant</th><th scope="col">Passed</th><th scope="col" class="r aside">Score</th><th scope="col" class="r aside">Errors</th><th scope="col" class="r aside">Cost</th><th scope="col" class="r">Median</th><th scope="col" class="r aside">p95</th></tr></thead>
      <tbody>${rows.slice(0, most).map(({ each, row }) => html`<tr key=${each.id + row.name}>
        <td class="wrap"><a href=${evaluationLink(name, each.id)}>${momentOf(each)}</a><div class="below dim">${variants.length > 1 && `${row.name}, `}${money(row.cost)}, score ${row.score.toFixed(2)}${row.errors > 0 && `, ${counted(row.errors, "error")}`}</div></td>
        <td class="aside grow">${row.name}</td><td>${passed(row)}</td><td class="r aside">${row.score.toFixed(2)}</td><td class="r aside">${count(row.errors)}</td>
        <td class="r aside">${money(row.cost)}</td><td class="r">${lasted(row.p50 * 1000)}</td><td class="r aside">${lasted(row.p95 * 1000)}</td></tr>`)}</tbody>
    </table></div>
    ${rows.length > most && html`<button class="btn" onClick=${() => setMost(most + LIMIT)}>Show more evaluations</button>`}`;
}

// --- cases ---------------------------------------------------------------------------------

const listed = (value) => (value === undefined || value === null ? [] : Array.isArray(value) ? value : [value]);

const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));

const CHECKS = ["contains", "matches", "equals", "calls", "judge", "limits", "timeout"];

// The content of a case as JSON, which the server checks. A list that is loaded meanwhile does not change the version of the edit.
function EditCase({ dataset, each: latest, onDone, onCancel }) {
  const [each] = useState(latest);
  const { busy, error, change } = useChange(onDone);
  const [wrong, setWrong] = useState("");
  const send = (event) => {
    event.preventDefault();
    let content;
    try {
      content = JSON.parse(new FormData(event.target).get("content"));
    } catch (parseError) {
      return setWrong(`not JSON: ${parseError.message}`);
    }
    if (content === null || typeof content !== "object" || Array.isArray(content)) return setWrong("the case must be a JSON object");
    setWrong("");
    change(() => ask("PUT", path("datasets", dataset, "cases", each.name), { body: { version: each.version, case: content } }));
  };
  const message = wrong || error?.message;
  return html`<form class="stack tight" aria-label="Edit case ${each.name}" onSubmit=${send}>
    <label>Case as JSON <${FocusedField} tag="textarea" class="mono" name="content" rows="14" required spellcheck="false" defaultValue=${JSON.stringify(each.case, null, 2)} /></label>
    ${message && html`<p class="err" role="alert">It was not saved: ${message}</p>`}
    <div class="row"><button class="btn main" disabled=${busy}>Save</button><button class="btn" type="button" onClick=${onCancel}>Cancel</button></div>
  </form>`;
}

function RemoveCase({ dataset, each, onDone, onCancel }) {
  const { busy, error, change } = useChange(onDone);
  const remove = () => change(() => ask("DELETE", path("datasets", dataset, "cases", each.name), { query: { version: each.version } }));
  return html`<${Modal} label="Remove a case" onClose=${onCancel}><div class="stack">
    <h2>Remove this case?</h2>
    <p class="listed snippet">${each.name}</p>
    <p class="dim">Evaluations that have run keep their results.</p>
    ${error && html`<p class="err" role="alert">It was not removed: ${error.message}</p>`}
    <div class="row"><button class="btn bad" disabled=${busy} onClick=${remove}>Remove</button><button class="btn" autofocus onClick=${onCancel}>Cancel</button></div>
  </div></${Modal}>`;
}

function Case({ dataset, each, again }) {
  const { name, case: content } = each;
  const [step, setStep] = useState("");
  const cancel = () => setStep("");
  const done = () => {
    setStep("");
    again();
  };
  const source = content.session;
  const isLinked = typeof source?.id === "string" && typeof source?.agent === "string";
  const checks = CHECKS.filter((key) => content[key] !== undefined && content[key] !== null);
  return html`<li class="panel hit"><div><b>${name}</b>${listed(content.tags).map((tag) => html` <span class="tag flat">${shown(tag)}</span>`)}
      <span class="sp"></span>${isLinked && html`<a href=${sessionLink(source)} aria-label="Session of ${source.agent}, case ${name}">Session of ${source.agent}</a>`}
      ${step !== "edit" && html`<button class="btn" aria-label="Edit case ${name}" onClick=${() => setStep("edit")}>Edit</button><button class="btn bad" aria-label="Remove case ${name}" onClick=${() => setStep("remove")}>Remove</button>`}</div>
    ${step === "remove" && html`<${RemoveCase} dataset=${dataset} each=${each} onDone=${done} onCancel=${cancel} />`}
    ${step === "edit" ? html`<${EditCase} dataset=${dataset} each=${each} onDone=${done} onCancel=${cancel} />` : html`<dl class="kv keys case">
      ${listed(content.input).length > 0 && html`<dt>Input</dt><dd>${listed(content.input).map((text) => html`<${LongText} text=${shown(text)} />`)}</dd>`}
      ${content.user && html`<dt>User</dt><dd><${LongText} text=${shown(content.user.goal || content.user)} /></dd>`}
      ${content.expected !== undefined && content.expected !== null && html`<dt>Expected</dt><dd><${LongText} text=${shown(content.expected)} /></dd>`}
      ${checks.map((key) => html`<dt>${key[0].toUpperCase() + key.slice(1)}</dt><dd class="dim"><${LongText} text=${listed(content[key]).map(shown).join(", ") || "none"} /></dd>`)}
    </dl>`}</li>`;
}

const placeOf = (name, query) => {
  const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  return datasetLink(name) + (given && `?${given}`);
};

function Cases({ name, query, items, again }) {
  const [most, setMost] = useState(LIMIT);
  const tags = [...new Set(items.flatMap((each) => listed(each.case.tags).map(shown)))].sort();
  const words = (query.q || "").toLowerCase();
  const matches = (each) => (!query.tag || listed(each.case.tags).map(shown).includes(query.tag)) && (!words || `${each.name} ${JSON.stringify(each.case)}`.toLowerCase().includes(words));
  const found = useMemo(() => items.filter(matches), [items, query.q, query.tag]);
  const find = (event) => {
    event.preventDefault();
    location.hash = placeOf(name, { variant: query.variant, ...Object.fromEntries(new FormData(event.target)) });
  };
  return html`<div class="row"><h2>${words || query.tag ? `${count(found.length)} of ${counted(items.length, "case")}` : counted(items.length, "case")}</h2></div>
    ${(items.length > 1 || words || query.tag) &&
    html`<form class="filters" key=${JSON.stringify(query)} onSubmit=${find} aria-label="Find cases">
      <label>Words <input name="q" type="search" maxlength="500" defaultValue=${query.q || ""} /></label>
      ${tags.length > 0 && html`<label>Tag <select name="tag"><option value="">any</option>${tags.map((each) => html`<option key=${each} value=${each} selected=${each === query.tag}>${each}</option>`)}</select></label>`}
      <button class="btn main">Find</button></form>`}
    ${found.length === 0 && html`<${Empty} title="No cases">${items.length ? "No case matches." : "The file has no cases."}</${Empty}>`}
    <ul class="hits">${found.slice(0, most).map((each, place) => html`<${Case} key=${place + each.name} dataset=${name} each=${each} again=${again} />`)}</ul>
    ${found.length > most && html`<button class="btn" onClick=${() => setMost(most + LIMIT)}>Show more cases</button>`}`;
}

function Dataset({ name, query }) {
  const history = usePolled((signal) => get(path("datasets", name, "evaluations"), {}, { signal }), [name], { every: EVERY });
  const cases = usePolled((signal) => get(path("datasets", name, "cases"), {}, { signal }), [name], { every: 2 * EVERY });
  return html`<div class="head"><h1>${name}</h1><p><a href="#/evaluations">all datasets</a></p></div>
    ${history.error && html`<${Failed} error=${history.error} what="The list of evaluations" again=${history.again} since=${history.at} />`}
    ${!history.data && !history.error && html`<${Loading} what="evaluations" />`}
    ${history.data && history.data.items.length === 0 && html`<${Empty} title="No evaluations yet">Run the cases with <code>actgent eval ${name}.jsonl --agent AGENT --history</code>.</${Empty}>`}
    ${history.data?.items.length > 0 && html`<${History} name=${name} query=${query} list=${history.data.items} />`}
    ${cases.error && html`<${Failed} error=${cases.error} what="The list of cases" again=${cases.again} since=${cases.at} />`}
    ${!cases.data && !cases.error && html`<${Loading} what="cases" />`}
    ${cases.data && html`<${Cases} key=${name} name=${name} query=${query} items=${cases.data.items} again=${cases.again} />`}`;
}

export function Evaluations({ parts, query }) {
  const [, name, id] = parts;
  if (id) return html`<${Results} key=${name + "/" + id} name=${name} id=${id} query=${query} />`;
  return name ? html`<${Dataset} key=${name} name=${name} query=${query} />` : html`<${Datasets} />`;
}
