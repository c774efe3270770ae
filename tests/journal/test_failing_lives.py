"""Consecutive processes on a journal that fails, and whose failed writes may have been stored.

The seed of a `Lives` decides everything: the concurrent calls of several clients, their cancellations, and the failures of the
journal. The last process has a working journal, whose content must agree with the results that the clients received.
"""

import collections
import contextlib
import random

import pytest
import trio

from actgent import (
    BareAgent,
    JournalError,
    NotRunning,
    ScriptedLLM,
    SessionClosed,
    SessionExists,
    SessionNotFound,
    ToolCall,
    ToolContext,
    open_runtime,
    tool,
)
from actgent.errors import Fenced, JournalFailed, JournalFull
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import (
    NOT_KEPT,
    REFUSED,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    SessionCreatedRecord,
)
from actgent.runtime.session_erasure import Retention

EXPECTED = (JournalError, Fenced, NotRunning, SessionClosed, SessionExists)
CALLS = (
    "_roll_back",
    "_erase",
    "_erase_trees",
    "_read_heads",
    "_read_some",
    "_read_tails",
    "_list_heads",
    "_list_children",
    "select_page",
)


@contextlib.contextmanager
def expected():
    """Return a context that suppresses the errors of the journal."""
    try:
        yield
    except* EXPECTED:
        pass


class FailingJournal(MemoryJournal):
    """A journal that fails at random, before or after a write, and then rejects some further calls."""

    def __init__(self, pick):
        super().__init__()
        self.pick = pick
        self.rate = self.away = 0
        self._is_inside = False
        """True: a call of those is part of another one, and fails with it or not at all."""
        for name in CALLS:
            setattr(self, name, self._failing(getattr(super(), name)))

    def _failing(self, call):
        async def fail(*args):
            if self._is_inside:
                return await call(*args)
            self._check()
            self._is_inside = True
            try:
                found = await call(*args)
            finally:
                self._is_inside = False
            if call.__name__.startswith("_erase") and self.pick.random() < self.rate / 2:
                raise JournalFailed("it is erased")
            return found

        return fail

    def _check(self):
        if self.away:
            self.away -= 1
            raise JournalFailed("it is away")

    async def _write(self, rows, heads, epoch):
        if self.pick.random() < 0.1:
            await trio.sleep(0.1)
        self._check()
        chance = self.pick.random()
        if chance > self.rate:
            await super()._write(rows, heads, epoch)
            return
        self.away = self.pick.choice([0, 1, 2, 5])
        if chance < self.rate / 2:
            raise self.pick.choice([JournalFull, JournalFailed])("nothing is written")
        await super()._write(rows, heads, epoch)
        raise JournalFailed("it is written")


