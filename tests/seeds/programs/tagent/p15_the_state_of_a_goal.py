"""The state of a run begins with the goal, the results and the used tools, and tools read them.

Document: Main Agent Loop (Store({'goal': goal, 'results': [], 'used_tools': []})).
"""

import json

from actgent import ScriptedLLM, run_agent_sync

seen = []


def look(state, args):
    """Look once more."""
    seen.append((state["goal"], list(state["results"]), list(state["used_tools"])))
    return (f"found_{len(seen)}", len(seen))


def act(action: str, **params) -> str:
    return json.dumps({"action": action, "params": params})


model = ScriptedLLM(
    [
        act("execute", tool="look", args={"n": 1}),
        act("execute", tool="look", args={"n": 2}),
        act("evaluate", achieved=True, answer="2"),
    ]
)
run_agent_sync("Look twice.", model, tools={"look": look})
assert seen[0] == ("Look twice.", [], [])
assert seen[1][0] == "Look twice."
assert [each["tool"] for each in seen[1][1]] == ["look"]
assert seen[1][2] == ["look"]
