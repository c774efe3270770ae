"""Files called `tagent.tools.py` are found in the named folders, their tools are loaded, and the model can select them.

Document: Tool Integration, Tool Discovery Process; Core Architecture Principles (Dynamic Discovery).
"""

import json
from pathlib import Path

from actgent import ScriptedLLM, discover, run_agent_sync

SOURCE = '''
from typing import Any, Dict, Optional, Tuple

def lookup(state: Dict[str, Any], args: Dict[str, Any]) -> Optional[Tuple[str, Any]]:
    """Look up the depth of a lake in metres."""
    return ("depth", 1642)
'''
for folder in ("lakes", "lakes/deep"):
    Path(folder).mkdir()
Path("lakes/tagent.tools.py").write_text(SOURCE)
Path("lakes/deep/tagent.tools.py").write_text(SOURCE.replace("lookup", "sound"))
Path("lakes/other.py").write_text("raise AssertionError('this file has another name')")
found = discover("lakes")
assert sorted(tool.name for tool in found.tools) == ["lookup", "sound"]
assert not found.problems
decisions = [
    {"action": "execute", "params": {"tool": "sound", "args": {}}},
    {"action": "evaluate", "params": {"achieved": True, "answer": "1642 m"}},
]
model = ScriptedLLM([json.dumps(each) for each in decisions])
result = run_agent_sync("How deep?", model, tools=found.tools)
assert (
    "Look up the depth of a lake in metres."
    in f"{model.chats[0].system} {model.chats[0].messages} {model.chats[0].tools}"
)
assert (result.achieved, result.raw_data["depth"]) == (True, 1642)
