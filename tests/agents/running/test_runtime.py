"""Runtime blocks: their end, restarts of agents, and resources shared by agents."""

import gc
import threading
import tracemalloc
from contextlib import suppress

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actgent import (
    ActgentError,
    BareAgent,
    ConfigurationError,
    NotRunning,
    RouterAgent,
    ScriptedLLM,
    Stopped,
    ToolCall,
    UsageError,
    open_runtime,
    tool,
)
from actgent.memory.short_term_memory import ShortTermMemory
from actgent.testing import assert_no_leaks
from tests.agents.conftest import hear


async def never(chat):
    await trio.sleep_forever()


async def slow(chat):
    await trio.sleep(1)
    return f"re: {chat.messages[-1].parts[-1].text}"


async def test_exit_answers_accepted_messages(autojump_clock):
    """A queue of several messages is processed in order."""
    async with assert_no_leaks(), BareAgent(name="a", llm=ScriptedLLM(slow)) as agent:
        session = await agent.create_session("ada")
        log = hear(session)
        for number in range(5):
            await session.chat(f"{number}")
    assert log == [f"re: {number}" for number in range(5)]
    assert trio.current_time() == pytest.approx(5)


async def test_unanswered_messages_end_as_stopped_after_the_grace_period(autojump_clock):
    """Sync and async handlers are notified of the running message and of the queued ones."""
    async with assert_no_leaks(), BareAgent(name="a", llm=ScriptedLLM(never), grace=3) as agent:
        session = await agent.create_session("ada")
        log, received = hear(session), []

        @session.on_exception
        async def tell(failure):
            await trio.sleep(0.1)
            received.append(failure)

        for number in range(3):
            await session.chat(f"{number}")
    assert log == ["stopped"] * 3
    assert [failure.kind for failure in received] == ["stopped"] * 3
    assert isinstance(received[0].error, Stopped)
    assert 3 <= trio.current_time() < 4


async def test_exception_of_the_block_skips_the_grace_period(autojump_clock):
    """The block raises its own exception, and all accepted messages end as stopped."""
    async with assert_no_leaks():
        with pytest.raises(ValueError, match="mine") as caught:  # noqa: PT012 - what the block does is the test
            async with BareAgent(name="a", llm=ScriptedLLM(never)) as agent:
                session = await agent.create_session("ada")
                log = hear(session)
                for number in range(3):
                    await session.chat(f"{number}")
                await trio.testing.wait_all_tasks_blocked()
                raise ValueError("mine")
    assert log == ["stopped"] * 3
    assert not isinstance(caught.value, ExceptionGroup)
    assert trio.current_time() == 0


async def test_hanging_handler_does_not_block_other_handlers(autojump_clock):
    """All handlers share one second. Sync handlers of every session are called even after that."""
    logs = []
    with trio.CancelScope() as scope:
        async with BareAgent(name="a", llm=ScriptedLLM(never), max_concurrent_sessions=1) as agent:
            for number in range(4):
                session = await agent.create_session("ada")
                logs.append(log := [])

                @session.on_exception
                async def hang(failure, log=log):
                    log.append(failure.kind)
                    await trio.sleep_forever()

                session.on_exception(lambda _, log=log: log.append("sync"))
                for text in "ab":
                    await session.chat(f"{text}{number}")
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert [log.count("stopped") for log in logs] == [2] * 4
    assert trio.current_time() == pytest.approx(1)


async def test_a_waiting_run_raises_when_the_agent_stops(autojump_clock):
    """It raises for any behaviour of the session's handlers, if it is running or queued."""
    errors = []
    agent = BareAgent(name="a", llm=ScriptedLLM(never), max_concurrent_sessions=1, grace=0)

    @agent.on_session
    def attach(session):
        session.on_tool_result(lambda _: None)
        session.on_exception(never)

    async def ask():
        try:
            await agent.run("hello")
        except Stopped as error:
            errors.append(error)

    async with trio.open_nursery() as nursery, agent:
        for _ in range(3):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
    assert len(errors) == 3


