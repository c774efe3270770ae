"""Access rules run when a tool call starts, with the session state at that time."""

from actgent import BareAgent, ScriptedLLM, ToolContext, tool
from actgent.messages import ToolCall


class Guarded(BareAgent):
    """An agent whose tools, except `unlock`, run only if the session state has a `key`."""

    def _access_rules(self):
        return [self._rule]

    @staticmethod
    def _rule(_call, tool, told):
        if told.state.get("key") or tool.name == "unlock":
            return None
        return f"{tool.name} is locked in session {told.session_id}"


@tool(exclusive=True)
async def unlock(context: ToolContext) -> str:
    """Unlock the rest."""
    context.state.dispatch(lambda _: ("key", True))
    return "open"


async def test_a_call_is_judged_when_it_starts():
    opened = []

    @tool
    async def vault() -> str:
        """Open the vault."""
        opened.append(1)
        return "gold"

    turn = [ToolCall("vault", {}), ToolCall("unlock", {}), ToolCall("vault", {})]
    agent = Guarded("guard", llm=ScriptedLLM([turn, "done"]), tools=[vault, unlock])
    results = []
    async with agent:
        session = await agent.create_session("ada", session_id="s")
        session.on_tool_result(results.append)
        await session.chat("go")
        await session.wait_idle()
    assert [result.status for result in results] == ["error", "success", "success"]
    assert results[0].error == "vault is locked in session s"
    assert opened == [1]
