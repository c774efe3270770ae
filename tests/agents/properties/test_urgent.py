"""Random sessions: messages of all priorities, interrupts and closes, with models and tools that are slow or fail."""

import contextlib

import attrs
import pytest
import trio
from hypothesis import given, settings, strategies as st

from actgent import (
    BareAgent,
    InboxFull,
    NotRunning,
    Priority,
    ScriptedLLM,
    SessionClosed,
    Stopped,
    StreamInterrupted,
    ToolCall,
    tool,
)
from actgent.testing import assert_no_leaks, assert_valid_transcript

PRIORITIES = ["URGENT", "HIGH", "NORMAL", "LOW"]


def last_text(chat):
    return "".join(getattr(part, "text", "") for part in chat.messages[-1].parts)


@attrs.define
class Life:
    """A session, its accepted messages, and its ended messages."""

    session: object
    accepted: list = attrs.field(factory=list)
    ended: list = attrs.field(factory=list)
    """Message ids, in the order in which they ended."""


def follow(session):
    """Record the message id of each reply and failure of a session."""
    life = Life(session)

    async def reply(_, session):
        await trio.sleep(0.01)
        life.ended.append(session._context.turn.message.id)

    session.on_conversation(reply)
    session.on_exception(lambda failure: life.ended.append(failure.message_id))
    return life


@tool
async def work(seconds: float) -> str:
    """Work."""
    await trio.sleep(seconds)
    return "done"


@tool(effect="pure", exclusive=True)
async def look(seconds: float) -> str:
    """Look."""
    await trio.sleep(seconds)
    if seconds > 2:
        raise ValueError("too long")
    return "seen"


@tool(thread=False)
def quick() -> str:
    """Be quick."""
    return "quick"


async def answer(chat):
    """Answer as the message says (`slow`, `fail`, `tools`), after a check of the transcript."""
    assert_valid_transcript(chat)
    text = last_text(chat)
    if "slow" in text:
        await trio.sleep(3)
    if "fail" in text:
        raise StreamInterrupted("cut")
    if "tools" in text and chat.messages[-1].role == "user":
        return [
            ToolCall("quick", {}),
            ToolCall("work", {"seconds": 1.5}),
            ToolCall("look", {"seconds": 2.5}),
            ToolCall("quick", {}),
        ]
    await trio.sleep(0.5)
    return "answer"


chats = st.tuples(
    st.just("chat"),
    st.sampled_from(["plain", "slow", "fail", "tools", "slow tools"]),
    st.sampled_from(PRIORITIES),
)
actions = st.one_of(
    chats,
    chats,
    chats,
    st.just(("interrupt", False)),
    st.just(("interrupt", True)),
    st.just(("close",)),
    st.tuples(st.just("run"), st.sampled_from(["plain", "tools"]), st.sampled_from([0.2, 1.0, 9.0])),
)
plans = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([0, 0, 0.3, 1.1]), actions), min_size=1, max_size=14
)


async def act(agent, life, action):
    session = life.session
    match action:
        case ("chat", text, priority):
            with contextlib.suppress(InboxFull, SessionClosed, NotRunning):
                life.accepted.append(await session.chat(text, priority=priority, enqueue_timeout=2))
        case ("interrupt", drop_queued):
            await session.interrupt(drop_queued=drop_queued)
        case ("close",):
            await session.aclose()
        case ("run", text, seconds):
            with trio.move_on_after(seconds), contextlib.suppress(InboxFull, NotRunning, Stopped):
                assert (await agent.run(text)).text == "answer"


@settings(max_examples=60)
@given(plan=plans, grace=st.sampled_from([0, 1, 100]), side_by_side=st.integers(1, 3))
def test_every_accepted_message_ends_exactly_once(plan, grace, side_by_side):
    """Each accepted message gets one reply or one failure, transcripts stay valid, and no resource leaks."""
    trio.run(live, plan, grace, side_by_side, clock=trio.testing.MockClock(autojump_threshold=0))


async def live(plan, grace, side_by_side):
    async with assert_no_leaks(), trio.open_nursery() as nursery:
        agent = BareAgent(
            name="a",
            llm=ScriptedLLM(answer),
            tools=[work, look, quick],
            max_concurrent_sessions=side_by_side,
            inbox_capacity=6,
            session_inbox_capacity=3,
            urgent_inbox_capacity=2,
            grace=grace,
        )
        async with agent:
            lives = [follow(await agent.create_session("ada")) for _ in range(3)]
            for which, pause, action in plan:
                nursery.start_soon(act, agent, lives[which], action)
                if pause:
                    await trio.sleep(pause)
            if grace == 100:
                await trio.sleep(100)
                assert {life.session.status for life in lives} <= {"idle", "closed"}
                assert agent._opener.running.inbox.statistics().sessions == 0
                assert len(agent._opener.running.sessions) == sum(
                    life.session.status == "idle" for life in lives
                )
    for life in lives:
        assert sorted(life.accepted) == sorted(life.ended)
        assert life.session._context.pending == 0


@pytest.mark.parametrize("busy", [1, 50])
async def test_urgent_message_is_answered_despite_a_full_inbox(busy, autojump_clock):
    """An URGENT message is answered next, although a thousand messages are queued."""
    async with BareAgent(name="a", llm=ScriptedLLM(answer), max_concurrent_sessions=busy, grace=0) as agent:
        sessions = [await agent.create_session("ada") for _ in range(100)]
        for number in range(1000):
            await sessions[number % 100].chat("slow", enqueue_timeout=100)
        log = []
        sessions[-1].on_conversation(lambda reply: log.append((trio.current_time() - started, reply.text)))
        started = trio.current_time()
        await sessions[-1].chat("now", priority=Priority.URGENT)
        await trio.sleep(0.6)
        assert log == [(pytest.approx(0.5), "answer")]
