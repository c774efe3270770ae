"""Run a part of the tests on other versions of Python and on the lowest versions of the dependencies.

    python tests/matrix.py              all columns that this machine can run
    python tests/matrix.py 3.13 lowest  the named columns

Each column has an environment in `build/matrix`, which the next run uses again.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
PYTHONS = ("3.12", "3.13", "3.14")
LOWEST = "lowest"
EXTRAS = ("cli", "web", "postgres", "encryption", "mcp", "otel")
TOOLS = ("pytest>=9", "pytest-trio>=0.8", "pytest-xdist>=3.8", "hypothesis>=6.140", "pydantic>=2.10")
TESTS = (
    # Tasks, groups of exceptions, threads, signals and garbage collection.
    "tests/actors/test_ctrl_c.py",
    "tests/actors/test_gc_tuning.py",
    "tests/actors/test_concurrent_messages.py",
    "tests/actors/test_supervision.py",
    "tests/actors/test_actor_system.py",
    "tests/agents/running/test_workers.py",
    "tests/tools/test_threads.py",
    "tests/agents/turns/test_cancel.py",
    "tests/agents/turns/test_turns.py",
    # Annotations and their schemas.
    "tests/structured/test_schemas.py",
    "tests/tools/test_placeholders.py",
    "tests/tools/test_function.py",
    "tests/tools/test_python_types.py",
    "tests/state/test_patches.py",
    # The SDKs of the providers.
    "tests/llm/test_anthropic.py",
    "tests/llm/test_loopback.py",
    "tests/llm/test_openai.py",
    "tests/llm/test_openai_responses.py",
    "tests/llm/test_schemas.py",
)
"""Tests whose result can depend on the version of Python or of a dependency. The others run on one version."""


def interpreter(version: str) -> str | None:
    """Return the path of a Python of this version, or None if the machine does not have this version."""
    found = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    places = [found or "", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python{version}"), reverse=True))]
    for place in filter(None, places):
        if subprocess.run([place, "-c", ""], capture_output=True, check=False).returncode == 0:
            return place
    return None


def prepare(column: str, python: str) -> Path:
    """Make the environment of a column, and return the path of its Python."""
    folder = ROOT / "build" / "matrix" / column
    subprocess.run([UV, "venv", "--quiet", "--allow-existing", "--python", python, folder], check=True)
    command = [UV, "pip", "install", "--quiet", "--python", folder / "bin" / "python"]
    if column == LOWEST:
        command += ["--resolution", "lowest-direct"]
    subprocess.run([*command, "--editable", f"{ROOT}[{','.join(EXTRAS)}]", *TOOLS], check=True)
    return folder / "bin" / "python"


def run(column: str) -> bool:
    """Run the tests of a column. Return False if a test fails. Return True also if the machine does not have this Python version."""
    python = sys.executable if column == LOWEST else interpreter(column)
    if python is None:
        print(f"{column}: skipped, this machine has no Python {column}")
        return True
    command = [prepare(column, python), "-m", "pytest", "-qq", "-n", "2", "-p", "no:cacheprovider", *TESTS]
    print(f"{column}:", flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    failed = [column for column in sys.argv[1:] or [LOWEST, *PYTHONS] if not run(column)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
