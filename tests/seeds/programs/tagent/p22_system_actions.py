"""The loop has the system actions plan, execute, summarize and evaluate. The model chooses the next action.

Document: Component Architecture, Action System (System Actions); Structured Output System (action).

Differs: An evaluation is rejected before the first result or summary. Therefore no model can declare an untouched
goal achieved. A run without tools takes `summarize` and then `evaluate`.
"""

import json

from actgent import ScriptedLLM, run_agent_sync


def lookup(state, args):
    """Look up the depth of a lake in metres."""
    return ("depth", 1642)


def act(action: str, **params) -> str:
    return json.dumps({"action": action, "params": params, "reasoning": f"now {action}"})


model = ScriptedLLM(
    [
        act("plan", steps=["look up", "sum up", "judge"]),
        act("execute", tool="lookup", args={}),
        act("summarize", summary="Baikal is 1642 m deep."),
        act("evaluate", achieved=True, answer="1642 m"),
    ]
)
result = run_agent_sync("How deep?", model, tools={"lookup": lookup})
assert (result.achieved, len(model.chats)) == (True, 4)
assert "look up" in str(model.chats[1].messages)
assert "Baikal is 1642 m deep." in str(model.chats[3].messages)
free = ScriptedLLM([act("execute", tool="lookup", args={}), act("evaluate", achieved=True, answer="1642 m")])
assert run_agent_sync("How deep?", free, tools={"lookup": lookup}).achieved
hasty = ScriptedLLM([act("evaluate", achieved=True, answer="1 m")], repeat=True)
assert not run_agent_sync("How deep?", hasty, tools={"lookup": lookup}).achieved  # here it differs
knows = ScriptedLLM([act("summarize", summary="1642 m"), act("evaluate", achieved=True, answer="1642 m")])
assert run_agent_sync("How deep?", knows).achieved
