"""`session.onConversation(handler)` receives direct responses to the user.

Document: Core Architecture, Session; ReAct Message Flow, Final Response Flow.
"""

import json

import trio

from actgent import ReActAgent, ScriptedLLM


async def main() -> None:
    direct = {"response_purpose": "DIRECT_RESPONSE", "response_content": {"message": "It is 4."}}
    llm = ScriptedLLM([json.dumps({"question_nature": "SIMPLE", "primary_action": direct})])
    async with ReActAgent("tutor", llm=llm) as agent:
        session = await agent.create_session("ada", "What is 2 + 2?")
        answers = []

        @session.on_conversation
        def keep(response) -> None:
            answers.append(response)

        await session.wait_idle()
    assert [str(response) for response in answers] == ["It is 4."]
    assert len(llm.chats) == 1


trio.run(main)
