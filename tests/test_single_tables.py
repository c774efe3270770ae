"""Each list has one definition: a new protocol or limit is known everywhere a program can choose one."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from actgent.definitions.folder_creation import new_folder
from actgent.limits_and_schedules import limits
from actgent.protocols import PROTOCOLS

ROOT = Path(__file__).parents[1]

START = """
import sys, types
from pathlib import Path
"""
PROTOCOL = """
import actgent.protocols
actgent.protocols.PROTOCOLS["planted"] = "actgent.protocols.bare_text_protocol:Bare"

from actgent import AgentBuilder, ScriptedLLM
from actgent.cli.main import app
from actgent.definitions.agent_folder import read_folder
from actgent.definitions.folder_creation import new_folder

assert AgentBuilder("x").llm(ScriptedLLM(["a"])).protocol("planted").build().protocol.name == "bare"
Path("brain.md").write_text("---\\nname: x\\nprotocol: planted\\n---\\n")
assert read_folder(".").protocol == "planted"
assert new_folder(".", "fresh", protocol="planted").protocol == "planted"
app(["new", "--help"])
"""
LIMIT = """
module = types.ModuleType("actgent.limits_and_schedules.limits")
sys.modules[module.__name__] = module
source = Path(sys.argv[1]).read_text(encoding="utf-8")
first = source.index("    tool_calls: int | None = ")
planted = '    planted: int | None = _bound(None, _Count(1), shared="What was planted.")\\n'
exec(compile(source[:first] + planted + source[first:], sys.argv[1], "exec"), vars(module))

from actgent.cli.command_options import LimitOptions
from actgent.cli.main import app
from actgent.definitions.agent_folder import read_folder

Path("brain.md").write_text("---\\nname: x\\nlimits: {planted: 3}\\n---\\n")
assert read_folder(".").limits.planted == 3
assert LimitOptions(limit_planted=4).limits.planted == 4
app(["run", "--help"])
"""


def run(code: str, *arguments: str, at: Path) -> str:
    """Return the output of a new interpreter."""
    command = [sys.executable, "-c", START + code, *arguments]
    done = subprocess.run(command, cwd=at, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_protocol_is_defined_once(tmp_path):
    """One new row of the table adds a protocol to builders, brain.md and the command line."""
    assert "planted" in run(PROTOCOL, at=tmp_path)


def test_limit_is_defined_once(tmp_path):
    """One new field of Limits adds a limit and its description to brain.md and the command line."""
    assert "What was planted." in run(LIMIT, limits.__file__, at=tmp_path)


def test_the_test_of_a_new_folder_passes(tmp_path):
    """The scripted model of a new folder answers in the format of its protocol, for each protocol."""
    for protocol in PROTOCOLS:
        new_folder(tmp_path, f"new-{protocol}", protocol=protocol)
    line = [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", "."]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"{len(PROTOCOLS)} passed" in done.stdout, done.stdout


def words(path: Path) -> set[str]:
    """Return the names in a file: texts, fields and keywords of code, or code spans of a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return set(re.findall(r"`(\w+)`", text))
    nodes = list(ast.walk(ast.parse(text)))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    fields = {ast.unparse(node.target) for node in nodes if isinstance(node, ast.AnnAssign)}
    return texts | fields | {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}


def listing(names: set[str], least: int) -> set[str]:
    """Return the files of the package and the pages of the documentation that contain at least `least` of these names."""
    files = [*(ROOT / "actgent").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    return {path.relative_to(ROOT).as_posix() for path in files if len(names & words(path)) >= least}


REQUIREMENTS = "docs/specification.md"
"""Page with the requirements of the first protocols. Later protocols are not on it."""


@pytest.mark.parametrize(
    ("names", "places"),
    [
        (
            {*PROTOCOLS},
            {
                "actgent/protocols/__init__.py",
                "actgent/definitions/agent_folder.py",  # `goal` is a field of an agent's folder there
                "docs/architecture/protocols.md",
                "docs/configuration.md",
                REQUIREMENTS,
            },
        ),
        (
            {field.name for field in attrs.fields(limits.Limits)},
            {"actgent/limits_and_schedules/limits.py", "docs/configuration.md", "docs/control.md"},
        ),
    ],
    ids=["protocols", "limits"],
)
def test_additions_touch_few_files(names, places):
    """A new protocol needs four files: its module, the table and two pages. A new limit needs its field, two pages and its user.

    The pages name all protocols and limits.
    """
    assert listing(names, least=len(names) // 2 + 1) == places
    pages = {place for place in places if place.endswith(".md")} - {REQUIREMENTS}
    assert {page: missing for page in pages if (missing := names - words(ROOT / page))} == {}


def test_a_limit_that_counts_usage_touches_few_files():
    """A new limit of sessions needs its field, its counter, the record of the usage, three pages, and the code that counts."""
    assert listing({*limits.SHARED}, least=4) == {
        "actgent/limits_and_schedules/limits.py",
        "actgent/limits_and_schedules/budget.py",
        "actgent/journal/record_types.py",
        "docs/configuration.md",
        "docs/control.md",
        "docs/guides/budgets.md",
        # Statistics and hints for mistakes have some of the same names.
        "actgent/session_index/record_indexing.py",
        "actgent/session_index/search_and_trend_queries.py",
        "actgent/support/common_mistake_hints.py",
    }
