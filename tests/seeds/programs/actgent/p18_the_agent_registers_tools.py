"""`agent.registerTool(tool)` adds a tool to an agent, `getTool(name)` returns it, and the agent runs it.

Document: Core Architecture, AgentCore; Tool Registration and Instruction Mapping, Direct Tool Access.

Differs: Agents may share a registry of tools. Write `agent.tools.add(tool)`, `agent.tools.get(name)` and
`agent.tools.remove(name)`.
"""

import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, tool


@tool(thread=False)
def file_search(name: str) -> str:
    """Search for a file."""
    return f"/files/{name}"


async def main() -> None:
    llm = ScriptedLLM(
        [ToolCall("file_search", {"name": "notes"}), "They are in /files/notes.", "No tools now."]
    )
    agent = BareAgent("clerk", llm=llm)
    agent.tools.add(file_search)
    assert agent.tools.get("file_search") is file_search
    assert agent.tools.get("other") is None
    async with agent:
        assert str(await agent.run("Where are my notes?")) == "They are in /files/notes."
        agent.tools.remove("file_search")
        await agent.run("And now?")
    offered = [[spec.name for spec in chat.tools] for chat in llm.chats]
    assert "file_search" in offered[0]
    assert "file_search" in offered[1]
    assert "file_search" not in offered[2]


trio.run(main)
