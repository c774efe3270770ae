"""A failing tool does not crash the system: the model gets the error, and the loop continues.

Document: Core Architecture Principles, Modular Tool System (Error Isolation); Production Considerations (Graceful Degradation).
"""

import json

from actgent import ScriptedLLM, run_agent_sync


def broken(state, args):
    """Fail."""
    raise RuntimeError("the API is down")


def spare(state, args):
    """Work instead."""
    return ("depth", 1642)


def act(action: str, **params) -> str:
    return json.dumps({"action": action, "params": params})


model = ScriptedLLM(
    [
        act("execute", tool="broken", args={}),
        act("execute", tool="missing", args={}),
        act("execute", tool="spare", args={}),
        act("evaluate", achieved=True, answer="1642 m"),
    ]
)
result = run_agent_sync("How deep?", model, tools={"broken": broken, "spare": spare})
assert result.achieved
assert "the API is down" in str(model.chats[1].messages)
assert "missing" in str(model.chats[2].messages)
assert [each.status for each in result.tool_results] == ["error", "error", "success"]
assert "RuntimeError: the API is down" in result.tool_results[0].error
assert result.raw_data["depth"] == 1642
