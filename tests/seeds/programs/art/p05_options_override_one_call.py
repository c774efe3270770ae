"""`options` overrides the settings of the thread for this call only.

Document: Input (AgentProps).
"""

import json

import trio

from actgent import Limits, PlanAgent, ScriptedLLM

PLAN = json.dumps({"intent": "greet", "plan": "answer", "toolCalls": []})


async def main() -> None:
    usual, other = ScriptedLLM([PLAN, "usual"]), ScriptedLLM([PLAN, "other"])
    async with PlanAgent("guide", llm=usual, models={"large": other}, temperature=0.5) as art:
        thread = await art.create_session("ada")
        special = await art.process(
            "One?", session=thread, model="large", temperature=0.0, max_tokens=99, prompt="Answer in Latin."
        )
        assert special.text == "other"
        assert [(chat.temperature, chat.max_tokens) for chat in other.chats] == [(0.0, 99)] * 2
        assert all("Answer in Latin." in f"{chat.system} {chat.messages}" for chat in other.chats)
        plain = await art.process("Two?", session=thread)
        assert plain.text == "usual"
        assert [chat.temperature for chat in usual.chats] == [0.5, 0.5]
        assert all("Latin" not in f"{chat.system} {chat.messages}" for chat in usual.chats)
        limited = await art.process("Three?", session=thread, limits=Limits(model_calls=1))
    assert limited.status == "error"


trio.run(main)
