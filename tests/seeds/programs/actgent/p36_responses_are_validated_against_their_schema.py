"""Classification types validate the responses: if an answer does not match the schema of its type, the request is retried with the error.

Document: Instructions and Classification Types, Usage in Prompt Templates ("Validate LLM responses").
"""

import json

import trio

from actgent import ReActAgent, ScriptedLLM, SimpleAgent

ORDER = {
    "name": "order",
    "schema": {
        "type": "object",
        "properties": {"item": {"type": "string"}, "number": {"type": "integer", "minimum": 1}},
        "required": ["item", "number"],
    },
}


def simple(content: dict) -> str:
    return json.dumps({"messageType": "order", "content": content})


def react(content: dict) -> str:
    action = {"response_purpose": "DIRECT_RESPONSE", "response_content": {"messageType": "order", **content}}
    return json.dumps({"question_nature": "SIMPLE", "primary_action": action})


async def main() -> None:
    for kind, form in ((SimpleAgent, simple), (ReActAgent, react)):
        llm = ScriptedLLM([form({"item": "tea", "number": 0}), form({"item": "tea", "number": 2})])
        async with kind("shop", llm=llm, types=[ORDER]) as agent:
            session = await agent.create_session("ada", "Two packs of tea.")
            events = []
            session.on_event(lambda event, events=events: events.append(event.data))
            await session.wait_idle()
        assert [(each["item"], each["number"]) for each in events] == [("tea", 2)], events
        assert len(llm.chats) == 2
        notice = str(llm.chats[1].messages[2].parts)
        assert "could not be used" in notice and "/number" in notice, notice


trio.run(main)
