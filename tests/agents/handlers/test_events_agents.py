"""Events about agents that an observer of a runtime receives."""

import attrs
import pytest
import trio

from actgent import (
    Approve,
    BareAgent,
    ConfigurationError,
    InboxFull,
    Mode,
    Modes,
    OpenAI,
    Priority,
    RateLimitedModel,
    RateLimiter,
    ScriptedLLM,
    ToolCall,
    open_runtime,
    tool,
)
from actgent.errors import RateLimited, SessionBusy
from actgent.events import (
    AdmissionWaited,
    MessageRefused,
    ModeChanged,
    ModelFailed,
    ScheduleFired,
    TurnSuspended,
)
from actgent.llm.retry_policy import Retry
from actgent.testing.provider import ErrorStatus, open_provider

SECRET = "the secret words"


@tool(thread=False)
def look() -> str:
    """Look."""
    return SECRET


def agent_with(*script, **options):
    return BareAgent(name="a", llm=ScriptedLLM(list(script)), tools=[look], **options)


def drained(events):
    return [events._backlog.events.popleft() for _ in range(len(events._backlog.events))]


async def test_observer_receives_events_in_order():
    """The events reach from the agent's start to its end, with matching ids."""
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
        "TurnStarted",
        "PassStarted",
        "ModelStarted",
        "ModelAnswered",
        "ToolStarted",
        "ToolFinished",
        "PassStarted",
        "ModelStarted",
        "ModelAnswered",
        "TurnEnded",
        "SessionEnded",
        "ActorStopped",
    ]
    ended = seen[-3]
    assert (ended.calls, ended.failed, ended.message_id) == (2, None, seen[2].message_id)
    assert {event.session_id for event in seen[1:-1]} == {session.id}
    assert {event.turn for event in seen[2:-2]} == {seen[2].message_id}
    assert {event.call_id for event in seen if type(event).__name__.startswith("Tool")} == {seen[7].call_id}
    assert [event.at for event in seen] == sorted(event.at for event in seen)


async def test_event_of_a_child_session_names_both_agents():
    """Sessions of several agents may have the same id, so the event names the parent's agent."""
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
    """Events have neither messages, tool results nor error texts."""
    async with open_runtime() as runtime, runtime.events() as events:
        agent = await runtime.start(agent_with(ToolCall("look", {}), SECRET, ValueError(SECRET)))
        session = await agent.create_session("ada", SECRET)
        await session.wait_idle()
        await session.chat(SECRET)
        await session.wait_idle()
        seen = drained(events)
    assert seen
    assert SECRET not in str([attrs.asdict(event) for event in seen])


async def test_redacted_logs_have_no_contents(caplog):
    """An unhandled failure is logged by class and ids; without `redact=` the log has its text."""
    caplog.set_level("DEBUG")
    async with open_runtime(redact=str) as runtime:
        agent = await runtime.start(agent_with(ValueError(SECRET)))
        session = await agent.create_session("ada", SECRET)
        await session.wait_idle()
    assert "ValueError" in caplog.text
    assert session.id in caplog.text
    assert SECRET not in caplog.text


async def test_slow_reader_loses_the_oldest_events():
    """The reader slows down no other task, and has the number of lost events."""
    async with open_runtime() as runtime, runtime.events(capacity=3) as slow, runtime.events() as quick:
        agent = await runtime.start(agent_with(*["answer"] * 10))
        session = await agent.create_session("ada")
        for _ in range(10):
            await session.chat("x")
        await session.wait_idle()
        everything, rest = drained(quick), drained(slow)
        assert rest == everything[-3:]
        assert (slow.lost, quick.lost) == (len(everything) - 3, 0)


async def test_event_of_a_stopped_turn_has_its_kind():
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


async def test_a_reader_outside_of_the_block_gets_an_error():
    """This holds also when the block ends with an exception."""
    ended = trio.Event()

    async with trio.open_nursery() as nursery:
        with pytest.raises(ValueError, match="mine"):  # noqa: PT012 - what the block does is the test
            async with open_runtime() as runtime:
                stream = runtime.stream
                nursery.start_soon(read_all, stream, ended)
                await trio.testing.wait_all_tasks_blocked()
                raise ValueError("mine")
        with trio.fail_after(60):
            await ended.wait()


async def read_all(stream, ended):
    async with stream.read() as events:
        async for _ in events:
            pass
    ended.set()


async def test_a_reader_keeps_at_least_one_event():
    """A smaller or invalid capacity raises an error."""
    async with open_runtime() as runtime:
        with pytest.raises(ConfigurationError, match="at least 1"):
            async with runtime.events(capacity=0):
                pass


# --- what keeps a turn waiting, and what is refused ----------------------------------------


def of_kind(events, *kinds):
    return [event for event in drained(events) if isinstance(event, kinds)]


