"""With `verbose=True`, an agent prints its tool calls, their results and its answers.

Document: Design Trade-offs (Easy to get started); core concepts of the Agent.
"""

import contextlib
import io
import json

from actgent import FunctionTool, ScriptedLLM, StepsAgent


def weather(city: str) -> str:
    return f"Sunny in {city}"


STEP = {"tool_calls": [{"id": "1", "tool_name": "weather", "parameters": {"city": "Turin"}}]}
script = [json.dumps({"plan": "Look."}), json.dumps(STEP), json.dumps({"final_answer": "It is sunny."})]
tools = [FunctionTool("weather", "Tells the weather.", weather)]
shown = io.StringIO()
with contextlib.redirect_stderr(shown):
    StepsAgent("clerk", llm=ScriptedLLM(script), tools=tools, verbose=True).run_sync("How is it?")
for part in ("How is it?", "weather", "Turin", "Sunny in Turin", "It is sunny."):
    assert part in shown.getvalue(), shown.getvalue()
quiet = io.StringIO()
with contextlib.redirect_stderr(quiet), contextlib.redirect_stdout(quiet):
    StepsAgent("clerk", llm=ScriptedLLM(script), tools=tools).run_sync("How is it?")
assert quiet.getvalue() == ""
