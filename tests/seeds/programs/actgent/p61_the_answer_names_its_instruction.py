"""The ReAct pair validates an answer completely to find its instruction. The instruction that the answer names runs,
even if two instructions have the same schema.

Document: Progressive Complexity, ReAct Implementation ("Full schema validation"); Instruction-Mapped Tools.
"""

import json

import trio

from actgent import ReActAgent, ScriptedLLM, tool

DONE = []


@tool(thread=False)
def create_user(name: str) -> str:
    """Create a user."""
    DONE.append(("create", name))
    return "created"


@tool(thread=False)
def delete_user(name: str) -> str:
    """Delete a user."""
    DONE.append(("delete", name))
    return "deleted"


def direct(content: object) -> str:
    action = {"response_purpose": "DIRECT_RESPONSE", "response_content": content}
    return json.dumps({"question_nature": "SIMPLE", "primary_action": action})


CREATE = {"name": "Create", "schemaTemplate": {"name": "<who>"}, "tool": "create_user"}
DELETE = {"name": "Delete", "schemaTemplate": {"name": "<who>"}, "tool": "delete_user"}


async def main() -> None:
    for order in ([CREATE, DELETE], [DELETE, CREATE]):
        for meant in ("Create", "Delete"):
            DONE.clear()
            events = []
            script = [direct({"name": "bob"}), direct({"messageType": meant, "name": "bob"}), direct("Done.")]
            llm = ScriptedLLM(script)
            async with ReActAgent(
                "clerk", llm=llm, instructions=order, tools=[create_user, delete_user]
            ) as agent:
                session = await agent.create_session("ada", f"{meant} bob.")
                session.on_event(lambda event, events=events: events.append(event.name))
                await session.wait_idle()
            assert [(meant.lower(), "bob")] == DONE, (order, meant, DONE)
            assert events == [meant]
            assert len(llm.chats) == 3  # the answer without a name ran nothing, and was asked again


trio.run(main)
