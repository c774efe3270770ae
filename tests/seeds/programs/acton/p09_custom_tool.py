"""A custom tool inherits from the base class `Tool` and has two methods, `execute(parameters)` and `get_schema()`.

Document: Core Components, 3. Tools; Extension Points, Custom Tool.
"""

import json
from typing import Dict

from actgent import ScriptedLLM, StepsAgent, Tool


class MyTool(Tool):
    def execute(self, parameters: Dict) -> str:
        return f"Sunny in {parameters['city']}"

    def get_schema(self) -> Dict:
        return {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class Named(MyTool):
    def __init__(self):
        super().__init__(name="weather", description="Tells the weather.")


class Free:
    execute, get_schema = MyTool.execute, MyTool.get_schema


for tool, name in ((MyTool(), "MyTool"), (Named(), "weather"), (Free(), "Free")):
    step = {"tool_calls": [{"id": "1", "tool_name": name, "parameters": {"city": "Turin"}}]}
    llm = ScriptedLLM([json.dumps(step), json.dumps({"final_answer": "Sunny."})])
    agent = StepsAgent("clerk", llm=llm, tools=[tool])
    assert str(agent.run_sync("How is it?")) == "Sunny."
    assert "Sunny in Turin" in str(llm.chats[1].messages), name
    assert "city" in f"{llm.chats[0].system} {llm.chats[0].tools}"
