"""`run_agent(goal, model, tools)` plans, executes and evaluates by itself until the goal is achieved, and returns the result.

Document: Technical Overview; Main Agent Loop.
"""

import json
from typing import Any, Dict, Optional, Tuple

from actgent import ScriptedLLM, run_agent_sync


def lookup(state: Dict[str, Any], args: Dict[str, Any]) -> Optional[Tuple[str, Any]]:
    """Look up the depth of a lake in metres."""
    return ("depth", {"Baikal": 1642}[args.get("name")])


SCRIPT = [
    {"action": "plan", "params": {"steps": ["look up", "evaluate"]}, "reasoning": "first a plan"},
    {"action": "execute", "params": {"tool": "lookup", "args": {"name": "Baikal"}}, "reasoning": "look"},
    {"action": "evaluate", "params": {"achieved": True, "answer": "1642 m"}, "reasoning": "it is known"},
]
model = ScriptedLLM([json.dumps(decision) for decision in SCRIPT])
result = run_agent_sync(goal="How deep is Lake Baikal?", llm=model, tools={"lookup": lookup})
assert result.achieved
assert result.status == "completed"
assert "1642" in str(result)
assert result.raw_data["depth"] == 1642
assert result.used_tools == ("lookup",)
assert result.iterations == 3
