"""LLM response parsing errors have a handler and recovery: the request is retried with the reason, then exception handlers receive the
error.

Document: Error Handling.
"""

import json

import trio

from actgent import Limits, ParseError, ReActAgent, ScriptedLLM

GOOD = json.dumps({"primary_action": {"response_purpose": "DIRECT_RESPONSE", "response_content": "Hello."}})
BAD = '{"question_nature": "SIMPLE", "primary_action": {"response_purpose": "SHOUT"}}'


async def main() -> None:
    llm = ScriptedLLM([BAD, BAD, GOOD, BAD, BAD, BAD, GOOD])
    async with ReActAgent("clerk", llm=llm, limits=Limits(output_retries=2)) as agent:
        session = await agent.create_session("ada")
        failures, answers = [], []
        session.on_exception(failures.append)
        session.on_conversation(lambda reply: answers.append(str(reply)))
        for text in ("Hello", "Hello?", "Hello!"):
            await session.chat(text)
            await session.wait_idle()
    assert answers == ["Hello.", "Hello."]  # the first was repaired, the second failed
    [failure] = failures
    assert failure.kind == "parse"
    assert isinstance(failure.error, ParseError)
    assert failure.raw == BAD
    assert "SHOUT" in str(failure.error) or "response_purpose" in str(failure.error), failure.error
    assert "could not be used" in str(llm.chats[1].messages)


trio.run(main)
