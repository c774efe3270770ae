// The frame of all pages: header, navigation, keyboard shortcuts, and the sign-in form if there is no key.

import { render } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useState } from "./vendor/hooks.js";
import { forget, get, key, learnScopes, may, signIn, takeKey } from "./api.js";
import { Failed, Live, Loading, count, html, useLink, usePolled } from "./parts.js";
import { start } from "./live.js";
import { Modal } from "./modal.js";

const PAGES = [
  { name: "Agents", letter: "a", load: async () => (await import("./pages/agents.js")).Agents },
  { name: "Sessions", letter: "s", load: async () => (await import("./pages/sessions.js")).Sessions },
  { name: "Approvals", letter: "p", load: async () => (await import("./pages/approvals.js")).Approvals },
  { name: "Errors", letter: "e", load: async () => (await import("./pages/errors.js")).Errors },
  { name: "Schedules", letter: "t", load: async () => (await import("./pages/schedules.js")).Schedules },
  { name: "Budgets", letter: "b", load: async () => (await import("./pages/budgets.js")).Budgets },
  { name: "Provider limits", place: "rate-limiters", letter: "l", load: async () => (await import("./pages/rate-limiters.js")).RateLimiters },
  { name: "Search", letter: "f", load: async () => (await import("./pages/search.js")).Search },
  { name: "Trends", letter: "r", load: async () => (await import("./pages/trends.js")).Trends },
  { name: "Evaluations", letter: "v", scope: "admin", load: async () => (await import("./pages/evaluations.js")).Evaluations },
  { name: "Memories", letter: "m", load: async () => (await import("./pages/memories.js")).Memories },
  { name: "Dead letters", place: "dead-letters", letter: "d", scope: "admin", load: async () => (await import("./pages/dead-letters.js")).DeadLetters },
  { name: "Webhooks", letter: "w", scope: "admin", load: async () => (await import("./pages/webhooks.js")).Webhooks },
  { name: "Tool servers", place: "toolsets", letter: "o", scope: "admin", load: async () => (await import("./pages/toolsets.js")).Toolsets },
  { name: "Cluster", letter: "c", scope: "admin", isShown: (now) => Boolean(now?.node), load: async () => (await import("./pages/cluster.js")).Cluster },
  { name: "Journal", letter: "j", scope: "journal", load: async () => (await import("./pages/journal.js")).Journal },
].map((page) => ({ place: page.name.toLowerCase(), ...page }));
const SESSION = { place: "session", name: "Session", load: async () => (await import("./pages/session.js")).Session };
const TRACE = { place: "trace", name: "Trace", load: async () => (await import("./pages/trace.js")).Trace };
const COMPARE = { place: "compare", name: "Compare", load: async () => (await import("./pages/compare.js")).Compare };
const NEW = { place: "new", name: "New session", load: async () => (await import("./pages/new-session.js")).NewSession };
const KEYS = [
  ["/", "find sessions by the beginning of the id, or by owner:ada status:suspended agent:clerk"],
  ["n", "new session"],
  ["m, t", "write a message, open the trace of the last turn (session)"],
  ["Esc", "leave a field, so that keys work again"],
  ["j, k, Enter", "down, up, open (list of sessions)"],
  ["a, e, w, r", "approve, edit, answer, reject (pending approval)"],
  ["[, ], F", "previous record, next record, fork (journal)"],
  ["[, ], ↑, ↓", "previous turn, next turn, select a span (trace)"],
  ["+, -, 0, ←, →", "zoom in, zoom out, whole turn, earlier, later (trace)"],
  ["?", "these keys"],
];

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // an address that was cut or edited by hand
  }
}

function route() {
  const [place, text = ""] = location.hash.split("?");
  const parts = place.split("/").slice(1).map(decoded);
  return { parts, query: Object.fromEntries(new URLSearchParams(text)) };
}

const isTyping = (target) => target.closest("input, textarea, select, [contenteditable]") !== null;