async def test_handlers_may_chat_during_shutdown(autojump_clock):
    """Handlers may chat in their own session and in another one. Callers outside of turns may not."""
    agent, hear_third, outside = BareAgent(name="a", llm=ScriptedLLM(slow)), [], []

    async def try_outside():
        await trio.sleep(0.5)
        for attempt in (agent.create_session("dan"), agent.run("x")):
            try:
                await attempt
            except NotRunning as error:
                outside.append(error)

    async with trio.open_nursery() as nursery, agent:
        first, second = await agent.create_session("ada"), await agent.create_session("bob")
        log, other = hear(first), hear(second)

        @first.on_conversation
        async def go_on(reply):
            if reply.text == "re: 1":
                await first.chat("2")
                await second.chat("3")
                third = await agent.create_session("cleo", "4")
                hear_third.append(hear(third))

        await first.chat("1")
        nursery.start_soon(try_outside)
    assert (log, other, hear_third) == (["re: 1", "re: 2"], ["re: 3"], [["re: 4"]])
    assert len(outside) == 2


async def test_agents_may_ask_each_other_during_shutdown(autojump_clock):
    """An idle agent stays as long as another agent may need it."""
    helper = BareAgent(name="helper", llm=ScriptedLLM(slow))
    llm = ScriptedLLM([ToolCall("helper", {"task": "sum"}), ToolCall("helper", {"task": "more"}), "done"])
    async with BareAgent(name="boss", llm=llm, tools=[helper.as_tool()]) as boss:
        session = await boss.create_session("ada", "begin")
        results = []
        session.on_tool_result(results.append)
        log = hear(session)
    assert [result.content for result in results] == ["re: sum", "re: more"]
    assert log == ["done"]


async def test_each_agent_has_its_own_grace_period(autojump_clock):
    """An agent with a longer period is not stopped early by another one."""
    async with open_runtime() as runtime:
        hasty = await runtime.start(BareAgent(name="hasty", llm=ScriptedLLM(never), grace=2))
        patient = await runtime.start(BareAgent(name="patient", llm=ScriptedLLM(slow), grace=50))
        sessions = [await hasty.create_session("ada"), await patient.create_session("ada")]
        logs = [hear(session) for session in sessions]
        for session in sessions:
            for number in range(10):
                await session.chat(f"{number}")
    assert logs[0] == ["stopped"] * 10
    assert logs[1] == [f"re: {number}" for number in range(10)]
    assert trio.current_time() == pytest.approx(10)


async def test_a_cancelled_scope_around_the_block_ends_it_at_once(autojump_clock):
    """Everything accepted ends as stopped, also when the scope is cancelled during the drain."""
    async with assert_no_leaks():
        with trio.move_on_after(5) as scope:
            async with BareAgent(name="a", llm=ScriptedLLM(never), grace=1000) as agent:
                session = await agent.create_session("ada")
                log = hear(session)
                await session.chat("1")
                await session.chat("2")
        assert scope.cancelled_caught
    assert log == ["stopped", "stopped"]
    assert trio.current_time() == pytest.approx(5)


async def test_waiting_sender_is_answered_or_rejected_at_shutdown(autojump_clock):
    """The message is never lost, and affects no other message of its session."""
    agent = BareAgent(name="a", llm=ScriptedLLM(slow), session_inbox_capacity=3)
    async with trio.open_nursery() as nursery, agent:
        session = await agent.create_session("ada")
        log = hear(session)
        for number in range(4):
            await session.chat(f"{number}")
        nursery.start_soon(session.chat, "4")
        nursery.start_soon(session.chat, "4")
        await trio.testing.wait_all_tasks_blocked()
    assert log == ["re: 0", "re: 1", "re: 2", "re: 3", "re: 4", "re: 4"]


