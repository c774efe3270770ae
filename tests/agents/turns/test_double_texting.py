"""Rules for a message to a busy session: queue, collect, interrupt, reject. No interleaving corrupts a session."""

import collections
import contextlib
import os

import pytest
import trio
from hypothesis import HealthCheck, given, settings, strategies as st
from trio.testing import MockClock

from actgent import (
    BareAgent,
    ConfigurationError,
    InboxFull,
    Interrupted,
    Priority,
    ScriptedLLM,
    SessionBusy,
    ToolCall,
    UsageError,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import MessageAcceptedRecord, MessageAppendedRecord, MessageEndRecord
from actgent.testing import check_transcript

EXAMPLES = 150 if os.environ.get("ACTGENT_SOAK") else 15
RULES = ("queue", "collect", "interrupt", "reject")


def words(chat):
    """Return the texts of the request, in order."""
    return [" ".join(part.text for part in message.parts) for message in chat.messages]


def echo(chat):
    """Return an answer with all questions since the last answer."""
    requests = []
    for message in reversed(chat.messages):
        if message.role == "assistant":
            break
        requests.insert(0, message.parts[0].text)
    return "re: " + ", ".join(requests)


def slow(**options):
    return BareAgent("a", llm=ScriptedLLM(echo, delay=1), **options)


def told(heard):
    return [getattr(item, "kind", None) or str(item) for item in heard]


async def texting(agent, rule, *texts, between=0.1, listen=None, **options):
    """Send texts while the first is answered. Return the values that the handlers received."""
    async with agent:
        session = await agent.create_session("ada", **options)
        received = listen(session)
        for text in texts:
            await session.chat(text, on_busy=rule)
            await trio.sleep(between)
        await session.wait_idle()
        assert session._context.pending == 0
        return received, session


# --- one rule at a time ------------------------------------------------------------------


async def test_queue_rule_answers_messages_in_sequence(autojump_clock, listen):
    """This is the default rule."""
    received, _ = await texting(slow(), None, "a", "b", "c", listen=listen)
    assert told(received) == ["re: a", "re: b", "re: c"]


async def test_collect_answers_queued_messages_together(autojump_clock, listen):
    """One turn answers the messages, as a reply to the last one. Each message has its own record."""
    received, session = await texting(slow(), "collect", "a", "b", "c", "d", listen=listen)
    assert told(received) == ["re: a", "re: b, c, d"]
    assert [message.text for message in session.history] == ["a", "re: a", "b", "c", "d", "re: b, c, d"]


async def test_collect_keeps_the_message_order(autojump_clock, listen):
    """Only adjacent messages are answered together, so no message overtakes another."""
    async with slow() as agent:
        session = await agent.create_session("ada", "first")
        received = listen(session)
        for text, rule in (
            ("a", "collect"),
            ("b", "collect"),
            ("c", "queue"),
            ("d", "collect"),
            ("e", "collect"),
        ):
            await session.chat(text, on_busy=rule)
        await session.wait_idle()
    assert told(received) == ["re: first", "re: a, b", "re: c", "re: d, e"]


async def test_interrupt_rule_stops_the_turn_and_runs_next(autojump_clock, listen):
    """Queued messages keep their order after the interrupting message."""
    async with slow() as agent:
        session = await agent.create_session("ada", "a")
        received = listen(session)
        await trio.sleep(0.5)
        await session.chat("b")
        await session.chat("c")
        await session.chat("no, d!", on_busy="interrupt")
        await session.wait_idle()
        assert trio.current_time() == pytest.approx(3.5)
    assert told(received) == ["interrupted", "re: a, no, d!", "re: b", "re: c"]
    assert received[0].message_id == session.history[0].id


@pytest.mark.parametrize("between", [0, 0.1])
async def test_the_last_of_several_interruptions_is_answered(autojump_clock, listen, between):
    """Earlier ones end as interrupted and stay in the record, at any speed."""
    received, session = await texting(slow(), "interrupt", "a", "b", "c", "d", between=between, listen=listen)
    assert told(received) == ["interrupted"] * 3 + ["re: a, b, c, d"]
    assert [message.text for message in session.history][:4] == ["a", "b", "c", "d"]


async def test_reject_rule_rejects_messages_during_a_turn(autojump_clock, listen):
    """The caller gets an error, nothing of the message is stored, and its id may be sent again."""
    async with slow(on_busy="reject") as agent:
        session = await agent.create_session("ada", "a")
        received = listen(session)
        with pytest.raises(SessionBusy, match=r"busy.*wait_idle") as error:
            await session.chat("b", message_id="b")
        assert isinstance(error.value, UsageError)
        with pytest.raises(SessionBusy):
            await agent.run("b", session=session)
        await session.wait_idle()
        assert [message.text for message in session.history] == ["a", "re: a"]
        await session.chat("b", message_id="b")
        await session.chat("b", message_id="b")  # a repetition is no new message
        await session.wait_idle()
    assert told(received) == ["re: a", "re: b"]


@pytest.mark.parametrize("rule", RULES)
async def test_urgent_means_the_same_under_each_rule(autojump_clock, listen, rule):
    """An URGENT message stops the running turn, runs next, and is not stopped."""
    async with slow() as agent:
        session = await agent.create_session("ada", "a", on_busy=rule)
        received = listen(session)
        await trio.sleep(0.5)
        await session.chat("now!", priority=Priority.URGENT)
        await trio.sleep(0.5)
        if rule != "reject":
            await session.chat("b")
        await session.wait_idle()
    assert told(received) == ["interrupted", "re: a, now!", *["re: b"] * (rule != "reject")]


async def test_idle_session_accepts_messages_under_each_rule(autojump_clock, listen):
    async with slow() as agent:
        session = await agent.create_session("ada")
        received = listen(session)
        for rule in RULES:
            await session.chat(rule, on_busy=rule)
            await session.wait_idle()
    assert told(received) == [f"re: {rule}" for rule in RULES]


async def test_rule_of_the_message_precedes_session_and_agent(autojump_clock, listen):
    async with slow(on_busy="reject") as agent:
        rejecting = await agent.create_session("ada", "a")
        queueing = await agent.create_session("ada", "a", on_busy="queue")
        assert (agent.on_busy, rejecting.on_busy, queueing.on_busy) == ("reject", "reject", "queue")
        with pytest.raises(SessionBusy):
            await rejecting.chat("b")
        with pytest.raises(SessionBusy):
            await queueing.chat("b", on_busy="reject")
        await rejecting.chat("b", on_busy="queue")
        await queueing.chat("b")


async def test_unknown_rules_are_rejected():
    """The error lists the valid rules."""
    with pytest.raises(
        ConfigurationError, match="on_busy= takes queue, collect, interrupt, reject, not 'wait'"
    ):
        slow(on_busy="wait")
    async with slow() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError, match="on_busy="):
            await session.chat("hi", on_busy="rollback")


