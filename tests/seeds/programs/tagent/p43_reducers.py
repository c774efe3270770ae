"""A reducer applies the return value of an action or a tool: it combines the new value with the old value.

Document: Component Architecture, State Management (_apply_reducer); Main Agent Loop, State Update.
"""

import json

import trio

from actgent import GoalAgent, ScriptedLLM, Store
from actgent.state.reducers import append

store = Store({"lakes": [], "sum": 1}, reducers={"lakes": append, "sum": lambda old, new: old + new})
for update in (("lakes", "Baikal"), ("lakes", "Tanganyika"), ("sum", 2), ("other", 1), ("other", 2)):
    store.dispatch(update)
assert json.loads(json.dumps(dict(store), default=list)) == {
    "lakes": ["Baikal", "Tanganyika"],
    "sum": 3,
    "other": 2,
}


def find(state, args):
    """Find a lake."""
    return ("lakes", args["name"])


def act(action: str, **params) -> str:
    return json.dumps({"action": action, "params": params})


async def main() -> None:
    names = ("Baikal", "Tanganyika")
    script = [act("execute", tool="find", args={"name": name}) for name in names]
    model = ScriptedLLM([*script, act("evaluate", achieved=True, answer="two")])
    async with GoalAgent("guide", llm=model, tools={"find": find}, reducers={"lakes": append}) as agent:
        result = await agent.run_goal("Find two lakes.")
    assert list(result.raw_data["lakes"]) == list(names)


trio.run(main)