async def test_a_waiting_sender_gets_session_closed(autojump_clock):
    """Its message ends as stopped with the others, or it is rejected; other sessions continue."""
    agent = BareAgent(name="a", llm=ScriptedLLM(slow), max_concurrent_sessions=1, inbox_capacity=3)
    outcomes = []

    async def chat(session, text):
        try:
            await session.chat(text)
        except ActgentError as error:
            outcomes.append(error)
        else:
            outcomes.append("accepted")

    async with agent, trio.open_nursery() as nursery:
        busy, closing = await agent.create_session("ada"), await agent.create_session("bob")
        log, busy_log = hear(closing), hear(busy)
        await busy.chat("0")
        for number in range(3):
            await busy.chat(f"{number + 1}")
        nursery.start_soon(chat, closing, "waits at the inbox's gate")
        await trio.testing.wait_all_tasks_blocked()
        await closing.aclose()
        assert closing.status == "closed"
        await busy.wait_idle()
        await trio.testing.wait_all_tasks_blocked()
        assert (len(outcomes), len(log)) in {(1, 1), (1, 0)}
        assert (outcomes[0] == "accepted") == (log == ["stopped"])
        assert busy_log == [f"re: {number}" for number in range(4)]
        assert closing.id not in agent._opener.running.sessions


class Breaking(ShortTermMemory):
    """A memory that raises in an unexpected place, while tool results are written."""

    def open_view(self):
        view = super().open_view()
        view.__class__ = BreakingView
        return view


class BreakingView(type(ShortTermMemory().open_view())):
    def add(self, message, *, answered=False):
        if message.tool_results:
            raise RuntimeError("a mistake in the memory")
        super().add(message, answered=answered)


async def test_crashed_agent_restarts_with_its_sessions(autojump_clock):
    """The message that caused the crash ends; queued ones are answered after the restart."""

    @tool
    def look() -> str:
        return "seen"

    def answer(chat):
        return ToolCall("look", {}) if chat.messages[-1].parts[-1].text == "crash" else slow(chat)

    agent = BareAgent(name="a", llm=ScriptedLLM(answer), tools=[look], memory=Breaking())
    async with open_runtime() as runtime, runtime.events() as events:
        await runtime.start(agent)
        crashing, other = await agent.create_session("ada"), await agent.create_session("bob")
        log, other_log = hear(crashing), hear(other)
        await crashing.chat("crash")
        await crashing.chat("after")
        await crashing.wait_idle()
        await other.chat("hello")
        await other.wait_idle()
        seen = []
        while not seen or seen[-1] != "ActorRestarted":
            seen.append(type(await events.receive()).__name__)
    assert log[0] in {"internal", "stopped"}
    assert log[-1] == "re: after"
    assert other_log == ["re: hello"]


async def test_name_of_a_running_agent_cannot_be_reused():
    """The error names the conflict, and the first agent keeps running."""
    async with open_runtime() as runtime:
        agent = await runtime.start(BareAgent(name="a", llm=ScriptedLLM(["one"])))
        with pytest.raises(ConfigurationError, match="'a'"):
            await runtime.start(BareAgent(name="a", llm=ScriptedLLM(["two"])))
        with pytest.raises(ConfigurationError, match="is already running"):
            await runtime.start(agent)
        assert (await agent.run("hello")).text == "one"


async def test_a_failed_block_entry_releases_all_resources():
    """A clash of names between an agent and its tool is an error before anything runs."""
    inner = BareAgent(name="a", llm=ScriptedLLM(["x"]))
    async with assert_no_leaks():
        with pytest.raises(ConfigurationError, match="'a'"):
            async with BareAgent(name="a", llm=ScriptedLLM(["x"]), tools=[inner.as_tool("b")]):
                raise AssertionError("not reached")


async def test_an_agent_can_be_opened_again():
    """The agent can be opened after its block, and never twice at a time."""
    agent = BareAgent(name="a", llm=ScriptedLLM(["one", "two"]))
    async with agent:
        assert (await agent.run("hello")).text == "one"
        with pytest.raises(ConfigurationError, match="is already running"):
            await agent.__aenter__()
    with pytest.raises(NotRunning):
        await agent.run("hello")
    async with agent:
        assert (await agent.run("hello")).text == "two"


