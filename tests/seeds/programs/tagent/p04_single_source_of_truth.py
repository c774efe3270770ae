"""The state is centralized: one dictionary is the single source of truth for the loop, the tools and the result.

Document: Core Architecture Principles, Redux-Inspired State Management (Centralized State).
"""

import json

from actgent import ScriptedLLM, run_agent_sync


def first(state, args):
    """Find a number."""
    return ("number", 20)


def second(state, args):
    """Double the number."""
    return ("number", state["number"] * 2)


def act(action: str, **params) -> str:
    return json.dumps({"action": action, "params": params})


model = ScriptedLLM(
    [
        act("execute", tool="first", args={}),
        act("execute", tool="second", args={}),
        act("evaluate", achieved=True, answer="40"),
    ]
)
result = run_agent_sync("Find and double a number.", model, tools={"first": first, "second": second})
assert result.raw_data["number"] == 40
assert "40" in str(model.chats[2].messages)