async def test_ask_is_not_collected(autojump_clock):
    """A caller of `ask` gets a separate answer, and interrupts or is rejected by the session's rule."""
    async with slow() as agent:
        for rule in ("collect", "interrupt", "queue"):
            session = await agent.create_session("ada", "a", on_busy=rule)
            await session.chat("b")
            assert str(await agent.run("mine", session=session)).endswith("mine")
            assert session.history[-1].text == {"interrupt": "re: a, b, mine"}.get(rule, "re: mine")


# --- handlers and tools ------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("where", ["handler", "tool"])
async def test_a_message_from_inside_never_waits(autojump_clock, listen, rule, where):
    """A handler or tool that writes to its own session returns at once under each rule."""
    came, script = [], ["said", "said", "said"]

    async def write(session):
        try:
            await session.chat("from inside", on_busy=rule)
        except (SessionBusy, InboxFull) as error:
            came.append(error)
        else:
            came.append("in")

    @tool
    async def note() -> str:
        """Write to the session."""
        await write(session)
        return "noted"

    if where == "tool":
        script.insert(0, ToolCall("note", {}))
    async with BareAgent("a", llm=ScriptedLLM(script), tools=[note]) as agent:
        session = await agent.create_session("ada")
        received = listen(session)
        if where == "handler":

            @session.on_conversation
            async def answer(_):
                if not came:
                    await write(session)

        with trio.fail_after(1):
            await session.chat("hi")
            await session.wait_idle()
    assert [type(each) for each in came] == [SessionBusy if rule == "reject" else str]
    assert told(received)[-1] == "said"


