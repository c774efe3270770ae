"""State is correctly preserved and retrieved, after changes of mode and after a restart.

Document: Testing and Validation.
"""

import trio

from actgent import BareAgent, Modes, ScriptedLLM, ToolCall, open_runtime


async def main() -> None:
    settings = {"language": "en", "operators": ["ada"], "admin_contact": "ada@example.org"}
    lives = [
        [ToolCall("save_settings", {"settings": settings}), "Saved."],
        [ToolCall("get_agent_config", {}), "Your language is English."],
    ]
    for number, script in enumerate(lives):
        results = []
        app = BareAgent("app", llm=ScriptedLLM(script), modes=Modes())
        async with open_runtime(journal="sqlite:///app.db") as runtime:
            await runtime.start(app)
            session = await app.ensure_session("ada", "ada-1")
            session.on_tool_result(lambda result, results=results: results.append(result))
            assert session.mode == ("onboarding", "act")[number]
            await session.chat("My settings?")
            await session.wait_idle()
            if number == 0:
                for mode in ("plan", "act"):
                    await session.set_mode(mode, by="user")
        assert [result.status for result in results] == ["success"], results
    assert all(part in results[0].text for part in ("en", "ada", "ada@example.org")), results[0].text


trio.run(main)
