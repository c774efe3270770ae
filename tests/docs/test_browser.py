"""Each page of the site is readable in a real browser: light and dark, wide and narrow."""

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def browser():
    """Return the module `browser.py` of this folder. Skip the test if Chromium is not installed."""
    spec = importlib.util.spec_from_file_location("docs_browser", HERE / "browser.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if module.CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    return module


async def test_each_page_is_readable(site, browser):
    """No page is wider than its window, blank or in wrong colors, and the console has no errors."""
    assert await browser.look_at(site) == []


GOOD = (
    "<article style='background: #fff; color: #111; min-height: 200px'>" + "All is well. " * 20 + "</article>"
)
PAPER = "<style>body { background: #fff } @media (prefers-color-scheme: dark) { body { background: #111 } }</style>"
PLANTED = {
    "is 1": PAPER + GOOD + "<pre style='width: 1550px'>wide</pre>",
    "is blank": PAPER + "<article></article>",
    "the other color scheme": GOOD,
    "raised": PAPER + GOOD + "<script>throw new Error('a mistake')</script>",
    "cannot be read": PAPER + GOOD.replace("#111", "#eee"),
    "asked the network": PAPER + GOOD + "<img src='http://127.0.0.1:9/a.png'>",
}


@pytest.mark.parametrize("what", PLANTED)
async def test_planted_fault_is_detected(browser, tmp_path, what):
    """A page with one fault is reported, so a silent check does not mean a broken tool."""
    (tmp_path / "page.html").write_text(PLANTED[what], encoding="utf-8")
    assert any(what in fault for fault in await browser.look_at(tmp_path))
