"""A pair chooses its own response format: TOOL_INVOCATION and DIRECT_RESPONSE are not required.

Document: Response Type Handling ("you're not required to use the TOOL_INVOCATION/DIRECT_RESPONSE pattern").
"""

import trio

from actgent import Agent, CallTools, Event, Protocol, ScriptedLLM, SendReply, ToolCall, tool


@tool(thread=False)
def roll(sides: int) -> str:
    """Roll a die."""
    return "4"


class Slash(Protocol):
    """`/roll 6` calls a tool, `!name` is an event, all other text is an answer."""

    name = "slash"
    template = "You may write /roll SIDES, !EVENT, or text."

    def read(self, answer, view):
        command, _, rest = answer.text.partition(" ")
        if command == "/roll":
            return [CallTools([ToolCall("roll", {"sides": int(rest)})])]
        if command.startswith("!"):
            return [Event(name=command[1:], data=rest)]
        return [SendReply(text=answer.text)]


async def main() -> None:
    out = []
    llm = ScriptedLLM(["/roll 6", "It is a 4.", "!bored very"])
    async with Agent("dealer", llm=llm, protocol=Slash(), tools=[roll]) as agent:
        session = await agent.create_session("ada")
        session.on_tool_result(lambda result: out.append(("tool", result.content)))
        session.on_conversation(lambda reply: out.append(("conversation", str(reply))))
        session.on_event(lambda event: out.append((event.name, event.data)))
        for text in ("Roll!", "And now?"):
            await session.chat(text)
            await session.wait_idle()
    assert out == [("tool", "4"), ("conversation", "It is a 4."), ("bored", "very")], out


trio.run(main)
