"""A mapped tool can only be triggered through its instruction: neither a native call nor TOOL_INVOCATION runs it.

Document: Tool Registration and Instruction Mapping, Instruction-Mapped Tools.
"""

import json

import trio

from actgent import ReActAgent, ScriptedLLM, ToolCall, tool

RUNS = []


@tool(thread=False)
def generate(name: str) -> str:
    """Make an agent."""
    RUNS.append(name)
    return f"made {name}"


def action(purpose: str, content: object) -> str:
    return json.dumps(
        {
            "question_nature": "SIMPLE",
            "primary_action": {"response_purpose": purpose, "response_content": content},
        }
    )


SCRIPT = [
    ToolCall("generate", {"name": "by a native call"}),
    action("TOOL_INVOCATION", {"name": "generate", "parameters": {"name": "by invocation"}}),
    action("DIRECT_RESPONSE", {"messageType": "Creation", "name": "poet"}),
    action("DIRECT_RESPONSE", {"message": "Your poet is ready."}),
]


async def main() -> None:
    creation = {"name": "Creation", "schemaTemplate": {"name": "<its name>"}, "tool": "generate"}
    async with ReActAgent(
        "smith", llm=ScriptedLLM(SCRIPT), instructions=[creation], tools=[generate]
    ) as smith:
        session = await smith.create_session("ada", "Make me a poet.")
        called = []
        session.on_event(lambda event: called.append(("event", event.name)))
        session.on_tool_result(lambda result: called.append(("tool", result.status)))
        session.on_conversation(lambda reply: called.append(("conversation", str(reply))))
        await session.wait_idle()
    assert RUNS == ["poet"], RUNS
    assert called[-3:] == [
        ("event", "Creation"),
        ("tool", "success"),
        ("conversation", "Your poet is ready."),
    ], called


trio.run(main)
