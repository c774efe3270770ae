"""An API error or an unreadable answer of the synthesis call results in an `ERROR` observation. The results of tools are
kept.

Document: The 6 Stages of PES Execution, 5. Synthesis Call; Error Handling, Synthesis Call.
"""

import json

import trio

from actgent import AnswerError, ModelError, NotAuthorized, PlanAgent, ScriptedLLM, tool

PLAN = json.dumps(
    {"intent": "know a depth", "plan": "look it up", "toolCalls": [{"toolName": "depth", "arguments": {}}]}
)


@tool(effect="pure")
async def depth() -> int:
    """Tell how deep the lake is, in metres."""
    return 1642


async def main() -> None:
    for said, error in ((NotAuthorized("the key is refused"), ModelError), ("", AnswerError)):
        models = {"planning": ScriptedLLM([PLAN]), "synthesis": ScriptedLLM([said], repeat=True)}
        async with PlanAgent("guide", llm=ScriptedLLM([]), models=models, tools=[depth]) as art:
            thread = await art.create_session("ada")
            result = await art.process("How deep?", session=thread)
            errors = await thread.observations(types=["ERROR"])
        assert result.status == "error"
        assert isinstance(result.error, error), result.error
        assert len(errors) == 1
        assert errors[0].content
        assert [each.content for each in result.tool_results] == ["1642"]


trio.run(main)
