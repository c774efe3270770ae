"""Sync tools in worker threads that outlive their calls."""

import threading
import time

import pytest
import trio
import trio.testing

from actgent import (
    BareAgent,
    ConfigurationError,
    Limits,
    Priority,
    ScriptedLLM,
    ThreadsStillRunning,
    ToolCall,
    open_runtime,
    tool,
)
from actgent.testing import assert_no_leaks


@pytest.fixture
def go():
    """Return an event that ends the threads of `blocking`; the end of the test sets it."""
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


async def test_completed_thread_leaves_no_entry():
    """Its value is the result."""

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
async def test_a_stopped_call_is_answered_while_its_thread_runs(how, go):
    """The thread is counted and listed until it ends. The exit of the block waits for it."""
    stubborn, reached = blocking(go)
    async with assert_no_leaks(grace=2):
        async with make(stubborn) as agent:
            session = await agent.create_session("ada", "begin")
            results = []
            session.on_tool_result(results.append)
            await reached.wait()
            threads = agent._opener.running.core.calling.threads
            assert threads.abandoned == ()
            with trio.fail_after(60):
                if how == "interrupt":
                    await session.interrupt()
                elif how == "aclose":
                    await session.aclose()
                else:
                    await session.chat("stop!", priority=Priority.URGENT)
                    await session.wait_idle()
            assert [result.status for result in results] == ["outcome_unknown"]
            assert threads.abandoned == ("stubborn",)
            threading.Timer(0.05, go.set).start()
        assert threads.abandoned == ()


async def test_timed_out_thread_is_abandoned(go):
    """Its call has an error result, and the conversation continues."""
    stubborn, _ = blocking(go)
    log = []
    async with make(stubborn, limits=Limits(tool_timeout=0.05)) as agent:
        session = await agent.create_session("ada", "begin")
        session.on_tool_result(lambda result: log.append(result.status))
        session.on_conversation(lambda reply: log.append(reply.text))
        await session.wait_idle()
        assert agent._opener.running.core.calling.threads.abandoned == ("stubborn",)
        go.set()
    assert log == ["error", "answer"]


async def test_exit_reports_threads_that_do_not_end(go):
    """After the grace period for threads the error has the function's name and a remedy."""
    stubborn, reached = blocking(go)
    with pytest.raises(ThreadsStillRunning, match=r"1 thread.*stubborn.*async") as caught:  # noqa: PT012 - what the block does is the test
        async with make(stubborn, thread_grace=0.05) as agent:
            session = await agent.create_session("ada", "begin")
            await reached.wait()
            await session.interrupt()
    assert caught.value.names == ("stubborn",)


async def test_cancelled_block_reports_running_threads(go):
    """The block waits for the grace period, and reports the threads that it could not end."""
    stubborn, reached = blocking(go)
    with trio.CancelScope() as scope, pytest.raises(ThreadsStillRunning):  # noqa: PT012 - what the block does is the test
        async with make(stubborn, thread_grace=0.05) as agent:
            await agent.create_session("ada", "begin")
            await reached.wait()
            scope.cancel()
            await trio.lowlevel.checkpoint()


async def test_exception_of_the_block_is_raised_with_a_note_about_threads(go):
    stubborn, reached = blocking(go)
    with pytest.raises(ValueError, match="mine") as caught:  # noqa: PT012 - what the block does is the test
        async with make(stubborn, thread_grace=0.05) as agent:
            await agent.create_session("ada", "begin")
            await reached.wait()
            raise ValueError("mine")
    assert "stubborn" in "".join(caught.value.__notes__)


async def test_tool_in_a_thread_can_call_its_session():
    """It uses `trio.from_thread`. A wait for its own turn is rejected there as well."""
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
        with trio.fail_after(60):
            await session.chat("begin")
            await session.wait_idle()
    assert (errors, log) == (["WouldDeadlock"], ["first", "second"])


# --- more calls than threads ------------------------------------------------------------------


def calling(*tools, **options):
    """An agent with one thread that calls the tool that a message names."""

    def says(chat):
        last = chat.messages[-1]
        return "answer" if last.role == "tool" else ToolCall(last.parts[-1].text, {})

    return BareAgent("a", llm=ScriptedLLM(says), tools=tools, max_threads=1, **options)


