"""The settings of the documentation: `make docs` builds it with warnings as errors.

Nothing in the built site comes from the network: no fonts, no scripts, no analytics.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from sphinx import addnodes

ROOT = Path(__file__).parents[2]

project = "actgent"
author = "actgent developers"
copyright = author  # noqa: A001 - Sphinx asks for this name
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["site"]
smartquotes = False  # `--json` is no dash
# A backtick in a docstring is a name if there is one, and else code.
default_role = "py:obj"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
myst_links_external_new_tab = True

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "show-inheritance": True}
python_maximum_signature_line_length = 88
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"actgent {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"
html_show_sphinx = False
html_theme_options = {
    "navigation_with_keys": True,
    # Furo would link a repository; there is none to link.
    "source_repository": "",
}


# --- generated pages --------------------------------------------------------------------------


def _errors() -> str:
    """An entry for each exception, in the order of the tree in the docstring of actgent.errors."""
    import actgent  # noqa: PLC0415 - the settings can be read where the package is not installed
    from actgent import errors  # noqa: PLC0415

    names = [name for name in vars(errors) if name in actgent.__all__]
    entries = "\n".join(f".. autoexception:: {name}\n" for name in names)
    return f"```{{eval-rst}}\n.. currentmodule:: actgent\n\n{entries}```"


def _commands() -> str:
    """The pages of `--help`, of all commands."""
    from actgent.cli.main import app  # noqa: PLC0415

    text = str(app.generate_docs(output_format="markdown", heading_level=2))
    text = text.replace(" -m sphinx", "")  # how this process was started, taken for a part of the usage
    return re.sub(r"## Table of Contents\n.*?(?=\n\*\*)", "", text, flags=re.DOTALL)  # the page has one


def _examples() -> str:
    """The programs of the folder `examples`, each below its name."""
    examples = ROOT / "examples"
    programs = {path.name: [path] for path in examples.glob("*.py")}
    for start in examples.glob("*/__main__.py"):
        programs[start.parent.name] = sorted(start.parent.glob("*.py"))
    return "\n\n".join(
        f"({name.replace('.', '-')})=\n## {name}\n\n{_shown(programs[name])}" for name in sorted(programs)
    )


def _shown(paths: list[Path]) -> str:
    """Files of examples, one below the other."""
    places = [path.relative_to(ROOT).as_posix() for path in paths]
    return "\n\n".join(f"```{{literalinclude}} ../../{place}\n```" for place in places)


def _further_pages() -> str:
    """The pages of docs/ itself that index.md does not name: a new page appears in the navigation automatically."""
    docs = ROOT / "docs"
    named = (docs / "index.md").read_text(encoding="utf-8").splitlines()
    return "\n".join(sorted({page.stem for page in docs.glob("*.md")} - {"index", *named}))


GENERATED = {
    "guides/examples": ("% examples", _examples),
    "index": ("% further pages", _further_pages),
    "reference/errors": ("% errors", _errors),
    "reference/command-line": ("% commands", _commands),
}
"""Pages with a line that is replaced by text generated from the code or the folder."""


_PROGRAM_LINK = re.compile(r"\]\(\.\./\.\./examples/([\w.]+)\)")
"""Link to a program. In a clone it leads to the file, and in the site to the program on the page."""


def _generate(_app: object, page: str, source: list[str]) -> None:
    if page in GENERATED:
        marker, generate = GENERATED[page]
        source[0] = re.sub(rf"^{marker}.*$", lambda _: generate(), source[0], flags=re.MULTILINE)
        source[0] = _PROGRAM_LINK.sub(lambda link: f"](#{link[1].replace('.', '-')})", source[0])


# --- docstrings -------------------------------------------------------------------------------


_as_written: dict[str, list[str]] = {}
"""Escape colons in docstrings of attributes: Napoleon would parse the text before a colon as a type."""


def _before_napoleon(
    _app: object, what: str, name: str, _value: object, _options: object, lines: list[str]
) -> None:
    """Turn fenced code of a docstring into a block of reStructuredText."""
    for place, line in enumerate(lines):
        if line.strip() == "```python":
            lines[place : place + 1] = [".. code-block:: python", ""]
            end = next(n for n in range(place + 2, len(lines)) if lines[n].strip() == "```")
            lines[place + 2 : end + 1] = [*(f"    {code}" for code in lines[place + 2 : end]), ""]
    if what in {"attribute", "property"}:
        _as_written[name] = list(lines)


def _after_napoleon(
    _app: object, _what: str, name: str, _value: object, _options: object, lines: list[str]
) -> None:
    if name in _as_written:
        lines[:] = _as_written.pop(name)


# --- navigation -------------------------------------------------------------------------------


_titles: dict[str, Any] = {}
"""The table of contents of each page without its sections."""


def _shorten_navigation(app: Any, _page: str, _template: str, context: dict[str, Any], _tree: object) -> None:
    """Give only titles to the navigation: for each page, Sphinx copies all sections of all pages and then removes them.

    These copies took half of the time of a build.
    """
    make, tocs = context["toctree"], app.env.tocs
    if not _titles:
        _titles.update({name: _without_sections(toc) for name, toc in tocs.items()})

    def make_toctree(**options: Any) -> str:
        if not options.get("titles_only"):
            return str(make(**options))
        app.env.tocs = _titles
        try:
            return str(make(**options))
        finally:
            app.env.tocs = tocs

    context["toctree"] = make_toctree


def _without_sections(toc: Any) -> Any:
    """Return a copy of a table of contents with its titles and the tables of its subpages."""
    short = toc.deepcopy()
    for entry in short.children:
        if len(entry) > 1:
            entry[1][:] = list(entry.findall(addnodes.toctree))
    return short


# --- a list of pages for language models ------------------------------------------------------


def _write_llms(app: Any, error: Exception | None) -> None:
    """Write `llms.txt`: title, address and first sentence of each page (format: https://llmstxt.org)."""
    if error is not None or app.builder.name != "html":
        return
    lines = ["# actgent", "", f"> {_first_sentence('index')}", "", "## Pages", ""]
    for page in sorted(app.env.found_docs):
        title = app.env.titles[page].astext()
        lines.append(f"- [{title}]({app.builder.get_target_uri(page)}): {_first_sentence(page)}".rstrip(": "))
    Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _first_sentence(page: str) -> str:
    """Return the first sentence of a page below its title, as plain text; empty if it begins with no paragraph."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    body = re.sub(r"^# .*$", "", text, count=1, flags=re.MULTILINE).strip()
    paragraph = body.split("\n\n")[0]
    if not paragraph[:1].isalnum() and paragraph[:1] not in "`[":
        return ""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    return re.split(r"(?<=[.:]) ", plain)[0].rstrip(":")


def setup(app: Any) -> None:
    """Connect the functions above to the events of Sphinx."""
    app.connect("build-finished", _write_llms)
    app.connect("html-page-context", _shorten_navigation, priority=400)  # Furo's own function runs at 500
    app.connect("source-read", _generate)
    app.connect("autodoc-process-docstring", _before_napoleon, priority=400)
    app.connect("autodoc-process-docstring", _after_napoleon, priority=600)
