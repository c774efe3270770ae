"""Evaluation report as one self-contained HTML page, for light and dark mode and all widths."""

from collections.abc import Iterator
from html import escape

from actgent.errors.printable import counted
from actgent.messages import Usage

from .cases import Case, Trial
from .report import Figures, Report

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


def to_html(report: Report, *, title: str = "Evaluation") -> str:
    """Return the report as an HTML page. All texts are escaped."""
    return "".join(_page(report, title))


def _page(report: Report, title: str) -> Iterator[str]:
    name = escape(title)
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f"<style>{_STYLE}</style></head>\n<body><h1>{name}</h1>\n"
    whole = Figures.of(report.trials)
    yield f'<p class="sub">{counted(len(report.cases), "case")}, {counted(whole.trials, "run")}: {whole.passed} passed'
    yield f", {whole.errors} without an answer</p>\n"
    yield from _variants(report)
    yield from _matrix(report)
    yield "<h2>Runs</h2>\n"
    for case in report.cases:
        yield from _case(report, case)
    yield "</body></html>\n"


def _variants(report: Report) -> Iterator[str]:
    heads = ("", "passed", "score", "tokens in", "tokens out", "cost", "p50", "p95")
    yield f'<h2>Side by side</h2>\n<div class="wide"><table><thead><tr>{_cells("th", heads)}</tr></thead><tbody>\n'
    for variant in report.variants:
        row = report.row(variant)
        usage = row.usage
        figures = (
            f"{row.score:.2f}",
            f"{usage.input_tokens:,}",
            f"{usage.output_tokens:,}",
            cost_words(usage),
        )
        times = (time_words(row.p50), time_words(row.p95))
        yield f"<tr><td>{escape(variant)}</td><td>{_badge(row)}</td>{_cells('td', (*figures, *times))}</tr>\n"
    yield "</tbody></table></div>\n"
    judged = report.judge_usage
    if judged.input_tokens or judged.output_tokens:
        words = f"{judged.input_tokens:,} tokens in, {judged.output_tokens:,} out, {cost_words(judged)}"
        yield f'<p class="sub">Additional usage of the judge: {escape(words)}</p>\n'


def _matrix(report: Report) -> Iterator[str]:
    heads = _cells("th", ("case", *report.variants))
    yield f'<h2>Cases</h2>\n<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n'
    for case in report.cases:
        cells = "".join(f"<td>{_badge(report.cell(case, each))}</td>" for each in report.variants)
        yield f"<tr><td>{escape(case.title)}</td>{cells}</tr>\n"
    yield "</tbody></table></div>\n"


def _case(report: Report, case: Case) -> Iterator[str]:
    trials = [trial for trial in report.trials if trial.case is case]
    row = Figures.of(trials)
    opened = " open" if row.passed < row.trials else ""
    yield f"<details{opened}><summary>{_badge(row)} {escape(case.title)}</summary><div><dl>"
    yield _entry("input", "\n".join(case.input))
    if case.expected is not None:
        yield _entry("expected", str(case.expected))
    if case.judge:
        yield _entry("judged by", case.judge)
    yield "</dl>\n"
    for trial in trials:
        yield from _run(trial)
    yield "</div></details>\n"


def _run(trial: Trial) -> Iterator[str]:
    word, kind = ("passed", "good") if trial.passed else ("failed", "bad")
    head = f"{escape(trial.variant)}, run {trial.run}, {time_words(trial.seconds)}"
    yield f'<div class="run"><span class="{kind}">{word}</span> {head}<dl>'
    if trial.error:
        yield _entry("error", trial.error)
    else:
        yield _entry("answer", trial.text)
    if trial.calls:
        yield _entry("tools", "\n".join(f"{call.name}({call.arguments})" for call in trial.calls))
    if (simulation := trial.simulation) is not None:
        acts = [f"{call.name}({call.arguments})" for call in simulation.calls]
        yield _entry(
            "user", "\n".join([f"{simulation.stop} after {counted(simulation.turns, 'message')}", *acts])
        )
    for result in trial.results:
        verdict = "passed" if result.passed else "failed"
        reason = f": {result.reason}" if result.reason else ""
        yield _entry(result.name, f"{verdict}, {result.score:.2f}{reason}")
    yield "</dl></div>\n"


def _entry(name: str, text: str) -> str:
    return f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"


def _cells(kind: str, texts: tuple[str, ...]) -> str:
    return "".join(f"<{kind}>{escape(text)}</{kind}>" for text in texts)


def _badge(row: Figures) -> str:
    """Return `passed of all` runs as HTML; the colour adds no information."""
    if not row.trials:
        return "not run"
    kind = "good" if row.passed == row.trials else "half" if row.passed else "bad"
    return f'<span class="{kind}">{row.passed} of {row.trials}</span>'


def cost_words(usage: Usage) -> str:
    """Return the cost in US dollars as text, or `unknown`."""
    return "unknown" if usage.cost is None else f"${usage.cost:.4f}"


def time_words(seconds: float) -> str:
    """Return a duration as text, in milliseconds below one second."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
