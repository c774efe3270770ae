"""`actgent goal` and `python -m actgent`, as a user types them."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from actgent.cli import main
from actgent.llm import model_resolution

MODEL = """
import json
import trio
from actgent import LLM, ModelResponse, ScriptedLLM, Text, Usage, register_provider

def act(action, **params):
    return json.dumps({"action": action, "params": params, "reasoning": "because"})

def use(name, **args):
    return act("execute", tool=name, args=args)

def said(text):
    return ModelResponse(parts=(Text(text),), usage=Usage(input_tokens=10, output_tokens=1, cost=0.5))

class Never(LLM):
    name = "toy:never"
    async def complete(self, chat, *, on_text=None):
        print("asked", flush=True)
        await trio.sleep_forever()

BAIKAL = use("depth", lake="baikal")
SCRIPTS = {
    "good": [act("plan", steps=["look"]), BAIKAL, act("evaluate", achieved=True, answer="1642 m")],
    "form": [BAIKAL, act("evaluate", achieved=True), '{"lake": "Baikal", "metres": 1642}'],
    "bad": [use("depth", lake="loch"), act("evaluate", achieved=False, answer="Nothing.", missing_items=["the depth"])],
}

def toy(model):
    return Never() if model == "never" else ScriptedLLM([said(text) for text in SCRIPTS[model]])

register_provider("toy", toy, replace=True)
"""
TOOLS = '''
def depth(state, args):
    """Look up how deep a lake is.

    Args:
        lake (str): Its name.
    """
    return ("depth", {"baikal": 1642}[args["lake"]])

def helper(a, b):
    """No tool."""
'''
OUTPUT = """
import pydantic

class Lake(pydantic.BaseModel):
    lake: str
    metres: int

output_schema = Lake
"""


@pytest.fixture
def folder(tmp_path, monkeypatch, no_keys):
    """A folder with tools, an output schema, and a provider that is registered when the tools are loaded."""
    monkeypatch.setattr(model_resolution, "_registered", {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lakes.tools.py").write_text(MODEL + TOOLS, encoding="utf-8")
    (tmp_path / "lake_output.py").write_text(OUTPUT, encoding="utf-8")
    return tmp_path


def run(capsys, *arguments):
    """Return the exit code, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    output = capsys.readouterr()
    return ended.value.code, output.out, output.err


def test_achieved_goal_exits_with_0(folder, capsys):
    """Only the answer is printed."""
    code, out, err = run(capsys, "goal", "how deep?", "--tools", "lakes.tools.py", "--model", "toy:good")
    assert (code, out) == (0, "1642 m\n")
    assert "decides" not in err


def test_unachieved_goal_exits_with_1(folder, capsys):
    """The partial result and the missing part are printed. The limit is the value of the option."""
    code, out, err = run(
        capsys, "goal", "how deep?", "--tools", "lakes.tools.py", "--model", "toy:bad", "--max-iterations", "2"
    )  # fmt: skip
    assert code == 1
    assert out.startswith(
        "The goal was not achieved: the limit of 2 iterations was reached (max_iterations=2)."
    )
    assert "Missing: the depth" in out
    assert "actgent: completed_with_summary_fallback: the limit of 2" in err


def test_verbose_prints_progress(folder, capsys):
    """All progress goes to standard error, and standard output has only the answer."""
    code, out, err = run(
        capsys, "goal", "how deep?", "--tools", "lakes.tools.py", "--model", "toy:good", "--verbose"
    )
    assert (code, out) == (0, "1642 m\n")
    received = [line.partition("] ")[2] for line in err.splitlines() if "] " in line]
    assert received[0] == "goal: how deep?"
    assert 'decides: plan {"steps": ["look"]} because: because' in received
    assert any(line.strip() == "state: depth = 1642" for line in received)
    assert received[-1] == "ended: completed after 3 model calls"


@pytest.mark.parametrize("named", [True, False])
def test_output_schema_of_a_file_or_folder(folder, capsys, named):
    """`--output FILE` names the schema, or the folder contains it. The answer is JSON that matches the schema."""
    if not named:
        (folder / "sub").mkdir()
        (folder / "lake_output.py").rename(folder / "sub" / "lake.output.py")
    arguments = (
        ("--tools", "lakes.tools.py", "--output", "lake_output.py") if named else ("--search-dir", ".")
    )
    code, out, err = run(capsys, "goal", "how deep?", *arguments, "--model", "toy:form")
    assert (code, json.loads(out)) == (0, {"lake": "Baikal", "metres": 1642}), err


