"""`tool = core.getTool(name)` and `await tool.run(input, context)` run a tool directly, with validated arguments.

Document: ReAct Message Flow, Tool Execution.
"""

import trio

from actgent import BareAgent, InvalidArguments, ScriptedLLM, tool

CALLS = []


@tool(thread=False)
def file_search(name: str, depth: int = 1) -> str:
    """Search for a file."""
    CALLS.append(name)
    return f"/files/{name} at depth {depth}"


async def main() -> None:
    agent = BareAgent("clerk", llm=ScriptedLLM([]), tools=[file_search])
    search = agent.tools.get("file_search")
    assert search is not None
    assert await search.run({"name": "notes", "depth": 2}) == "/files/notes at depth 2"
    for wrong in ({}, {"name": "notes", "depth": "deep"}, {"name": "notes", "other": 1}):
        try:
            await search.run(wrong)
        except InvalidArguments as error:
            assert "file_search" in str(error) or "name" in str(error) or "depth" in str(error)
        else:
            raise AssertionError(wrong)
    assert CALLS == ["notes"]


trio.run(main)
