"""The history of modes is preserved in the history of the conversation.

Document: Unified System Prompt Architecture, Conversation Context.
"""

import trio

from actgent import BareAgent, Modes, ScriptedLLM, open_runtime


async def main() -> None:
    for life in range(2):
        app = BareAgent("app", llm=ScriptedLLM(["Fine."], repeat=True), modes=Modes(initial="plan"))
        async with open_runtime(journal="sqlite:///app.db") as runtime:
            await runtime.start(app)
            session = await app.ensure_session("ada", "ada-1")
            if life == 0:
                for mode in ("act", "plan", "integration"):
                    await session.chat(f"before {mode}")
                    await session.wait_idle()
                    await session.set_mode(mode, by="user")
            await session.chat("Go on.")
            await session.wait_idle()
            notes = [message.text for message in session.history if "mode is now" in message.text]
            changes = [change.current for change in session.mode_changes]
            assert session.mode == "integration"
        assert changes == ["act", "plan", "integration"]
        assert [note.split()[4] for note in notes] == changes, notes


trio.run(main)
