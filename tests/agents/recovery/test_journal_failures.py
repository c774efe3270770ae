"""A journal that fails while agents work."""

import contextlib
import math

import pytest
import trio

from actgent import (
    Approve,
    BareAgent,
    Reject,
    ScriptedLLM,
    Sender,
    Text,
    ToolCall,
    ToolResult,
    open_runtime,
    tool,
)
from actgent.errors import Fenced, JournalError, JournalFailed, JournalFull
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_wrappers import WrappedJournal
from actgent.journal.record_types import (
    AgentMessageRecord,
    CallFinishedRecord,
    CallsStartedRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    NextTimerRecord,
    ScheduleRecord,
    SessionCreatedRecord,
)
from actgent.messages import Message
from actgent.sessions.restore.session_loader import rebuild
from actgent.testing import check_transcript


class FailingJournal(MemoryJournal):
    """Raises this at each write, while it is set."""

    error = None

    async def _write(self, rows, heads, epoch):
        if self.error is not None:
            raise self.error("the disk is what it is")
        await super()._write(rows, heads, epoch)


@pytest.mark.parametrize("error", [JournalFull, JournalFailed, Fenced])
async def test_a_journal_that_fails_in_a_turn_is_named(error, autojump_clock):
    """The message ends as `Failure(kind="journal")`, no handler receives the unwritten answer, and the next message is answered."""
    received = []
    async with FailingJournal().running() as journal, open_runtime(journal=journal) as runtime:

        async def answer(chat):
            journal.error = error if len(chat.messages) == 1 else None
            await trio.lowlevel.checkpoint()
            return "hi"

        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(answer, keep=0)))
        session = await agent.create_session("ada")
        session.on_conversation(received.append)
        session.on_exception(received.append)
        await session.chat("one")
        await session.wait_idle()
        (failure,) = received
        assert failure.kind == "journal"
        assert isinstance(failure.error, error)
        journal.error = None
        await session.chat("two")
        await session.wait_idle()
        assert str(received[-1]) == "hi"


class ForgetfulJournal(FailingJournal):
    """A journal that fails at the chosen write."""

    left = math.inf

    async def _write(self, rows, heads, epoch):
        self.left -= 1
        if not self.left:
            raise JournalFailed("the connection was lost")
        await super()._write(rows, heads, epoch)


@tool(effect="idempotent")
async def look(what: str) -> str:
    """Look at something."""
    return f"seen {what}"


@tool
async def pay(what: str) -> str:
    """Pay for something."""
    return f"paid {what}"


def talker(wrong):
    """Return an agent whose model calls two tools and records conversations that a provider would reject."""

    def answer(chat):
        wrong.extend(check_transcript(chat))
        if chat.messages[-1].role == "tool":
            return "done"
        return [ToolCall("look", {"what": "a"}), ToolCall("pay", {"what": "b"})]

    return BareAgent("a", llm=ScriptedLLM(answer, keep=0), tools=[look, pay])


def unanswered(history):
    """The ids of calls that have not exactly one result."""
    calls = [call.id for message in history for call in message.tool_calls]
    results = [result.call_id for message in history for result in message.tool_results]
    return [each for each in {*calls, *results} if calls.count(each) != 1 or results.count(each) != 1]


@pytest.mark.parametrize("at", range(1, 13))
async def test_each_call_has_a_result_whatever_write_failed(at, autojump_clock):
    """In three turns with tools, in this process and after a restart, each request is a valid conversation."""
    wrong = []
    async with ForgetfulJournal().running() as journal:
        for life in range(2):
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(talker(wrong))
                session = await agent.ensure_session("ada", "s")
                journal.left = min(journal.left, at)
                for text in ("one", "two", "three"):
                    with contextlib.suppress(JournalError):
                        await session.chat(text)
                    await session.wait_idle()
                history = session.history
                assert unanswered(history) == []
                restored = (await rebuild(await journal.load("s"))).history
                assert [each.parts for each in restored] == [each.parts for each in history], life
    assert journal.left < 0
    assert wrong == []


