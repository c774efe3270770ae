"""actgent.toolsets.tool_discovery: tools in files, modules and entry points, including broken ones."""

import logging
import sys

import pytest

from actgent import BareAgent, ConfigurationError, ScriptedLLM, ToolCall, discover

GOOD = '''
from dataclasses import dataclass
from actgent import StaticToolset, Tool, tool
from pathlib import Path

@dataclass
class Point:
    x: int

@tool(effect="pure", thread=False)
def double(number: int) -> int:
    """Double a number."""
    return 2 * number

@tool
def _hidden(number: int) -> int:
    return number

class Upper(Tool):
    name = "upper"
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}}
    async def execute(self, arguments, context):
        return arguments["text"].upper()

class Wants(Tool):
    name = "wants"
    parameters = {"type": "object"}
    def __init__(self, key):
        self.key = key
    async def execute(self, arguments, context): ...

def plain(number): ...
def _helper(number): ...

maths = StaticToolset("maths", [double])
'''
STATE = '''
"""Tools over the state."""

def remember(state, args):
    """Remember a word."""
    return ("word", args["word"])

def _private(state, args): ...

def wrong(a, b): ...
'''


@pytest.fixture
def write(tmp_path):
    """Write files into a folder."""

    def write_files(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_py", ".py").replace("tagent_t", "tagent.t")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return write_files


def reasons(problems):
    return {problem.reason for problem in problems}


def test_tools_of_all_kinds_are_discovered(write, caplog):
    """Tools, toolsets, classes and functions of the state are found.

    Objects that only resemble a tool are skipped with a warning.
    """
    folder = write(actgent_tools_py=GOOD, sub__tagent_tools_py=STATE, other_py="raise SystemExit")
    with caplog.at_level(logging.WARNING, "actgent"):
        found = discover(folder)
    assert [each.name for each in found.tools] == ["double", "upper", "maths", "remember"]
    assert found.locations["double"] == f"{folder}/actgent_tools.py:10"
    assert found.locations["upper"] == f"{folder}/actgent_tools.py"
    assert found.locations["remember"] == f"{folder}/sub/tagent.tools.py:4"
    assert not found.problems
    assert [(p.file.rpartition("/")[2], p.line) for p in found.skipped] == [
        ("actgent_tools.py", 15),
        ("actgent_tools.py", 1),
        ("actgent_tools.py", 32),
        ("tagent.tools.py", 8),
        ("tagent.tools.py", 10),
    ]
    assert "'_hidden' is private" in caplog.text
    assert "'_helper'" not in caplog.text
    assert sum(record.name == "actgent.toolsets.tool_discovery" for record in caplog.records) == 5


def test_discovery_can_skip_subfolders(write):
    """`recursive=False` skips subfolders.

    Hidden folders are never searched, and other files are never run.
    """
    folder = write(actgent_tools_py=GOOD, sub__tagent_tools_py=STATE, other_py="raise SystemExit(3)")
    (folder / ".git").mkdir()
    (folder / ".git" / "actgent_tools.py").write_text("raise SystemExit(3)", encoding="utf-8")
    assert "remember" not in discover(folder, recursive=False).locations
    assert not discover(folder).problems


@pytest.mark.parametrize(
    ("code", "line", "reason"),
    [
        ("x = 1\ndef broken(:\n", 2, "syntax error: invalid syntax"),
        ("import os\n\n\nos.environ['NO_SUCH_VARIABLE_HERE']\n", 4, "KeyError"),
        ("import no_such_module_here\n", 1, "No module named 'no_such_module_here'"),
        ("\nraise SystemExit(3)\n", 2, "SystemExit"),
        ("from actgent import tool\n\n@tool\ndef f(*args): ...\n", 3, "args"),
        ("x = 1\n\0\n", 1, ""),
    ],
)
def test_broken_file_is_reported_with_its_line(write, caplog, code, line, reason):
    """The problem has the file and line. Files before and after it are loaded."""
    folder = write(a__actgent_tools_py=GOOD, b__actgent_tools_py=code, c__tagent_tools_py=STATE)
    found = discover(folder)
    assert {"double", "remember"} <= found.locations.keys()
    (problem,) = found.problems
    assert (problem.file, problem.line) == (f"{folder}/b/actgent_tools.py", line)
    assert reason in problem.reason
    assert "b/actgent_tools.py" in caplog.text
    assert not [name for name in sys.modules if name.endswith("b/actgent_tools.py")]


def test_second_definition_of_a_name_is_skipped(write):
    """The first definition is used. The second is skipped with the location of the first."""
    folder = write(a__tagent_tools_py=STATE, b__tagent_tools_py=STATE)
    found = discover(folder)
    (twice,) = (each for each in found.skipped if "is taken" in each.reason)
    assert (twice.file, twice.line) == (f"{folder}/b/tagent.tools.py", 4)
    assert twice.reason == f"the name 'remember' is taken: {folder}/a/tagent.tools.py:4"


def test_only_named_modules_are_imported(write, monkeypatch):
    """Only the named modules of a package are imported. A missing module is a problem."""
    folder = write(shop__one_py=GOOD, shop__two_py="raise SystemExit", shop__list_py="tools = [1, 2]\n")
    (folder / "shop-1.dist-info").mkdir()
    (folder / "shop-1.dist-info" / "METADATA").write_text("Name: shop\nVersion: 1\n", encoding="utf-8")
    points = "[actgent.tools]\nall = shop.one\none = shop.one:double\nodd = shop.list:tools\nbad = shop.two\n"
    (folder / "shop-1.dist-info" / "entry_points.txt").write_text(points, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    assert [t.name for t in discover(entry_points=["one"]).tools] == ["double"]
    assert "shop.two" not in sys.modules
    found = discover(modules=["shop.one", "shop.none"], entry_points=["all", "odd", "bad", "gone"])
    assert [t.name for t in found.tools] == ["double", "upper", "maths"]
    none, bad, gone = found.problems
    assert none.file == "shop.none"
    assert (bad.file, bad.line) == (f"{folder}/shop/two.py", 1)
    assert "entry points: all, bad, odd, one" in gone.reason
    assert "int is neither a tool nor a toolset" in reasons(found.skipped)


def test_invalid_discovery_arguments_are_errors(tmp_path):
    """A missing folder, and a text in place of a list, are errors."""
    with pytest.raises(ConfigurationError, match="must exist"):
        discover(tmp_path / "none")
    with pytest.raises(ConfigurationError, match=r"modules=\['shop'\]"):
        discover(modules="shop")


async def test_agent_runs_discovered_tools(write):
    """An agent runs a discovered tool, a tool of a discovered toolset and a state function."""
    found = discover(write(actgent_tools_py=GOOD, tagent_tools_py=STATE))
    calls = [ToolCall("double", {"number": 4}), ToolCall("remember", {"word": "blue"})]
    llm = ScriptedLLM([calls, "done"])
    async with BareAgent("clerk", llm=llm, tools=found.tools) as agent:
        session = await agent.create_session("ada")
        results = []
        session.on_tool_result(results.append)
        await session.chat("go")
        await session.wait_idle()
        assert [result.status for result in results] == ["success", "success"]
        assert session.state["word"] == "blue"
