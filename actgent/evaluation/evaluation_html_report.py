"""Evaluation report as one self-contained HTML page, for light and dark mode and all widths."""

from collections.abc import Iterator
from html import escape

from actgent.errors.text_escaping import counted

from .cases_and_results import Case, Trial
from .evaluation_report import Figures, Report
from .shared_html_parts import cost_words, html_cells, html_entry, html_page, html_table, time_words


def to_html(report: Report, *, title: str = "Evaluation") -> str:
    """Render the report of an evaluation as an HTML page. All texts are escaped."""
    return "".join(html_page(title, _body(report)))


def _body(report: Report) -> Iterator[str]:
    whole = Figures.of(report.trials)
    yield f'<p class="sub">{counted(len(report.cases), "case")}, {counted(whole.trials, "run")}: {whole.passed} passed'
    yield f", {whole.errors} without an answer</p>\n"
    yield from _variants(report)
    yield from _matrix(report)
    yield "<h2>Runs</h2>\n"
    for case in report.cases:
        yield from _case(report, case)


def _variants(report: Report) -> Iterator[str]:
    yield "<h2>Side by side</h2>\n"
    yield from html_table(
        ("", "passed", "score", "tokens in", "tokens out", "cost", "p50", "p95"),
        (_variant_row(variant, report.row(variant)) for variant in report.variants),
    )
    judged = report.judge_usage
    if judged.input_tokens or judged.output_tokens:
        words = f"{judged.input_tokens:,} tokens in, {judged.output_tokens:,} out, {cost_words(judged)}"
        yield f'<p class="sub">Additional usage of the judge: {escape(words)}</p>\n'


def _variant_row(variant: str, row: Figures) -> str:
    usage = row.usage
    figures = (
        f"{row.score:.2f}",
        f"{usage.input_tokens:,}",
        f"{usage.output_tokens:,}",
        cost_words(usage),
        time_words(row.p50),
        time_words(row.p95),
    )
    return f"<td>{escape(variant)}</td><td>{_badge(row)}</td>{html_cells('td', figures)}"


def _matrix(report: Report) -> Iterator[str]:
    yield "<h2>Cases</h2>\n"
    yield from html_table(
        ("case", *report.variants),
        (
            f"<td>{escape(case.title)}</td>"
            + "".join(f"<td>{_badge(report.cell(case, each))}</td>" for each in report.variants)
            for case in report.cases
        ),
    )


def _case(report: Report, case: Case) -> Iterator[str]:
    trials = [trial for trial in report.trials if trial.case is case]
    row = Figures.of(trials)
    opened = " open" if row.passed < row.trials else ""
    yield f"<details{opened}><summary>{_badge(row)} {escape(case.title)}</summary><div><dl>"
    yield html_entry("input", "\n".join(case.input))
    if case.expected is not None:
        yield html_entry("expected", str(case.expected))
    if case.judge:
        yield html_entry("judged by", case.judge)
    yield "</dl>\n"
    for trial in trials:
        yield from _run(trial)
    yield "</div></details>\n"


def _run(trial: Trial) -> Iterator[str]:
    word, kind = ("passed", "good") if trial.passed else ("failed", "bad")
    head = f"{escape(trial.variant)}, run {trial.run}, {time_words(trial.seconds)}"
    yield f'<div class="run"><span class="{kind}">{word}</span> {head}<dl>'
    if trial.error:
        yield html_entry("error", trial.error)
    else:
        yield html_entry("answer", trial.text)
    if trial.calls:
        yield html_entry("tools", "\n".join(f"{call.name}({call.arguments})" for call in trial.calls))
    if (simulation := trial.simulation) is not None:
        acts = [f"{call.name}({call.arguments})" for call in simulation.calls]
        yield html_entry(
            "user", "\n".join([f"{simulation.stop} after {counted(simulation.turns, 'message')}", *acts])
        )
    for result in trial.results:
        verdict = "passed" if result.passed else "failed"
        reason = f": {result.reason}" if result.reason else ""
        yield html_entry(result.name, f"{verdict}, {result.score:.2f}{reason}")
    yield "</dl></div>\n"


def _badge(row: Figures) -> str:
    """Format the number of passed runs as HTML, such as `2 of 3`, with a colour."""
    if not row.trials:
        return "not run"
    kind = "good" if row.passed == row.trials else "half" if row.passed else "bad"
    return f'<span class="{kind}">{row.passed} of {row.trials}</span>'
