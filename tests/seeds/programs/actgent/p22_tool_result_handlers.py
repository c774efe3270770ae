"""`session.onToolResult(handler)` receives the result of each tool, and the session if the handler takes it.

Document: Core Architecture, Session; ReAct Message Flow, Handler Selection ("handler(result, this)").
"""

import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, tool


@tool(thread=False)
def file_search(name: str) -> str:
    """Search for a file."""
    if name == "secret":
        raise PermissionError("not yours")
    return f"/files/{name}"


async def main() -> None:
    calls = [ToolCall("file_search", {"name": name}) for name in ("notes", "secret")]
    async with BareAgent("clerk", llm=ScriptedLLM([calls, "Found one."]), tools=[file_search]) as agent:
        session = await agent.create_session("ada", "Find notes and secret.")
        alone, both = [], []
        session.on_tool_result(lambda result: alone.append((result.tool_name, result.status)))
        session.on_tool_result(lambda result, session: both.append((result.content, session.owner.name)))
        await session.wait_idle()
    assert alone == [("file_search", "success"), ("file_search", "error")], alone
    assert both[0] == ("/files/notes", "ada")
    assert both[1][1] == "ada"


trio.run(main)
