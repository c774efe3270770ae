"""The conversation manager retrieves the messages of a thread: the most recent ones, before or after a time, and by role.

Document: The 6 Stages of PES Execution, 2. Planning Context Assembly (ConversationManager).
"""

import datetime as dt
import json

import trio

from actgent import PlanAgent, ScriptedLLM

PLAN = json.dumps({"intent": "greet", "plan": "answer", "toolCalls": []})


async def main() -> None:
    async with PlanAgent("guide", llm=ScriptedLLM([PLAN, "A1", PLAN, "A2"])) as art:
        thread = await art.create_session("ada")
        await art.process("Q1", session=thread)
        await trio.sleep(0.002)
        moment = dt.datetime.now(dt.UTC)
        await trio.sleep(0.002)
        await art.process("Q2", session=thread)

        async def texts(**found):
            return [each.text for each in (await thread.messages(**found)).messages]

        both = ["user", "assistant"]
        assert await texts(roles=both) == ["Q1", "A1", "Q2", "A2"]
        assert await texts(roles=both, limit=2) == ["Q2", "A2"]
        assert await texts(roles=both, before=moment) == ["Q1", "A1"]
        assert await texts(roles=both, after=moment) == ["Q2", "A2"]
        assert await texts(roles=["user"]) == ["Q1", "Q2"]
        assert await texts(roles=["assistant"], limit=1) == ["A2"]


trio.run(main)
