"""Run the tests of a module against its mutants, and report the mutants that no test detects."""

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from queue import SimpleQueue

import attrs
from mutants import Mutant, mutants_of

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600.0
"""Timeout in seconds of a test run. A mutant that makes the tests hang counts as detected."""
AGENTS = ["tests/agents"]
SUITES: dict[str, Sequence[str]] = {
    "actgent/protocols/*.py": ["tests/protocols", *AGENTS],
    "actgent/limits_and_schedules/*.py": [
        *AGENTS,
        "tests/journal/test_loops.py",
        "tests/cluster/test_allowances.py",
        "tests/cluster/test_cross_pool_delegation.py",
    ],
    "actgent/sessions/*.py": AGENTS,
    "actgent/turns/*.py": [*AGENTS, "tests/memory/test_context_window.py"],
    "actgent/runtime/message_admission.py": AGENTS,
    "actgent/runtime/turn_runner.py": AGENTS,
    "actgent/actors/inbox.py": ["tests/actors", *AGENTS],
    "actgent/journal/*.py": ["tests/journal", "tests/agents/recovery", "tests/agents/partitions"],
    "actgent/cluster/partition_ownership.py": ["tests/cluster"],
    "actgent/cluster/failure_detection.py": ["tests/cluster"],
    "actgent/cluster/unowned_partition_messages.py": ["tests/cluster"],
    "actgent/cluster/cluster_node.py": ["tests/cluster"],
    "actgent/cluster/crashing_session_quarantine.py": ["tests/cluster"],
    "actgent/cluster/relay_*.py": ["tests/cluster"],
}
"""Modules to mutate, and the tests that must detect the mutants."""
FIRST = {
    "actors": "tests/actors/test_{}.py",
    "cluster": "tests/cluster/test_{}.py",
    "protocols": "tests/protocols/test_{}.py",
    "limits_and_schedules": "tests/agents/*/test_{}.py",
    "journal": "tests/journal/test_{}.py",
    "runtime": "tests/agents/*/test_{}.py",
    "sessions": "tests/agents/*/test_{}.py",
    "turns": "tests/agents/*/test_{}.py",
}
"""Tests with the name of a module or its folder, by the layer. They run first, because they detect most mutants."""


@attrs.frozen
class Verdict:
    """The result of the tests for a mutant."""

    mutant: Mutant
    is_noticed: bool
    by: str = ""
    """The test that detected the mutant, or the last line of the output."""


def targets() -> list[str]:
    """Return the paths of the modules to mutate."""
    found = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "actgent").rglob("*.py"))]
    return [path for path in found if any(fnmatch(path, pattern) for pattern in SUITES)]


def sample(count: int, seed: int, only: str = "") -> list[Mutant]:
    """Return a random sample of all mutants, drawn with a seed."""
    chosen = [path for path in targets() if only in path]
    everyone = [mutant for path in chosen for mutant in mutants_of(ROOT, path)]
    return random.Random(seed).sample(everyone, min(count, len(everyone)))


def _widest(path: str) -> tuple[str, ...]:
    return tuple(next(tests for pattern, tests in SUITES.items() if fnmatch(path, pattern)))


def suite_of(path: str) -> list[str]:
    """Return the tests of a module. Tests with the name of the module are first."""
    _, layer, *folders, file = Path(path).with_suffix("").parts
    named = {test for name in (*folders, file) for test in ROOT.glob(FIRST[layer].format(name))}
    return [*(str(test.relative_to(ROOT)) for test in sorted(named)), *_widest(path)]


def hunt(mutants: Sequence[Mutant], *, tests: Sequence[str] = (), workers: int = 2) -> Iterator[Verdict]:
    """Test mutants in parallel with these tests or the tests of their modules. Each worker has a copy of the package.

    Raises:
        RuntimeError: The tests fail without a mutant, so their failures would prove nothing.
    """
    with contextlib.ExitStack() as stack:
        copies: SimpleQueue[Path] = SimpleQueue()
        for _ in range(workers):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            shutil.copytree(
                ROOT / "actgent", folder / "actgent", ignore=shutil.ignore_patterns("__pycache__")
            )
            copies.put(folder)

        def judge(mutant: Mutant) -> Verdict:
            folder = copies.get()
            try:
                return _judge(folder, mutant, tests or suite_of(mutant.path))
            finally:
                copies.put(folder)

        def check(suite: tuple[str, ...]) -> None:
            folder = copies.get()
            try:
                done = _run_tests(folder, suite)
            finally:
                copies.put(folder)
            if done.returncode:
                raise RuntimeError(f"{suite} fail without a mutant:\n{done.stdout.decode()[-2000:]}")

        suites = {tuple(tests) or _widest(mutant.path) for mutant in mutants}
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(check, suites))
            yield from pool.map(judge, mutants)


def _judge(folder: Path, mutant: Mutant, tests: Sequence[str]) -> Verdict:
    file = folder / mutant.path
    whole = file.read_text(encoding="utf-8")
    file.write_text(mutant.source, encoding="utf-8")
    try:
        done = _run_tests(folder, tests)
    except subprocess.TimeoutExpired:
        return Verdict(mutant, is_noticed=True, by="it hung")
    finally:
        file.write_text(whole, encoding="utf-8")
    lines = done.stdout.decode("utf-8", "replace").splitlines() or [""]
    by = next((line for line in lines if line.startswith(("FAILED", "ERROR"))), lines[-1])
    return Verdict(mutant, is_noticed=done.returncode != 0, by=by)


def _run_tests(folder: Path, tests: Sequence[str]) -> "subprocess.CompletedProcess[bytes]":
    """Run the tests of the repository with the package in a folder. Write no compiled files, because the next mutant could load them."""
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "--deselect", "tests/test_repository.py"]
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSAFEPATH": "1",
    }
    environment.pop("ACTGENT_SOAK", None)
    command = [sys.executable, "-P", "-m", "pytest", *options, *tests]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False
    )


def noticed_in(report: Path) -> dict[str, bool]:
    """Return the verdicts of a report, by the text of the mutant."""
    rows = map(json.loads, report.read_text(encoding="utf-8").splitlines()) if report.exists() else ()
    return {row["mutant"]: row["is_noticed"] for row in rows}


def write_into(report: Path, verdict: Verdict) -> None:
    """Append a line to a report."""
    row = {"mutant": str(verdict.mutant), "is_noticed": verdict.is_noticed, "by": verdict.by}
    with report.open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(row)}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """`python tests/mutation/hunt.py --count 100 --seed 3 --only protocols/plan --report hunt.jsonl`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="how many mutants (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default 1)")
    parser.add_argument("--only", default="", metavar="TEXT", help="of modules whose path has this in it")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="side by side")
    parser.add_argument(
        "--report",
        type=Path,
        default=Path(os.devnull),
        help="write verdicts into this file; go on behind those in it",
    )
    options = parser.parse_args(arguments)
    chosen = sample(options.count, options.seed, options.only)
    known = noticed_in(options.report)
    left = [mutant for mutant in chosen if str(mutant) not in known]
    survivors = sum(not known.get(str(mutant), True) for mutant in chosen)
    for number, verdict in enumerate(hunt(left, workers=options.workers), len(chosen) - len(left) + 1):
        survivors += not verdict.is_noticed
        write_into(options.report, verdict)
        print(
            f"{number}/{len(chosen)} {'' if verdict.is_noticed else 'SURVIVES '}{verdict.mutant}", flush=True
        )
    print(f"{len(chosen) - survivors} of {len(chosen)} noticed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
