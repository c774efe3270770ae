"""Sync tools in worker threads: what happens when their call is over and they are not."""

import threading
import time

import pytest
import trio

from actgent import BareAgent, Limits, Priority, ScriptedLLM, ThreadsLeft, ToolCall, tool
from actgent.testing import assert_no_leaks


@pytest.fixture
def go():
    """Lets the threads of `blocking` end; they end with the test at the latest."""
    event = threading.Event()
    yield event
    event.set()


def blocking(go, *, name="stubborn"):
    """A sync tool that does not end before `go`, and an event of its beginning."""
    reached = trio.Event()

    def wait() -> str:
        """Wait."""
        trio.from_thread.run_sync(reached.set)
        go.wait(10)
        return "done"

    wait.__name__ = name
    return tool(wait), reached


def make(stubborn, **options):
    return BareAgent(
        name="a", llm=ScriptedLLM([ToolCall(stubborn.name, {}), "answer"]), tools=[stubborn], **options
    )


async def test_a_thread_in_time_leaves_nothing():
    """Its value is the result, and nothing is left of it."""

    @tool
    def work() -> str:
        time.sleep(0.01)
        return "done"

    results = []
    async with assert_no_leaks(), make(work) as agent:
        session = await agent.create_session("ada", "begin")
        session.on_tool_result(results.append)
        await session.wait_idle()
    assert [(result.status, result.content) for result in results] == [("success", "done")]


@pytest.mark.parametrize("how", ["interrupt", "urgent", "aclose"])
async def test_a_stopped_call_is_answered_although_its_thread_goes_on(how, go):
    """The thread is counted and named until it ends; leaving the block waits for it."""
    stubborn, reached = blocking(go)
    async with assert_no_leaks(grace=2):
        async with make(stubborn) as agent:
            session = await agent.create_session("ada", "begin")
            results = []
            session.on_tool_result(results.append)
            await reached.wait()
            threads = agent._opener.running.core.calling.threads
            assert threads.left == ()
            with trio.fail_after(1):
                if how == "interrupt":
                    await session.interrupt()
                elif how == "aclose":
                    await session.aclose()
                else:
                    await session.chat("stop!", priority=Priority.URGENT)
                    await session.wait_idle()
            assert [result.status for result in results] == ["outcome_unknown"]
            assert threads.left == ("stubborn",)
            threading.Timer(0.05, go.set).start()
        assert threads.left == ()


async def test_a_tool_that_timed_out_is_left_too(go):
    """Its call is an error result, and the conversation goes on."""
    stubborn, _ = blocking(go)
    log = []
    async with make(stubborn, limits=Limits(tool_timeout=0.05)) as agent:
        session = await agent.create_session("ada", "begin")
        session.on_tool_result(lambda result: log.append(result.status))
        session.on_conversation(lambda reply: log.append(reply.text))
        await session.wait_idle()
        assert agent._opener.running.core.calling.threads.left == ("stubborn",)
        go.set()
    assert log == ["error", "answer"]


async def test_leaving_the_block_names_what_does_not_end(go):
    """After the grace for threads, with the function's name and what to do."""
    stubborn, reached = blocking(go)
    with pytest.raises(ThreadsLeft, match=r"1 thread.*stubborn.*async") as caught:  # noqa: PT012 - what the block does is the test
        async with make(stubborn, thread_grace=0.05) as agent:
            session = await agent.create_session("ada", "begin")
            await reached.wait()
            await session.interrupt()
    assert caught.value.names == ("stubborn",)


async def test_a_thread_that_runs_when_the_block_is_cancelled_is_waited_for(go):
    """Cancelled from around, the block still says which threads it could not end."""
    stubborn, reached = blocking(go)
    with trio.CancelScope() as scope, pytest.raises(ThreadsLeft):  # noqa: PT012 - what the block does is the test
        async with make(stubborn, thread_grace=0.05) as agent:
            await agent.create_session("ada", "begin")
            await reached.wait()
            scope.cancel()
            await trio.lowlevel.checkpoint()


async def test_the_exception_of_the_block_comes_before_left_threads(go):
    """It is raised as it was, with a note about the threads."""
    stubborn, reached = blocking(go)
    with pytest.raises(ValueError, match="mine") as caught:  # noqa: PT012 - what the block does is the test
        async with make(stubborn, thread_grace=0.05) as agent:
            await agent.create_session("ada", "begin")
            await reached.wait()
            raise ValueError("mine")
    assert "stubborn" in "".join(caught.value.__notes__)


async def test_a_tool_in_a_thread_can_talk_to_its_session():
    """By `trio.from_thread`; waiting for itself is refused there, too."""
    errors = []

    @tool
    def talk() -> str:
        trio.from_thread.run(session.chat, "later")
        try:
            trio.from_thread.run(session.wait_idle)
        except RuntimeError as error:
            errors.append(type(error).__name__)
        return "done"

    model = ScriptedLLM([ToolCall("talk", {}), "first", "second"])
    log = []
    async with BareAgent(name="a", llm=model, tools=[talk]) as agent:
        session = await agent.create_session("ada")
        session.on_conversation(lambda reply: log.append(reply.text))
        with trio.fail_after(5):
            await session.chat("begin")
            await session.wait_idle()
    assert (errors, log) == (["WouldDeadlock"], ["first", "second"])
