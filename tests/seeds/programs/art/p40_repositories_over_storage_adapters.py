"""Messages, observations and states are kept in repositories over a storage adapter that the user chooses.

Document: The 6 Stages of PES Execution, 3. and 6. (ObservationRepository, ConversationRepository, StateRepository).

Differs: One journal stores messages, observations and states together, so a program needs no repositories. Choose the
journal with `open_runtime(journal="memory:")`, `"sqlite:///agents.db"` or `"postgresql://HOST/DATABASE"`.
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, open_runtime

PLAN = json.dumps({"intent": "greet", "plan": "answer", "toolCalls": []})


async def main() -> None:
    async with open_runtime(journal="sqlite:///agents.db") as runtime:
        art = await runtime.start(PlanAgent("guide", llm=ScriptedLLM([PLAN, "Hello."])))
        thread = await art.ensure_session("ada", "t1")
        art.configure(thread, history=4)
        await art.process("Hello?", session=thread)
        thread.state.dispatch(("seen", True))
        before = (await thread.messages(), await thread.observations(), dict(thread.state))
    async with open_runtime(journal="sqlite:///agents.db") as runtime:
        art = await runtime.start(PlanAgent("guide", llm=ScriptedLLM([])))
        thread = await art.open_session("t1")
        assert (await thread.messages(), await thread.observations(), dict(thread.state)) == before


trio.run(main)
