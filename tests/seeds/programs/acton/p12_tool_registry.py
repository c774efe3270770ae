"""The registry of an agent registers and unregisters tools, finds them by name, and formats their schemas for prompts.

Document: Core Components, 4. Tool Registry.
"""

import json

from actgent import DuplicateTool, FunctionTool, ScriptedLLM, StepsAgent, ToolNotFound, tool_documentation


def weather(city: str) -> str:
    return f"Sunny in {city}"


llm = ScriptedLLM([json.dumps({"final_answer": "Hello."})], repeat=True)
agent = StepsAgent("clerk", llm=llm)
other = StepsAgent("other", llm=llm)
agent.tools.add(FunctionTool("weather", "Tells the weather.", weather))
assert [tool.name for tool in agent.tools.list()] == ["weather"]
assert other.tools.list() == ()
assert agent.tools.get("weather").description == "Tells the weather."
assert agent.tools.get("wether") is None
assert "Tells the weather." in tool_documentation(agent.tools)
agent.run_sync("Hello?")
assert "Tells the weather." in f"{llm.chats[0].system} {llm.chats[0].tools}"
try:
    agent.tools.add(FunctionTool("weather", "Another one.", weather))
except DuplicateTool:
    agent.tools.remove("weather")
assert agent.tools.list() == ()
agent.run_sync("Hello?")
assert "Tells the weather." not in f"{llm.chats[1].system} {llm.chats[1].tools}"
try:
    agent.tools.remove("weather")
except ToolNotFound:
    agent = None
assert agent is None
