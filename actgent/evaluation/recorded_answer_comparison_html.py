"""HTML page of a comparison with recorded answers, as one self-contained file."""

from collections.abc import Iterator, Mapping
from html import escape
from itertools import groupby

from actgent.errors.text_escaping import counted

from .recorded_answer_comparison_report import (
    ACCEPTED,
    ComparedDecision,
    DecisionReport,
    DifferenceKind,
    call_text,
    describe_reading,
)
from .shared_html_parts import cost_words, html_cells, html_entry, html_page, html_table, time_words

_KINDS: Mapping[DifferenceKind, str] = {
    "same": "same",
    "words": "other words",
    "calls": "other calls",
    "outcome": "other outcome",
    "failed": "failed",
}
"""Names of the kinds of differences in tables."""


def decisions_to_html(report: DecisionReport, *, title: str = "Compared decisions") -> str:
    """Render the report of compared decisions as an HTML page. All texts are escaped."""
    return "".join(html_page(title, _body(report)))


def figures_table(report: DecisionReport) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of metrics: a name, the value of the recorded answers, and one value per variant."""
    rows = [report.row(variant) for variant in report.variants]
    usages = [report.recorded_usage, *(row.usage for row in rows)]
    yield "decisions", f"{rows[0].decisions:,}", *(f"{row.decisions:,}" for row in rows)
    for kind, name in _KINDS.items():
        yield name, "", *(f"{row.counts[kind]:,}" for row in rows)
    yield "not reached", "", *(f"{row.unreached:,}" for row in rows)
    yield "unrecorded calls", "", *(f"{row.unrecorded:,}" for row in rows)
    yield "model calls", "", *(f"{row.calls:,}" for row in rows)
    yield "tokens in", *(f"{usage.input_tokens:,}" for usage in usages)
    yield "tokens out", *(f"{usage.output_tokens:,}" for usage in usages)
    yield "cost", *map(cost_words, usages)


def _body(report: DecisionReport) -> Iterator[str]:
    yield f'<p class="sub">{counted(report.sessions, "session")}. No tool ran.</p>\n<h2>Side by side</h2>\n'
    yield from html_table(
        ("", "recorded", *report.variants), (html_cells("td", line) for line in figures_table(report))
    )
    if report.unreached:
        yield "<h2>Not reached</h2>\n"
        yield from html_table(
            ("session", "model", "decisions", "reason"),
            (
                html_cells("td", (each.session_id, each.variant, f"{each.count:,}", each.reason))
                for each in report.unreached
            ),
        )
    yield "<h2>Differences</h2>\n"
    different = [each for each in report.decisions if each.kind != "same"]
    if not different:
        yield "<p>None.</p>\n"
    for (session_id, step), found in groupby(
        sorted(different, key=lambda each: (each.session_id, each.step)),
        key=lambda each: (each.session_id, each.step),
    ):
        yield from _decision(session_id, step, list(found))


def _decision(session_id: str, step: int, found: list[ComparedDecision]) -> Iterator[str]:
    is_other = any(each.kind not in ACCEPTED for each in found)
    kinds = ", ".join(f"{each.variant}: {each.kind}" for each in found)
    yield f"<details{' open' if is_other else ''}><summary>{_badge(is_other)} {escape(session_id)}, record {step} "
    yield f"({escape(kinds)})</summary><div><dl>{html_entry('recorded', describe_reading(found[0].recorded))}</dl>\n"
    for each in found:
        yield f'<div class="run">{_badge(each.kind not in ACCEPTED)} {escape(each.variant)}, {time_words(each.seconds)}<dl>'
        if each.answered is None:
            yield html_entry("error", each.error)
        else:
            yield html_entry("answered", describe_reading(each.answered))
        yield from _fork(each)
        yield "</dl></div>\n"
    yield "</div></details>\n"


def _fork(decision: ComparedDecision) -> Iterator[str]:
    if (end := decision.end) is None:
        return
    yield html_entry("calls", "\n".join(map(call_text, end.calls)))
    if end.unrecorded:
        yield html_entry("not recorded", "\n".join(map(call_text, end.unrecorded)))
    elif end.error:
        yield html_entry("fork failed", end.error)
    else:
        yield html_entry("fork replied", end.text)


def _badge(is_other: bool) -> str:  # noqa: FBT001
    return f'<span class="{"bad" if is_other else "half"}">{"other" if is_other else "words"}</span>'
