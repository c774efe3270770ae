"""The state is validated by a pydantic model: an update of a wrong type is rejected, and the state does not change.

Document: Component Architecture, State Management (Pydantic validation for type safety).
"""

import json

from pydantic import BaseModel

from actgent import InvalidState, ScriptedLLM, Store, run_agent_sync


class LakeState(BaseModel):
    depth: int = 0


def lookup(state, args):
    """Look up the depth of a lake in metres."""
    return ("depth", args["depth"])


def act(action: str, **params) -> str:
    return json.dumps({"action": action, "params": params})


model = ScriptedLLM(
    [
        act("execute", tool="lookup", args={"depth": "very deep"}),
        act("execute", tool="lookup", args={"depth": 1642}),
        act("evaluate", achieved=True, answer="1642 m"),
    ]
)
result = run_agent_sync("How deep?", model, tools={"lookup": lookup}, state=LakeState)
assert [each.status for each in result.tool_results] == ["error", "success"]
assert result.tool_results[0].error.startswith("InvalidState")
assert result.raw_data["depth"] == 1642


def check(changes, state):
    if not isinstance(state["depth"], int):
        raise InvalidState("depth is a number")


store = Store({"depth": 1}, check=check)
try:
    store.dispatch(("depth", "very deep"))
except InvalidState:
    assert dict(store) == {"depth": 1}
else:
    raise AssertionError("a wrong type was taken")
