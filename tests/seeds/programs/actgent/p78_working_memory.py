"""Working memory is the current state of the session, and part of the context for the model.

Document: Memory and Context Management.

Differs: By default, the prompt does not include the state, because each change would invalidate the provider's cache.
Show the state with `user_prompt="{{ state }}"`, or read the state in a tool.
"""

import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, ToolContext, tool


@tool(thread=False)
def choose(colour: str, context: ToolContext) -> str:
    """Choose a colour."""
    context.state.dispatch(("colour", colour))
    return "chosen"


async def main() -> None:
    llm = ScriptedLLM([ToolCall("choose", {"colour": "red"}), "Red it is.", "It is red."])
    prompt = "Working memory: colour={{ state.get('colour', 'unknown') }}"
    async with BareAgent("painter", llm=llm, tools=[choose], user_prompt=prompt) as agent:
        session = await agent.create_session("ada", "Take red.")
        await session.wait_idle()
        await session.chat("Which colour is it?")
        await session.wait_idle()
    assert session.state["colour"] == "red"
    ends = [chat.messages[-1].parts[-1].text for chat in llm.chats]
    assert ends[0].endswith("colour=unknown") and ends[2].endswith("colour=red"), ends
    assert len({chat.system for chat in llm.chats}) == 1


trio.run(main)