async def test_open_calls_of_an_old_record_get_results(autojump_clock):
    """Each result depends on whether the call finished, may have begun, or never began."""
    wrong, sender = [], Sender("a", "assistant")
    calls = [ToolCall("pay", {"what": word}, f"c{index}") for index, word in enumerate("xyz")]
    question = Message(session_id="s", sender=Sender("ada"), parts=(Text("Pay."),))
    answer = question.caused(sender, tuple(calls), stage=None)
    done = ToolResult(call_id="c0", tool_name="pay", content="paid x")
    records = (
        SessionCreatedRecord(owner=Sender("ada"), created_at=1.0),
        MessageAcceptedRecord(message=question),
        MessageAppendedRecord(message_id=question.id),
        AgentMessageRecord(message=answer, stop="tool_calls", calls=1),
        CallsStartedRecord(call_ids=("c0", "c1")),
        CallFinishedRecord(result=done),
        MessageEndRecord(message_id=question.id, failed="journal"),
    )
    async with MemoryJournal().running() as journal:
        epoch = await journal.acquire()
        await journal.commit(Entry(session_id="s", agent="a", records=records), epoch=epoch)
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(talker(wrong))
            session = await agent.open_session("s")
            assert unanswered(session.history) == []
            statuses = [result.status for result in session.history[-1].tool_results]
            assert statuses == ["success", "outcome_unknown", "cancelled"]
            await session.chat("And now?")
            await session.wait_idle()
    assert wrong == []


class ShortJournal(MemoryJournal):
    """Takes nothing while it is full."""

    is_full = False

    async def _write(self, rows, heads, epoch):
        if self.is_full:
            raise JournalFull("no space")
        await super()._write(rows, heads, epoch)


def payer(journal, paid, **options):
    """Return an agent with a payment tool. The disk is full from its first answer on, or after the tool has run."""

    @tool
    async def transfer(order: str) -> str:
        """Transfer money."""
        paid.append(order)
        journal.is_full = "late" in options
        return "transferred"

    def answer(chat):
        if chat.messages[-1].role == "tool":
            return "done"
        if not paid and "fill" in options:
            options.pop("fill")
            journal.is_full = True
        return [ToolCall("transfer", {"order": "7"})]

    return BareAgent("a", llm=ScriptedLLM(answer, keep=0), tools=[transfer])


@pytest.mark.parametrize("restarts", [False, True])
async def test_message_that_failed_by_the_journal_can_be_sent_again(autojump_clock, restarts):
    """When the disk has space again, the message is answered under its id, in this process or the next.

    Its tool runs once.
    """
    paid, received = [], []
    async with ShortJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(payer(journal, paid, fill=True))
            session = await agent.create_session("ada", session_id="s")
            session.on_conversation(received.append)
            session.on_exception(received.append)
            await session.chat("Pay order 7.", message_id="m")
            await session.wait_idle()
            assert [(each.kind, each.may_continue) for each in received] == [("journal", True)]
            journal.is_full = False
            if not restarts:
                await session.chat("Pay order 7.", message_id="m")
                await session.wait_idle()
                await session.chat("Pay order 7.", message_id="m")
                await session.wait_idle()
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(payer(journal, paid))
            session = await agent.open_session("s")
            session.on_conversation(received.append)
            for _ in range(2 * restarts):
                await session.chat("Pay order 7.", message_id="m")
                await session.wait_idle()
            await session.wait_idle()
            assert unanswered(session.history) == []
    assert [str(each) for each in received[1:]] == ["done"]
    assert paid == ["7"]


async def test_the_end_of_a_message_that_failed_by_the_journal_is_written_first(autojump_clock):
    """The end is written as soon as there is space, without a caller. So a process that ends later repeats no work."""
    paid = []
    async with ShortJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(payer(journal, paid, fill=True))
        session = await agent.create_session("ada", session_id="s")
        await session.chat("Pay order 7.", message_id="m")
        await session.wait_idle()
        journal.is_full = False
        await trio.sleep(2)
        (head,) = journal._stored_heads.values()
        assert not head.pending
        stored = await journal.load("s")  # nothing was said since: a kill now finds this, and no more
    assert [(each.message_id, each.failed) for each in stored if isinstance(each, MessageEndRecord)] == [
        ("m", "journal")
    ]
    assert paid == []


