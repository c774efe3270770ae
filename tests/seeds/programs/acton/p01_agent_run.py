"""`Agent.run(input)` calls the model, runs the tools of its steps, and returns the final response.

Document: High-Level Architecture; Data Flow, Standard Agent Run.

Differs: The class `StepsAgent` has the loop of acton. `run` is async, so that many runs share a thread. Scripts write
`agent.run_sync(text)`.
"""

import json

from actgent import FunctionTool, ScriptedLLM, StepsAgent


def weather(city: str) -> str:
    return f"Sunny in {city}"


STEP = {"tool_calls": [{"id": "1", "tool_name": "weather", "parameters": {"city": "Turin"}}]}
llm = ScriptedLLM([json.dumps(STEP), json.dumps({"final_answer": "It is sunny in Turin."})])
agent = StepsAgent("clerk", llm=llm, tools=[FunctionTool("weather", "Tells the weather.", weather)])
assert str(agent.run_sync("How is the weather in Turin?")) == "It is sunny in Turin."
assert len(llm.chats) == 2
assert "Sunny in Turin" in str(llm.chats[1].messages)
