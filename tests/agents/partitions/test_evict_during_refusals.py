"""Callers of a message that is stopped or rejected at the time when its session turns out to be moved."""

from functools import partial

import pytest
import trio
import trio.testing

from actgent import Agent, BareAgent, ScriptedLLM, SessionMoved, ToolCall, open_runtime, tool
from actgent.errors import ActgentError, Fenced
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import MessageEndRecord


class TakenJournal(MemoryJournal):
    """A shared journal that another process takes over when the end of the message `m` is written."""

    is_shared = True
    is_taken = False

    def _check(self, entry):
        if any(isinstance(each, MessageEndRecord) and each.message_id == "m" for each in entry.records):
            self.is_taken = True
        if self.is_taken:
            raise Fenced("another process owns it")

    async def commit(self, entry, *, epoch, durable=True):
        self._check(entry)
        await super().commit(entry, epoch=epoch, durable=durable)

    def enqueue_write(self, entry, *, epoch):
        self._check(entry)
        super().enqueue_write(entry, epoch=epoch)


@tool(approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


async def interrupted(agent: Agent, session, let_go):
    """Interrupt the queued message `m`."""
    with pytest.raises(SessionMoved):
        await session.interrupt(message_id="m")


async def sent_away(agent: Agent, session, let_go):
    """Let the turn before the message `m` suspend for an approval."""
    let_go.set()


async def told(heard, call):
    """Await a call and append the type and the message id of its error."""
    try:
        await call()
    except ActgentError as error:
        heard.append((type(error), getattr(error, "message_id", None)))


async def read(heard, agent, session):
    async with agent.stream("transfer", session=session, message_id="m") as deliveries:
        heard += [(type(each.error), each.message_id) async for each in deliveries]


@pytest.mark.parametrize("case", [interrupted, sent_away])
@pytest.mark.parametrize("callers", ["one", "two", "stream"])
async def test_waiting_callers_get_the_moved_error(case, callers, autojump_clock):
    """Callers get `SessionMoved` with the message id instead of a final failure, because the new owner answers the message."""
    let_go, received = trio.Event(), []

    async def answer(_):
        await let_go.wait()
        return ToolCall("pay", {})

    async with TakenJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(answer), tools=[pay]))
        session = await agent.create_session("ada", "first")
        say = partial(agent.run, "transfer", session=session, message_id="m")
        async with trio.open_nursery() as nursery:
            if callers == "stream":
                nursery.start_soon(read, received, agent, session)
            for _ in range(("stream", "one", "two").index(callers)):
                nursery.start_soon(told, received, say)
            await trio.testing.wait_all_tasks_blocked()
            await case(agent, session, let_go)
        assert received == [(SessionMoved, "m")] * (2 if callers == "two" else 1)
        assert session.id not in agent._opener.running.sessions
        let_go.set()