async def test_a_message_resumed_after_a_restart_is_not_duplicated(autojump_clock):
    """The disk stays full until the process ends: the next start resumes, and a repetition of the id has no effect."""
    paid, received = [], []
    async with ShortJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(payer(journal, paid, fill=True))
            session = await agent.create_session("ada", session_id="s")
            await session.chat("Pay order 7.", message_id="m")
            await session.wait_idle()
            journal._queue.failed.clear()  # the process dies with them
        journal.is_full = False
        async with open_runtime(journal=journal) as runtime:
            agent = payer(journal, paid)
            agent.on_session(lambda session: session.on_conversation(received.append) and None)
            await runtime.start(agent)
            session = await agent.open_session("s")
            await session.chat("Pay order 7.", message_id="m")
            await session.wait_idle()
    assert [str(each) for each in received] == ["done"]
    assert paid == ["7"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_turn_resumes_after_a_journal_failure(autojump_clock, restarts):
    """Its tool does not run again if the sender sends the message again."""
    paid, received = [], []
    async with ShortJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(payer(journal, paid, late=True))
            session = await agent.create_session("ada", session_id="s")
            session.on_conversation(received.append)
            session.on_exception(received.append)
            await session.chat("Pay order 7.", message_id="m")
            await session.wait_idle()
            assert [each.kind for each in received] == ["journal"]
            assert paid == ["7"]
            journal.is_full = False
            if not restarts:
                await session.chat("Pay order 7.", message_id="m")
                await session.wait_idle()
            history = session.history
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(payer(journal, paid))
            session = await agent.open_session("s")
            assert [each.parts for each in session.history] == [each.parts for each in history]
            session.on_conversation(received.append)
            if restarts:
                await session.chat("Pay order 7.", message_id="m")
                await session.wait_idle()
            assert unanswered(session.history) == []
            assert [message.text for message in session.history if message.sender.kind == "user"] == [
                "Pay order 7."
            ]
    assert [str(each) for each in received[1:]] == ["done"]
    assert paid == ["7"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_turn_resumes_before_a_call_that_did_not_start(autojump_clock, restarts):
    """The earlier tool does not run again; no call of the last answer had started."""
    paid, filled = [], []
    async with ShortJournal().running() as journal:

        @tool
        async def transfer(order: str) -> str:
            """Transfer money."""
            paid.append(order)
            return "transferred"

        def answer(chat):
            done = 0
            for message in chat.messages:
                done = 0 if message.role == "user" else done + ("transferred" in str(message.parts))
            journal.is_full = done == 1 and not filled
            filled.extend(paid)
            return "done" if done == 2 else [ToolCall("transfer", {"order": str(done)})]

        async def say(runtime):
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(answer, keep=0), tools=[transfer]))
            session = await agent.ensure_session("ada", "s")
            for _ in range(1 if restarts else 2):
                await session.chat("Pay both orders.", message_id="m")
                await session.wait_idle()
                journal.is_full = False
            return session.history

        for _ in range(2 if restarts else 1):
            async with open_runtime(journal=journal) as runtime:
                history = await say(runtime)
    assert history[-1].text == "done"
    assert unanswered(history) == []
    assert paid == ["0", "1"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_task_result_is_delivered_after_a_full_disk(autojump_clock, fails):
    """The parent session receives the result once, also if the process ends in between."""
    received = []

    async def live(journal, space_after):
        def work(_):
            journal.is_full = fails and space_after > 0
            if fails:
                raise ValueError("no shovel")
            return "42"

        def hear(chat):
            received.append(chat.messages[-1].parts[0].text)
            return "heard"

        worker = BareAgent("worker", llm=ScriptedLLM(work, delay=1), grace=0)

        @worker.on_session
        def fill(session):
            session.on_conversation(lambda _: setattr(journal, "is_full", space_after > 0))

        async with open_runtime(journal=journal) as runtime:
            async with runtime.starting():
                await runtime.start(worker)
                lead = await runtime.start(BareAgent("lead", llm=ScriptedLLM(hear)))
            parent = await lead.ensure_session("ada", "s")
            await parent.delegate("worker", "dig", task_id="t")
            await trio.sleep(space_after)
            journal.is_full = False
            await trio.sleep(10 if space_after < 50 else 0)
            assert not runtime.dead_letters

    async with ShortJournal().running() as journal:
        for space_after in (50, 20, 0):
            await live(journal, space_after)
    (said,) = received
    assert said.startswith("Task t, given to agent 'worker', failed" if fails else "Task t was done by")


class StumblingJournal(MemoryJournal):
    """A journal whose next write takes a second and fails, once it is armed."""

    stumbles = False

    async def _write(self, rows, heads, epoch):
        if self.stumbles:
            self.stumbles = False
            await trio.sleep(1)
            raise JournalFailed("the disk did not answer")
        await super()._write(rows, heads, epoch)


async def test_rejected_message_keeps_the_order_of_the_running_turn(autojump_clock):
    """The failed write contained the beginning of the running turn, which stays before the later records of that turn."""
    async with StumblingJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(lambda _: "ok", delay=0.5)))
            session = await agent.create_session("ada", session_id="s")
            await session.chat("one")
            await session.chat("two")
            await trio.sleep(0.7)  # the turn of "two" has begun
            journal.stumbles = True
            with pytest.raises(JournalFailed):
                await session.chat("three")
            await session.wait_idle()
            texts = [message.text for message in session.history]
        assert not journal.stumbles
        kinds = [type(each) for each in await journal.load("s")]
        assert kinds.count(MessageAppendedRecord) == 2
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True)))
            session = await agent.open_session("s")
            assert [message.text for message in session.history] == texts == ["one", "ok", "two", "ok"]