async def test_a_full_session_lets_an_interruption_wait_for_room(autojump_clock, listen):
    """Backpressure is equal under each rule; an accepted interruption runs next."""
    async with slow(session_inbox_capacity=1) as agent:
        session = await agent.create_session("ada", "a")
        received = listen(session)
        await session.chat("b")
        with pytest.raises(InboxFull):
            await session.chat("c", on_busy="interrupt", enqueue_timeout=0.5)
        await session.chat("d", on_busy="interrupt")
        await session.wait_idle()
    assert told(received) == ["re: a", "interrupted", "re: b, d"]


@pytest.mark.parametrize("how", ["interrupt", "drop", "urgent", "close"])
async def test_messages_that_are_answered_together_end_together(autojump_clock, listen, how):
    """If their turn is stopped, each message has a separate failure."""
    async with slow() as agent:
        session = await agent.create_session("ada", "a", on_busy="collect")
        received = listen(session)
        await session.chat("b", message_id="b")
        await session.chat("c", message_id="c")
        await trio.sleep(1.5)
        if how == "close":
            await session.aclose()
        elif how == "urgent":
            await session.chat("d", priority="urgent")
        else:
            await session.interrupt("enough", drop_queued=how == "drop")
        await session.wait_idle()
        assert session._context.pending == 0
    assert told(received)[:3] == ["re: a", "interrupted", "interrupted"]
    assert [failure.message_id for failure in received[1:3]] == ["b", "c"]


async def test_hooks_see_each_of_the_messages(autojump_clock, listen):
    """Listeners receive them in order, and additions to each message are part of the one model call."""
    llm, seen = ScriptedLLM(echo, delay=1), []
    agent = BareAgent("a", llm=llm)
    agent.on_message(lambda message: seen.append(message.text))
    agent.on_query(lambda message: f"about {message.text}")
    await texting(agent, "collect", "a", "b", "c", listen=listen)
    assert [seen[0], *seen[2:4]] == ["a", "b", "c"]
    assert "about b" in words(llm.chats[1])[-1]
    assert "about c" in words(llm.chats[1])[-1]


# --- with a journal ----------------------------------------------------------------------


async def books(journal, session_id):
    """Of each accepted message: how often it was appended, and how it ended."""
    appended, ended = collections.Counter(), collections.defaultdict(list)
    accepted = []
    for record in await journal.load(session_id):
        match record:
            case MessageAcceptedRecord(message=message):
                accepted.append(message.id)
            case MessageAppendedRecord(message_id=message_id):
                appended[message_id] += 1
            case MessageEndRecord(message_id=message_id, failed=failed):
                ended[message_id].append(failed)
    return accepted, appended, ended


@pytest.mark.parametrize("rule", ["collect", "interrupt"])
async def test_a_crash_at_every_write_loses_and_repeats_nothing(autojump_clock, mortal, rule):
    """Each accepted message is in the record once, ends once, and is answered once or interrupted."""
    crashes = 0
    for steps in range(1, 100):
        journal, accepted = mortal(), []

        async def life(journal, accepted=accepted):
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(slow(grace=100))
                session = await agent.create_session("ada", session_id="s", on_busy=rule)
                for number in range(4):
                    await session.chat(f"m{number}", message_id=f"m{number}")
                    accepted.append(f"m{number}")
                    await trio.sleep(0.1)
                await session.wait_idle()

        async def next_life(journal):
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(slow(grace=100))
                if await journal.load("s"):
                    session = await agent.open_session("s")
                    assert session.on_busy == rule
                    await session.wait_idle()

        async with journal.running():
            died = await journal.live(life, steps=steps)
            await journal.live(next_life)
            known, appended, ended = await books(journal, "s")
        if not died:
            break
        crashes += 1
        assert set(accepted) <= set(known), steps
        assert appended == dict.fromkeys(known, 1), steps
        assert {message_id: len(ends) for message_id, ends in ended.items()} == dict.fromkeys(known, 1), steps
        if rule == "collect":
            assert all(ends == [None] for ends in ended.values()), steps
        elif known:
            assert ended[known[-1]] == [None], steps
    assert crashes > 8


