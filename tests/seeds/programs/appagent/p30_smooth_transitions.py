"""Mode transitions are handled smoothly: in any order, while a turn runs, and to a mode that does not exist.

Document: Testing and Validation.
"""

import trio

from actgent import BareAgent, ConfigurationError, Modes, ScriptedLLM, ToolCall, tool


@tool(thread=False)
def deploy(service: str) -> str:
    """Deploy a service."""
    return f"{service} is deployed"


async def main() -> None:
    requested, release = trio.Event(), trio.Event()

    async def slow(chat):
        requested.set()
        await release.wait()
        return ToolCall("deploy", {"service": "shop"})

    llm = ScriptedLLM([slow, "I may not any more.", "Hello."])
    async with BareAgent("app", llm=llm, modes=Modes(execution=[deploy], initial="act")) as app:
        session = await app.create_session("ada", "Deploy the shop.")
        results = []
        session.on_tool_result(lambda result: results.append(result.status))
        await requested.wait()
        await session.set_mode("plan", by="user")  # the turn goes on in the new mode
        release.set()
        await session.wait_idle()
        assert results == ["error"]
        for mode in ("act", "plan", "plan", "onboarding", "act"):
            await session.set_mode(mode, by="user")
        try:
            await session.set_mode("actt", by="user")
        except ConfigurationError as error:
            assert "actt" in str(error) and "did you mean 'act'?" in str(error)
        else:
            raise AssertionError("an unknown mode")
        assert session.mode == "act"
        await session.chat("Hello")
        await session.wait_idle()
    assert "The mode is now plan" in str(llm.chats[1].messages)
    assert "The mode is now act" in str(llm.chats[2].messages)


trio.run(main)
