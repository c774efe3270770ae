"""Dynamic context, such as retrieved documents, is gathered before the synthesis call and not for the planning call.

Document: The 6 Stages of PES Execution, 2. Planning Context Assembly, Note.
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM

PLAN = json.dumps({"intent": "know a depth", "plan": "read the documents", "toolCalls": []})


async def main() -> None:
    llm = ScriptedLLM([PLAN, "1642 metres."])
    art = PlanAgent("guide", llm=llm)

    @art.on_query(stage="synthesis")
    async def retrieve(message) -> str:
        return f"Document for {message.text}: Baikal is 1642 m deep."

    async with art:
        await art.process("How deep is Baikal?")
    planning, synthesis = (str(chat.messages) for chat in llm.chats)
    assert "Document for" not in planning
    assert "Document for How deep is Baikal?: Baikal is 1642 m deep." in synthesis


trio.run(main)
