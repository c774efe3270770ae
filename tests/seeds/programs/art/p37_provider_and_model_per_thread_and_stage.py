"""The reasoning engine is configured by thread: provider and model, optionally a different model for each of the two calls.

Document: Configuration (reasoning config); The 6 Stages of PES Execution, 3. and 5.
"""

import json

import trio

from actgent import OpenAI, PlanAgent, ScriptedLLM
from actgent.testing import open_provider

PLAN = json.dumps({"intent": "greet", "plan": "answer", "toolCalls": []})


async def main() -> None:
    async with open_provider(["Hello from the provider."]) as provider:
        remote = OpenAI("gpt-5.2", base_url=provider.openai_url, api_key="k")
        small = ScriptedLLM([PLAN, PLAN, "Hello from the small one."])
        async with PlanAgent("guide", llm=small, models={"small": small, "remote": remote}) as art:
            one, two = await art.create_session("ada"), await art.create_session("bob")
            art.configure(one, models={"planning": "small", "synthesis": "remote"})
            assert (await art.process("Hello?", session=one)).text == "Hello from the provider."
            assert (await art.process("Hello?", session=two)).text == "Hello from the small one."
        await remote.aclose()
        assert json.loads(provider.requests[0].body)["model"] == "gpt-5.2"
        assert len(provider.requests) == 1


trio.run(main)
