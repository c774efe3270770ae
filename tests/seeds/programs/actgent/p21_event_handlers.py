"""`session.onEvent(handler)` receives structured events: the name of the instruction and its content, and the session.

Document: Core Architecture, Session (eventHandlers).
"""

import json

import trio

from actgent import ScriptedLLM, SimpleAgent


async def main() -> None:
    order = {"name": "order", "description": "An order.", "schemaTemplate": {"item": "<what>", "number": 1}}
    llm = ScriptedLLM([json.dumps({"messageType": "order", "content": {"item": "tea", "number": 2}})])
    async with SimpleAgent("shop", llm=llm, instructions=[order]) as agent:
        session = await agent.create_session("ada", "Two packs of tea.")
        events, answers = [], []
        session.on_event(lambda event, session: events.append((event.name, event.data, session.id)))
        session.on_conversation(answers.append)
        await session.wait_idle()
    assert events == [("order", {"item": "tea", "number": 2}, session.id)], events
    assert answers == []


trio.run(main)
