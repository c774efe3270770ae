"""Scheduling is a universal tool: in all modes the model schedules tasks (after a delay, at a date, by a cron expression), lists and
cancels them.

Document: Mode-Based Tool Access Control, Universal Tools.
"""

import trio

from actgent import BareAgent, Modes, ScriptedLLM, ToolCall, scheduling_tools

WHEN = {
    "call the printer": {"type": "delayed", "seconds": 3600},
    "write the report": {"type": "scheduled", "date": "2099-01-01T09:00:00+00:00"},
    "tidy up": {"type": "cron", "cron": "0 9 * * mon"},
}


async def main() -> None:
    script = [
        *(ToolCall("schedule_task", {"when": when, "description": text}) for text, when in WHEN.items()),
        ToolCall("get_scheduled_tasks", {}),
        lambda _: ToolCall("cancel_scheduled_task", {"id": session.schedules[0].id}),
        "Done.",
    ]
    modes = Modes(initial="plan")
    async with BareAgent("app", llm=ScriptedLLM(script), tools=scheduling_tools(), modes=modes) as app:
        for mode in ("onboarding", "integration", "plan", "act"):
            for name in ("schedule_task", "get_scheduled_tasks", "cancel_scheduled_task"):
                assert modes.allows(mode, app.tools.get(name))
        session = await app.create_session("ada")
        results = []
        session.on_tool_result(lambda result: results.append((result.status, result.text)))
        await session.chat("Remind me.")
        await session.wait_idle()
        left = [schedule.description for schedule in session.schedules]
    assert [status for status, _ in results] == ["success"] * 5, results
    assert all(text in results[3][1] for text in WHEN), results[3]
    assert left == ["tidy up", "write the report"], left


trio.run(main)
