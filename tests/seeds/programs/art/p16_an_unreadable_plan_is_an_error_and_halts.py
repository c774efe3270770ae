"""A plan that cannot be parsed results in an `ERROR` observation, and no tool is run.

Document: The 6 Stages of PES Execution, 3. Planning Call; Error Handling, Planning Call.
"""

import trio

from actgent import Limits, ParseError, PlanAgent, ScriptedLLM, tool


@tool
async def delete() -> None:
    """Delete everything."""
    raise AssertionError("an unreadable plan ran a tool")


async def main() -> None:
    llm = ScriptedLLM(['{"intent": "delete", "toolCalls": [{"toolName": "delete", '], repeat=True)
    async with PlanAgent("guide", llm=llm, tools=[delete], limits=Limits(output_retries=2)) as art:
        thread = await art.create_session("ada")
        result = await art.process("Delete it.", session=thread)
        errors = await thread.observations(types=["ERROR"])
        others = await thread.observations(types=["INTENT", "PLAN", "TOOL_EXECUTION"])
    assert result.status == "error"
    assert isinstance(result.error, ParseError), result.error
    assert len(errors) == 1
    assert errors[0].content
    assert others == ()
    assert len(llm.chats) == 3


trio.run(main)