function SignIn({ message, onKey }) {
  const [refused, setRefused] = useState("");
  const submit = (event) => {
    event.preventDefault();
    signIn(new FormData(event.target).get("key").trim()).then(onKey, (error) => setRefused(error.message));
  };
  return html`<form class="signin" onSubmit=${submit}>
      <h1>actgent</h1>
      ${(refused || message) && html`<p class="err" role="alert">${refused || message}</p>`}
      <label for="key">Key</label>
      <input id="key" name="key" type="password" autocomplete="off" required autofocus />
      <p class="dim">
        The server printed an address with a key that opens once, and a token; <code>actgent token new</code> makes others. It stays in this tab.
      </p>
      <button class="btn main">Open</button>
    </form>`;
}

// Owner, scopes and expiry of the token that is in use.
function Me({ token }) {
  return html`<h2>Signed in</h2><dl class="kv me">
    <dt>Owner</dt><dd>${token.owner}</dd><dt>Token</dt><dd>${token.name}</dd><dt>Scopes</dt><dd>${token.scopes.join(", ")}</dd>
    <dt>Expires</dt><dd>${token.expires_at ? new Date(token.expires_at).toLocaleString() : "never"}</dd></dl>
    <p class="dim">Controls that require other scopes are absent.</p>`;
}

function Help({ token, pages, onClose }) {
  return html`<${Modal} label="Keys" onClose=${onClose}><div class="stack">
    <h2>Keys</h2>
    <dl class="kv keys">${[...pages.map((page) => [`g ${page.letter}`, page.name]), ...KEYS].map(([keys, what]) => html`<dt><kbd>${keys}</kbd></dt><dd>${what}</dd>`)}</dl>
    ${token && html`<${Me} token=${token} />`}
    <button class="btn" onClick=${onClose} autofocus>Close</button>
  </div></${Modal}>`;
}

