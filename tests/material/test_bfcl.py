"""The benchmark with BFCL's functions, run on a small package with BFCL's layout."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import bfcl

ROOT = Path(__file__).parents[2]
CONFIG = """
CLASS_FILE_PATH_MAPPING = {"Counter": "bfcl_eval.counter"}
STATELESS_CLASSES = []
"""
COUNTER = '''
class Counter:
    """Counts."""

    def __init__(self):
        self.number = 0

    def _load_scenario(self, config, long_context=False):
        self.number = config["number"]

    def add(self, amount: int) -> dict:
        """Add an amount.

        Args:
            amount (int): What to add.
        """
        self.number += amount
        return {"number": self.number}

    def read(self) -> list:
        """Return the number in a list."""
        return [self.number]
'''
UTILS = """
import json
from bfcl_eval.counter import Counter

known = {}

def execute_multi_turn_func_call(calls, config, classes, model, id, long_context=False):
    if id not in known:
        known[id] = Counter()
        known[id]._load_scenario(config["Counter"])
    names = {name: getattr(known[id], name) for name in ("add", "read")}
    made = [eval(call, names) for call in calls]
    return [json.dumps(each) if type(each) is dict else str(each) for each in made], {"Counter": known[id]}
"""
CHECKER = """
def state_checker(model, truth):
    return {"valid": vars(model["Counter"]) == vars(truth["Counter"])}
"""
TRUTH = [["add(3)"], [], ["read()"]]


@pytest.fixture
def material(tmp_path):
    """Return a folder with the files of the benchmark: four kinds with one conversation each."""
    package = tmp_path / "bfcl" / "bfcl_eval"
    checkers = package / "eval_checker" / "multi_turn_eval"
    texts = {
        package / "constants" / "executable_backend_config.py": CONFIG,
        package / "counter.py": COUNTER,
        checkers / "multi_turn_utils.py": UTILS,
        checkers / "multi_turn_checker.py": CHECKER,
        tmp_path / "bfcl" / "mpmath" / "__init__.py": "",
    }
    for kind in bfcl.KINDS:
        name = f"multi_turn_{kind}_0"
        question = {
            "id": name,
            "question": [
                [{"role": "user", "content": "Add five."}],
                [],
                [{"role": "user", "content": "Read."}],
            ],
            "initial_config": {"Counter": {"number": 1}},
            "involved_classes": ["Counter"],
        }
        file = f"BFCL_v4_multi_turn_{kind}.json"
        texts[package / "data" / file] = json.dumps(question)
        texts[package / "data" / "possible_answer" / file] = json.dumps({"id": name, "ground_truth": TRUTH})
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def run_command(*arguments):
    """Run the command as `make material` does. Return its exit code and output."""
    environment = {**os.environ, "COLUMNS": "200"}
    command = [sys.executable, "-m", "tests.material", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout


def cells(output, row):
    """Return the cells of a row of the printed table."""
    [line] = [line for line in output.splitlines() if line.strip().startswith(row)]
    return line.strip().removeprefix(row).split()


def test_states_and_effects_are_exact_with_a_kill_at_each_point_of_each_call(material):
    """All four conversations end in the state of the harness. The process is killed three times in each of 8 calls."""
    code, output = run_command(material, "--only", "bfcl")
    assert cells(output, "final states equal") == "4 of 4 4 of 4".split()
    assert cells(output, "functions as tools, as they are") == ["2"]
    assert cells(output, "calls  ")[:2] == ["8", "8"]
    assert cells(output, "results equal to those of BFCL's harness") == ["8"]
    assert cells(output, "results lost or different") == ["0"]
    assert cells(output, "conversations with an effect missing, doubled or in another order") == ["0"]
    assert cells(output, "processes killed") == ["0", "6"]
    assert cells(output, "kills, counted for each conversation") == ["0", "24"]
    assert code in (0, 1)  # 1: with four conversations the file of the journal is mostly empty


def test_a_missing_file_is_named_and_nothing_is_fetched(tmp_path):
    """Without material, the command prints its origin and exits with 2."""
    code, output = run_command(tmp_path, "--only", "bfcl")
    assert code == 2
    assert "pip install --no-deps --target MATERIAL/bfcl bfcl-eval==2026.3.23" in output


def test_a_call_is_read_from_its_expression():
    """Positional arguments get the names of the parameters."""

    def diff(first: str, second: list, limit: int = 3) -> None:
        """A function of the material that compares two files."""

    assert bfcl.parse_call("diff('a', second=[1.5, None])", {"diff": diff}) == (
        "diff",
        {"first": "a", "second": [1.5, None]},
    )


@pytest.mark.parametrize(
    ("content", "text", "same"),
    [
        ("a", "a", True),
        ('["a", true]', "['a', True]", True),
        ("", "None", True),
        ("[1]", "[2]", False),
        ("x", "[2]", False),
    ],
    ids=["text", "list", "nothing", "other-list", "no-json"],
)
def test_results_are_compared_as_values(content, text, same):
    """A list in JSON equals the same list in Python's format."""
    assert bfcl.is_same(content, text) is same
