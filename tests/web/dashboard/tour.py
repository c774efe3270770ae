"""Create the dashboard's pictures of the documentation: `python tests/web/dashboard/tour.py docs/guides/pictures`."""

import base64
import importlib.util
import sys
from pathlib import Path

import trio

WIDE, PHONE = (1200, 720), (390, 720)
PICTURES = {
    "agents": (WIDE, "light"),
    "sessions": (WIDE, "light"),
    "session": (WIDE, "light"),
    "approvals": (PHONE, "dark"),
    "errors": (WIDE, "light"),
    "budgets": (WIDE, "light"),
    "rate-limiters": (PHONE, "light"),
    "evaluation": (WIDE, "light"),
    "memories": (PHONE, "light"),
    "journal": (WIDE, "dark"),
}
"""The size and theme of each picture, by the name of its page."""
READY = {
    "rate-limiters": "document.querySelector('.plot canvas')",
    "session": "document.querySelectorAll('.turn').length === 2",
    "evaluation": "document.querySelectorAll('article').length === 3",
    "memories": "document.querySelectorAll('.hit').length === 3",
}


async def take(screen, link, places, folder):
    """Create all pictures of a scene."""
    await screen.open(link)
    await screen.until("document.querySelector('tbody a')")
    for name, ((width, height), scheme) in PICTURES.items():
        await screen.tab.look(width, scheme)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await screen.tab.call("Emulation.setDeviceMetricsOverride", **size)
        await screen.go(places[name])
        await screen.until(READY.get(name, "true"))
        await screen.run(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))"
        )
        taken = await screen.tab.call("Page.captureScreenshot", format="webp", quality=70)
        (folder / f"{name}.webp").write_bytes(base64.b64decode(taken["data"]))


async def main(folder):
    spec = importlib.util.spec_from_file_location("conftest", Path(__file__).with_name("conftest.py"))
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    browser = conftest.load("browser", conftest.ROOT / "tests" / "docs" / "browser.py")
    async with conftest.scene.open_scene(conftest.client_of) as link, browser.open_tab() as tab:
        await take(conftest.Screen(tab), link, conftest.scene.PAGES, folder)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
