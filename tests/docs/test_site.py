"""The site is built without a warning, documents all public names, and needs no network."""

import ast
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import actgent
from actgent import evaluation, testing

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = sorted(path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md"))


def entries(site: Path) -> set[str]:
    """Return the names that have a linkable entry in the reference."""
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    return {name for kind, items in inventory.data.items() if kind.startswith("py:") for name in items}


def test_each_page_is_built(site):
    """No page of the docs is missing, and each has a title and text."""
    for name in SOURCES:
        text = (site / f"{name}.html").read_text(encoding="utf-8")
        assert re.search(r"<h1>\S", text), name
        assert len(re.sub(r"<[^>]+>", "", text)) > 500, name


def test_each_public_name_has_a_reference_entry(site):
    """All names of `actgent` and `actgent.testing` are in the reference."""
    known = entries(site)
    public = {f"actgent.{name}" for name in actgent.__all__}
    public |= {f"actgent.testing.{name}" for name in testing.__all__ if name not in actgent.__all__}
    public |= {f"actgent.evaluation.{name}" for name in evaluation.__all__ if name not in actgent.__all__}
    assert public - known == set()


def imported() -> set[str]:
    """Return the names that the blocks of the docs and the examples import from the package."""
    blocks = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").rglob("*.py"))]
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))):
        found = re.findall(
            r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        )
        blocks += found
    nodes = [node for block in blocks for node in ast.walk(ast.parse(block))]
    ours = [
        node
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("actgent")
    ]
    return {alias.name for node in ours for alias in node.names}


def test_each_shown_name_has_a_reference_entry(site):
    """Each name that a page or an example imports from any module of the package has an entry."""
    known = {name.rpartition(".")[2] for name in entries(site)}
    shown = imported()
    assert len(shown) > 100
    assert shown - known == set()


class Loaded(HTMLParser):
    """Collects the addresses that a page loads. Links are not included."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: "list[tuple[str, str | None]]") -> None:
        if tag != "a":
            self.addresses += [value for name, value in attrs if name in {"src", "href", "data"} and value]


@pytest.mark.parametrize("kind", ["html", "css"])
def test_site_loads_nothing_from_the_network(site, kind):
    """No page and no style sheet loads a font, script or picture from another host."""
    foreign = []
    for path in site.rglob(f"*.{kind}"):
        text = path.read_text(encoding="utf-8")
        if kind == "html":
            loaded = Loaded()
            loaded.feed(text)
            addresses = loaded.addresses
        else:
            addresses = re.findall(r"url\(\s*['\"]?([^'\")]+)", text) + re.findall(r"@import\s+(\S+)", text)
        foreign += [f"{path.name}: {each}" for each in addresses if re.match(r"(https?:)?//", each)]
    assert foreign == []


def test_llms_txt_lists_each_page_once(site):
    """Each page has a line with its title and an address that exists; most have their first sentence."""
    lines = [
        line
        for line in (site / "llms.txt").read_text(encoding="utf-8").splitlines()
        if line.startswith("- [")
    ]
    addresses = [re.fullmatch(r"- \[[^]]+\]\(([^)]+)\)(: .+)?", line)[1] for line in lines]
    assert len(addresses) == len(set(addresses)) > 50
    assert [each for each in addresses if not (site / each).is_file()] == []
    assert sum("): " in line for line in lines) > len(lines) / 2


def test_code_blocks_have_copy_buttons(site):
    page = (site / "install.html").read_text(encoding="utf-8")
    assert "copybutton.js" in page
