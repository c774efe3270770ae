"""What an observer of a runtime sees of its agents."""

import attrs
import pytest
import trio

from actgent import BareAgent, ConfigurationError, Priority, ScriptedLLM, ToolCall, open_runtime, tool

SECRET = "the secret words"


@tool(thread=False)
def look() -> str:
    """Look."""
    return SECRET


def agent_with(*script, **options):
    return BareAgent(name="a", llm=ScriptedLLM(list(script)), tools=[look], **options)


def drained(events):
    return [events._backlog.events.popleft() for _ in range(len(events._backlog.events))]


async def test_an_observer_sees_what_happened_in_order():
    """From the agent's start to its end, with ids that belong together."""
    seen = []

    async def watch(runtime, task_status):
        async with runtime.events() as events:
            task_status.started()
            seen.extend([event async for event in events])

    async with trio.open_nursery() as nursery, open_runtime() as runtime:
        await nursery.start(watch, runtime)
        agent = await runtime.start(agent_with(ToolCall("look", {}), "done"))
        session = await agent.create_session("ada", SECRET)
        await session.wait_idle()
        await session.aclose()
    assert [type(event).__name__ for event in seen] == [
        "ActorStarted",
        "SessionOpened",
        "MessageAccepted",
        "PassStarted",
        "ModelAnswered",
        "ToolFinished",
        "PassStarted",
        "ModelAnswered",
        "TurnEnded",
        "SessionEnded",
        "ActorStopped",
    ]
    ended = seen[-3]
    assert (ended.calls, ended.failed, ended.message_id) == (2, None, seen[2].message_id)
    assert {event.session_id for event in seen[1:-1]} == {session.id}
    assert [event.at for event in seen] == sorted(event.at for event in seen)


async def test_a_session_below_another_agents_names_both():
    """The same id may be that of a session of each agent, so an observer is told whose the parent is."""
    helper = BareAgent("helper", llm=ScriptedLLM(["ok"], repeat=True))
    async with open_runtime(journal="memory:") as runtime, runtime.events() as events:
        await runtime.start(helper)
        agent = await runtime.start(agent_with("hello"))
        parent = await agent.create_session("ada", session_id="s")
        await helper.create_session("ada", session_id="s", parent=parent)
        opened = [event for event in drained(events) if type(event).__name__ == "SessionOpened"]
    assert [(e.agent, e.session_id, e.parent_agent, e.parent_id) for e in opened] == [
        ("a", "s", None, None),
        ("helper", "s", "a", "s"),
    ]


async def test_events_carry_no_contents():
    """Neither what was said nor what a tool returned, nor the words of an error."""
    async with open_runtime() as runtime, runtime.events() as events:
        agent = await runtime.start(agent_with(ToolCall("look", {}), SECRET, ValueError(SECRET)))
        session = await agent.create_session("ada", SECRET)
        await session.wait_idle()
        await session.chat(SECRET)
        await session.wait_idle()
        seen = drained(events)
    assert seen
    assert SECRET not in str([attrs.asdict(event) for event in seen])


async def test_logs_carry_no_contents_where_texts_are_redacted(caplog):
    """A failure that nobody hears is logged by its class and ids; without `redact=`, its words say what went wrong."""
    caplog.set_level("DEBUG")
    async with open_runtime(redact=str) as runtime:
        agent = await runtime.start(agent_with(ValueError(SECRET)))
        session = await agent.create_session("ada", SECRET)
        await session.wait_idle()
    assert "ValueError" in caplog.text
    assert session.id in caplog.text
    assert SECRET not in caplog.text


async def test_a_slow_reader_loses_the_oldest():
    """It never slows anyone down, and knows how many it lost."""
    async with open_runtime() as runtime, runtime.events(capacity=3) as slow, runtime.events() as quick:
        agent = await runtime.start(agent_with(*["answer"] * 10))
        session = await agent.create_session("ada")
        for _ in range(10):
            await session.chat("x")
        await session.wait_idle()
        everything, rest = drained(quick), drained(slow)
        assert rest == everything[-3:]
        assert (slow.lost, quick.lost) == (len(everything) - 3, 0)


async def test_a_stopped_turn_is_seen_as_such():
    """By the kind of its failure."""

    async def never(chat):
        await trio.sleep_forever()

    async with open_runtime() as runtime, runtime.events() as events:
        agent = await runtime.start(BareAgent(name="a", llm=ScriptedLLM([never, "now"])))
        session = await agent.create_session("ada", "x")
        await trio.testing.wait_all_tasks_blocked()
        await session.chat("stop!", priority=Priority.URGENT)
        await session.wait_idle()
        failed = [event.failed for event in drained(events) if type(event).__name__ == "TurnEnded"]
    assert failed == ["interrupted", None]


async def test_a_reader_outside_of_the_block_is_told_of_its_end():
    """Also when the block ends with an exception."""
    ended = trio.Event()

    async with trio.open_nursery() as nursery:
        with pytest.raises(ValueError, match="mine"):  # noqa: PT012 - what the block does is the test
            async with open_runtime() as runtime:
                stream = runtime.stream
                nursery.start_soon(read_all, stream, ended)
                await trio.testing.wait_all_tasks_blocked()
                raise ValueError("mine")
        with trio.fail_after(1):
            await ended.wait()


async def read_all(stream, ended):
    async with stream.read() as events:
        async for _ in events:
            pass
    ended.set()


async def test_a_reader_keeps_at_least_one_event():
    """Everything else is a mistake, and says so."""
    async with open_runtime() as runtime:
        with pytest.raises(ConfigurationError, match="at least 1"):
            async with runtime.events(capacity=0):
                pass
