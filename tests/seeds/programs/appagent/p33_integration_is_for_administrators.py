"""Integration mode is an administrator mode.

Document: Agent Modes, Integration Mode.

Differs: The program decides which users are administrators (`set_mode("integration", by="admin")`). Users may also switch, unless
`Modes(transitions=...)` excludes them.
"""

import trio

from actgent import BareAgent, ModeChangeRejected, Modes, ScriptedLLM

TRANSITIONS = {
    "onboarding": {"integration": ["admin"], "plan": ["user", "agent", "admin"]},
    "integration": {"onboarding": ["admin"], "act": ["admin"]},
}


async def main() -> None:
    async with BareAgent("app", llm=ScriptedLLM([]), modes=Modes(transitions=TRANSITIONS)) as app:
        session = await app.create_session("ada")
        for who in ("user", "agent"):
            try:
                await session.set_mode("integration", by=who)
            except ModeChangeRejected as refused:
                assert "integration" in str(refused)
            else:
                raise AssertionError(who)
        await session.set_mode("integration", by="admin", reason="new tools")
        assert session.mode == "integration"
        [change] = session.mode_changes
        assert (change.by, change.reason) == ("admin", "new tools")


trio.run(main)
