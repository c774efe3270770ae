"""Backpressure of a full inbox."""

import pytest
import trio

from actgent import BareAgent, ConfigurationError, InboxFull, Priority, ScriptedLLM, ToolCall, tool
from actgent.testing import assert_no_leaks
from tests.agents.conftest import hear


def last_text(chat):
    return "".join(getattr(part, "text", "") for part in chat.messages[-1].parts)


async def slow(chat):
    await trio.sleep(1)
    return f"re: {last_text(chat)}"


async def never(chat):
    await trio.sleep_forever()


@pytest.mark.parametrize(
    "bound", ["max_concurrent_sessions", "inbox_capacity", "session_inbox_capacity", "urgent_inbox_capacity"]
)
def test_a_bound_is_at_least_one(bound):
    """The error names the argument."""
    with pytest.raises(ConfigurationError, match=bound):
        BareAgent(name="a", llm=ScriptedLLM(["x"]), **{bound: 0})


async def test_chat_raises_inbox_full_at_its_deadline(autojump_clock):
    """The error names the reached bound and the remedy."""
    async with BareAgent(name="a", llm=ScriptedLLM(never), session_inbox_capacity=2, grace=0) as agent:
        session = await agent.create_session("ada", "running")
        await session.chat("1")
        await session.chat("2")
        with pytest.raises(InboxFull, match=r"is full \(2 messages\).*deadline=") as caught:
            await session.chat("3", enqueue_timeout=7)
        assert caught.value.capacity == 2
        assert trio.current_time() == pytest.approx(7)
        with pytest.raises(InboxFull):
            await session.chat("3")
        assert trio.current_time() == pytest.approx(37)


async def test_agent_inbox_is_bounded_over_all_sessions(autojump_clock):
    """A waiting sender is admitted as soon as a message leaves the inbox."""
    async with BareAgent(
        name="a", llm=ScriptedLLM(slow), inbox_capacity=3, max_concurrent_sessions=1
    ) as agent:
        sessions = [await agent.create_session("ada") for _ in range(5)]
        logs = [hear(session) for session in sessions]
        for number in range(4):
            await sessions[number].chat("x")
        assert trio.current_time() == 0
        with pytest.raises(InboxFull, match="agent a is full"):
            await sessions[4].chat("x", enqueue_timeout=0.5)
        await sessions[4].chat("x")
        assert trio.current_time() == pytest.approx(1)
        for session in sessions:
            await session.wait_idle()
    assert logs == [["re: x"]] * 5


async def test_at_most_64_urgent_messages_are_queued(autojump_clock):
    """URGENT messages have a separate bound and do not count against others."""
    async with BareAgent(
        name="a", llm=ScriptedLLM(slow), inbox_capacity=1, session_inbox_capacity=1
    ) as agent:
        session = await agent.create_session("ada", "x", session_id="s")
        log = hear(session)
        await session.chat("normal")
        for number in range(65):
            await session.chat(f"{number}", priority=Priority.URGENT)
        with pytest.raises(InboxFull, match=r"session s \(URGENT\) is full \(64 messages\)"):
            await session.chat("too many", priority=Priority.URGENT, enqueue_timeout=0)
        await session.wait_idle()
    assert log == ["interrupted", *(f"re: {number}" for number in range(65)), "re: normal"]


@pytest.mark.parametrize("where", ["handler", "tool"])
async def test_chat_of_a_session_to_itself_never_waits(where, autojump_clock):
    """A session that filled its own inbox gets the error at once, and continues."""
    errors = []

    async def fill():
        try:
            for number in range(5):
                await session.chat(f"{number}")
        except InboxFull as error:
            errors.append((trio.current_time(), error.capacity))

    @tool
    async def more() -> str:
        if where == "tool":
            await fill()
        return "done"

    script = [ToolCall("more", {}), "first", "a", "b", "c"]
    async with BareAgent(name="a", llm=ScriptedLLM(script), tools=[more], session_inbox_capacity=2) as agent:
        session = await agent.create_session("ada")
        log = hear(session)
        if where == "handler":

            @session.on_tool_result
            async def handle(result):
                await fill()

        await session.chat("begin")
        await session.wait_idle()
    assert errors == [(0, 2)]
    assert log == ["first", "a", "b"]


