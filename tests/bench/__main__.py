"""What actgent itself costs, against the floor of the same run; `make bench` runs it.

Every run is a fresh process; the two sides take turns; figures are medians over the rounds, and a
ratio is the median of the ratios within each round, because a shared machine drifts.
"""

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path

import trio
from measure import Figures, calibrate
from report import Results, print_report, write_docs
from rich.console import Console
from trio.testing import MockClock
from workloads import BY_KEY, WORKLOADS, Workload

HERE = Path(__file__).parent
SIDES = ("floor", "framework")
TIMEOUT_S = 600
"""Maximum of one run in seconds. The longest run takes a few seconds."""


def main() -> int:
    options = _options()
    if options.child:
        key, side, size = options.child
        print(json.dumps(run_here(BY_KEY[key], side, int(size))))
        return 0
    chosen = [BY_KEY[key] for key in options.only] or list(WORKLOADS)
    results = run_all(chosen, rounds=options.rounds, quick=options.quick)
    passed = print_report(results)
    if options.json:
        Path(options.json).write_text(json.dumps(results.as_json(), indent=2) + "\n", encoding="utf-8")
    if options.write_docs:
        write_docs(results)
    return 0 if passed else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], choices=list(BY_KEY), help="some workloads")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see whether it runs")
    parser.add_argument("--json", metavar="FILE", help="write all figures")
    parser.add_argument("--write-docs", action="store_true", help="renew the table in docs/benchmarks.md")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_here(workload: Workload, side: str, size: int) -> Figures:
    """Run one side of a workload once, in this process."""
    if workload.key == "W8":
        return getattr(importlib.import_module("start"), side)(size) | {"calibration_s": calibrate()}
    function = getattr(importlib.import_module(side), workload.function)
    before = calibrate()
    clock = MockClock(autojump_threshold=0) if workload.is_virtual else None
    figures = trio.run(function, size, clock=clock)
    return figures | {"calibration_s": (before + calibrate()) / 2}


def run_all(workloads: list[Workload], *, rounds: int, quick: bool) -> Results:
    """Run all rounds of all workloads. The sides of a workload alternate, and each run has its own process."""
    results = Results(workloads, rounds=rounds, quick=quick)
    with Console(stderr=True).status("") as status:
        for number in range(rounds):
            for workload in workloads:
                for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                    status.update(f"round {number + 1} of {rounds}: {workload.key} {workload.title}, {side}")
                    results.add(workload, side, run_in_child(workload, side, quick=quick))
    return results


def run_in_child(workload: Workload, side: str, *, quick: bool) -> Figures | None:
    """Run one side in a child process and return its figures; None if it failed, after its error output is printed."""
    size = workload.quick if quick else workload.size
    command = [sys.executable, str(HERE), "--child", workload.key, side, str(size)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_S)
    except subprocess.SubprocessError as error:
        print(f"{workload.key} {side}: {error}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
