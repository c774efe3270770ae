"""A tool that an instruction names is removed from the list of functions. The unmapped tools stay in the list.

Document: Tool Registration and Instruction Mapping, Function List Filtering.
"""

import json

import trio

from actgent import AgentGenerator, OpenAI, ReActAgent, tool
from actgent.testing import open_provider


@tool(thread=False)
def file_search(name: str) -> str:
    """Search for a file."""
    return f"/files/{name}"


def direct(text: str) -> str:
    action = {"response_purpose": "DIRECT_RESPONSE", "response_content": {"message": text}}
    return json.dumps({"question_nature": "SIMPLE", "primary_action": action})


async def main() -> None:
    creation = {"name": "Creation", "schemaTemplate": {"name": "<its name>"}, "tool": "AgentGenerator"}
    async with open_provider([direct("Hello.")]) as provider:
        llm = OpenAI("gpt-4", base_url=provider.openai_url, api_key="any")
        tools = [AgentGenerator("agents"), file_search]
        smith = ReActAgent("smith", llm=llm, instructions=[creation], tools=tools)
        async with smith:
            await smith.run("Hello")
        await llm.aclose()
        names = [each["function"]["name"] for each in provider.requests[0].json["tools"]]
    assert "file_search" in names and "AgentGenerator" not in names, names
    assert smith.tools.mapped == {"AgentGenerator"}


trio.run(main)
