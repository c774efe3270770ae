// A dialog that adds a session, or its turns up to one, as a case to a dataset. Only servers with datasets have it.

import { useEffect, useLayoutEffect, useRef, useState } from "../vendor/hooks.js";
import { ask, get, path } from "../api.js";
import { Failed, ONCE, html, useChange, usePolled } from "../parts.js";
import { Modal } from "../modal.js";

const NAME = "[A-Za-z0-9_\\-][A-Za-z0-9._\\-]{0,127}"; // as the server accepts it
const MOST_CHARACTERS = 1_000_000;
let lastName = ""; // of the dataset that was chosen last in this tab

export const datasetLink = (name) => `#/evaluations/${encodeURIComponent(name)}`;

// The answer that a case of a turn expects: the correction of a rating, or the recorded answer.
export function expectedOf(turn) {
  const corrected = Object.values(turn?.ratings || {}).findLast((each) => each.expected);
  return corrected?.expected || turn?.parts.findLast((each) => each.kind === "answer")?.text || "";
}

function Form({ session, turn, isWhole, names, onDone, onClose }) {
  const [name, setName] = useState(lastName);
  const { busy, error, change } = useChange(onDone);
  useEffect(() => {
    if (names.length === 1) setName((now) => now || names[0]);
  }, [names.length]);
  const send = (event) => {
    event.preventDefault();
    lastName = name;
    const body = { session_id: session.id, agent: session.agent, expected: new FormData(event.target).get("expected") };
    if (!isWhole) body.message_id = turn.id;
    change(async () => ({ name, made: await ask("POST", path("datasets", name, "cases"), { body }) }));
  };
  return html`<form class="stack tight" onSubmit=${send}>
    <p class="dim">${isWhole ? "The input of the case has all messages of the user." : "The input of the case has the messages of the user up to this turn."}</p>
    <label>Dataset <input name="dataset" list="datasets" required pattern=${NAME} title="1 to 128 characters: letters, digits, dots, dashes and underscores" autocomplete="off" autofocus value=${name} onInput=${(event) => setName(event.target.value)} /></label>
    <datalist id="datasets">${names.map((each) => html`<option key=${each} value=${each}></option>`)}</datalist>
    <p class="dim">${names.length ? `Datasets: ${names.slice(0, 8).join(", ")}${names.length > 8 ? " …" : ""}. Another name creates a dataset.` : "The name creates a dataset."}</p>
    <label>Expected answer <textarea name="expected" rows="8" required maxlength=${MOST_CHARACTERS} defaultValue=${expectedOf(turn)}></textarea></label>
    ${error && html`<p class="err" role="alert">It was not added: ${error.message}</p>`}
    <div class="row"><button class="btn main" disabled=${busy}>Add case</button><button class="btn" type="button" onClick=${onClose}>Cancel</button></div>
  </form>`;
}

// Takes the focus from the form that it replaces.
function Close({ onClose }) {
  const button = useRef(null);
  useLayoutEffect(() => button.current.focus(), []); // before the paint: a key press directly after it reaches the button
  return html`<div class="row"><button class="btn" ref=${button} onClick=${onClose}>Close</button></div>`;
}

function AddToDataset({ session, turn, isWhole, onClose }) {
  const known = usePolled((signal) => get("/datasets", {}, { signal }), [], { every: ONCE });
  const [added, setAdded] = useState(null);
  return html`<${Modal} label="Add to dataset" onClose=${onClose}><div class="stack">
    <h2>Add to dataset</h2>
    ${known.error && html`<${Failed} error=${known.error} what="The list of datasets" again=${known.again} />`}
    ${added
      ? html`<p role="status">Added as case <b class="mono">${added.made.name}</b> to <a href=${datasetLink(added.name)}>${added.name}</a>.</p><${Close} onClose=${onClose} />`
      : html`<${Form} session=${session} turn=${turn} isWhole=${isWhole} names=${(known.data?.items || []).map((each) => each.name)} onDone=${setAdded} onClose=${onClose} />`}
  </div></${Modal}>`;
}

const server = { hasDatasets: false, question: null }; // one request for the buttons of all turns

function useDatasets() {
  const [isThere, setThere] = useState(server.hasDatasets);
  useEffect(() => {
    if (isThere) return;
    server.question ||= get("/datasets").then((found) => (server.hasDatasets = found.is_enabled), () => (server.question = null));
    server.question.then(() => setThere(server.hasDatasets));
  }, []);
  return isThere;
}

// A button that opens the dialog; nothing if the server has no datasets. `isWhole` adds the whole session, else the session ends
// with the turn.
export function AddButton({ session, turn, isWhole = false }) {
  const [isOpen, setOpen] = useState(false);
  if (!useDatasets()) return null;
  return html`<button class="btn ${isWhole ? "" : "thumb"}" onClick=${() => setOpen(true)}>Add to dataset</button>
    ${isOpen && html`<${AddToDataset} session=${session} turn=${turn} isWhole=${isWhole} onClose=${() => setOpen(false)} />`}`;
}
