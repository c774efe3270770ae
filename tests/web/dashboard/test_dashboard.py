"""The dashboard in a browser, and its static files."""

import gzip
import hashlib
import re
from pathlib import Path

import httpx2
import pytest

from actgent import BareAgent, ScriptedLLM, SimpleAgent
from actgent.web.access_tokens import new_token

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "actgent" / "web" / "static"
SERVED = [path for path in sorted(STATIC.rglob("*")) if path.suffix in (".html", ".css", ".js", ".svg")]
SAY = """(() => {
  const box = document.querySelector("textarea[name=text]");
  box.value = %s;
  box.form.requestSubmit();
})()"""


SIGN_IN = """(() => {
  const box = document.querySelector("#key");
  box.value = "%s";
  box.form.requestSubmit();
})()"""


def link_of(served, name="root"):
    return f"{served.gateway.url}/#key={served.tokens[name]}"


async def test_conversation_is_shown_live(serving, screen):
    """Sign in with the key in the address, find the session, send a message, and read the answer."""
    async with serving() as served:
        session = await served.runtime.agents.opener("clerk").create("ada", "first words", session_id="s1")
        await session.wait_idle()
        await screen.open(link_of(served))
        await screen.until("document.querySelector('tbody a').textContent === 's1'")
        assert await screen.run("location.href.includes('key=')") is False
        await screen.run("document.querySelector('tbody a').click()")
        await screen.until("document.body.innerText.includes('you said: first words')")
        await screen.run(SAY % "'<img src=x onerror=alert(1)>'")
        await screen.until("document.body.innerText.includes('you said: <img src=x onerror=alert(1)>')")
        assert await screen.run("document.querySelectorAll('main img, main script').length") == 0
        assert await screen.run("document.querySelectorAll('.turn').length") == 2


async def test_json_around_an_answer_is_collapsed(serving, screen):
    """The text for the user is shown. The JSON that the protocol of the agent lets the model write can be opened."""
    answer = '{"messageType": "DIRECT_RESPONSE", "content": "Good day, Ada."}'
    agents = [
        SimpleAgent(name="clerk", llm=ScriptedLLM([answer])),
        BareAgent(name="plain", llm=ScriptedLLM(['{"sum": 3}'])),
    ]
    async with serving(agents=agents) as served:
        for name in ("clerk", "plain"):
            opener = served.runtime.agents.opener(name)
            session = await opener.create("ada", "hello", session_id=f"of-{name}")
            await session.wait_idle()
        await screen.open(link_of(served))
        await screen.go("#/sessions/of-clerk?agent=clerk")
        parts = (
            "[...document.querySelectorAll('.turn .msg > div')].map(each => each.innerText.trim()).join('|')"
        )
        await screen.until(f"{parts}.endsWith('|answer as JSON|Good day, Ada.')")
        await screen.go("#/sessions/of-plain?agent=plain")
        await screen.until(parts + """.endsWith('|{"sum": 3}|data')""")


async def test_session_is_used_with_the_keyboard_alone(serving, screen):
    """Find a session, write a message, open the trace, select spans, and search, without a click or the Tab key."""
    async with serving() as served:
        session = await served.runtime.agents.opener("clerk").create("ada", "first words", session_id="s1")
        await session.wait_idle()
        await screen.open(link_of(served))
        await screen.until("document.querySelector('tbody a')")
        await screen.press("/", "s", "1", "Enter")
        await screen.until("location.hash.includes('q=s1') && document.querySelector('tbody a')")
        await screen.until("document.querySelector('.head p b').textContent === 's1'")
        await screen.press("j")
        await screen.until("document.querySelector('tr[aria-selected=true] a')")
        await screen.press("Enter")
        await screen.until("document.querySelector('.say textarea')")
        await screen.press("m", "h", "i")
        assert await screen.run("document.querySelector('.say textarea').value") == "hi"
        await screen.press("Escape", "t")
        await screen.until("document.querySelectorAll('.span').length > 1")
        selected = "document.querySelector('.span[aria-pressed=true]').dataset.key"
        await screen.press("ArrowUp", "ArrowUp")
        await screen.until(f"{selected} === 'inbox'")
        await screen.press("ArrowDown")
        await screen.until(f"{selected} !== 'inbox'")
        await screen.press("g", "f")
        await screen.until("document.activeElement.name === 'q' && location.hash.includes('search')")


