"""Search seeds that find the planted faults: `python tests/simulation/hunt_faults.py [WORDS] [--seeds N] [--always KINDS]`.

Each fault runs in a process of its own, whose imports see the changed module. With `--replay`, only the seeds of the tables run,
and the output lists those that no longer find their fault. With `--reach`, no fault is planted: the output lists the seeds that
execute the lines of each fault, for `--within`. With `--always`, each seed has these kinds of faults.
"""

import argparse
import importlib.machinery
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import attrs  # noqa: E402
from planted_faults import (  # noqa: E402
    FOUND,
    FOUND_IN_SQLITE,
    FOUND_WITH_OPTIONS,
    PLANTED_FAULTS,
    Edit,
    Fault,
    changed_sources,
)


def plant(fault: Fault) -> None:
    """Change modules for this process, before they are imported.

    Raises:
        ValueError: A module does not contain a text exactly once.
    """
    changed = {
        str(path): compile(source, str(path), "exec", dont_inherit=True)
        for path, source in changed_sources(fault, ROOT / "actgent").items()
    }
    loader = importlib.machinery.SourceFileLoader
    get_code = loader.get_code

    def get_changed(self: Any, name: str) -> CodeType | None:
        return changed[self.path] if self.path in changed else get_code(self, name)

    loader.get_code = get_changed  # type: ignore[method-assign]


def lines_of(edit: Edit) -> tuple[str, frozenset[int]]:
    """Return the path of a module, and the numbers of the lines that a fault changes."""
    path = ROOT / "actgent" / edit.path
    before, found, _ = path.read_text(encoding="utf-8").partition(edit.old)
    if not found:
        raise ValueError(f"{edit.path} does not contain: {edit.old}")
    if edit.old.endswith(":\n") and edit.new.strip() in ("if False:", "elif False:", ""):
        before, edit = (
            before + edit.old,
            attrs.evolve(edit, old=""),
        )  # the body of the condition, which no longer runs
    first = before.count("\n") + 1
    return str(path), frozenset(range(first, first + max(1, edit.old.rstrip("\n").count("\n") + 1)))


