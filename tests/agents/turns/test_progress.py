"""Progress of tools: its receivers, its order, and backpressure."""

import threading

import pytest
import trio
import trio.testing

from actgent import (
    BareAgent,
    CallProgress,
    ConfigurationError,
    Failure,
    Reply,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    ToolResult,
    open_runtime,
    tool,
)
from actgent.events import ToolFinished, ToolProgressed


@tool
async def index(pages: int, context: ToolContext) -> str:
    """Index pages."""
    for page in range(1, pages + 1):
        context.progress(page, pages, f"page {page}")
        await trio.testing.wait_all_tasks_blocked()
    return f"{pages} pages"


@tool
def scan(context: ToolContext) -> str:
    """Scan in a thread."""
    context.progress(1, 2, threading.current_thread().name)
    return "scanned"


@tool
async def count(to: int):
    """Count."""
    for number in range(1, to + 1):
        yield {"number": number}
        await trio.testing.wait_all_tasks_blocked()


@tool
async def flood(context: ToolContext) -> str:
    """Report more progress than the receiver reads."""
    for number in range(10_000):
        context.progress(number)
        if number % 100 == 0:
            await trio.lowlevel.checkpoint()
    return "flooded"


def agent_with(*calls: ToolCall) -> BareAgent:
    return BareAgent("a", llm=ScriptedLLM([list(calls), "done"]), tools=[index, scan, count, flood])


async def test_progress_is_delivered_before_the_result():
    """Sync and async handlers receive every step in order, and then the result."""
    received: list[object] = []
    async with agent_with(ToolCall("index", {"pages": 3})) as agent:
        session = await agent.create_session("ada")
        session.on_tool_result(received.append)

        @session.on_tool_progress
        async def hear(progress: CallProgress) -> None:
            await trio.lowlevel.checkpoint()
            received.append((progress.tool_name, progress.done, progress.total, progress.text))

        await agent.run("go", session=session)
    assert received[:3] == [("index", n, 3, f"page {n}") for n in (1, 2, 3)]
    assert isinstance(received[3], ToolResult)
    assert received[3].content == "3 pages"


async def test_progress_from_a_worker_thread_is_delivered():
    """The function runs in a thread and reports progress from it."""
    received: list[CallProgress] = []
    async with agent_with(ToolCall("scan", {})) as agent:
        session = await agent.create_session("ada")
        session.on_tool_progress(received.append)
        await agent.run("go", session=session)
    assert [(p.done, p.total) for p in received] == [(1, 2)]
    assert received[0].text != threading.main_thread().name


async def test_the_last_value_that_a_generator_yields_is_its_result():
    """Earlier values are reported as progress; without a receiver the result is the same."""
    received: list[str] = []
    for listens in (True, False):
        async with agent_with(ToolCall("count", {"to": 3})) as agent:
            session = await agent.create_session("ada")
            if listens:
                session.on_tool_progress(lambda progress: received.append(progress.text))
            await agent.run("go", session=session)
            (result,) = (r for message in session.history for r in message.tool_results)
        assert result.content == '{"number": 3}'
    assert received == [f'{{"number": {n}}}' for n in (1, 2, 3)]


async def test_a_generator_is_closed_when_its_call_is_stopped():
    """Its clean-up runs in the task of the call."""
    closed = trio.Event()
    started = trio.Event()

    @tool
    async def endless():
        """Never end."""
        try:
            while True:
                yield "on"
                started.set()
                await trio.lowlevel.checkpoint()
        finally:
            closed.set()

    async with BareAgent("a", llm=ScriptedLLM([[ToolCall("endless", {})], "done"]), tools=[endless]) as agent:
        session = await agent.create_session("ada")
        received: list[Failure] = []
        session.on_exception(received.append)
        session.on_tool_progress(lambda _: None)
        await session.chat("go")
        await started.wait()
        await session.interrupt()
        await session.wait_idle()
    assert closed.is_set()
    assert [failure.kind for failure in received] == ["interrupted"]


async def test_slow_stream_reader_gets_only_the_latest_progress():
    """At most one progress of a call waits for a reader that does not read."""
    calls = ToolCall("flood", {}), ToolCall("index", {"pages": 2})
    async with agent_with(*calls) as agent, agent.stream("go") as deliveries:
        await trio.testing.wait_all_tasks_blocked()
        found = [delivery async for delivery in deliveries]
    received = [each for each in found if isinstance(each, CallProgress)]
    by_tool = {
        name: [each.done for each in received if each.tool_name == name] for name in ("flood", "index")
    }
    assert by_tool["flood"] == [9_999]
    assert by_tool["index"][-1] == 2  # from a thread, which nobody waited for before reading
    assert isinstance(found[-1], Reply)


async def test_progress_events_have_numbers_without_texts():
    """Two concurrent calls have separate ids."""
    seen: list[object] = []

    async def watch(runtime, task_status):
        async with runtime.events() as events:
            task_status.started()
            seen.extend([event async for event in events])

    calls = ToolCall("index", {"pages": 2}), ToolCall("count", {"to": 1})
    async with trio.open_nursery() as nursery, open_runtime() as runtime:
        await nursery.start(watch, runtime)
        agent = await runtime.start(agent_with(*calls))
        await agent.run("go")
    received = [event for event in seen if isinstance(event, ToolProgressed)]
    assert sorted((event.tool_name, event.done) for event in received if event.done) == [
        ("index", 1),
        ("index", 2),
    ]
    assert len({event.call_id for event in received}) == 2
    assert "page" not in repr(received)
    assert seen.index(received[-1]) < min(seen.index(e) for e in seen if isinstance(e, ToolFinished))


async def test_failing_progress_handler_is_reported_once():
    """It is a failure of the handler. Neither the call nor the answer is lost."""
    failures: list[Failure] = []

    def broken(progress: CallProgress) -> None:
        raise ValueError("no room")

    async with agent_with(ToolCall("index", {"pages": 3})) as agent:
        session = await agent.create_session("ada")
        session.on_tool_progress(broken)
        session.on_exception(failures.append)
        assert str(await agent.run("go", session=session)) == "done"
    assert [failure.kind for failure in failures] == ["handler"]


async def test_a_call_reports_no_progress_after_its_timeout(autojump_clock):
    """Progress of a thread that continues after the timeout is dropped."""
    goes_on, notified = threading.Event(), threading.Event()

    @tool(timeout=1)
    def late(context: ToolContext) -> str:
        """Report progress late."""
        goes_on.wait(10)
        context.progress(1, 1, "too late")
        notified.set()
        return "late"

    received: list[CallProgress] = []
    llm = ScriptedLLM([[ToolCall("late", {})], "done"])
    async with BareAgent("a", llm=llm, tools=[late]) as agent:
        session = await agent.create_session("ada")
        session.on_tool_progress(received.append)
        await agent.run("go", session=session)
        goes_on.set()
        await trio.to_thread.run_sync(notified.wait, 10)
    assert received == []


def test_sync_generator_tool_is_rejected():
    """The error names it and states a remedy."""

    def numbers():
        yield 1

    with pytest.raises(ConfigurationError, match="async def"):
        tool(numbers)