async def waiting_for_a_person(served, words="deploy"):
    """Create session s1 of ada with a call that waits for an approval."""
    async with served.client() as client:
        await client.put("/v1/sessions/s1", json={"agent": "clerk", "mode": "act"})
        await client.post("/v1/sessions/s1/messages", json={"input": words}, headers={"prefer": "wait=20"})


async def test_key_approves_the_oldest_call(serving, screen):
    """One key approves the oldest pending call, and its turn resumes."""
    async with serving() as served:
        await waiting_for_a_person(served)
        await screen.open(link_of(served))
        await screen.until("document.querySelector('.n.hot').textContent === '1'")
        await screen.press(*"gp")
        await screen.until("document.querySelector('.ask pre').textContent.includes('mars')")
        await screen.press("a")
        await screen.until("document.body.innerText.includes('No pending approvals')")
        await screen.run("location.hash = '#/sessions/s1'")
        await screen.until("document.body.innerText.includes('done: deployed to mars')")


async def test_session_reconnects_after_a_server_restart(serving, screen, tmp_path):
    """The page reports the reconnection, keeps its content, and shows each event once after the restart."""
    journal = f"sqlite:///{tmp_path / 'j.db'}"
    secret, token = new_token("root", owner="root", scopes=("admin",))
    async with serving(journal=journal, tokens=[token]) as served:
        session = await served.runtime.agents.opener("clerk").create("ada", "one", session_id="s1")
        await session.wait_idle()
        address = served.gateway.url
        await screen.open(f"{address}/#key={secret}")
        await screen.until("document.querySelector('tbody a')")
        await screen.run("document.querySelector('tbody a').click()")
        await screen.until("document.querySelectorAll('.turn').length === 1")
    await screen.until("document.querySelector('.head .live.off')")
    assert await screen.run("document.querySelectorAll('.turn').length") == 1
    port = address.rpartition(":")[2]
    async with serving(journal=journal, bind=f"127.0.0.1:{port}", tokens=[token]) as served:
        opened = await served.runtime.agents.opener("clerk").open("s1")
        await served.runtime.agents.opener("clerk").admission.accept(opened, opened.new_message("two"))
        await screen.until("document.body.innerText.includes('you said: two')")
        assert await screen.run("document.querySelectorAll('.turn').length") == 2
    screen.tab.complaints.clear()  # of requests during the restart


async def test_terminal_link_works_once(serving, screen):
    """The key is exchanged for a token that the tab stores. A later use of the link shows the sign-in form, which accepts the token."""
    async with serving(tokens=None) as served:
        link = served.gateway.link
        await screen.open(link)
        await screen.until("document.querySelector('nav')")
        assert (
            await screen.run(
                "location.href.includes('key=') || sessionStorage['actgent.key'].startsWith('once_')"
            )
            is False
        )
        await screen.reload()
        await screen.until("document.querySelector('nav')")
        await screen.run("sessionStorage.clear()")
        await screen.open("about:blank")
        await screen.open(link)
        assert "already used" in await screen.until("document.querySelector('.signin .err').textContent")
        await screen.run(SIGN_IN % "once_wrong")
        assert "already used" in await screen.until("document.querySelector('.signin .err').textContent")
        await screen.run(SIGN_IN % served.gateway.key)
        await screen.until("document.querySelector('nav')")
    screen.tab.complaints.clear()  # the browser logs each 401


async def test_wrong_key_is_rejected(serving, screen):
    """The page requests another key, and accepts the correct key."""
    async with serving() as served:
        await screen.open(f"{served.gateway.url}/#key=act_wrong")
        assert "unknown or has expired" in await screen.until(
            "document.querySelector('.signin .err').textContent"
        )
        await screen.run(SIGN_IN % served.tokens["root"])
        await screen.until("document.querySelector('nav')")
    screen.tab.complaints.clear()  # the browser logs each 401


@pytest.mark.parametrize("page", ["#/sessions", "#/sessions/s1?agent=clerk", "#/approvals", "#/agents"])
async def test_layouts_fit_the_window(serving, screen, page):
    """No page is wider than a wide or narrow window. Text has contrast in both themes, and each control has a name."""
    async with serving() as served:
        await waiting_for_a_person(served, "deploy " + "x" * 300)
        await screen.open(link_of(served))
        await screen.until("document.querySelector('tbody a')")
        await screen.run(f"location.hash = '{page}'")
        await screen.until(
            "document.querySelector('main h1') && !document.body.innerText.includes('Loading')"
        )
        for width in (1280, 390):
            for scheme in ("light", "dark"):
                measured = await screen.tab.look(width, scheme)
                assert measured["overflow"] <= 0, (page, width, scheme)
                assert measured["isDark"] == (scheme == "dark")
                assert await screen.run(FAINT) == [], (page, width, scheme)
        assert await screen.run(NAMELESS) == []


