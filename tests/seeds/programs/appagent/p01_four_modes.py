"""AppAgent operates in the modes onboarding, integration, plan and act, and begins in onboarding.

Document: Agent Modes.
"""

import trio

from actgent import BareAgent, Modes, ScriptedLLM


async def main() -> None:
    async with BareAgent("app", llm=ScriptedLLM(["Hello."], repeat=True), modes=Modes()) as app:
        session = await app.create_session("ada", "Hello")
        await session.wait_idle()
        assert session.mode == "onboarding"
        for mode in ("integration", "plan", "act", "onboarding"):
            await session.set_mode(mode, by="user")
            assert session.mode == mode
    assert [change.current for change in session.mode_changes] == ["integration", "plan", "act", "onboarding"]
    assert {mode.name for mode in Modes()} == {"onboarding", "integration", "plan", "act"}


trio.run(main)