class Lives:
    """Consecutive processes with clients of one agent; `problems` lists the violations."""

    def __init__(self, seed):
        self.pick = random.Random(seed)
        self.journal = FailingJournal(self.pick)
        self.names = (f"n{number}" for number in range(10_000))
        self.made, self.accepted = [], []
        self.refused, self.ended = set(), set()
        self.paid, self.problems = collections.Counter(), []
        self.retention = self.pick.choice([None, Retention(idle=5)])

    async def live(self):
        async with self.journal.running():
            for _ in range(self.pick.randint(1, 3)):
                self.journal.rate = self.pick.choice([0.1, 0.3])
                with expected():
                    await self._live_once()
            self.journal.rate = self.journal.away = 0
            async with open_runtime(journal=self.journal) as runtime:
                agent = await runtime.start(self._agent())
                await self._audit(runtime, agent)

    async def _live_once(self):
        options = {"journal": self.journal, "retention": self.retention}
        async with open_runtime(**options) as runtime, trio.open_nursery() as nursery:
            agent = await runtime.start(self._agent())
            for _ in range(self.pick.randint(1, 4)):
                nursery.start_soon(self._act, runtime, agent)

    def _agent(self):
        @tool(effect="once")
        async def pay(context: ToolContext) -> str:
            """Pay."""
            self.paid[context.idempotency_key] += 1
            await trio.sleep(self.pick.choice([0, 0.1]))
            return "paid"

        def answer(chat):
            return "done" if chat.messages[-1].role == "tool" else ToolCall("pay", {})

        return BareAgent("a", llm=ScriptedLLM(answer, keep=0), tools=[pay])

    # --- what clients do ----------------------------------------------------------------------

    async def _act(self, runtime, agent):
        for _ in range(15):
            act = self.pick.choice(
                [
                    self._make,
                    self._say,
                    self._say,
                    self._fork,
                    self._close,
                    self._delete,
                    self._list,
                    self._hold,
                ]
            )
            with trio.move_on_after(self.pick.choice([0.05, 10, 100])), expected():
                await act(runtime, agent)

    async def _make(self, _, agent):
        session_id = next(self.names)
        await agent.create_session("ada", self.pick.choice(["", "pay"]), session_id=session_id)
        self.made.append(session_id)

    async def _open(self, agent):
        session_id = self.pick.choice(self.made or [""])
        with self._unless_deleted(session_id):
            return await agent.open_session(session_id)

    @contextlib.contextmanager
    def _unless_deleted(self, session_id):
        """A block that finds a session, or a session that was deleted."""
        try:
            yield
        except SessionNotFound as error:
            if session_id and not self._may_be_gone(session_id):
                self.problems.append(error)
            raise NotRunning("a") from error

    async def _say(self, _, agent):
        session = await self._open(agent)
        message_id = await session.chat("pay", message_id=next(self.names))
        self.accepted.append((session.id, message_id))

    async def _fork(self, runtime, agent):
        original, new_id = await self._open(agent), next(self.names)
        try:
            with self._unless_deleted(original.id):
                await runtime.fork(original.id, agent="a", new_id=new_id)
        except JournalError:
            self.refused.add(new_id)
            raise
        self.made.append(new_id)

    async def _close(self, _, agent):
        await (await self._open(agent)).aclose()

    async def _delete(self, runtime, _):
        session_id = self.pick.choice(self.made or [""])
        self.ended.add(session_id)
        await runtime.delete_session(session_id, agent="a")

    async def _list(self, runtime, _):
        listed = {each.session_id for each in await runtime.sessions(limit=1000)}
        self.problems += [f"{each}, which could not be made, is listed" for each in listed & self.refused]

    async def _hold(self, _, agent):
        session = await self._open(agent)
        await trio.sleep(self.pick.choice([0, 10, 30]))
        await session.chat("pay", message_id=next(self.names))

    def _may_be_gone(self, session_id):
        return session_id in self.ended or self.retention is not None

    # --- what there is at the end -------------------------------------------------------------

    async def _audit(self, runtime, agent):
        there = {head.session_id: head for head in await self.journal.sessions()}
        self.problems += [
            f"{each} is lost" for each in self.made if each not in there and not self._may_be_gone(each)
        ]
        for session_id, head in there.items():
            if not head.closed:
                await (await agent.open_session(session_id)).wait_idle()
            records = await self.journal.load(session_id, agent="a")
            self.problems += [f"{session_id}: {each}" for each in problems_of(records)]
            there[session_id] = {
                each.message.id for each in records if isinstance(each, MessageAcceptedRecord)
            }
        for session_id, message_id in self.accepted:
            is_gone = session_id not in there and self._may_be_gone(session_id)
            if message_id not in there.get(session_id, ()) and not (is_gone or session_id in self.ended):
                self.problems.append(f"{message_id} of {session_id} is lost")
        self.problems += [f"{key} ran {count} times" for key, count in self.paid.items() if count > 1]


def problems_of(records):
    """Return the violations in the records of an idle session."""
    if [number for number, each in enumerate(records) if isinstance(each, SessionCreatedRecord)] != [0]:
        yield "it does not begin once"
    waiting, over = set(), set()
    for each in records:
        match each:
            case MessageAcceptedRecord(message=message):
                if message.id in waiting | over:
                    yield f"{message.id} is accepted again"
                waiting.add(message.id)
            case MessageAppendedRecord(message_id=message_id) if message_id not in waiting:
                yield f"{message_id} begins its turn, and does not wait"
            case MessageEndRecord(message_id=message_id, failed=failed):
                waiting.discard(message_id)
                over |= set() if failed in (REFUSED, NOT_KEPT) else {message_id}
    for message_id in waiting:
        yield f"{message_id} does not end"


@pytest.mark.parametrize("seed", range(4))
async def test_outcomes_match_the_journal_under_failures(seed, times, autojump_clock):
    """Each session begins once, each accepted message ends once, and tools with effects run once."""
    for number in range(times(10, 500)):
        lives = Lives(f"{seed} {number}")
        await lives.live()
        assert not lives.problems, (seed, number)
