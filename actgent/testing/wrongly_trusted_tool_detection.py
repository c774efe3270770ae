"""Search for tools that are declared trusted and return text of third parties."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from actgent.agents.agent import Agent
from actgent.agents.session import Session
from actgent.approvals import Approval, Approve
from actgent.errors import ConfigurationError, did_you_mean_or_list
from actgent.llm.scripted_model import ScriptedLLM
from actgent.messages import ToolCall, ToolResult


async def find_leaks(
    make: Callable[[ScriptedLLM], Agent[Any, Any]], calls: Iterable[ToolCall], *, mark: str
) -> list[ToolResult]:
    """Run tool calls over data that contains a mark, and return the trusted results with the mark.

    Put the mark into all text of your test data that third parties can write, such as mails, names and titles. Each result that
    is returned shows a tool that needs `@tool(untrusted=True)`. The calls really run, each in a new session, and approvals are
    granted.

    Args:
        make: Function that returns the agent with a given model, such as a subclass or `make_desk(llm)`. The agent must not run.
        calls: Calls of all tools that return data. The arguments must not contain the mark.
        mark: Text that occurs nowhere else in the data.

    Raises:
        ConfigurationError: The mark is empty or occurs in an argument, or the agent has no tool of that name.
    """
    calls = tuple(calls)
    if not mark.strip() or any(mark in str(call.arguments) for call in calls):
        raise ConfigurationError(
            f"mark= must be a string that is not empty and not in an argument, not {mark!r:.100}"
        )
    answers: Iterator[Any] = iter(())
    agent = make(ScriptedLLM(lambda _: next(answers)))
    leaks = []
    async with agent:
        for call in calls:
            if call.name not in agent.tools:
                known = did_you_mean_or_list(call.name, [each.name for each in agent.tools])
                raise ConfigurationError(f"agent {agent.name!r} has no tool {call.name!r}: {known}")
            answers = iter([call, *agent.protocol.script("done")])
            results = await _results_of_turn(await agent.create_session("find_leaks"))
            leaks += [each for each in results if each.label.is_trusted and mark in each.text]
    return leaks


async def _results_of_turn(session: Session[Any]) -> list[ToolResult]:
    """Run one turn in a session, grant all approvals, and close the session. Return the results of the turn's tool calls."""
    results: list[ToolResult] = []
    session.on_tool_result(results.append)

    @session.on_approval
    async def approve(approval: Approval) -> None:
        await session.answer(approval, Approve(), by="find_leaks")

    await session.chat("call the tool")
    await session.wait_idle()
    await session.aclose()
    return results
