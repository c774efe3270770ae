"""Run all tests: those of the core in a copy of the project without the other parts, then the others here.

    python tests/run.py             all tests
    python tests/run.py --core      the tests of the core
    python tests/run.py --list      print which test files run where

The core must not need the packages in `PARTS`. So its tests run where those packages do not exist. No test runs twice.
A test file is part of the core if it lies in a folder of `CORE`, does not name a part, and does not run the command
(`ACTGENT` is its path in tests).
Options of pytest follow `--`.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("cli", "client", "cluster", "evaluation", "interop", "observe", "portal", "simulation", "web")
"""Packages below `actgent` that the core must not need."""
CORE = ("actors", "agents", "database", "journal", "llm", "memory", "protocols", "state", "structured", "support", "testing", "tools", "toolsets")  # fmt: skip
"""Folders below `tests` that test the core."""
PYTEST = ("-m", "pytest", "-n", "3", "--dist", "worksteal", "--durations", "10", "--durations-min", "5")
"""Three workers for two cores: tests of clusters and processes wait for most of their time."""
NO_TESTS = 5
"""Exit code of pytest if nothing was collected."""
SITE = """\
import sys

sys.meta_path[:] = [each for each in sys.meta_path if "__editable__" not in getattr(each, "__module__", "")]
"""
"""A `sitecustomize` module: without it the editable installation would supply the packages that the copy lacks."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--core", action="store_true", help="run only the tests of the core")
    parser.add_argument("--list", action="store_true", help="print which test files run where")
    parser.add_argument("options", nargs="*", help="options of pytest, after --")
    chosen = parser.parse_args()
    core, others = split_tests()
    if chosen.list:
        print("core:", *core, "others:", *others, sep="\n")
        return 0
    codes = [run_core(core, chosen.options)]
    if not chosen.core:
        codes.append(run(ROOT, others, chosen.options, dict(os.environ)))
    return max(codes)


def split_tests() -> tuple[list[str], list[str]]:
    """Return the test files of the core and all others, as paths below the project."""
    named = re.compile(
        rf"\bactgent\.({'|'.join(PARTS)})\b|\bACTGENT\b"
        rf"|from actgent import [^#]*\b({'|'.join(public_names())})\b"
    )
    core, others = [], []
    for path in sorted(files("tests")):
        if not re.fullmatch(r"test_.*\.py", path.name):
            continue
        is_core = path.parts[1] in CORE and not named.search((ROOT / path).read_text(encoding="utf-8"))
        (core if is_core else others).append(path.as_posix())
    return core, others


def public_names() -> Iterator[str]:
    """Yield the names of `actgent` that a part defines."""
    import actgent

    for name, home in actgent._HOMES.items():
        if home.split(".")[1] in PARTS:
            yield name


def files(*folders: str) -> Iterator[Path]:
    """Yield the files that git tracks, or would track, as paths below the project."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    yield from (Path(line) for line in listed.stdout.splitlines() if (ROOT / line).is_file())


def run_core(tests: Sequence[str], options: Sequence[str]) -> int:
    """Run tests in a copy of the project without its parts. Return the exit code of pytest."""
    with tempfile.TemporaryDirectory(prefix="actgent-core-") as folder:
        copy = Path(folder, "actgent")
        for path in files():
            if path.parts[:1] == ("actgent",) and path.parts[1] in PARTS:
                continue
            target = copy / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, target)
        for lock in ROOT.glob("tests/**/package-lock.json"):
            modules = lock.with_name("node_modules")
            if "node_modules" not in lock.relative_to(ROOT).parts and modules.exists():
                (copy / modules.relative_to(ROOT)).symlink_to(modules)
        if (shared := ROOT.parent / "shared").exists():
            Path(folder, "shared").symlink_to(shared)
        (copy / "sitecustomize.py").write_text(SITE, encoding="utf-8")
        return run(copy, tests, options, os.environ | {"PYTHONPATH": str(copy)})


def run(folder: Path, tests: Sequence[str], options: Sequence[str], environment: dict[str, str]) -> int:
    """Run tests in a folder, and return the exit code of pytest.

    Compiled files are written, also if the environment forbids it: without them, each process compiles all of
    actgent in about a second.
    """
    command = [sys.executable, *PYTEST, *options, *tests]
    compiling = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    code = subprocess.run(command, cwd=folder, env=compiling, check=False).returncode
    return 0 if code == NO_TESTS else code


if __name__ == "__main__":
    sys.exit(main())
