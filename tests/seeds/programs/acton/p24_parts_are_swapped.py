"""An agent is composed of its client, memory, retry settings and tools. A program replaces each of these parts by an
argument, without a subclass.

Document: Design Patterns, 2. Composition Over Inheritance.
"""

import json

from actgent import FunctionTool, Retry, RetryingModel, ScriptedLLM, StepsAgent, Truncation


def weather() -> str:
    return "Sunny"


def recent(history):
    return history[-2:]


final = json.dumps({"final_answer": "Hello."})
for client in (ScriptedLLM([final]), lambda messages: final):
    for memory in (Truncation(max_tokens=8000), recent):
        for retry in (Retry(attempts=1), Retry.exponential(5, multiplier=1)):
            agent = StepsAgent(
                "clerk",
                llm=RetryingModel(client, retry),
                memory=memory,
                tools=[FunctionTool("weather", "Tells the weather.", weather, retries=2, retry_on=OSError)],
            )
            assert type(agent) is StepsAgent
    assert str(agent.run_sync("Hello?")) == "Hello."
