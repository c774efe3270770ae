"""A browser, and a gateway with data for each page of the dashboard."""

import importlib.util
import json
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
import trio

ROOT = Path(__file__).parents[3]
WAIT = """new Promise(done => {
  const begun = performance.now();
  const look = () => {
    let found;
    try { found = %s } catch { found = false }
    if (found) done(String(found));
    else if (performance.now() - begun > 30000) done("too late: " + document.body.innerText.slice(0, 500));
    else requestAnimationFrame(look);
  };
  look();
})"""
NAMED = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    "ArrowRight": (39, ""),
    "ArrowUp": (38, ""),
    "ArrowDown": (40, ""),
}
"""Codes and texts of the keys that are not characters."""
GO = """new Promise(done => {
  const before = location.href;
  location.hash = %s;
  if (location.href === before) done();
  else addEventListener("hashchange", () => setTimeout(done), { once: true });
})"""
"""The script waits for `hashchange`, because the old page can look settled until that event."""
SETTLED = (
    """document.querySelector("main h1") && !document.querySelector("main").innerText.includes("Loading")"""
)

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],
}
FOUND = f"""axe.run(document, {json.dumps(RULES)}).then(found => found.violations.flatMap(
  each => each.nodes.map(node => [each.id, node.target.join(" "), node.failureSummary].join(" | "))))"""
WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")


def load(name, path):
    """Import a test module from its file."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def browser():
    """Return the browser module of the documentation tests. Skip the test if Chromium is not installed."""
    module = load("browser", ROOT / "tests" / "docs" / "browser.py")
    if module.CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    return module


class Screen:
    """The visible page of a browser, with the input of a user."""

    def __init__(self, tab) -> None:
        self.tab = tab

    async def run(self, script):
        done = await self.tab.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    async def until(self, condition):
        """Wait until a condition on the page is met. Return its value as text."""
        found = await self.run(WAIT % condition)
        assert not found.startswith("too late"), (condition, found)
        return found

    async def open(self, address):
        with trio.fail_after(60):
            await self.tab.open(address)

    async def reload(self):
        with trio.fail_after(60):
            await self.tab.reload()

    async def go(self, place):
        """Open another page of the dashboard, and wait until its content has loaded."""
        await self.run(GO % json.dumps(place))
        await self.until(SETTLED)

    async def fill(self, selector, text):
        """Type a text into a field."""
        await self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        await self.tab.call("Input.insertText", text=text)

    async def press(self, *keys):
        """Press keys in sequence. Each key is a name or a character."""
        for key in keys:
            code, text = NAMED.get(key, (0, key))
            for kind in ("keyDown", "keyUp"):
                said = {"text": text} if kind == "keyDown" and text else {}
                await self.tab.call(
                    "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **said
                )

    async def open_another(self, address, before=""):
        """Open another tab of the same browser at an address. `before` is a script that runs before the page. Return the argument of `turn_to`."""
        self.tab.session = ""
        made = await self.tab.call("Target.createTarget", url="about:blank")
        joined = await self.tab.call("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        self.tab.session = joined["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.tab.call(f"{domain}.enable")
        if before:
            await self.tab.call("Page.addScriptToEvaluateOnNewDocument", source=before)
        await self.open(address)
        return made["targetId"], joined["sessionId"]

    async def turn_to(self, opened):
        """Bring an opened tab to the front. The other tabs are hidden."""
        self.tab.session = opened[1]
        await self.tab.call("Page.bringToFront")

    async def close(self, opened):
        """Close an opened tab."""
        before, self.tab.session = self.tab.session, ""
        await self.tab.call("Target.closeTarget", targetId=opened[0])
        self.tab.session = before

    def asked(self, words):
        """Return the number of network requests whose address contains the text."""
        return sum(words in each for each in self.tab.complaints if each.startswith("asked the network"))

    def complaints(self):
        """Return the console messages of the page, without the requests to the gateway."""
        return [each for each in self.tab.complaints if not each.startswith("asked the network")]


@pytest.fixture
async def screen(browser):
    """Yield a browser with an empty page. The console must have no messages at the end."""
    async with browser.open_tab() as tab:
        shown = Screen(tab)
        await tab.look(1280, "light")
        yield shown
        assert shown.complaints() == []


scene = load("scene", Path(__file__).with_name("scene.py"))


@asynccontextmanager
async def client_of(url, secret):
    """Yield a client of the gateway at a URL, with a token."""
    headers = {"authorization": f"Bearer {secret}"}
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
        yield client


@pytest.fixture
async def stage():
    """Yield the address of a gateway with the played scene, and the paths of the dashboard's pages by name."""
    async with scene.open_scene(client_of) as link:
        yield link, scene.PAGES


@pytest.fixture
async def axe(screen):
    """Return a function that lists the accessibility findings of the shown page, in both widths and themes."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm ci in tests/web/dashboard")

    async def look():
        found = []
        await screen.run(AXE.read_text(encoding="utf-8") + "; 0")
        for width in WIDTHS:
            for scheme in SCHEMES:
                measured = await screen.tab.look(width, scheme)
                assert measured["isDark"] == (scheme == "dark")
                if measured["overflow"] > 0:
                    found.append(f"{width}, {scheme}: {measured['overflow']} pixels too wide")
                found += [f"{width}, {scheme}: {each}" for each in await screen.run(FOUND)]
        return found

    return look
