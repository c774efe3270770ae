"""A browser, and a gateway with something to see."""

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
"""Keys that are no characters: their codes, and the texts that they make."""
GO = """new Promise(done => {
  const before = location.href;
  location.hash = %s;
  if (location.href === before) done();
  else addEventListener("hashchange", () => setTimeout(done), { once: true });
})"""
"""The page that is left may look settled until it has heard that another one is wanted."""
SETTLED = (
    """document.querySelector("main h1") && !document.querySelector("main").innerText.includes("Loading")"""
)


def load(name, path):
    """A module of the tests by its file."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def browser():
    """Chromium, as the tests of the documentation speak to it; skips where there is none."""
    module = load("browser", ROOT / "tests" / "docs" / "browser.py")
    if module.CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    return module


class Screen:
    """What a person sees and does."""

    def __init__(self, tab) -> None:
        self.tab = tab

    async def run(self, script):
        done = await self.tab.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    async def until(self, condition):
        """Wait until something is to be seen; returns it as text."""
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
        """Show another page of the dashboard, and wait until it has what it shows."""
        await self.run(GO % json.dumps(place))
        await self.until(SETTLED)

    async def fill(self, selector, text):
        """Type a text into a field."""
        await self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        await self.tab.call("Input.insertText", text=text)

    async def press(self, *keys):
        """Press keys one after the other, each by its name or its character."""
        for key in keys:
            code, text = NAMED.get(key, (0, key))
            for kind in ("keyDown", "keyUp"):
                said = {"text": text} if kind == "keyDown" and text else {}
                await self.tab.call(
                    "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **said
                )

    async def open_another(self, address, before=""):
        """Open one more tab of the same browser, and go to it; a script may run before the page. Returns what `turn_to` takes."""
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
        """Go to a tab that was opened, which is seen then; the others are not."""
        self.tab.session = opened[1]
        await self.tab.call("Page.bringToFront")

    async def close(self, opened):
        """Close a tab that was opened."""
        before, self.tab.session = self.tab.session, ""
        await self.tab.call("Target.closeTarget", targetId=opened[0])
        self.tab.session = before

    def asked(self, words):
        """How often the network was asked for an address that holds these words."""
        return sum(words in each for each in self.tab.complaints if each.startswith("asked the network"))

    def complaints(self):
        """What the console said; requests to the gateway are none."""
        return [each for each in self.tab.complaints if not each.startswith("asked the network")]


@pytest.fixture
async def screen(browser):
    """A browser with an empty page; it may not complain."""
    async with browser.open_tab() as tab:
        shown = Screen(tab)
        await tab.look(1280, "light")
        yield shown
        assert shown.complaints() == []


scene = load("scene", Path(__file__).with_name("scene.py"))


@asynccontextmanager
async def client_of(url, secret):
    """A client of the gateway at a URL, with the token that is given."""
    headers = {"authorization": f"Bearer {secret}"}
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
        yield client


@pytest.fixture
async def stage():
    """The address of a gateway in which a scene was played, and the dashboard's pages by their names."""
    async with scene.open_scene(client_of) as link:
        yield link, scene.PAGES