async def ask(agent, name):
    """A session in which a tool is called, and the growing list of its results."""
    session, results = await agent.create_session("ada"), []
    session.on_tool_result(results.append)
    await session.chat(name)
    return session, results


async def test_tool_timeout_starts_with_its_function(go, mock_clock):
    """A call may wait for a thread longer than its own timeout."""
    stubborn, reached = blocking(go)

    @tool(timeout=5)
    def quick() -> str:
        return "quick"

    async with calling(stubborn, quick) as agent:
        await ask(agent, "stubborn")
        await reached.wait()
        session, results = await ask(agent, "quick")
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(50)
        await trio.testing.wait_all_tasks_blocked()
        assert results == []
        go.set()
        await session.wait_idle()
        assert [result.content for result in results] == ["quick"]


@pytest.mark.parametrize("how", ["interrupt", "waits too long"])
async def test_a_call_without_start_is_reported_as_not_run(go, mock_clock, how):
    """Its outcome is not unknown."""
    stubborn, reached = blocking(go)
    ran = []

    @tool
    def pay() -> str:
        ran.append(1)
        return "paid"

    async with calling(stubborn, pay, limits=Limits(tool_timeout=1000)) as agent:
        await ask(agent, "stubborn")
        await reached.wait()
        session, results = await ask(agent, "pay")
        await trio.testing.wait_all_tasks_blocked()
        if how == "interrupt":
            await session.interrupt()
        else:
            mock_clock.jump(60)
        await session.wait_idle()
        go.set()
    (result,) = results
    assert ran == []
    if how == "interrupt":
        assert (result.status, result.error) == ("cancelled", "cancelled before it started")
    else:
        assert result.status == "error"
        assert "no thread was free within 60 s, so the call did not run" in result.error


async def test_stopped_repetition_has_an_unknown_outcome(go):
    """The call is stopped while its repetition waits for a thread."""
    stubborn, reached = blocking(go)
    started, fail = trio.Event(), threading.Event()

    @tool(retries=1, retry_on=ValueError, retry_delay=0)
    def again() -> str:
        trio.from_thread.run_sync(started.set)
        fail.wait(10)
        raise ValueError

    async with calling(stubborn, again) as agent:
        session, results = await ask(agent, "again")
        await started.wait()
        await ask(agent, "stubborn")
        await trio.testing.wait_all_tasks_blocked()
        fail.set()
        await reached.wait()
        await trio.testing.wait_all_tasks_blocked()
        await session.interrupt()
        go.set()
    assert [result.status for result in results] == ["outcome_unknown"]


async def test_hanging_tools_do_not_block_other_agents(go):
    """The calls time out and their threads are abandoned. Tools of this and another agent run."""
    hanging, _ = blocking(go, name="hanging")
    hanging.timeout = 0.2

    @tool(timeout=2)
    def pay() -> str:
        return "paid"

    def says(name):
        return lambda chat: "end" if chat.messages[-1].role == "tool" else ToolCall(name, {})

    async with open_runtime(max_threads=40) as runtime:
        a = await runtime.start(BareAgent("a", llm=ScriptedLLM(says("hanging")), tools=[hanging, pay]))
        b = await runtime.start(BareAgent("b", llm=ScriptedLLM(says("pay")), tools=[pay]))
        sessions = [await a.create_session(f"u{number}", "go") for number in range(35)]
        with trio.fail_after(60):
            assert (await b.run("go")).text == "end"
            for session in sessions:
                await session.wait_idle()
        results = [
            each for session in sessions for message in session.history for each in message.tool_results
        ]
        assert {result.error for result in results} == {"tool 'hanging' did not finish within 0.2 s"}
        session = await b.create_session("ada", "go")
        await session.wait_idle()
        assert [each.content for message in session.history for each in message.tool_results] == ["paid"]
        go.set()


@pytest.mark.parametrize("threads", [0, -1, 1.5, "four"])
async def test_thread_limit_has_to_be_a_number(threads):
    """This holds for an agent and for a runtime. The error names the argument."""
    with pytest.raises(ConfigurationError, match="max_threads="):
        BareAgent("a", llm=ScriptedLLM([]), max_threads=threads)
    with pytest.raises(ConfigurationError, match="max_threads="):
        async with open_runtime(max_threads=threads):
            pass
