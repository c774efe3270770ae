"""A custom tool is a class with a name, a description, a schema and `execute`, or a function.

Document: Extension Points (Custom Tools); Tool Integration; "new FileSearchTool()".
"""

import trio

from actgent import BareAgent, ScriptedLLM, Tool, ToolCall, tool


class FileSearchTool(Tool):
    """Searches for a file."""

    name = "FileSearch"

    def get_schema(self):
        return {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

    async def execute(self, parameters):
        return f"/files/{parameters['name']}"


@tool(thread=False)
def list_files(folder: str = "/files") -> list[str]:
    """List the files of a folder.

    Args:
        folder: Where to look.
    """
    return [f"{folder}/notes"]


async def main() -> None:
    calls = [ToolCall("FileSearch", {"name": "notes"}), ToolCall("list_files", {"folder": "/srv"})]
    llm, results = ScriptedLLM([calls, "Done."]), []
    async with BareAgent("clerk", llm=llm, tools=[FileSearchTool(), list_files]) as agent:
        session = await agent.create_session("ada", "Where are my notes?")
        session.on_tool_result(lambda result: results.append(result.content))
        await session.wait_idle()
    assert results == ["/files/notes", '["/srv/notes"]'], results
    specs = {spec.name: spec for spec in llm.chats[0].tools}
    assert specs["FileSearch"].description == "Searches for a file."
    assert specs["FileSearch"].parameters["required"] == ["name"]
    assert specs["list_files"].parameters["properties"]["folder"]["description"] == "Where to look."


trio.run(main)