async def test_a_full_inbox_does_not_block_the_session_that_drains_it(autojump_clock):
    """Tool results and repairs need no room, with all sessions busy and senders waiting."""

    @tool
    async def work() -> str:
        await trio.sleep(1)
        return "done"

    def answer(chat):
        return "answer" if chat.messages[-1].role == "tool" else ToolCall("work", {})

    async with (
        assert_no_leaks(),
        BareAgent(
            name="a", llm=ScriptedLLM(answer), tools=[work], inbox_capacity=2, max_concurrent_sessions=2
        ) as agent,
        trio.open_nursery() as nursery,
    ):
        sessions = [await agent.create_session("ada") for _ in range(4)]
        logs = [hear(session) for session in sessions]
        for session in sessions:
            for _ in range(5):
                nursery.start_soon(session.chat, "go")
    assert logs == [["answer"] * 5] * 4


async def test_a_cancelled_chat_leaves_no_message(autojump_clock):
    """The chat occupies no inbox slot either, and the session becomes idle."""
    async with BareAgent(name="a", llm=ScriptedLLM(slow), session_inbox_capacity=1) as agent:
        session = await agent.create_session("ada", "0")
        log = hear(session)
        await session.chat("1")
        with trio.move_on_after(0.1):
            await session.chat("never taken", message_id="same")
        await session.wait_idle()
        assert log == ["re: 0", "re: 1"]
        await session.chat("taken", message_id="same")
        await session.chat("not twice", message_id="same")
        await session.wait_idle()
    assert log[2:] == ["re: taken"]


async def test_run_rejected_by_a_full_inbox_leaves_no_session(autojump_clock):
    """A rejected `tell` leaves none either."""
    async with BareAgent(
        name="a", llm=ScriptedLLM(never), max_concurrent_sessions=1, inbox_capacity=1, grace=0
    ) as agent:
        session = await agent.create_session("ada", "running")
        await session.chat("queued")
        for attempt in (agent.run, agent.ref.tell):
            with pytest.raises(InboxFull):
                await attempt("x")
        assert list(agent._opener.running.sessions) == [session.id]


async def test_sessions_run_concurrently_up_to_the_limit(autojump_clock):
    """An URGENT message exceeds the limit at once."""
    running, maximum = set(), []

    async def answer(chat):
        key = last_text(chat)
        running.add(key)
        maximum.append(len(running))
        await trio.sleep(1)
        running.remove(key)
        return f"re: {key}"

    async with BareAgent(name="a", llm=ScriptedLLM(answer)) as agent:
        sessions = [await agent.create_session("ada", f"{number}") for number in range(250)]
        logs = [hear(session) for session in sessions]
        await trio.sleep(0.5)
        assert max(maximum) == 100
        await sessions[249].chat("now", priority=Priority.URGENT)
        await trio.sleep(1.1)
        assert logs[249] == ["re: now"]
        assert max(maximum) == 101
        for session in sessions:
            await session.wait_idle()
    assert trio.current_time() == pytest.approx(3.5, abs=0.6)
    assert logs[249] == ["re: now", "re: 249"]
    assert logs[:249] == [[f"re: {number}"] for number in range(249)]


async def test_the_turns_of_a_session_never_overlap(autojump_clock):
    """Turns run in order within a priority, including handlers, with any concurrent sessions."""
    busy, order = {}, {}

    async def answer(chat):
        name, text = last_text(chat).split()
        assert not busy.get(name)
        busy[name] = True
        await trio.sleep(0.1)
        order.setdefault(name, []).append(text)
        return name

    async def end(reply):
        await trio.sleep(0.1)
        busy[reply.text] = False

    async with BareAgent(name="a", llm=ScriptedLLM(answer), max_concurrent_sessions=7) as agent:
        sessions = {f"s{number}": await agent.create_session("ada") for number in range(20)}
        for name, session in sessions.items():
            session.on_conversation(end)
            for number, level in enumerate(["low", "normal", "high"] * 4):
                await session.chat(f"{name} {level}{number}", priority=level)
    for texts in order.values():
        began_early = texts[0] == "low0"  # there was a free place for it at once
        rest = texts[1:] if began_early else texts
        highs, normals = [f"high{n}" for n in (2, 5, 8, 11)], [f"normal{n}" for n in (1, 4, 7, 10)]
        lows = [f"low{n}" for n in (0, 3, 6, 9) if n or not began_early]
        assert rest == [*highs, *normals, *lows]
    assert len(order) == 20