async def test_events_of_suspended_turns():
    """The events name the session, the approvals and the later resumption, all for the same turn."""

    @tool(approval=True, effect="once")
    async def pay() -> str:
        """Pay."""
        return "paid"

    async with open_runtime() as runtime, runtime.events() as events:
        agent = await runtime.start(
            BareAgent("a", llm=ScriptedLLM([ToolCall("pay", {}), "done"]), tools=[pay])
        )
        session = await agent.create_session("ada")
        message = await session.chat("pay")
        await session.wait_idle()
        (approval,) = session.approvals
        await session.answer(approval, Approve())
        await session.wait_idle()
        seen = drained(events)
    names = [type(event).__name__ for event in seen if getattr(event, "turn", "") == message]
    assert names == [
        "MessageAccepted",
        "TurnStarted",
        "PassStarted",
        "ModelStarted",
        "ModelAnswered",
        "ApprovalAsked",
        "TurnSuspended",
        "ApprovalDecided",
        "TurnResumed",
        "ToolStarted",
        "ToolFinished",
        "PassStarted",
        "ModelStarted",
        "ModelAnswered",
        "TurnEnded",
    ]
    (suspended,) = [event for event in seen if isinstance(event, TurnSuspended)]
    assert suspended.ids == (approval.id,)


async def test_events_explain_slow_model_calls(autojump_clock):
    """Events report provider limits, failed attempts, and the last attempt."""
    rate_limiter = RateLimiter(requests_per_minute=60, burst=1 / 60)
    async with open_runtime() as runtime, runtime.events() as events:
        llm = RateLimitedModel(ScriptedLLM(["one", RateLimited("slow down", retry_after=2.0)]), rate_limiter)
        agent = await runtime.start(BareAgent("a", llm=llm))
        session = await agent.create_session("ada")
        session.on_exception(print)
        for text in ("one", "two"):
            await session.chat(text)
            await session.wait_idle()
        waited, failed = of_kind(events, AdmissionWaited, ModelFailed)
    assert waited.seconds == pytest.approx(1, abs=0.01)
    assert (failed.error, failed.retry_seconds, failed.turn) == ("RateLimited", None, waited.turn)


async def test_events_of_model_call_attempts():
    """Each failed attempt has the seconds until the next one, from the client's retry policy. The last attempt has none."""
    down = ErrorStatus(503)
    async with open_provider([down, down, "answer", *[down] * 3]) as provider, open_runtime() as runtime:
        retry = Retry(first_delay=0.001, random=lambda: 1.0)
        llm = OpenAI("m", base_url=provider.openai_url, api_key="any", retry=retry)
        agent = await runtime.start(BareAgent("a", llm=llm))
        session = await agent.create_session("ada")
        session.on_exception(print)
        async with runtime.events() as events:
            for text in ("one", "two"):
                await session.chat(text)
                await session.wait_idle()
            failed = of_kind(events, ModelFailed)
        await llm.aclose()
    assert [event.retry_seconds for event in failed] == [0.001, 0.002, 0.001, 0.002, None]
    assert {event.error for event in failed} == {"ProviderUnavailable"}
    assert len({event.turn for event in failed}) == 2


async def test_events_of_rejected_messages():
    """The event names the error. Messages that were accepted earlier run in their own turns."""
    gate = trio.Event()

    async def answer(chat):
        await gate.wait()
        return "done"

    async with open_runtime() as runtime, runtime.events() as events:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(answer), session_inbox_capacity=1))
        session = await agent.create_session("ada")
        await session.chat("1")
        await session.chat("2")
        with pytest.raises(InboxFull):
            await session.chat("3", message_id="third", enqueue_timeout=0)
        with pytest.raises(SessionBusy):
            await session.chat("4", message_id="fourth", on_busy="reject")
        gate.set()
        await session.wait_idle()
        refused = of_kind(events, MessageRefused)
    assert [(event.message_id, event.error, event.turn) for event in refused] == [
        ("third", "InboxFull", "third"),
        ("fourth", "SessionBusy", "fourth"),
    ]


async def test_events_of_schedules_and_modes(autojump_clock):
    """The events have the fired schedule with its message, and the actor of a mode switch."""
    modes = Modes(Mode("plan"), Mode("build"), initial="plan")
    async with open_runtime() as runtime, runtime.events() as events:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True), modes=modes))
        session = await agent.create_session("ada")
        schedule = await session.schedule("wake up", after=5)
        await session.set_mode("build", by="admin", force=True)
        await trio.sleep(6)
        await session.wait_idle()
        changed, fired = of_kind(events, ModeChanged, ScheduleFired)
    assert (changed.previous, changed.current, changed.by) == ("plan", "build", "admin")
    assert fired.schedule_id == schedule.id
    assert fired.turn == fired.message_id == session.history[-2].id
