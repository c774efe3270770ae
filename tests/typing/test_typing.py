"""Type checkers report each error of a wrong program and no error of a correct program."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from actgent import Agent, AgentOptions, RunOptions
from actgent.agents.keyword_argument_types import CommonOptions, MessageOptions

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PYRIGHT = HERE / "node_modules" / ".bin" / "pyright"
MYPY = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary"]
CHECKERS = [
    pytest.param(MYPY, id="mypy"),
    pytest.param(
        [str(PYRIGHT), "--pythonpath", sys.executable],
        id="pyright",
        marks=pytest.mark.skipif(not PYRIGHT.exists(), reason="make test installs pyright, where npm is"),
    ),
]
ERROR = re.compile(r"(\w+\.py):(\d+)(?::\d+)?(?: -)?:? error")


PROGRAMS = ("correct.py", "planted.py")


@pytest.fixture(scope="module", params=CHECKERS)
def errors(request) -> dict[str, set[int]]:
    """Return the lines of each program with an error of a type checker, from one run of the checker."""
    done = subprocess.run(
        [*request.param, *(str(HERE / name) for name in PROGRAMS)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = ERROR.findall(done.stdout)
    assert {file for file, _ in found} <= set(PROGRAMS), done.stdout
    assert bool(found) == (done.returncode == 1), done.stdout + done.stderr
    return {name: {int(line) for file, line in found if file == name} for name in PROGRAMS}


def test_type_errors_are_found(errors):
    """Both type checkers report each planted error and no other error."""
    lines = (HERE / "planted.py").read_text().splitlines()
    planted = {number for number, line in enumerate(lines, 1) if "  # wrong: " in line}
    assert len(planted) >= 11
    found = errors["planted.py"]
    assert {line: lines[line - 1] for line in planted - found} == {}
    assert {line: lines[line - 1] for line in found - planted} == {}


def test_valid_program_has_no_type_errors(errors):
    """The program has no errors in the strictest mode of each type checker."""
    assert errors["correct.py"] == set()


def test_options_are_those_of_the_agent():
    """The typed options have exactly the arguments of an agent and of a run."""
    taken = inspect.signature(Agent.__init__).parameters.keys() - {"self", "name", "output"}
    assert taken == AgentOptions.__annotations__.keys()
    assert taken - {"tools"} == CommonOptions.__annotations__.keys()
    for method in (Agent.run, Agent.stream):
        taken = inspect.signature(method).parameters.keys() - {"self", "content", "output", "unknown"}
        assert taken == RunOptions.__annotations__.keys()
        assert taken - {"session"} == MessageOptions.__annotations__.keys()
