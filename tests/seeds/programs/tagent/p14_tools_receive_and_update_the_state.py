"""A tool `(state, args)` receives the state and the arguments of the decision. Its return value updates the state. None
updates nothing.

Document: Tool Integration; Core Architecture Principles (State Integration).
"""

import json
from typing import Any, Dict, Optional, Tuple

from actgent import ScriptedLLM, run_agent_sync

seen = []


def my_custom_tool(state: Dict[str, Any], args: Dict[str, Any]) -> Optional[Tuple[str, Any]]:
    """Custom tool example with proper signature.

    Args:
        state: Current agent state for context
        args: Tool-specific arguments from LLM decision

    Returns:
        State update tuple or None
    """
    seen.append((dict(state), dict(args)))
    param1 = args.get("param1")
    param2 = args.get("param2")
    if param2 is None:
        return None
    return ("tool_result", f"{param1} and {param2}")


def act(action: str, **params) -> str:
    return json.dumps({"action": action, "params": params})


model = ScriptedLLM(
    [
        act("execute", tool="my_custom_tool", args={"param1": "salt", "param2": "pepper"}),
        act("execute", tool="my_custom_tool", args={"param1": "nothing more"}),
        act("evaluate", achieved=True, answer="seasoned"),
    ]
)
result = run_agent_sync("Season it.", model, tools={"my_custom_tool": my_custom_tool})
assert [args for _, args in seen] == [{"param1": "salt", "param2": "pepper"}, {"param1": "nothing more"}]
assert "tool_result" not in seen[0][0]
assert seen[1][0]["tool_result"] == "salt and pepper"
assert result.raw_data["tool_result"] == "salt and pepper"