async def test_companions_are_started_and_stopped_with_their_agent():
    """Agents that are routes or tools run as long as the agent that needs them."""
    maths = BareAgent(name="maths", llm=ScriptedLLM(["42"]))
    helper = BareAgent(name="helper", llm=ScriptedLLM(["help"]))
    router = RouterAgent(
        name="router", llm=ScriptedLLM(["x"]), routes={"MATHS": maths}, tools=[helper.as_tool()]
    )
    async with router:
        assert (await maths.run("?")).text == "42"
        assert (await helper.run("?")).text == "help"
    for agent in (maths, helper):
        with pytest.raises(NotRunning):
            await agent.run("?")


async def test_an_agent_starts_with_all_its_companions_or_not_at_all():
    """If the name of one companion is in use, none of them stays."""
    helper = BareAgent(name="taken", llm=ScriptedLLM(["help"]))
    middle = BareAgent(name="middle", llm=ScriptedLLM(["help"]), tools=[helper.as_tool()])
    agent = BareAgent(name="agent", llm=ScriptedLLM(["x"]), tools=[middle.as_tool()])
    async with open_runtime() as runtime:
        await runtime.start(BareAgent(name="taken", llm=ScriptedLLM(["x"])))
        with pytest.raises(ConfigurationError, match="'taken'"):
            await runtime.start(agent)
        for unstarted in (agent, middle, helper):
            with pytest.raises(NotRunning):
                await unstarted.run("?")
    async with agent:
        assert (await agent.run("?")).text == "x"


@pytest.mark.parametrize("fails", [False, True])
async def test_closed_runtime_starts_no_agent(fails):
    """The block may have ended in any way."""
    with suppress(LookupError):
        async with open_runtime() as runtime:
            if fails:
                raise LookupError
    with pytest.raises(UsageError, match="new runtime"):
        await runtime.start(BareAgent(name="late", llm=ScriptedLLM(["x"])))


async def test_a_thousand_agents_start_and_stop():
    """No resources remain."""
    async with assert_no_leaks(), open_runtime() as runtime:
        agents = [
            await runtime.start(BareAgent(name=f"agent {n}", llm=ScriptedLLM([f"{n}"]))) for n in range(1000)
        ]
        assert (await agents[7].run("?")).text == "7"


async def test_the_watchdog_ends_with_the_last_block():
    """One thread serves all open runtimes, and later ones. It ends soon after the last."""

    def watchdogs():
        return [thread for thread in threading.enumerate() if "watchdog" in thread.name]

    async with open_runtime():
        async with open_runtime():
            assert len(watchdogs()) == 1
        assert len(watchdogs()) == 1
    async with open_runtime():
        assert len(watchdogs()) == 1
    with trio.fail_after(10):
        while watchdogs():  # noqa: ASYNC110 - a thread sets no event
            await trio.sleep(0.05)


async def test_close_during_shutdown_raises_not_running(monkeypatch):
    """Closing a session at the moment its agent ends raises that error and no error of a nursery."""
    started = []
    async with open_runtime() as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM([])))
        runner = runtime.agents.opener(agent.name).running.runner
        await trio.testing.wait_all_tasks_blocked()
        end = runner.end

        def end_late():
            started.append(runner.start_soon(trio.sleep, 1))
            end()

        monkeypatch.setattr(runner, "end", end_late)
    assert started == [False]


async def test_stopped_agents_leave_no_memory(autojump_clock):
    """A runtime in which many agents start and stop, each with a name that is used once, does not grow."""
    model = ScriptedLLM([])

    async def start_and_stop(first: int, count: int) -> int:
        for number in range(first, first + count):
            agent = await runtime.start(BareAgent(f"agent-{number}", llm=model))
            await agent.create_session("ada")
            runtime.stop(agent.name)
            await wait_all_tasks_blocked()
        del agent
        await trio.sleep(10)  # trio forgets cancel scopes after their deadline
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    async with open_runtime() as runtime:
        await start_and_stop(0, 30)
        tracemalloc.start()
        try:
            before = await start_and_stop(100, 10)
            after = await start_and_stop(200, 400)
        finally:
            tracemalloc.stop()
    assert after - before < 400 * 100  # an entry in one dictionary takes 130 bytes
