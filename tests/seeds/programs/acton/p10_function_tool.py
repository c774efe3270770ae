"""`FunctionTool` wraps an existing function; its parameters are described by its signature.

Document: Core Components, 3. Tools, Three implementation patterns.
"""

import json

from actgent import FunctionTool, ScriptedLLM, StepsAgent


def calculate(expression: str, digits: int = 2) -> str:
    return f"{expression} to {digits} digits"


tool = FunctionTool(name="calculator", description="Calculates.", func=calculate)
assert (tool.name, tool.description) == ("calculator", "Calculates.")
assert tool.parameters["properties"]["expression"]["type"] == "string"
assert tool.parameters["properties"]["digits"]["type"] == "integer"
assert tool.parameters["required"] == ["expression"]
step = {"tool_calls": [{"id": "1", "tool_name": "calculator", "parameters": {"expression": "2/3"}}]}
llm = ScriptedLLM([json.dumps(step), json.dumps({"final_answer": "0.67"})])
assert str(StepsAgent("clerk", llm=llm, tools=[tool]).run_sync("2/3?")) == "0.67"
assert "2/3 to 2 digits" in str(llm.chats[1].messages)
