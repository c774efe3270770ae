"""Parts that the HTML reports share: the page with its style, table cells, entries, and texts of numbers."""

from collections.abc import Iterable, Iterator
from html import escape

from actgent.messages import Usage

_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1c1e21; --soft: #5b6169; --line: #d9dce1; --panel: #f5f6f8;
  --good: #14663a; --good-ground: #dff3e6; --half: #7a4d00; --half-ground: #fdf0d5; --bad: #a01c1c; --bad-ground: #fbe3e3; }
@media (prefers-color-scheme: dark) { :root { --ground: #16181b; --ink: #e7e9ec; --soft: #a3aab3; --line: #363a40;
  --panel: #1f2226; --good: #8fdcae; --good-ground: #173524; --half: #f0c674; --half-ground: #3a2d10; --bad: #ff9d9d;
  --bad-ground: #431b1b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 4rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem; }
p.sub { color: var(--soft); margin: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .4rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; color: var(--soft); } th:first-child, td:first-child { text-align: left; white-space: normal;
  min-width: 10rem; overflow-wrap: anywhere; }
.good, .half, .bad { border-radius: .3rem; padding: .1rem .5rem; font-weight: 600; display: inline-block; }
.good { color: var(--good); background: var(--good-ground); } .half { color: var(--half); background: var(--half-ground); }
.bad { color: var(--bad); background: var(--bad-ground); }
details { border: 1px solid var(--line); border-radius: .5rem; margin: .5rem 0; background: var(--panel); }
summary { cursor: pointer; padding: .5rem .8rem; overflow-wrap: anywhere; }
details > div { padding: 0 .8rem .8rem; }
dl { display: grid; grid-template-columns: minmax(5rem, max-content) 1fr; gap: .25rem 1rem; margin: .5rem 0 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; }
.run { border-top: 1px solid var(--line); padding-top: .6rem; margin-top: .6rem; }
@media (max-width: 34rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; } }
"""


def html_page(title: str, body: Iterable[str]) -> Iterator[str]:
    """Yield the pieces of a self-contained HTML page for light and dark mode and all widths.

    `title` is escaped; `body` is HTML.
    """
    name = escape(title)
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f"<style>{_STYLE}</style></head>\n<body><h1>{name}</h1>\n"
    yield from body
    yield "</body></html>\n"


def html_table(heads: Iterable[str], rows: Iterable[str]) -> Iterator[str]:
    """Yield the HTML of a table that scrolls if the page is narrow.

    `heads` are the texts of the head cells, and `rows` the HTML of the cells of each row.
    """
    yield f'<div class="wide"><table><thead><tr>{html_cells("th", heads)}</tr></thead><tbody>\n'
    for row in rows:
        yield f"<tr>{row}</tr>\n"
    yield "</tbody></table></div>\n"


def html_entry(name: str, text: str) -> str:
    """Format a name and its text as the HTML of an entry of a description list."""
    return f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"


def html_cells(kind: str, texts: Iterable[str]) -> str:
    """Format texts as the HTML of table cells of a kind, `td` or `th`."""
    return "".join(f"<{kind}>{escape(text)}</{kind}>" for text in texts)


def cost_words(usage: Usage) -> str:
    """Format the cost of a usage in US dollars as text, or `unknown`."""
    return "unknown" if usage.cost is None else f"${usage.cost:.4f}"


def time_words(seconds: float) -> str:
    """Format a duration as text, in milliseconds below one second."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
