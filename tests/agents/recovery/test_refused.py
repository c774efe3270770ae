"""A message that was rejected or stopped never runs, even if the process dies at that moment on a slow disk."""

from functools import partial

import attrs
import pytest
import trio
import trio.testing

from actgent import Agent, BareAgent, Failure, ScriptedLLM, Session, Text, ToolCall, open_runtime, tool
from actgent.approvals import Approve
from actgent.errors import ActgentError
from actgent.journal.in_memory_journal import MemoryJournal
from tests.agents.slow_journal import SlowJournal


@attrs.define(eq=False)
class Life:
    """A process that dies as soon as a caller gets a result."""

    agent: Agent
    session: Session
    journal: SlowJournal
    scope: trio.CancelScope
    told: str = ""
    left: MemoryJournal | None = None

    async def until_told(self, call, *args, **options):
        try:
            await call(*args, **options)
        except ActgentError as error:
            self.die(type(error).__name__)
        else:
            self.die("done")

    def die(self, told):
        if self.left is None:
            self.told, self.left = told, self.journal.stored()
            self.scope.cancel()

    async def read(self):
        async with self.agent.stream("transfer", session=self.session) as events:
            async for event in events:
                if isinstance(event, Failure):
                    self.die(type(event.error).__name__)


async def busy(life, *said):
    """Start a turn before the disk becomes slow; later messages queue behind it."""
    await life.session.chat("first")
    for text in said:
        await life.session.chat(text, message_id=text)
    life.journal.is_slow = True


async def behind_a_person(life, *calls):
    """Calls that wait behind a turn which then waits for a person."""
    await life.session.chat("pay")
    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(life.until_told, call)
        await trio.sleep(5)
        life.journal.is_slow = True


async def closed_beside(life, call):
    """Return a call whose session is closed while the call waits."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(life.until_told, call)
        await trio.sleep(0.5)
        life.journal.is_slow = True
        nursery.start_soon(life.session.aclose)


async def run(life):
    await behind_a_person(life, partial(life.agent.run, "transfer", session=life.session))


async def repeated_run(life):
    say = partial(life.agent.run, "transfer", session=life.session, message_id="m")
    await behind_a_person(life, say, say)


async def stream(life):
    await behind_a_person(life, life.read)


async def interrupt(life):
    await life.session.chat("transfer")
    life.journal.is_slow = True
    await life.until_told(life.session.interrupt)


async def interrupt_waiting(life):
    await busy(life, "transfer")
    await life.until_told(life.session.interrupt, message_id="transfer")


async def drop(life):
    await busy(life, "transfer")
    await life.until_told(life.session.interrupt, drop_queued=True)


async def close(life):
    await busy(life, "transfer")
    await life.until_told(life.session.aclose)


async def close_above(life):
    await life.session.delegate("b", "transfer", task_id="t")
    life.journal.is_slow = True
    await life.until_told(life.session.aclose)


async def run_in_closed(life):
    await life.session.chat("first")
    await closed_beside(life, partial(life.agent.run, "transfer", session=life.session))


async def chat_in_closed(life):
    life.journal.is_slow = True
    await closed_beside(life, partial(life.session.chat, "transfer"))


CASES = {
    run: "Suspended",
    repeated_run: "Suspended",
    stream: "Suspended",
    interrupt: "done",
    interrupt_waiting: "done",
    drop: "done",
    close: "done",
    close_above: "done",
    run_in_closed: "SessionClosed",
    chat_in_closed: "SessionClosed",
}


@tool(approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


def start_agents(asked):
    def answer(chat):
        asked.extend(part.text for part in chat.messages[-1].parts if isinstance(part, Text))
        return (
            ToolCall("pay", {}) if asked and asked[-1] == "pay" and chat.messages[-1].role == "user" else "ok"
        )

    return [
        BareAgent(name, llm=ScriptedLLM(answer, delay=10), tools=[pay], session_inbox_capacity=3, grace=0)
        for name in "ab"
    ]


async def die_when_told(case):
    async with SlowJournal().running() as journal:
        async with trio.open_nursery() as nursery, open_runtime(journal=journal) as runtime:
            agent, worker = start_agents([])
            await runtime.start(worker)
            await runtime.start(agent)
            session = await agent.create_session("ada", session_id="s")
            life = Life(agent, session, journal, nursery.cancel_scope)
            await case(life)
            await trio.sleep(100)
            nursery.cancel_scope.cancel()
        journal.is_slow = False
    return life


@pytest.mark.parametrize("case", CASES)
async def test_rejected_messages_never_run(case, autojump_clock):
    """The journal has the rejection before the sender receives it."""
    life = await die_when_told(case)
    assert life.told == CASES[case]
    requests = []
    async with life.left.running() as journal, open_runtime(journal=journal) as runtime:
        agent, worker = start_agents(requests)
        await runtime.start(worker)
        await runtime.start(agent)
        if case in (run, repeated_run, stream):
            session = await agent.open_session("s")
            await session.answer(session.approvals[0], Approve())
        await trio.sleep(100)
    assert "transfer" not in requests
