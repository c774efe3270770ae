"""A tool that is registered is exposed to the model as an OpenAI function, which the model can call at any time.

Document: Tool Registration and Instruction Mapping, Direct Tool Access.
"""

import trio

from actgent import BareAgent, OpenAI, ToolCall, tool
from actgent.testing import open_provider


@tool(thread=False)
def file_search(name: str, depth: int = 1) -> str:
    """Search for a file."""
    return f"/files/{name}"


async def main() -> None:
    script = [ToolCall("file_search", {"name": "notes"}), "They are in /files/notes."]
    async with open_provider(script) as provider:
        llm = OpenAI("gpt-4", base_url=provider.openai_url, api_key="any")
        agent = BareAgent("clerk", llm=llm)
        agent.tools.add(file_search)
        async with agent:
            assert str(await agent.run("Where are my notes?")) == "They are in /files/notes."
        await llm.aclose()
        first, second = (request.json for request in provider.requests)
    [function] = [each["function"] for each in first["tools"] if each["function"]["name"] == "file_search"]
    assert first["tools"][0]["type"] == "function"
    assert function["description"] == "Search for a file."
    assert function["parameters"]["properties"]["name"]["type"] == "string"
    assert function["parameters"]["required"] == ["name"]
    result = second["messages"][-1]
    assert (result["role"], result["content"]) == ("tool", "/files/notes"), result


trio.run(main)