def find_reached(seeds: Iterable[int], play: Any) -> dict[str, list[int]]:
    """Return for each fault the seeds that execute one of its lines. Other seeds run as without the fault."""
    places = dict[str, dict[int, list[str]]]()
    for name, fault in PLANTED_FAULTS.items():
        for edit in fault.edits:
            path, lines = lines_of(edit)
            for line in lines:
                places.setdefault(path, {}).setdefault(line, []).append(name)
    hits: dict[str, list[int]] = {name: [] for name in PLANTED_FAULTS}
    seen = set[str]()

    def trace_lines(frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            seen.update(places[frame.f_code.co_filename].get(frame.f_lineno, ()))
        return trace_lines

    wanted = dict[CodeType, bool]()

    def trace(frame: Any, _event: str, _arg: Any) -> Any:
        code = frame.f_code
        if code not in wanted:
            lines = places.get(code.co_filename, {})
            own = {line for *_, line in code.co_lines() if line is not None}
            wanted[code] = bool(own & lines.keys())
        return trace_lines if wanted[code] else None

    for seed in seeds:
        seen.clear()
        sys.settrace(trace)
        try:
            play(seed)
        finally:
            sys.settrace(None)
        for name in seen:
            hits[name].append(seed)
    return hits


def write_line(text: str) -> None:
    """Write a line to the standard output at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def with_program(
    journal: str, always: str, program: str = "WORKSHOP", *, has_others: bool = True
) -> Callable[[int], Any]:
    """Return the function that runs a seed. It imports the package.

    `always` contains the kinds of faults that each seed has, separated by commas. `program` is a name in `programs`.
    `has_others` is False if other kinds never happen.
    """
    import programs

    from actgent.simulation import Settings, play
    from actgent.simulation.fault_and_workload_plan import FAULTS

    path = Path(tempfile.mkdtemp(prefix="actgent-hunt-")) / "app.py"
    path.write_text(getattr(programs, program), encoding="utf-8")
    kinds = frozenset(filter(None, always.split(",")))
    faults = frozenset(FAULTS) if has_others else kinds
    settings = Settings(program=path, journal=journal, faults=faults, always=kinds)  # type: ignore[arg-type]
    return lambda seed: play(seed, settings)


def hunt_one(
    name: str, seeds: Iterable[int], play: Callable[[], Callable[[int], Any]], seconds: float
) -> dict[str, Any]:
    """Plant a fault, and run seeds until one fails. Return the last seed, its problems and the CPU time in seconds.

    `play` returns the function that runs a seed.
    """
    plant(PLANTED_FAULTS[name])
    run = play()
    found: dict[str, Any] = {"seed": -1, "problems": [], "cpu": 0.0}
    began = time.process_time()
    for seed in seeds:
        problems = run(seed).problems
        found = {"seed": seed, "problems": problems[:2], "cpu": time.process_time() - began}
        if problems or found["cpu"] > seconds:
            break
    return found


def hunt_apart(name: str, arguments: Iterable[str]) -> dict[str, Any] | None:
    """Hunt a fault in a process of its own. Return the result of `hunt_one`; None after an error, which is printed."""
    command = [sys.executable, __file__, "--one", name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        write_line(f"  BROKEN  {name}: {done.stderr.strip().splitlines()[-1:]}")
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def replay_all() -> None:
    """Run the seeds of the tables, and print each fault that its seed does not find any more."""
    listed = [
        *((name, seed, []) for name, seed in FOUND.items()),
        *((name, seed, ["--journal", "sqlite"]) for name, seed in FOUND_IN_SQLITE.items()),
        *((name, seed, options.split()) for name, (options, seed) in FOUND_WITH_OPTIONS.items()),
    ]
    moved = 0
    for name, seed, options in listed:
        chosen = ["--start", str(seed), "--seeds", "1", *options]
        last = hunt_apart(name, chosen)
        if last is None or not last["problems"]:
            moved += 1
            write_line(f"seed {seed:4}  {name}: not found")
    write_line(f"{moved} of {len(listed)} not found")


def hunt_all(names: Iterable[str], arguments: list[str]) -> None:
    """Hunt each fault in a process of its own, and print a line for each."""
    results = dict[str, bool]()
    for name in names:
        if (last := hunt_apart(name, arguments)) is None:
            continue
        results[name] = bool(last["problems"])
        text = f"seed {last['seed']:4}" if last["problems"] else f"to {last['seed']:4} -"
        problem = last["problems"][0].splitlines()[0][:110] if last["problems"] else ""
        write_line(f"{text}  {last['cpu']:6.1f} s  {name}: {problem}")
    write_line(f"{sum(results.values())} of {len(results)} found")


def main() -> None:
    """Print one line for each fault."""
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*", help="parts of the names of faults")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--journal", default="memory")
    parser.add_argument("--seconds", type=float, default=600.0, help="limit of the CPU time of one fault")
    parser.add_argument("--always", default="", help="kinds of faults that each seed has, such as close,stop")
    parser.add_argument("--only", action="store_true", help="permit no other kinds of faults than --always")
    parser.add_argument("--program", default="WORKSHOP", help="name of a program in programs.py")
    parser.add_argument("--within", help="output file of --reach: run only seeds that reach the fault")
    parser.add_argument("--reach", action="store_true")
    parser.add_argument("--replay", action="store_true")
    parser.add_argument("--one", help="name of one fault, which this process hunts")
    options = parser.parse_args()
    seeds: Iterable[int] = range(options.start, options.start + options.seeds)
    if options.reach:
        play = with_program(options.journal, options.always, options.program)
        play(0)
        write_line(json.dumps(find_reached(seeds, play)))
    elif options.replay:
        replay_all()
    elif options.one is not None:
        if options.within is not None:
            reached = json.loads(Path(options.within).read_text(encoding="utf-8"))[options.one]
            seeds = [each for each in reached if each in seeds]
        chosen = (options.journal, options.always, options.program)
        make = partial(with_program, *chosen, has_others=not options.only)
        write_line(json.dumps(hunt_one(options.one, seeds, make, options.seconds)))
    else:
        given = sys.argv[1 : len(sys.argv) - len(options.words)] if options.words else sys.argv[1:]
        words = options.words
        hunt_all([name for name in PLANTED_FAULTS if not words or any(each in name for each in words)], given)


if __name__ == "__main__":
    main()