function useRoute() {
  const [at, setAt] = useState(route());
  // Before the first paint: a click on a link directly after the paint must reach this listener.
  useLayoutEffect(() => {
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
      if (event.key === "Escape" && isTyping(event.target)) event.target.blur();
      if (isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
      const page = before === "g" && PAGES.find((each) => each.letter === event.key);
      if (document.querySelector("dialog[open]")) return;
      if (page) location.hash = `#/${page.place}`;
      else if (event.key === "n" && may("chat")) {
        event.preventDefault(); // otherwise the key is typed into the field of the new page
        location.hash = "#/new";
      } else if (event.key === "m") {
        event.preventDefault(); // otherwise the key is typed into the field
        document.querySelector(".say textarea")?.focus();
      } else if (event.key === "t") document.querySelector("a[data-shortcut=t]")?.click();
      else if (event.key === "?") onHelp();
      else if (event.key === "/") {
        event.preventDefault();
        const boxes = [...document.querySelectorAll("form[role=search] input")];
        const seen = boxes.find((each) => each.checkVisibility());
        if (seen) seen.focus();
        else location.hash = "#/sessions"; // a narrow window has its field there
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

// A page. Its module is loaded on the first visit.
function Shown({ page, ...props }) {
  const [state, setState] = useState({ page: null, view: null, error: null });
  const load = () => page.load().then((view) => setState({ page, view, error: null }), (error) => setState({ page, view: null, error }));
  useEffect(() => void load(), [page]);
  useEffect(() => {
    document.title = `${page.name} · actgent`;
  }, [page]);
  if (state.page === page && state.error) return html`<${Failed} error=${state.error} what="The page" again=${load} />`;
  return state.page === page ? html`<${state.view} ...${props} />` : html`<${Loading} what=${page.name.toLowerCase()} />`;
}

const isOfApprovals = ({ name, data }) => name === "approval" || name === "decision" || (name === "head" && data.status === "closed");

function Frame({ onOut }) {
  const at = useRoute();
  const [help, setHelp] = useState(false);
  const [refused, setRefused] = useState(false);
  const turnTheme = useTheme();
  useKeys(() => setHelp(true));
  const link = useLink();
  const token = usePolled((signal) => learnScopes({ signal }), [], { every: 60000 });
  const now = usePolled((signal) => get("/statistics", {}, { signal }), [], { on: ({ name }) => name === "head" || name === "agent" });
  const asked = usePolled((signal) => get("/approvals", { limit: 100 }, { signal }), [], { on: isOfApprovals });
  const failed = usePolled((signal) => get("/errors", {}, { signal }), [], { on: ({ name }) => name === "error" });
  useEffect(() => (refused ? undefined : start()), [refused]);
  const [, setTick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => setTick((tick) => tick + 1), 5000); // "6 s ago" grows older
    return () => clearInterval(timer);
  }, []);
  useEffect(() => {
    if (now.error?.status === 401) setRefused(true);
  }, [now.error]);
  const signedIn = () => {
    setRefused(false);
    for (const each of [token, now, asked, failed]) each.again();
  };
  const counts = {
    agents: now.data && Object.keys(now.data.agents).length,
    sessions: now.data?.sessions && Object.values(now.data.sessions).reduce((sum, each) => sum + each, 0),
    approvals: asked.data?.items.length,
    errors: failed.data?.items.reduce((sum, each) => sum + each.count, 0),
  };
  const listed = PAGES.find((each) => each.place === at.parts[0]) || PAGES[1];
  useEffect(() => document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }), [listed]);
  const page = [NEW, COMPARE].find((each) => each.place === at.parts[0]) || (listed.place === "sessions" && at.parts[1] ? (at.parts[2] === TRACE.place ? TRACE : SESSION) : listed);
  const find = (event) => {
    event.preventDefault();
    location.hash = `#/sessions?q=${encodeURIComponent(new FormData(event.target).get("q"))}`;
    document.activeElement.blur(); // the keys of the list work at once
  };
  const pages = PAGES.filter((each) => (!each.scope || may(each.scope)) && (!each.isShown || each.isShown(now.data)));
  return html`<a class="skip" href="#main" onClick=${(e) => (e.preventDefault(), document.querySelector("#main").focus())}>Skip to content</a>
    <header>
      <a class="brand" href="#/sessions"><i></i>actgent</a>
      <form class="find" role="search" onSubmit=${find}>
        <input id="find" name="q" aria-label="Find sessions" placeholder="Find sessions: an id, owner:ada, status:working" /><kbd aria-hidden="true">/</kbd>
      </form>
      <span class="sp"></span>
      <${Live} live=${link.live && !now.error} again=${link.again} words=${now.error && link.live ? "reconnecting" : undefined} />
      ${token.data && html`<span class="dim cut owner" title="Owner of the token: ${token.data.owner}">${token.data.owner}</span>`}
      <button class="btn" onClick=${turnTheme} aria-label="Light, dark or as the system has it">◐</button>
      <button class="btn" onClick=${() => setHelp(true)} aria-label="Keys">?</button>
      <button class="btn" onClick=${() => onOut("")}>Sign out</button>
    </header>
    <nav aria-label="Pages">
      ${pages.map(
        (each) => html`<a href="#/${each.place}" aria-current=${each === listed ? "page" : undefined}>
          ${each.name}${each.place in counts && html`<span class="n ${each.place === "approvals" && counts.approvals ? "hot" : ""}">${count(counts[each.place])}</span>`}
        </a>`,
      )}
    </nav>
    <main id="main" tabindex="-1">
      ${!token.data && !token.error && html`<${Loading} what=${page.name.toLowerCase()} />`}
      ${token.error && !token.data && html`<${Failed} error=${token.error} what="Permissions of the token" again=${token.again} />`}
      ${token.data && html`<${Shown} key=${page === SESSION || page === TRACE ? page.place + at.parts[1] + at.query.agent : page.place} page=${page} id=${at.parts[1]} agent=${at.query.agent} parts=${at.parts} query=${at.query} token=${token.data} now=${now.data} asked=${asked} failed=${failed} />`}
    </main>
    ${help && html`<${Help} token=${token.data} pages=${pages} onClose=${() => setHelp(false)} />`}
    ${refused && html`<${Modal} label="Sign in"><${SignIn} message="The key is unknown or has expired." onKey=${signedIn} /></${Modal}>`}`;
}

function App({ message }) {
  const [entry, setEntry] = useState({ signedIn: key() !== null, message });
  const out = (message) => {
    forget();
    setEntry({ signedIn: false, message });
  };
  return entry.signedIn
    ? html`<${Frame} onOut=${out} />`
    : html`<main id="main" class="entry"><div class="panel"><${SignIn} message=${entry.message} onKey=${() => setEntry({ signedIn: true, message: "" })} /></div></main>`;
}

const given = takeKey();
const refused = given && (await signIn(given).then(() => "", (error) => error.message));
render(html`<${App} message=${refused || ""} />`, document.body);