async def test_a_timer_set_during_a_turn_is_recorded(autojump_clock):
    """The records of the turn are first, and the due time belongs to the record that set it."""
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(lambda _: "ok", delay=0.5)))
        session = await agent.create_session("ada", session_id="s")
        await session.chat("one")
        await trio.sleep(0.3)  # its turn has begun
        await session.schedule("look again", after=100)
        kinds = [type(each) for each in await journal.load("s")]
    assert kinds == [
        SessionCreatedRecord,
        MessageAcceptedRecord,
        MessageAppendedRecord,
        NextTimerRecord,
        ScheduleRecord,
    ]


class UnsureJournal(WrappedJournal):
    """A journal that commits and may raise, or that rejects writes after the next commit."""

    says = ""

    async def commit(self, entry, *, epoch, durable=True):
        if self.says == "dead":
            await trio.sleep_forever()
        await self.inner.commit(entry, epoch=epoch, durable=durable)
        if self.says == "failed":
            raise JournalFailed("no answer")
        self.says = "dead" if self.says == "last" else self.says

    def enqueue_write(self, entry, *, epoch):
        if self.says != "dead":
            self.inner.enqueue_write(entry, epoch=epoch)


@pytest.mark.parametrize(
    ("first", "last", "payments"),
    [(Approve(), Reject("no"), 0), (Reject("no"), Approve(), 1)],
    ids=["yes-no", "no-yes"],
)
async def test_confirmed_decision_applies(autojump_clock, first, last, payments):
    """The journal has the other decision too, although its caller got an error; then the process dies."""
    paid = []

    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        paid.append(1)
        return "paid"

    def teller():
        script = ScriptedLLM(lambda chat: "done" if chat.messages[-1].role == "tool" else ToolCall("pay", {}))
        return BareAgent("a", llm=script, tools=[pay])

    async with MemoryJournal().running() as inner:
        journal = UnsureJournal(inner)
        with trio.CancelScope() as life:
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(teller())
                session = await agent.create_session("ada", "Pay.", session_id="s")
                await session.wait_idle()
                (approval,) = session.approvals
                journal.says = "failed"
                with pytest.raises(JournalFailed):
                    await session.answer(approval, first)
                assert session.approvals == (approval,)
                journal.says = "last"
                await session.answer(approval, last)
                life.cancel()
        paid.clear()
        async with open_runtime(journal=inner) as runtime:
            agent = await runtime.start(teller())
            session = await agent.open_session("s")
            await session.wait_idle()
            assert session.history[-1].text == "done"
    assert len(paid) == payments
