"""The benchmark's workloads produce correct results on both sides. Their speed is not tested here."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
SIZES = {
    "W1": 10,
    "W2": 50,
    "W3": 60,
    "W4": 50,
    "W5": 20,
    "W6": 20,
    "W7": 250,
    "W9": 10,
    "JSON": 2_000,
    "TREE": 20,
    "URGENT": 3,
    "FOLDER": 3,
    "RESUME": 40,
    "LOOPS": 2,
    "LIMITS": 50,
    "ADAPTED": 25,
    "PORTAL": 20,
    "LIMITER": 60,
    "CANCEL": 20,
}


def load(name):
    """Import a module of the benchmark, whose modules import each other as scripts."""
    if HERE not in sys.path:
        sys.path.insert(0, HERE)
    return importlib.import_module(name)


@pytest.mark.parametrize("side", ["floor", "framework"])
@pytest.mark.parametrize("key", SIZES)
async def test_workload_checks_itself(key, side, autojump_clock):
    """A small run of each workload passes its checks and returns every figure that has a bar."""
    workload = load("workloads").BY_KEY[key]
    figures = await getattr(load(side), workload.function)(SIZES[key])
    assert {bar.figure for bar in workload.bars} <= set(figures)


@pytest.mark.skipif(not os.environ.get("ACTGENT_BENCH"), reason="part of `make bench`")
@pytest.mark.parametrize("side", ["floor", "framework"])
@pytest.mark.parametrize(
    ("key", "size"),
    [("TIMERS", 19), ("WAITS", 60), ("ASLEEP", 300), ("LONG", 300), ("MEMORY", 2000), ("BACKGROUND", 50)],
)
async def test_dates_are_met_in_real_time(key, size, side):
    """The same for workloads with a real clock, since a virtual clock would skip all dates at the first disk access."""
    workload = load("workloads").BY_KEY[key]
    figures = await getattr(load(side), workload.function)(size)
    assert {bar.figure for bar in workload.bars} <= set(figures)


def test_the_floor_runs_without_the_framework():
    """Objects of the framework would reduce the number of garbage collections in the floor and distort it."""
    code = "import sys, floor; print(*(name for name in sys.modules if name.startswith('actgent')))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == []


def finished(*, floor, framework):
    """Return results of one workload with the given CPU figures, one for each round."""
    report, workload = load("report"), load("workloads").BY_KEY["W2"]
    results = report.Results([workload], rounds=len(floor), quick=False)
    for side, values in (("floor", floor), ("framework", framework)):
        for value in values:
            results.add(workload, side, value and {"turn_us": value, "calibration_s": 0.01})
    return results, workload


def test_a_ratio_is_taken_within_each_round():
    """The result is the median of the ratios of the rounds, not the ratio of the medians."""
    results, workload = finished(floor=[10, 20, 40], framework=[20, 60, 40])
    assert results.ratio(workload, "turn_us") == 2


def test_a_failed_run_keeps_no_bar():
    """A side that failed has no figure, so its bar is missed."""
    results, workload = finished(floor=[10], framework=[None])
    assert results.ratio(workload, "turn_us") is None
    assert not results.passed(workload, workload.bars[0])


def test_the_docs_page_is_renewed_between_its_marks(tmp_path):
    """Only rows of measured workloads change, and a second run writes the same page. The rows keep the order of the workloads."""
    report, (results, _) = load("report"), finished(floor=[10], framework=[25])
    page = tmp_path / "page.md"
    rows = [
        "| W9 | a chunk | chunk_us | 1 | 2 | 2 | 2x | pass | abc |",
        "| W2 | old | turn_us | 1 | 9 | 9 | 2x | FAIL | abc |",
    ]
    written = "\n".join(["head", "<!-- figures: begin -->", *rows, "<!-- figures: end -->", "tail", ""])
    page.write_text(written, encoding="utf-8")
    report.write_docs(results, page)
    once = page.read_text(encoding="utf-8")
    report.write_docs(results, page)
    assert page.read_text(encoding="utf-8") == once
    assert once.startswith("head\n")
    assert once.endswith("tail\n")
    assert f"| turn_us | 10 | 25 | 2.5 | 2.3x | FAIL | {report.commit()}, " in once
    assert "| W2 | old |" not in once
    assert once.index("| W2 |") < once.index(rows[0])


@pytest.mark.parametrize(("program", "name"), [("clustered.py", "NODES"), ("relayed.py", "RELAYED")])
def test_nodes_are_left_out_without_a_database(program, name):
    """Without a database the program prints the reason and succeeds, so `make bench` continues."""
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    nowhere = {"ACTGENT_JOURNAL": "postgresql://127.0.0.1:1/test"}
    command = [sys.executable, str(Path(HERE) / program)]
    done = subprocess.run(command, env={**os.environ, **nowhere}, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{name} is left out, as the database is missing: ")
    assert not done.stderr
