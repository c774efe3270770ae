"""Only an evaluation decides that the goal is achieved. A tool cannot decide this, and a negative evaluation continues
the loop.

Document: Main Agent Loop (evaluate_goal_achievement, Goal Evaluation).
"""

import json

from actgent import ScriptedLLM, run_agent_sync


def claim(state, args):
    """Claim that all is done."""
    return ("achieved", True)


def act(action: str, **params) -> str:
    return json.dumps({"action": action, "params": params})


def lookup(state, args):
    """Look up the depth of a lake in metres."""
    return ("depth", 1642)


model = ScriptedLLM(
    [
        act("execute", tool="claim", args={}),
        act("evaluate", achieved=False, feedback="the depth is missing"),
        act("execute", tool="lookup", args={}),
        act("evaluate", achieved=True, answer="1642 m"),
    ]
)
result = run_agent_sync("How deep?", model, tools={"claim": claim, "lookup": lookup})
assert (result.achieved, len(model.chats)) == (True, 4)
assert "the depth is missing" in str(model.chats[2].messages)
