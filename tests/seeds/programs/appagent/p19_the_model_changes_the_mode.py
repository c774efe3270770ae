"""The mode changes in the conversation: the user or the agent requests it, if the mode allows it.

Document: Unified System Prompt Architecture, Mode Transitions via Conversation.
"""

import trio

from actgent import BareAgent, ModeChangeRejected, Modes, ScriptedLLM, ToolCall


async def main() -> None:
    llm = ScriptedLLM(
        [ToolCall("set_mode", {"mode": "plan", "reason": "it is a big task"}), "I plan.", "I act."]
    )
    modes = Modes(initial="act", commands=True)
    async with BareAgent("app", llm=llm, modes=modes) as app:
        session = await app.create_session("ada", "Rebuild the shop.")
        await session.wait_idle()
        assert session.mode == "plan"
        assert "The mode is now plan" in str(llm.chats[1].messages)
        await session.chat("act")
        await session.wait_idle()
        assert session.mode == "act"
        try:
            await session.set_mode("onboarding", by="agent")
        except ModeChangeRejected as refused:
            assert "onboarding" in str(refused)
        else:
            raise AssertionError("the agent may not switch to onboarding")
    changes = [(change.previous, change.current, change.by) for change in session.mode_changes]
    assert changes == [("act", "plan", "agent"), ("plan", "act", "user")], changes


trio.run(main)
