"""Agents work together: an agent is a tool of another.

Document: Future Extensibility, 3. Multi-Agent Collaboration.
"""

import json

import trio

from actgent import ScriptedLLM, StepsAgent


async def main() -> None:
    expert = StepsAgent(
        "expert", llm=ScriptedLLM([json.dumps({"final_answer": "1642 metres"})]), role="knows lakes"
    )
    step = {"tool_calls": [{"id": "1", "tool_name": "expert", "parameters": {"task": "How deep is Baikal?"}}]}
    llm = ScriptedLLM([json.dumps(step), json.dumps({"final_answer": "It is 1642 metres deep."})])
    async with StepsAgent("clerk", llm=llm, tools=[expert.as_tool()]) as clerk:
        assert str(await clerk.run("How deep is Baikal?")) == "It is 1642 metres deep."
    assert "1642 metres" in str(llm.chats[1].messages)


trio.run(main)
