"""Hostile MCP servers: an attack fails at most its own call, and no other call, process or user."""

import sys
from pathlib import Path

import pytest
import trio

from actgent import BareAgent, MCPServer, ScriptedLLM, ToolCall, ToolContext, open_toolset
from actgent.errors import ToolError

SERVER = str(Path(__file__).parent / "hostile_server.py")


def hostile(mode, **options):
    return MCPServer(
        name="hostile", command=sys.executable, args=[SERVER, mode], connect_timeout=60, **options
    )


async def act(tools, **arguments):
    (tool,) = tools()
    return await tool.execute(arguments, ToolContext())


async def test_first_answer_to_a_call_is_used():
    """Two more answers with the same id are dropped and do not reach the next call."""
    async with open_toolset(hostile("twice")) as tools:
        assert [await act(tools) for _ in range(5)] == ["first"] * 5


async def test_answers_with_unknown_ids_are_dropped():
    """Answers to ids without a pending call are dropped. Each call gets its own answer."""
    async with open_toolset(hostile("others")) as tools:
        assert [await act(tools) for _ in range(3)] == ["mine"] * 3


async def test_late_answer_of_a_cancelled_call_is_dropped():
    """The late answer does not become the answer of the next call."""
    async with open_toolset(hostile("late")) as tools:
        (tool,) = tools()
        with trio.CancelScope() as scope:
            await tool.execute({}, ToolContext(report=lambda _: scope.cancel()))
        assert scope.cancelled_caught
        assert await act(tools) == "in time"


async def test_flood_of_notifications_does_not_block_the_answer():
    """After 20,000 notifications of five types the answer arrives, and other tasks ran in the meantime."""
    turns = 0

    async def tick():
        nonlocal turns
        while True:
            await trio.sleep(0.01)
            turns += 1

    async with open_toolset(hostile("flood")) as tools, trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        assert await act(tools) == "after the flood"
        nursery.cancel_scope.cancel()
    assert turns > 5


async def test_call_to_a_server_that_does_not_read_times_out():
    """A call larger than the pipe ends at its timeout, and the block can be left."""
    async with open_toolset(hostile("deaf")) as tools:
        with trio.move_on_after(0.5):
            await act(tools)  # the server stops reading here
        with trio.fail_after(60):
            with trio.move_on_after(1) as scope:
                await act(tools, text="x" * 1_000_000)
            assert scope.cancelled_caught


async def test_result_schema_with_endless_branches_is_skipped(caplog):
    """A schema of a kilobyte would take hours to validate. The validation is skipped with a log entry."""
    async with open_toolset(hostile("schema")) as tools:
        with trio.fail_after(60):
            assert await act(tools) == "done"
    assert "results of an MCP server's tool are not validated" in caplog.text


@pytest.mark.parametrize("mode", ["pattern", "misfit"])
async def test_result_that_mismatches_its_schema_is_an_error(mode):
    """The error names the mismatch with the server's output schema. A backtracking pattern takes no time."""
    async with open_toolset(hostile(mode)) as tools:
        with trio.fail_after(60), pytest.raises(ToolError, match="does not match the server's output schema"):
            await act(tools)


async def test_a_hundred_concurrent_questions_are_answered():
    """One question becomes an approval, in the calling session."""
    llm = ScriptedLLM([[ToolCall("act", {})], "ok"])
    async with BareAgent("host", llm=llm, tools=[hostile("questions")]) as agent:
        session = await agent.create_session("ada")
        await session.chat("go")
        await session.wait_idle()
        (approval,) = session.approvals
        assert approval.question.endswith("Your PIN?")
