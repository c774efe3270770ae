"""The Bare pair treats all responses as direct answers in raw text, and uses the first type for all of them.

Document: Progressive Complexity, Bare Implementation; Response Type Handling, Bare Implementation.

Differs: The answer `{messageType, content}` is an object. Read `reply.message_type` and `reply.text`. If an answer is
only JSON with a `text` or `content`, the reply has this text, and `reply.data` has the JSON.
"""

import trio

from actgent import BareAgent, ScriptedLLM

SCRIPT = [
    "Hello, Ada!",
    '{"messageType": "farewell", "content": "Bye"}',
    '{"primary_action": {"response_purpose": "TOOL_INVOCATION", "response_content": {"name": "x"}}}',
]


async def main() -> None:
    async with BareAgent("host", llm=ScriptedLLM(SCRIPT), instructions=["greeting", "farewell"]) as agent:
        session = await agent.create_session("ada")
        replies, others = [], []
        session.on_conversation(replies.append)
        for register in (session.on_event, session.on_tool_result, session.on_exception):
            register(others.append)
        for _ in SCRIPT:
            await session.chat("Say something.")
            await session.wait_idle()
    texts = [SCRIPT[0], "Bye", SCRIPT[2]]
    assert [(reply.message_type, reply.text) for reply in replies] == [("greeting", text) for text in texts]
    assert replies[1].data == {"messageType": "farewell", "content": "Bye"}
    assert others == []


trio.run(main)
