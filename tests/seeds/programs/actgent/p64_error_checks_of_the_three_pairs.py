"""Error checks increase with the pair: Bare checks little, Simple the basic structure, and ReAct the full schema.

Document: Implementation Patterns, Error Handling.

Differs: All pairs handle an unreadable answer in one way. The request is retried with the reason
(`Limits(output_retries=2)`), and then `on_exception` receives the error. Simple also checks schemas.
"""

import json

import trio

from actgent import BareAgent, Limits, ReActAgent, ScriptedLLM, SimpleAgent

ORDER = {"name": "order", "schemaTemplate": {"item": "<what>"}}


def react(content: object) -> str:
    return json.dumps(
        {"primary_action": {"response_purpose": "DIRECT_RESPONSE", "response_content": content}}
    )


def simple(name: str, content: object) -> str:
    return json.dumps({"messageType": name, "content": content})


REFUSED = {
    SimpleAgent: ["no JSON", '{"content": "no type"}', simple("other", "x"), simple("order", {"number": 1})],
    ReActAgent: [
        '{"primary_action": 1}',
        '{"question_nature": "SIMPLE"}',
        react({"messageType": "other"}),
        react({"messageType": "order", "number": 1}),
    ],
}


async def main() -> None:
    async with BareAgent("shop", llm=ScriptedLLM(["{ not even JSON"]), instructions=[ORDER]) as bare:
        assert str(await bare.run("Hello")) == "{ not even JSON"
    for kind, answers in REFUSED.items():
        for answer in answers:
            llm, failures = ScriptedLLM([answer] * 2), []
            async with kind("shop", llm=llm, instructions=[ORDER], limits=Limits(output_retries=1)) as agent:
                session = await agent.create_session("ada", "Tea, please.")
                session.on_exception(lambda failure, failures=failures: failures.append(failure))
                session.on_conversation(print)
                await session.wait_idle()
            assert len(llm.chats) == 2 and len(failures) == 1, (kind, answer)
            assert failures[0].raw == answer


trio.run(main)
