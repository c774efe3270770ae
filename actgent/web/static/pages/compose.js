// A field for a message with files: chosen, pasted or dropped. Used by sessions, new sessions and edited messages.

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { blob, path } from "../api.js";
import { html } from "../parts.js";

const MOST_BYTES = 7_000_000; // of all files of a message; base64 makes them a third larger, and the gateway takes 10 MB
const PICTURE = /^image\/(png|jpeg|gif|webp)$/;
const TYPE = /^[a-z0-9.+-]+\/[a-z0-9.+-]+$/;

async function base64Of(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return btoa(text);
}

async function partOf(file) {
  const given = file.type.split(";")[0].toLowerCase();
  const media_type = TYPE.test(given) ? given : "application/octet-stream";
  const data = await base64Of(file);
  return PICTURE.test(media_type) ? { type: "image", media_type, data } : { type: "file", media_type, data, name: (file.name || "file").slice(-200) };
}

// Returns the content of a message: a text, or parts if there are files.
export async function contentOf(text, files) {
  if (!files.length) return text;
  const parts = await Promise.all(files.map(partOf));
  return [...(text ? [{ type: "text", text }] : []), ...parts];
}

// Loads the files of an earlier message, so that they can be sent again.
export async function filesOf(media, session) {
  const own = media.filter((each) => each.media_id);
  return Promise.all(own.map(async (each) => new File([await blob(path("sessions", session.id, "media", each.media_id), { agent: session.agent })], each.name || "picture", { type: each.media_type })));
}

// Returns a function that gives an id for a request body: the same id until the body changes, so a retry is the same request.
export function useRequestId() {
  const last = useRef({ words: null, id: "" });
  return (body) => {
    const words = JSON.stringify(body);
    if (last.current.words !== words) last.current = { words, id: crypto.randomUUID() };
    return last.current.id;
  };
}

// Files of a message in preparation. `add` ignores files beyond the limit and names them in `error`.
export function useFiles(initial = []) {
  const [state, setState] = useState({ files: initial, error: "" });
  const add = (list) =>
    setState(({ files }) => {
      const next = [...files];
      const left = [];
      for (const file of list) {
        const bytes = next.reduce((sum, each) => sum + each.size, file.size);
        if (bytes > MOST_BYTES) left.push(file.name);
        else next.push(file);
      }
      return { files: next, error: left.length ? `${left.join(", ")}: the files of a message may have ${MOST_BYTES / 1e6} MB together` : "" };
    });
  const remove = (file) => setState(({ files }) => ({ files: files.filter((each) => each !== file), error: "" }));
  return { ...state, add, remove };
}

export function Files({ files }) {
  return html`${files.error && html`<p class="err" role="alert">${files.error}</p>`}
    ${files.files.length > 0 && html`<ul class="files" aria-label="Attached files">${files.files.map(
      (file) => html`<li key=${file.name + file.size + file.lastModified}><span class="cut">${file.name}</span> <button class="link" type="button" aria-label="Remove ${file.name}" onClick=${() => files.remove(file)}>Remove</button></li>`,
    )}</ul>`}`;
}

// The text field: Ctrl+Enter submits its form; pasted and dropped files are attached.
export function MessageBox({ files, label, placeholder, rows = 2, text = "", box, focus = false, required = true }) {
  const chosen = useRef(null);
  const own = useRef(null);
  const area = box || own;
  useEffect(() => void (focus && area.current.focus()), []); // browsers apply the attribute autofocus only once per page
  const keys = (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && (event.preventDefault(), event.target.form.requestSubmit());
  const pasted = (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    files.add(event.clipboardData.files);
  };
  const dropped = (event) => {
    event.preventDefault();
    files.add(event.dataTransfer.files);
  };
  const take = (event) => {
    files.add(event.target.files);
    event.target.value = ""; // the same file can be chosen again after it was removed
  };
  return html`<div class="box" onDragOver=${(event) => event.preventDefault()} onDrop=${dropped}>
    <textarea name="text" rows=${rows} required=${required && !files.files.length} aria-label=${label} placeholder=${placeholder} ref=${area} defaultValue=${text} onKeyDown=${keys} onPaste=${pasted}></textarea>
    <input type="file" multiple class="hidden" tabindex="-1" aria-label="Files" ref=${chosen} onChange=${take} />
    <button class="btn attach" type="button" aria-label="Attach files" title="Attach files: choose, paste or drop" onClick=${() => chosen.current.click()}>+</button>
  </div><${Files} files=${files} />`;
}