def test_no_recursive_ignores_subfolders(folder, capsys):
    """The schema in a subfolder is ignored, so the answer is text."""
    (folder / "sub").mkdir()
    (folder / "lake_output.py").rename(folder / "sub" / "lake.output.py")
    code, out, _ = run(
        capsys, "goal", "how deep?", "--search-dir", ".", "--no-recursive", "--model", "toy:good", "--json"
    )
    assert code == 0, out
    result = json.loads(out)
    assert result.pop("seconds") >= 0
    assert result == {
        "status": "completed", "achieved": True, "text": "1642 m", "data": "1642 m", "error": None,
        "iterations": 3, "used_tools": ["depth"], "tokens": 33, "cost": 1.5,
    }  # fmt: skip


def test_output_schema_in_json(folder, capsys):
    """`--output` also accepts a JSON Schema in a file."""
    schema = {"type": "object", "properties": {"metres": {"type": "integer"}}, "required": ["metres"]}
    (folder / "lake.json").write_text(json.dumps(schema), encoding="utf-8")
    code, out, _ = run(
        capsys, "goal", "how deep?", "--tools", "lakes.tools.py", "--output", "lake.json", "--model", "toy:form"
    )  # fmt: skip
    assert (code, json.loads(out)["metres"]) == (0, 1642)


def test_models_of_the_environment(folder, capsys, monkeypatch):
    """TAGENT_MODEL has priority over LLM_MODEL, and LLM_MODEL over --model. Each role also has its variable."""
    monkeypatch.setenv("TAGENT_MODEL", "toy:good")
    arguments = ("goal", "how deep?", "--tools", "lakes.tools.py")
    assert run(capsys, *arguments)[:2] == (0, "1642 m\n")
    monkeypatch.setenv("LLM_MODEL", "toy:bad")
    assert run(capsys, *arguments, "--max-iterations", "2")[0] == 1
    monkeypatch.setenv("LLM_EVALUATOR_MODEL", "acne:strict")
    code, _, err = run(capsys, *arguments, "--model", "toy:good")
    assert (code, "'acne:strict' names an unknown provider" in err) == (2, True)


@pytest.mark.parametrize(
    ("files", "arguments", "expected"),
    [
        ({"bad.py": "def depth(state, args:\n"}, ("--tools", "bad.py"), "bad.py:1: syntax error"),
        (
            {"bad.py": "x = 1\n\nraise RuntimeError\n"},
            ("--tools", "bad.py"),
            "bad.py:3: the code cannot be run",
        ),
        ({"bad.py": "def depth(a): ...\n"}, ("--tools", "bad.py"), "bad.py defines no tools"),
        (
            {},
            ("--tools", "nothing.py"),
            "nothing.py:1: No such file or directory; expected a Python file that defines tools",
        ),
        ({}, ("--search-dir", "nowhere"), "the folder to search for tools must exist: nowhere"),
        ({"out.py": "x = 1"}, ("--output", "out.py"), "out.py:1: the variable output_schema is missing"),
        ({"out.json": "{"}, ("--output", "out.json"), "out.json:1: the file must be JSON"),
        ({}, ("--output", "out.json"), "out.json cannot be read"),
        ({}, (), "no model is configured"),
        ({}, ("--model", "acne:x"), "'acne:x' names an unknown provider: choose one of openai, "),
        ({}, ("--max-iterations", "0"), "max-iterations"),
    ],
)
def test_usage_errors(folder, capsys, caplog, *, files, arguments, expected):
    """One line states the mistake, with file and line if they are known. The code is 2, and the log does not repeat the mistake."""
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    code, out, err = run(capsys, "goal", "how deep?", *arguments)
    assert (code, out) == (2, "")
    assert expected in " ".join(err.split())
    assert expected not in caplog.text


def test_empty_goal_is_a_usage_error(folder, capsys):
    """The exit code is 2."""
    assert run(capsys, "goal", " ")[0] == 2


def test_broken_tool_file_is_a_warning(folder, capsys, caplog):
    """In a searched folder, a broken file or a wrong signature is a warning with its line."""
    (folder / "broken.tools.py").write_text("def depth(state, args:\n", encoding="utf-8")
    code, out, _ = run(capsys, "goal", "how deep?", "--search-dir", ".", "--model", "toy:good")
    assert (code, out) == (0, "1642 m\n")
    assert "broken.tools.py:1: syntax error" in caplog.text
    assert "lakes.tools.py" in caplog.text
    assert "'helper': a tool must have the decorator @tool or the parameters (state, args)" in caplog.text


def test_module_command_and_ctrl_c(folder):
    """`python -m actgent` runs the command. Ctrl-C stops it with exit code 130 and no traceback."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "actgent", "goal", "how deep?", "--tools", "lakes.tools.py", "--model"]
    done = subprocess.run(
        [*command, "toy:good"], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "1642 m\n"), done.stderr
    with subprocess.Popen(
        [*command, "toy:never"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout.readline() == "asked\n"
        began = time.monotonic()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=300)
    assert (running.returncode, out) == (130, "")
    assert "stopped before the goal was achieved" in err
    assert "Traceback" not in err
    assert time.monotonic() - began < 30
