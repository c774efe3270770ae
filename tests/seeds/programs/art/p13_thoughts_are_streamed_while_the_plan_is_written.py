"""The thoughts of the planning call are streamed as `THOUGHTS` observations while the model writes them.

Document: The 6 Stages of PES Execution, 3. Planning Call (onThought).
"""

import json
from functools import partial

import trio

from actgent import PlanAgent, ScriptedLLM

PLAN = json.dumps(
    {"thoughts": "One lookup will do, I think.", "intent": "know", "plan": "answer", "toolCalls": []}
)


async def main() -> None:
    art = PlanAgent("guide", llm=ScriptedLLM([PLAN, "Hello."], chunk=4))
    async with art:
        thread = await art.create_session("ada")
        async with thread.observe(types=["THOUGHTS", "INTENT"]) as socket:
            seen = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(art.process, "Hello?", session=thread))
                while not seen or seen[-1].type != "INTENT":
                    seen.append(await socket.receive())
    thoughts = seen[:-1]
    assert [each.type for each in thoughts] == ["THOUGHTS"] * len(thoughts)
    assert len(thoughts) > 1, "they come at once"
    assert thoughts[-1].is_whole
    assert "One lookup will do, I think." in str(thoughts[-1].content)
    assert not thoughts[0].is_whole


trio.run(main)
