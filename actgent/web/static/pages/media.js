// Pictures, sound and files of messages and tool results: fetched with the key and shown from memory, never from other servers.

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { blob, path } from "../api.js";
import { counted, html } from "../parts.js";

const PICTURE = /^image\/(png|jpeg|gif|webp)$/;
const SOUND = /^audio\/[a-z0-9.+-]{1,40}$/;
const AT_ONCE = 4_000_000; // bytes of a picture that is fetched as soon as it is seen; a larger one when it is asked for
const SIDE_BY_SIDE = 2; // of the six connections that a browser has for a server

const size = (bytes) => (bytes < 1000 ? counted(bytes, "byte") : bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} KB` : `${(bytes / 1e6).toFixed(1)} MB`);
const waiting = [];
let running = 0;

// Limits concurrent fetches; serves requests in their order.
async function inTurn(signal, fetched) {
  if (running >= SIDE_BY_SIDE) await new Promise((resolve) => waiting.push(resolve));
  running += 1;
  try {
    signal.throwIfAborted();
    return await fetched();
  } finally {
    running -= 1;
    waiting.shift()?.();
  }
}

// An object URL that exists as long as the component is shown.
function useBlob(medium, session, wanted) {
  const [state, setState] = useState({ url: null, type: "", error: null });
  useEffect(() => {
    if (!wanted) return undefined;
    const abort = new AbortController();
    let url = null;
    inTurn(abort.signal, () => blob(path("sessions", session.id, "media", medium.media_id), { agent: session.agent }, abort.signal)).then(
      (found) => {
        if (abort.signal.aborted) return;
        url = URL.createObjectURL(found);
        setState({ url, type: found.type, error: null });
      },
      (error) => abort.signal.aborted || setState({ url: null, type: "", error }),
    );
    return () => {
      abort.abort();
      if (url) URL.revokeObjectURL(url);
    };
  }, [medium.media_id, wanted]);
  return state;
}

// True if the element has been on the screen.
function useSeen(box) {
  const [isSeen, setSeen] = useState(false);
  useEffect(() => {
    const observer = new IntersectionObserver((found) => found.some((each) => each.isIntersecting) && setSeen(true), { rootMargin: "200px" });
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  return isSeen;
}

function save(url, name) {
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
}

function Medium({ medium, session, who }) {
  const box = useRef(null);
  const isPicture = PICTURE.test(medium.media_type);
  const isSound = SOUND.test(medium.media_type);
  const isSeen = useSeen(box);
  const [asked, setAsked] = useState("");
  const [broken, setBroken] = useState(false);
  const wanted = Boolean(asked) || (isPicture && isSeen && medium.bytes <= AT_ONCE);
  const { url, type, error } = useBlob(medium, session, wanted);
  const name = medium.name || `${medium.media_id}.${medium.media_type.split("/")[1].replace(/[^a-z0-9]/g, "")}`;
  useEffect(() => {
    if (url && asked === "save") save(url, name);
  }, [url, asked]);
  const what = `${medium.name || (isPicture ? "picture" : isSound ? "sound" : "file")}, ${medium.media_type}, ${size(medium.bytes)}`;
  const shows = url && type === medium.media_type && !broken;
  return html`<figure class="medium" ref=${box}>
    ${isPicture && shows && html`<a href=${url} target="_blank" rel="noopener" title="Open in a new tab"><img src=${url} alt="${what}, from ${who}" onError=${() => setBroken(true)} /></a>`}
    ${isPicture && wanted && !url && !error && html`<div class="stand" role="status">Loading …</div>`}
    ${isSound && shows && html`<audio controls src=${url} aria-label=${what} onError=${() => setBroken(true)}></audio>`}
    <figcaption class="row"><span class="dim">${what}</span>
      ${(isPicture || isSound) && !wanted && html`<button class="btn" onClick=${() => setAsked("show")}>${isSound ? "Play" : "Show"}</button>`}
      ${broken && html`<span class="dim">This file cannot be shown.</span>`}
      <button class="link" aria-label="Save ${name}" onClick=${() => (url ? save(url, name) : setAsked("save"))}>Save</button>
      ${error && html`<span class="err" role="alert">${error.message} <button class="link" onClick=${() => (setAsked(""), setTimeout(() => setAsked("show")))}>Try again</button></span>`}
    </figcaption>
  </figure>`;
}

// Media of other servers are linked and not fetched, because a request would reveal the reader to that server.
const LinkedMedium = ({ medium }) =>
  html`<p class="dim">${medium.type} elsewhere, ${medium.media_type}: ${/^https:/.test(medium.url) ? html`<a href=${medium.url} target="_blank" rel="noopener noreferrer">${medium.url}</a>` : html`<span class="mono">${medium.url}</span>`}</p>`;

export function Media({ media, session, who }) {
  return media.map((each) => (each.media_id ? html`<${Medium} key=${each.media_id} medium=${each} session=${session} who=${who} />` : each.url ? html`<${LinkedMedium} key=${each.url} medium=${each} />` : html`<p class="dim">${each.type}, ${each.media_type}</p>`));
}
