"""`run_stream` yields typed events in order. The events are the start, the tokens and the end of each answer, plans, steps, executions
and results of tools, and the final answer.

Document: Data Flow, Streaming Flow; Design Patterns, 5. Event-Driven Streaming.

Differs: A `Token` has text of the final answer for the user, and not the JSON of the model. Partial plans and steps
are events with `complete=False`. Write `async with agent.stream(text) as events`. In synchronous code, write
`portal.start(agent).stream(text)`.
"""

import json

from actgent import FunctionTool, ScriptedLLM, StepsAgent, open_portal


def weather(city: str) -> str:
    return f"Sunny in {city}"


ANSWERS = [
    {"plan": "First look, then tell."},
    {"tool_calls": [{"id": "1", "tool_name": "weather", "parameters": {"city": "Turin"}}]},
    {"final_answer": "It is sunny."},
]
llm = ScriptedLLM([json.dumps(answer) for answer in ANSWERS], chunk=8)
agent = StepsAgent("clerk", llm=llm, tools=[FunctionTool("weather", "Tells the weather.", weather)])
names = []
with open_portal() as portal, portal.start(agent).stream("How is it?") as events:
    for event in events:
        name = type(event).__name__
        if not names or names[-1] != name:
            names.append(name)
first, second, last = (call.split() for call in " ".join(names).split("StreamStart ")[1:])
assert first == ["PlanEvent", "StreamEnd", "PlanEvent"], names
assert second[:2] == ["StepEvent", "StreamEnd"], names
assert second[2:] == ["StepEvent", "ToolExecutionEvent", "ToolResult", "ToolResultsEvent"], names
assert "Token" in last, names
assert last[-3:] == ["StreamEnd", "FinalEvent", "Reply"], names
