"""Classification types may be passed directly, as literals with name, description and the schema of the whole answer.

Document: Instructions and Classification Types, Direct Classification Types (basic-agent.ts).
"""

import trio

from actgent import ScriptedLLM, SimpleAgent

CLASSIFICATION_TYPES = [
    {
        "name": "greeting",
        "description": "General greetings and pleasantries",
        "schema": {"messageType": "greeting", "content": "string"},
    },
    {
        "name": "farewell",
        "description": "Goodbyes",
        "schema": {"messageType": "farewell", "content": "string"},
    },
]


async def main() -> None:
    script = [
        '{"messageType": "greeting", "content": "Good morning!"}',
        '{"messageType": "farewell", "content": "Bye!"}',
    ]
    async with SimpleAgent("host", llm=ScriptedLLM(script), types=CLASSIFICATION_TYPES) as agent:
        lines = agent.system_prompt.splitlines()
        assert "- greeting: General greetings and pleasantries" in lines
        assert '{"messageType": "greeting", "content": "string"}' in lines
        session = await agent.create_session("ada", "Hello")
        answers = []
        session.on_conversation(lambda reply: answers.append((reply.message_type, str(reply))))
        await session.wait_idle()
        await session.chat("I have to go.")
        await session.wait_idle()
    assert answers == [("greeting", "Good morning!"), ("farewell", "Bye!")], answers


trio.run(main)
