"""What is written down once: a protocol or a limit that is planted there is known wherever one is chosen."""

import subprocess
import sys
from pathlib import Path

from actgent.control import limits

START = """
import sys, types
from pathlib import Path
"""
PROTOCOL = """
import actgent.protocols
actgent.protocols.PROTOCOLS["planted"] = "actgent.protocols.bare:Bare"

from actgent import AgentBuilder, ScriptedLLM
from actgent.cli.main import app
from actgent.definitions.instructions import read_folder

assert AgentBuilder("x").llm(ScriptedLLM(["a"])).protocol("planted").build().protocol.name == "bare"
Path("brain.md").write_text("---\\nname: x\\nprotocol: planted\\n---\\n")
assert read_folder(".").protocol == "planted"
app(["new", "--help"])
"""
LIMIT = """
module = types.ModuleType("actgent.control.limits")
sys.modules[module.__name__] = module
source = Path(sys.argv[1]).read_text(encoding="utf-8")
first = source.index("    tool_calls: int | None = ")
planted = '    planted: int | None = _bound(None, _Count(1), shared="What was planted.")\\n'
exec(compile(source[:first] + planted + source[first:], sys.argv[1], "exec"), vars(module))

from actgent.cli.commands.limits import Bounds
from actgent.cli.main import app
from actgent.definitions.instructions import read_folder

Path("brain.md").write_text("---\\nname: x\\nlimits: {planted: 3}\\n---\\n")
assert read_folder(".").limits.planted == 3
assert Bounds(limit_planted=4).limits.planted == 4
app(["run", "--help"])
"""


def run(code: str, *arguments: str, at: Path) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-c", START + code, *arguments]
    done = subprocess.run(command, cwd=at, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_protocol_is_written_down_once(tmp_path):
    """One more row of the table, and builders, brain.md and the command line know it."""
    assert "planted" in run(PROTOCOL, at=tmp_path)


def test_a_limit_is_written_down_once(tmp_path):
    """One more field of Limits, and brain.md and the command line know it, with what it is."""
    assert "What was planted." in run(LIMIT, limits.__file__, at=tmp_path)
