"""The time is a universal tool, available in all modes.

Document: Mode-Based Tool Access Control, Universal Tools.
"""

import datetime as dt

import trio

from actgent import BareAgent, Modes, ScriptedLLM, ToolCall
from actgent.toolsets.builtin import current_time


async def main() -> None:
    llm = ScriptedLLM(
        lambda chat: "Noted." if chat.messages[-1].role == "tool" else ToolCall("current_time", {})
    )
    async with BareAgent("app", llm=llm, modes=Modes(universal=[current_time])) as app:
        session = await app.create_session("ada")
        results = []
        session.on_tool_result(lambda result: results.append((session.mode, result.status, result.content)))
        for mode in ("onboarding", "integration", "plan", "act"):
            if mode != session.mode:
                await session.set_mode(mode, by="user")
            await session.chat("What time is it?")
            await session.wait_idle()
    assert [(mode, status) for mode, status, _ in results] == [
        ("onboarding", "success"),
        ("integration", "success"),
        ("plan", "success"),
        ("act", "success"),
    ], results
    assert all(str(dt.datetime.now(dt.UTC).year) in text for _, _, text in results)


trio.run(main)
