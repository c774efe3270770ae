"""ReAct responses have a structure with reasoning: `question_nature`, `context`, and further explanations of the model.

Document: Response Type Handling, ReAct Implementation ("Complex response structure with reasoning").
"""

import json

import trio

from actgent import ReActAgent, ScriptedLLM

ANSWER = {
    "question_nature": "COMPLEX",
    "context": {
        "understanding": "two trains meet",
        "approach": "add the speeds",
        "considerations": ["units"],
    },
    "primary_action": {"response_purpose": "DIRECT_RESPONSE", "response_content": {"message": "At noon."}},
    "additional_info": {"analysis": "100 km/h together"},
}


async def main() -> None:
    async with ReActAgent("tutor", llm=ScriptedLLM([json.dumps(ANSWER)])) as agent:
        session = await agent.create_session("ada", "When do they meet?")
        replies = []
        session.on_conversation(replies.append)
        await session.wait_idle()
    [reply] = replies
    assert str(reply) == "At noon."
    assert reply.reasoning["question_nature"] == "COMPLEX"
    assert reply.reasoning["context"]["approach"] == "add the speeds"
    assert reply.reasoning["additional_info"] == {"analysis": "100 km/h together"}


trio.run(main)
