"""Tools are a dictionary of callables by name; functions with their own parameters and async functions are also accepted.

Document: Main Agent Loop (tools: Dict[str, Callable]); Action System (Tool Actions: registered dynamically).
"""

import json

from actgent import ScriptedLLM, run_agent_sync, tool


def seed_style(state, args):
    """Take state and args."""
    return ("a", 1)


async def async_style(state, args):
    """Take state and args, and wait."""
    return ("b", state["a"] + 1)


@tool(effect="pure")
async def plain(number: int) -> int:
    """Double a number."""
    return 2 * number


def act(action: str, **params) -> str:
    return json.dumps({"action": action, "params": params})


model = ScriptedLLM(
    [
        act("execute", tool="first", args={}),
        act("execute", tool="second", args={}),
        act("execute", tool="plain", args={"number": 21}),
        act("evaluate", achieved=True, answer="42"),
    ]
)
result = run_agent_sync("Work.", model, tools={"first": seed_style, "second": async_style, "plain": plain})
assert result.achieved
assert (result.raw_data["a"], result.raw_data["b"]) == (1, 2)
assert result.used_tools == ("first", "second", "plain")
assert [each.tool_name for each in result.tool_results] == ["first", "second", "plain"]