async def test_narrow_header_has_room_for_each_state_of_the_connection(serving, screen):
    """The header of a narrow window has all its buttons inside the window while the page connects."""
    async with serving() as served:
        await screen.open(link_of(served))
        await screen.until("document.querySelector('header .live').textContent === 'live'")
        for state in ("live", "connecting", "reconnecting", "no connection to the server"):
            await screen.run(f"document.querySelector('header .live').textContent = '{state}'")
            assert (await screen.tab.look(390, "light"))["overflow"] <= 0, state


FAINT = """(() => {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = color => { probe.clearRect(0, 0, 1, 1); probe.fillStyle = color; probe.fillRect(0, 0, 1, 1); return [...probe.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255).map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => { for (let e = element; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] > 250) return c; } return [255, 255, 255, 255]; };
  return [...document.querySelectorAll("body *")].filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) && e.checkVisibility() && !e.closest("noscript")).filter(e => {
    const [x, y] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
    return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05) < 4.5;
  }).map(e => e.tagName + "." + e.className + " " + e.textContent.trim().slice(0, 40));
})()"""
NAMELESS = """[...document.querySelectorAll("button, a, input, select, textarea")]
  .filter(e => !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length)).map(e => e.outerHTML)"""


async def test_static_files_have_a_policy_and_caching(serving):
    """The policy permits only the scripts of the dashboard. The files need no token, and are sent again only after a change."""
    async with serving() as served, httpx2.AsyncClient(base_url=served.gateway.url) as client:
        page = await client.get("/")
        policy = page.headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "unsafe" not in policy
        assert "set-cookie" not in page.headers
        for path in SERVED:
            name = path.relative_to(STATIC).as_posix()
            if name != "index.html":
                got = await client.get(f"/static/{name}")
                assert got.status_code == 200
                assert got.content == path.read_bytes()
        again = await client.get("/", headers={"if-none-match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        for name in ("vendor/README.md", "../app.py", "%2e%2e/app.py", "nothing.js"):
            assert (await client.get(f"/static/{name}")).status_code == 404
        assert (await client.post("/")).status_code == 405


async def test_gateway_can_run_without_a_dashboard(serving):
    """With `dashboard=False` the gateway serves no page."""
    async with serving(dashboard=False) as served, httpx2.AsyncClient(base_url=served.gateway.url) as client:
        assert (await client.get("/")).status_code == 404


def test_static_files_are_small():
    """All files have less than 150 KB compressed, and less than 5,000 lines without the vendored libraries."""
    assert sum(len(gzip.compress(path.read_bytes())) for path in SERVED) < 150_000
    ours = [path for path in SERVED if path.suffix == ".js" and path.parent.name != "vendor"]
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in ours) < 5_000


async def test_first_page_is_small(serving, screen):
    """The first page takes at most 12 requests for files, and less than 60 KB compressed."""
    async with serving() as served:
        await screen.open(link_of(served))
        await screen.until("document.querySelector('main .empty')")
        files = await screen.run(
            "performance.getEntriesByType('resource').filter(each => !each.name.includes('/v1/'))"
            ".map(each => [each.name, each.transferSize])"
        )
        assert 5 < len(files) <= 12, files
        assert 0 < sum(size for _, size in files) < 60_000, files


async def test_static_files_are_compressed_if_accepted(served):
    """Other clients get uncompressed files, and `Vary` tells caches that there are two variants."""
    async with httpx2.AsyncClient(base_url=served.gateway.url) as client:
        plain = await client.get("/static/app.js", headers={"accept-encoding": "identity"})
        packed = await client.get("/static/app.js", headers={"accept-encoding": "br, gzip"})
        refused = await client.get("/static/app.js", headers={"accept-encoding": "gzip;q=0"})
        assert plain.content == packed.content == refused.content
        assert "content-encoding" not in plain.headers
        assert "content-encoding" not in refused.headers
        assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "accept-encoding")
        assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) / 2
        assert packed.headers["etag"] != plain.headers["etag"]


def test_vendored_libraries_have_their_digests():
    """The digest of each vendored library equals the recorded digest."""
    rows = re.findall(
        r"^\| `(\S+)` .* ([0-9a-f]{64}) \|$", (STATIC / "vendor/README.md").read_text(), re.MULTILINE
    )
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in STATIC.glob("vendor/*.*s")}
    assert dict(rows) == found
