"""The schema of an instruction is enforced before its tool runs: an invalid answer runs no tool, and the request is retried with the error.

Document: Tool Registration and Instruction Mapping, Design Rationale (Schema Validation).
"""

import json

import trio

from actgent import ReActAgent, ScriptedLLM, SimpleAgent, tool

RUNS = []
FORM = {"name": "<its name>", "goal": "<its goal>", "capabilities": ["<one>"]}


@tool(thread=False)
def AgentGenerator(name: str, goal: str, capabilities: list[str]) -> str:
    """Make an agent."""
    RUNS.append((name, goal, capabilities))
    return f"made {name}"


def simple(name: str, content: object) -> str:
    return json.dumps({"messageType": name, "content": content})


def react(name: str, content: object) -> str:
    if name == "Creation":
        content = {"messageType": name, **content}
    action = {"response_purpose": "DIRECT_RESPONSE", "response_content": content}
    return json.dumps({"question_nature": "SIMPLE", "primary_action": action})


async def main() -> None:
    creation = {"name": "Creation", "schemaTemplate": FORM, "tool": "AgentGenerator"}
    whole = {"name": "poet", "goal": "rhyme", "capabilities": ["sonnets"]}
    for kind, form in ((SimpleAgent, simple), (ReActAgent, react)):
        RUNS.clear()
        part = {"name": "poet", "goal": "rhyme"}
        script = [
            form("Creation", part),
            form("Creation", whole),
            form("DIRECT_RESPONSE", "Your poet is ready."),
        ]
        llm = ScriptedLLM(script)
        async with kind("smith", llm=llm, instructions=[creation], tools=[AgentGenerator]) as smith:
            reply = await smith.run("Make me a poet.")
        assert str(reply) == "Your poet is ready."
        assert RUNS == [("poet", "rhyme", ["sonnets"])], RUNS
        assert "'capabilities' is missing" in str(llm.chats[1].messages[2].parts)


trio.run(main)
