"""The thoughts of the synthesis call are streamed as `THOUGHTS` observations. The answer has only the text for the user.

Document: The 6 Stages of PES Execution, 5. Synthesis Call.
"""

import json
from functools import partial

import trio

from actgent import PlanAgent, ScriptedLLM

PLAN = json.dumps({"intent": "greet", "plan": "answer", "toolCalls": []})
SYNTHESIS = "<think>A short greeting is the best answer here.</think>Hello Ada."


async def main() -> None:
    async with PlanAgent("guide", llm=ScriptedLLM([PLAN, SYNTHESIS], chunk=5)) as art:
        thread = await art.create_session("ada")
        seen = []
        async with (
            thread.observe(types=["THOUGHTS", "FINAL_RESPONSE"]) as socket,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(partial(art.process, "Hello?", session=thread))
            while not seen or seen[-1].type != "FINAL_RESPONSE":
                seen.append(await socket.receive())
    *thoughts, final = seen
    assert len(thoughts) > 1
    assert not thoughts[0].is_whole
    assert "A short greeting is the best answer here." in str(thoughts[-1].content)
    assert final.content == "Hello Ada."


trio.run(main)
