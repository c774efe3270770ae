"""The ReAct template supports different interaction modes: direct, and ReAct.

Document: Core Architecture, PromptTemplate ("Supports different interaction modes").
"""

import json

import trio

from actgent import AgentBuilder, ScriptedLLM


def answer(text: str) -> str:
    direct = {"response_purpose": "DIRECT_RESPONSE", "response_content": {"message": text}}
    return json.dumps({"question_nature": "SIMPLE", "primary_action": direct})


async def main() -> None:
    ends = {}
    for strategy in ("keyword", "auto", "preference"):
        llm = ScriptedLLM([answer("ok")], repeat=True)
        builder = AgentBuilder("clerk").protocol("react").strategy(strategy).llm(llm)
        async with builder.build() as agent:
            session = await agent.create_session("ada")
            for text in (
                "What is the capital of Peru?",
                "Search the files step by step, then analyze and compare them.",
            ):
                reply = await agent.run(text, session=session)
                assert str(reply) == "ok"
        ends[strategy] = [str(chat.messages[-1].parts).lower() for chat in llm.chats]
        assert len({chat.system for chat in llm.chats}) == 1
    direct, react = ends["keyword"]
    assert "question_nature simple" in direct and "directly" in direct, direct
    assert "question_nature complex" in react and "reason first" in react, react


trio.run(main)
