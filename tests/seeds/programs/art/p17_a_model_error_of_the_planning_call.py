"""An API error of the planning call results in an `ERROR` observation and a result with the status `error`.

Document: Error Handling, Planning Call.
"""

import trio

from actgent import NotAuthorized, PlanAgent, ScriptedLLM


async def main() -> None:
    llm = ScriptedLLM([NotAuthorized("the key is refused")])
    async with PlanAgent("guide", llm=llm) as art:
        thread = await art.create_session("ada")
        result = await art.process("Hello?", session=thread)
        errors = await thread.observations(types=["ERROR"])
    assert result.status == "error"
    assert isinstance(result.error, NotAuthorized)
    assert result.reply is None
    assert len(errors) == 1
    assert "the key is refused" in str(errors[0].content)
    assert len(llm.chats) == 1


trio.run(main)
