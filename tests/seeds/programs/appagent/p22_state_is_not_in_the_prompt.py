"""State is retrieved on demand by tools instead of being embedded in the system prompt.

Document: Unified System Prompt Architecture, State Retrieval on Demand.
"""

import trio

from actgent import BareAgent, Modes, ScriptedLLM, ToolCall


async def main() -> None:
    llm = ScriptedLLM([ToolCall("get_agent_state", {}), "You have tea in your basket."])
    async with BareAgent("app", llm=llm, modes=Modes(initial="plan")) as app:
        session = await app.create_session("ada")
        session.state.dispatch(("basket", ["tea"]))
        await session.chat("What is in my basket?")
        await session.wait_idle()
    first, second = llm.chats
    assert "tea" not in first.system and "tea" not in str(first.messages)
    assert "tea" not in second.system and "tea" in str(second.messages[-1])


trio.run(main)