async def test_collected_messages_survive_a_restart(autojump_clock):
    """A turn that answers several messages resumes with all of them."""
    async with MemoryJournal().running() as journal:
        with pytest.raises(RuntimeError):  # noqa: PT012 - the block is what fails
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(slow())
                session = await agent.create_session("ada", "a", session_id="s", on_busy="collect")
                await session.chat("b")
                await session.chat("c")
                await trio.sleep(1.5)
                await session.chat("d")
                raise RuntimeError
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(slow())
            session = await agent.open_session("s")
            await session.wait_idle()
            assert [m.text for m in session.history] == ["a", "re: a", "b", "c", "re: b, c", "d", "re: d"]


# --- any interleaving --------------------------------------------------------------------

ACTS = st.one_of(
    st.tuples(st.just("chat"), st.sampled_from(RULES), st.sampled_from(["urgent", "high", "normal", "low"])),
    st.tuples(st.just("run"), st.none(), st.none()),
    st.tuples(st.just("interrupt"), st.booleans(), st.none()),
    st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.3, 1.0]), st.none()),
)


class Texting:
    """A session with many concurrent operations, and the outcome of each message."""

    def __init__(self, agent, session):
        self.agent, self.session = agent, session
        self.sent, self.refused, self.failures = [], [], collections.Counter()
        session.on_exception(lambda failure: self.failures.update([failure.message_id]))

    async def do(self, acts):
        with trio.fail_after(1000):
            async with trio.open_nursery() as nursery:
                for number, (act, how, priority) in enumerate(acts):
                    if act == "sleep":
                        await trio.sleep(how)
                    elif act == "interrupt":
                        await self.session.interrupt("stop", drop_queued=how)
                    elif act == "run":
                        nursery.start_soon(self.ask)
                    else:
                        nursery.start_soon(self.chat, f"m{number}", how, priority)
            await self.session.wait_idle()

    async def chat(self, message_id, on_busy, priority):
        try:
            await self.session.chat("hi", message_id=message_id, on_busy=on_busy, priority=priority)
        except SessionBusy:
            self.refused.append(message_id)
        else:
            self.sent.append(message_id)

    async def ask(self):
        with contextlib.suppress(SessionBusy, Interrupted):
            await self.agent.run("question", session=self.session)

    async def check(self, journal):
        """Check that each accepted message is in the record at most once and has ended once, and that each failure was reported."""
        assert self.session.status == "idle"
        assert self.agent._opener.running.inbox.statistics().sessions == 0
        known, appended, ended = await books(journal, self.session.id)
        history = [message.id for message in self.session.history]
        assert set(self.sent) <= set(known)
        assert not set(self.refused) & set(known)
        assert {message_id: len(ends) for message_id, ends in ended.items()} == dict.fromkeys(known, 1)
        assert all(count == 1 for count in appended.values())
        assert all(history.count(message_id) == appended[message_id] for message_id in known)
        assert all(self.failures[message_id] == (ended[message_id] != [None]) for message_id in self.sent)


@given(acts=st.lists(ACTS, min_size=1, max_size=25), rule=st.sampled_from(RULES), has_tools=st.booleans())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_interleaving_corrupts_a_session(acts, rule, has_tools):
    """Each accepted message ends once and is in the record at most once; no caller waits forever."""
    problems = []

    def answer(chat):
        problems.extend(check_transcript(chat))
        if has_tools and chat.messages[-1].role == "user":
            return [ToolCall("work", {}), ToolCall("work", {})]
        return "done"

    @tool
    async def work() -> str:
        """Take a while."""
        await trio.sleep(0.4)
        return "worked"

    async def main():
        agent = BareAgent("a", llm=ScriptedLLM(answer, delay=0.3), tools=[work], grace=100)
        async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
            await runtime.start(agent)
            texting = Texting(agent, await agent.create_session("ada", on_busy=rule))
            await texting.do(acts)
            await texting.check(journal)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert problems == []
