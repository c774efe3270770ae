"""Input and output are validated on several levels: the arguments of a tool, its result, the state, the decision, the final output.

Document: Production Considerations, Error Handling (Validation Layers).
"""

import json
from typing import TypedDict

from pydantic import BaseModel

from actgent import ScriptedLLM, run_agent_sync


class Args(TypedDict):
    n: int


class Total(BaseModel):
    total: int


ran = []


def add(state, args: Args):
    """Add a number."""
    ran.append(args["n"])
    return ("total", state.get("total", 0) + args["n"])


def odd(state, args):
    """Return something that is no JSON."""
    return ("odd", object())


def act(action: str, **params) -> str:
    return json.dumps({"action": action, "params": params})


script = [
    act("execute", tool="add", args={"n": "two"}),
    act("execute", tool="odd", args={}),
    act("walk"),
    act("execute", tool="add", args={"n": 2}),
    act("evaluate", achieved=True, answer="2"),
    json.dumps({"total": "many"}),
    json.dumps({"total": 2}),
]
model = ScriptedLLM(script)
result = run_agent_sync("Add.", model, tools={"add": add, "odd": odd}, output=Total)
assert ran == [2]
assert [each.status for each in result.tool_results] == ["error", "error", "success"]
assert result.data == Total(total=2)
assert len(model.chats) == len(script)
