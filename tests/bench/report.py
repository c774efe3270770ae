"""The final table, the chart, and the figures on the docs page."""

import os
import platform
import statistics
import subprocess
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import attrs
from benchmark_page import PAGE, write_part
from measure import REFERENCE_S, Figures
from rich import box
from rich.console import Console
from rich.table import Table
from workloads import BY_KEY, Bar, Workload

CHART_WIDTH = 40


@attrs.define
class Results:
    """The figures of all runs by workload and side, in the order of the rounds; None for a failed run."""

    workloads: list[Workload]
    rounds: int = attrs.field(kw_only=True)
    quick: bool = attrs.field(kw_only=True)
    runs: dict[tuple[str, str], list[Figures | None]] = attrs.field(factory=lambda: defaultdict(list))

    def add(self, workload: Workload, side: str, figures: Figures | None) -> None:
        self.runs[workload.key, side].append(figures)

    def median(self, workload: Workload, side: str, figure: str) -> float | None:
        values = [run[figure] for run in self.runs[workload.key, side] if run and figure in run]
        return statistics.median(values) if values else None

    def ratio(self, workload: Workload, figure: str) -> float | None:
        """Return the median of the ratios within each round."""
        pairs = zip(self.runs[workload.key, "framework"], self.runs[workload.key, "floor"], strict=True)
        ratios = [
            ours[figure] / floor[figure]
            for ours, floor in pairs
            if figure in (ours or ()) and (floor or {}).get(figure)
        ]
        return statistics.median(ratios) if ratios else None

    def scaled(self, workload: Workload, figure: str) -> float | None:
        """Return the figure as the reference machine would show it."""
        runs = [run for run in self.runs[workload.key, "framework"] if run]
        values = [run[figure] * REFERENCE_S / run["calibration_s"] for run in runs]
        return statistics.median(values) if values else None

    def judged(self, workload: Workload, bar: Bar) -> float | None:
        """Return the number that is compared with a bar."""
        if bar.kind == "ratio":
            return self.ratio(workload, bar.figure)
        if bar.kind == "scaled":
            return self.scaled(workload, bar.figure)
        return self.median(workload, "framework", bar.figure)

    def passed(self, workload: Workload, bar: Bar) -> bool:
        number = self.judged(workload, bar)
        return number is not None and number <= bar.limit

    def as_json(self) -> dict[str, object]:
        runs = {f"{key}.{side}": figures for (key, side), figures in self.runs.items()}
        return {"machine": machine(), "rounds": self.rounds, "quick": self.quick, "runs": runs}


def commit() -> str:
    """Return the measured commit, followed by `+` if the working tree has uncommitted changes."""
    command = ["git", "describe", "--always", "--dirty=+"]
    done = subprocess.run(command, cwd=PAGE.parent, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip() or "unknown"


def machine() -> str:
    return f"commit {commit()}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def rows(results: Results) -> list[tuple[str, ...]]:
    """Return one row for each figure: key, workload, figure, floor, actgent, ratio, bar, verdict."""
    return [
        _row(results, workload, figure, title=workload.title if number == 0 else "")
        for workload in results.workloads
        for number, figure in enumerate(_figures(results, workload))
    ]


def _figures(results: Results, workload: Workload) -> list[str]:
    """Return all figures of a workload, those with a bar first."""
    barred = [bar.figure for bar in workload.bars]
    runs = [run for side in ("framework", "floor") for run in results.runs[workload.key, side] if run]
    return list(dict.fromkeys([*barred, *(name for run in runs for name in run if name != "calibration_s")]))


def _row(results: Results, workload: Workload, figure: str, *, title: str) -> tuple[str, ...]:
    bar = next((bar for bar in workload.bars if bar.figure == figure), None)
    return (
        workload.key,
        title,
        figure,
        _number(results.median(workload, "floor", figure)),
        _number(results.median(workload, "framework", figure)),
        _number(results.ratio(workload, figure)),
        _bar(bar),
        "" if bar is None else "pass" if results.passed(workload, bar) else "FAIL",
    )


def _bar(bar: Bar | None) -> str:
    if bar is None:
        return ""
    return f"{bar.limit:g}x" if bar.kind == "ratio" else f"{bar.limit:g}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


HEADS = ("", "workload", "figure", "floor", "actgent", "ratio", "maximum", "")
DOCS_HEADS = (*HEADS[:-1], "maximum met", "commit and date")


def print_report(results: Results) -> bool:
    """Print table and chart. Return True if all bars are met."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    table = Table(
        title=f"{machine()}; medians of {results.rounds} rounds{'; quick' if results.quick else ''}",
        box=box.SIMPLE_HEAD,
    )
    for head in HEADS:
        table.add_column(head, justify="right" if head in HEADS[3:7] else "left", no_wrap=head != "workload")
    for row in rows(results):
        style = "red" if row[-1] == "FAIL" else "green" if row[-1] == "pass" else "dim"
        table.add_row(*row[:-1], f"[{style}]{row[-1]}[/]")
    console.print(table)
    console.print("\n".join(chart(results)))
    return all(results.passed(workload, bar) for workload in results.workloads for bar in workload.bars)


def chart(results: Results) -> list[str]:
    """Return a line for each bar that shows the used part. A mark shows the bar itself."""
    return [
        _line(f"{workload.key:7}{bar.figure:14}", number / bar.limit)
        for workload in results.workloads
        for bar in workload.bars
        if (number := results.judged(workload, bar)) is not None
    ]


def _line(label: str, share: float) -> str:
    filled = min(round(share * CHART_WIDTH), 2 * CHART_WIDTH)
    colour = "green" if share <= 1 else "red"
    drawn = ("█" * filled).ljust(CHART_WIDTH)
    return f"{label}[{colour}]{drawn[:CHART_WIDTH]}[/]│[{colour}]{drawn[CHART_WIDTH:]}[/] {share:.0%} of the maximum"


def write_docs(results: Results, page: Path = PAGE) -> None:
    """Replace the rows of the measured workloads on a page, by default docs/benchmarks.md. Rows of other workloads stay."""
    text = page.read_text(encoding="utf-8")
    measured = {workload.key for workload in results.workloads}
    found = [tuple(map(str.strip, line.strip("|").split("|"))) for line in text.splitlines()]
    kept = [
        row for row in found if len(row) == len(DOCS_HEADS) and row[0] in BY_KEY and row[0] not in measured
    ]
    when = f"{commit()}, {datetime.now(tz=UTC):%-d %b %Y}"
    new = [(*row, when) for row in rows(results)]
    order = {key: number for number, key in enumerate(BY_KEY)}
    write_part("figures", _markdown(sorted([*kept, *new], key=lambda row: order[row[0]])), page)


def _markdown(listed: list[tuple[str, ...]]) -> str:
    lines = [
        "| " + " | ".join(DOCS_HEADS) + " |",
        "|---|---|---|---:|---:|---:|---:|---|---|",
        *("| " + " | ".join(row) + " |" for row in listed),
    ]
    return "\n".join(lines)
