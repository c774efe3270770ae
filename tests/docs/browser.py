"""Check each page of the built site in a real browser: narrow and wide, light and dark.

The browser is Chromium, controlled over pipes. As a program, this module also stores screenshots:
`python tests/docs/browser.py build/docs pictures` after `make docs`.
"""

import base64
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SWITCHES = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-extensions
--disable-background-networking --disable-component-update --disable-sync --remote-debugging-pipe""".split()
WIDTHS = {"wide": 1440, "narrow": 380}
SCHEMES = ("light", "dark")
GENERATED = {"search.html", "genindex.html", "py-modindex.html"}
PATIENCE = 60
"""Timeout in seconds for a browser that does not answer."""

MEASURE = """(() => {
  const numbers = color => (color.match(/[\\d.]+/g) || [0, 0, 0]).map(Number);
  const light = color => {
    const [r, g, b] = numbers(color).map(c => c / 255).map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => { const [x, y] = [light(a), light(b)]; return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05); };
  const page = document.documentElement, background = getComputedStyle(document.body).backgroundColor;
  const article = document.querySelector("article");
  const drawn = [...document.querySelectorAll("article svg text")];
  return {
    overflow: page.scrollWidth - page.clientWidth,
    text: article ? article.innerText.length : 0,
    height: article ? article.getBoundingClientRect().height : 0,
    isDark: light(background) < 0.2,
    contrast: article ? contrast(getComputedStyle(article).color, background) : 0,
    drawn: Math.min(21, ...drawn.map(each => contrast(getComputedStyle(each).fill, background))),
    small: Math.min(99, ...drawn.map(each => each.getBoundingClientRect().height)),
  };
})()"""


@attrs.define(eq=False)
class Tab:
    """A browser tab."""

    sending: trio.abc.SendStream
    receiving: trio.abc.ReceiveStream
    session: str = ""
    complaints: list[str] = attrs.field(factory=list)
    """Console errors and network requests since the last page."""
    _events: list[dict[str, Any]] = attrs.field(factory=list)
    _left: bytes = b""
    _last: int = 0

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol."""
        self._last += 1
        said: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self.session:
            said["sessionId"] = self.session
        await self.sending.send_all(json.dumps(said).encode() + b"\0")
        while (heard := await self._receive()).get("id") != self._last:
            self._note(heard)
        if "error" in heard:
            raise RuntimeError(f"{method}: {heard['error']}")
        return dict(heard["result"])

    async def wait_for(self, event: str) -> None:
        """Wait until the browser sends an event of this kind, or return if one is already queued. Then clear the queue."""
        while all(each["method"] != event for each in self._events):
            self._note(await self._receive())
        self._events.clear()

    async def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            received = await self.receiving.receive_some(1 << 16)
            if not received:
                raise RuntimeError("the browser has ended")
            self._left += received
        first, _, self._left = self._left.partition(b"\0")
        return dict(json.loads(first))

    def _note(self, heard: dict[str, Any]) -> None:
        method, told = heard.get("method", ""), heard.get("params", {})
        if method == "Page.loadEventFired":
            self._events.append(heard)
        elif method == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            said = details.get("exception", {}).get("description", details.get("text"))
            self.complaints.append(f"raised {said}")
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.complaints.append(f"logged {told['entry']['text']} {told['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and told["type"] == "error":
            self.complaints.append(f"logged {told['args']}")
        elif method == "Network.requestWillBeSent":
            address = told["request"]["url"]
            if not address.startswith(("file:", "data:", "blob:")):
                self.complaints.append(f"asked the network for {address}")

    async def open(self, address: str) -> None:
        """Open a page, and wait until it is loaded with all its resources."""
        self._events.clear()
        await self.call("Page.navigate", url=address)
        await self.wait_for("Page.loadEventFired")

    async def reload(self) -> None:
        """Load the page again and wait for the new page. A call before that could reach the old page."""
        self._events.clear()
        await self.call("Page.reload")
        await self.wait_for("Page.loadEventFired")

    async def look(self, width: int, scheme: str) -> dict[str, Any]:
        """Render the page with a width and a color scheme, and measure it."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False
        )
        await self.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
        measured = await self.call("Runtime.evaluate", expression=MEASURE, returnByValue=True)
        return dict(measured["result"]["value"])

    async def picture(self) -> bytes:
        """Return a PNG of the whole rendered page."""
        taken = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(taken["data"])


@asynccontextmanager
async def open_tab() -> AsyncIterator[Tab]:
    """Start a browser with one empty page, and yield its tab."""
    assert CHROMIUM is not None
    (to_read, to_send), (to_receive, to_write) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *SWITCHES, f"--user-data-dir={profile}", "about:blank"]
        redirected = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write} 2>/dev/null'
        process = await trio.lowlevel.open_process(
            ["bash", "-c", redirected, *command], pass_fds=(to_read, to_write)
        )
        os.close(to_read)
        os.close(to_write)
        try:
            async with (
                trio.lowlevel.FdStream(to_send) as sending,
                trio.lowlevel.FdStream(to_receive) as receiving,
            ):
                tab = Tab(sending, receiving)
                made = await tab.call("Target.createTarget", url="about:blank")
                joined = await tab.call("Target.attachToTarget", targetId=made["targetId"], flatten=True)
                tab.session = joined["sessionId"]
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await tab.call(f"{domain}.enable")
                yield tab
        finally:
            process.terminate()
            with trio.CancelScope(shield=True):
                await process.wait()


def faults_of(page: str, layout: str, scheme: str, measured: dict[str, Any]) -> Iterator[str]:
    """Yield the faults of a rendered page."""
    at = f"{page}, {layout}, {scheme}"
    if measured["overflow"] > 0:
        yield f"{at}: is {measured['overflow']} pixels wider than the window"
    if measured["text"] < 100 or measured["height"] < 100:
        yield f"{at}: is blank"
    if measured["isDark"] != (scheme == "dark"):
        yield f"{at}: has the other color scheme"
    if measured["contrast"] < 4.5 or measured["drawn"] < 4.5:
        yield f"{at}: has text that cannot be read ({measured['contrast']:.1f}, in pictures {measured['drawn']:.1f})"
    if measured["small"] < 8:
        yield f"{at}: has a picture whose text is {measured['small']:.1f} pixels high"


def pages_of(site: Path) -> dict[str, Path]:
    """Return the pages of a site that are not generated, by their addresses in the site."""
    pages = {path.relative_to(site).as_posix(): path for path in sorted(site.rglob("*.html"))}
    return {name: path for name, path in pages.items() if name not in GENERATED}


async def look_at(site: Path, pictures: Path | None = None) -> list[str]:
    """Render each page of a site in all layouts and color schemes, and list the faults. Store screenshots if a folder is given."""
    found: list[str] = []
    async with open_tab() as tab:
        for page, path in pages_of(site).items():
            with trio.fail_after(PATIENCE):
                await tab.open(path.as_uri())
                for layout, width in WIDTHS.items():
                    for scheme in SCHEMES:
                        found += faults_of(page, layout, scheme, await tab.look(width, scheme))
                        if pictures is not None:
                            name = f"{page.removesuffix('.html').replace('/', '-')}-{layout}-{scheme}.png"
                            (pictures / name).write_bytes(await tab.picture())
            found += [f"{page}: {complaint}" for complaint in tab.complaints]
            tab.complaints.clear()
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    kept = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(KeyboardInterrupt):
        for fault in trio.run(look_at, folder.resolve(), kept):
            sys.stdout.write(f"{fault}\n")
