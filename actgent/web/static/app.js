// The frame of all pages: header, pages, keys, and the sign-in where there is no key.

import { render } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useState } from "./vendor/hooks.js";
import { forget, get, keep, key, takeKey } from "./api.js";
import { count, html, usePolled } from "./parts.js";
import { Sessions } from "./sessions.js";
import { Session } from "./session.js";
import { Approvals } from "./approvals.js";
import { Agents } from "./agents.js";

const PAGES = [
  { hash: "#/agents", name: "Agents", letter: "a", view: Agents },
  { hash: "#/sessions", name: "Sessions", letter: "s", view: Sessions },
  { hash: "#/approvals", name: "Approvals", letter: "p", view: Approvals },
];
const KEYS = [
  ["/", "find a session by the beginning of its id"],
  ["g a, g s, g p", "agents, sessions, approvals"],
  ["j, k, Enter", "down, up, open"],
  ["?", "these keys"],
];

function route() {
  const [place, text = ""] = location.hash.split("?");
  const parts = place.split("/").slice(1).map(decodeURIComponent);
  return { parts, query: Object.fromEntries(new URLSearchParams(text)) };
}

const isTyping = (target) => target.closest("input, textarea, select, [contenteditable]") !== null;

function SignIn({ message, onKey }) {
  const submit = (event) => {
    event.preventDefault();
    keep(new FormData(event.target).get("key").trim());
    onKey();
  };
  return html`<main id="main" class="signin">
    <form class="panel" onSubmit=${submit}>
      <h1>actgent</h1>
      ${message && html`<p class="err" role="alert">${message}</p>`}
      <label for="key">Key</label>
      <input id="key" name="key" type="password" autocomplete="off" required autofocus />
      <p class="dim">
        The server printed an address with a key when it started; <code>actgent token new</code> makes others. It stays in this tab.
      </p>
      <button class="btn main">Open</button>
    </form>
  </main>`;
}

function Help({ onClose }) {
  return html`<dialog open aria-label="Keys" class="panel keys">
    <h2>Keys</h2>
    <dl class="kv">${KEYS.map(([keys, what]) => html`<dt><kbd>${keys}</kbd></dt><dd>${what}</dd>`)}</dl>
    <button class="btn" onClick=${onClose} autofocus>Close</button>
  </dialog>`;
}

function useRoute() {
  const [at, setAt] = useState(route());
  useEffect(() => {
    const changed = () => setAt(route());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return at;
}

function useKeys(onHelp) {
  useLayoutEffect(() => {
    let before = "";
    const pressed = (event) => {
      if (isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
      const page = before === "g" && PAGES.find((each) => each.letter === event.key);
      if (page) location.hash = page.hash;
      else if (event.key === "?") onHelp();
      else if (event.key === "/") {
        event.preventDefault();
        document.querySelector("#find")?.focus();
      }
      before = event.key;
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

function useTheme() {
  const [theme, setTheme] = useState(localStorage.getItem("actgent.theme") || "");
  useEffect(() => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    localStorage.setItem("actgent.theme", theme);
  }, [theme]);
  return () => setTheme((now) => ({ "": "dark", dark: "light", light: "" })[now]);
}

function Frame({ onOut }) {
  const at = useRoute();
  const [help, setHelp] = useState(false);
  const turnTheme = useTheme();
  useKeys(() => setHelp(true));
  const now = usePolled((signal) => get("/statistics", {}, { signal }), []);
  const asked = usePolled((signal) => get("/approvals", { limit: 100 }, { signal }), []);
  useEffect(() => {
    if (now.error?.status === 401) onOut("The key is not known here, or it is too old.");
  }, [now.error]);
  const counts = {
    Agents: now.data && Object.keys(now.data.agents).length,
    Sessions: now.data?.sessions && Object.values(now.data.sessions).reduce((sum, each) => sum + each, 0),
    Approvals: asked.data?.items.length,
  };
  const page = PAGES.find((each) => each.hash === `#/${at.parts[0]}`) || PAGES[1];
  const find = (event) => {
    event.preventDefault();
    location.hash = `#/sessions?q=${encodeURIComponent(new FormData(event.target).get("q"))}`;
  };
  return html`<a class="skip" href="#main" onClick=${(e) => (e.preventDefault(), document.querySelector("#main").focus())}>Skip to content</a>
    <header>
      <a class="brand" href="#/sessions"><i></i>actgent</a>
      <form class="find" role="search" onSubmit=${find}>
        <input id="find" name="q" aria-label="Find a session by the beginning of its id" placeholder="Find a session" /><kbd>/</kbd>
      </form>
      <span class="sp"></span>
      <span class="live ${now.error ? "off" : ""}" role="status">${now.error ? "reconnecting" : "live"}</span>
      <button class="btn" onClick=${turnTheme} aria-label="Light, dark or as the system has it">◐</button>
      <button class="btn" onClick=${() => setHelp(true)} aria-label="Keys">?</button>
      <button class="btn" onClick=${() => onOut("")}>Sign out</button>
    </header>
    <nav aria-label="Pages">
      ${PAGES.map(
        (each) => html`<a href=${each.hash} aria-current=${each === page ? "page" : undefined}>
          ${each.name}<span class="n ${each.name === "Approvals" && counts.Approvals ? "hot" : ""}">${count(counts[each.name])}</span>
        </a>`,
      )}
    </nav>
    <main id="main" tabindex="-1">
      ${at.parts[0] === "sessions" && at.parts[1]
        ? html`<${Session} key=${location.hash} id=${at.parts[1]} agent=${at.query.agent} />`
        : html`<${page.view} query=${at.query} now=${now.data} asked=${asked} />`}
    </main>
    ${help && html`<${Help} onClose=${() => setHelp(false)} />`}`;
}

function App() {
  const [entry, setEntry] = useState({ signedIn: key() !== null, message: "" });
  const out = (message) => {
    forget();
    setEntry({ signedIn: false, message });
  };
  return entry.signedIn
    ? html`<${Frame} onOut=${out} />`
    : html`<${SignIn} message=${entry.message} onKey=${() => setEntry({ signedIn: true, message: "" })} />`;
}

takeKey();
render(html`<${App} />`, document.body);
