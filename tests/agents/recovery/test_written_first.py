"""Outcomes are written before they are notified, over failing and slow writes, crashes and restarts.

Each delivery id has one outcome.
"""

import contextlib
import random

import pytest
import trio

from actgent import Approve, BareAgent, Priority, Reject, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.errors import ActgentError, JournalFailed, NotAuthorized
from actgent.journal.record_types import (
    AgentMessageRecord,
    CallFinishedRecord,
    FailureRecord,
    MessageEndRecord,
    OutcomeRecord,
)
from actgent.testing import CrashingJournal, FaultyJournal

MESSAGES = ("m0", "m1", "m2", "m3")


class Notified:
    """Everything that handlers and callers got, in the order in which they got it."""

    def __init__(self):
        self.items = []

    def reply(self, reply):
        self.items.append((reply.id, "reply", reply.text))

    def failure(self, failure):
        if failure.kind != "handler":
            self.items.append((failure.id, "open" if failure.may_continue else "failure", failure.kind))

    def result(self, result):
        self.items.append((result.id, "result", f"{result.status} {result.content or result.error}"))

    def of_kind(self, kind):
        return [(known, said) for known, each, said in self.items if each == kind]


def make_agent(rng, notified, asked):
    """Return an agent whose model answers late, calls tools, or fails. It records the message of each model call."""

    @tool(effect="idempotent")
    async def store(order: str) -> str:
        """Store an order."""
        await trio.sleep(rng.choice([0, 0.1, 2]))
        return f"stored {order} {rng.random()}"

    @tool(approval=True)
    async def pay(order: str) -> str:
        """Pay an order."""
        return f"paid {order}"

    async def answer(chat):
        last = [message for message in chat.messages if message.role == "user"][-1]
        text = last.parts[-1].text
        asked.append(text)
        await trio.sleep(rng.choice([0, 0.1, 1, 3]))
        choice = rng.random()
        if choice < 0.2:
            raise NotAuthorized("401") if choice < 0.1 else ValueError("a bug")
        if chat.messages[-1].role != "tool" and choice < 0.6:
            calls = [ToolCall("store", {"order": "a"}), ToolCall("store", {"order": "b"})]
            return calls[: rng.randint(1, 2)] if choice < 0.5 else [*calls, ToolCall("pay", {"order": "a"})]
        return f"re: {text} {rng.random()}"

    agent = BareAgent("clerk", llm=ScriptedLLM(answer, keep=0), tools=[store, pay], grace=0)

    @agent.on_session
    def attach(session):
        session.on_conversation(notified.reply)
        session.on_exception(notified.failure)
        session.on_tool_result(notified.result)

    return agent


async def act(rng, session, notified):
    """Run one caller, which sends, asks, stops and decides."""
    for _ in range(rng.randint(2, 4)):
        await trio.sleep(rng.choice([0, 0, 0.05, 0.5, 2]))
        message_id = rng.choice(MESSAGES)
        with contextlib.suppress(ActgentError), trio.move_on_after(rng.choice([0.3, 5, 20])):
            match rng.randrange(8):
                case 0 | 1 | 2:
                    await session.chat(message_id, message_id=message_id, priority=rng.choice(list(Priority)))
                case 3:
                    await session.chat(message_id, message_id=message_id, on_busy="interrupt")
                case 4:
                    await session.interrupt(drop_queued=rng.random() < 0.5)
                case 5:
                    await session.interrupt(message_id=message_id)
                case 6:
                    for approval in session.approvals[:1]:
                        await session.answer(approval, rng.choice([Approve(), Reject("no")]))
                case 7:
                    await session.wait_idle()


def faults_of(rng):
    """How the disk works in one life: well, slowly, or with some writes that fail."""
    kind = rng.randrange(4)
    delay = rng.choice([0.01, 0.2, 1])
    failing = {rng.randint(3, 25) for _ in range(rng.randint(1, 3))}

    async def fault(number):
        if kind in (1, 3):
            await trio.sleep(delay)
        if kind >= 2 and number in failing:
            raise JournalFailed("no disk")

    return fault


async def live(rng, journal, notified, asked, seconds):
    """One life of the process: callers that act side by side, until the block is left or the process dies."""
    with trio.move_on_after(seconds + 100) as limit:
        async with trio.open_nursery() as nursery:
            if isinstance(journal, CrashingJournal):

                async def die():
                    await journal.died.wait()
                    limit.cancel()

                nursery.start_soon(die)
            async with open_runtime(journal=journal) as runtime:
                clerk = await runtime.start(make_agent(rng, notified, asked))
                session = None
                while session is None:
                    with contextlib.suppress(JournalFailed):
                        session = await clerk.ensure_session("ada", "s")
                with trio.move_on_after(seconds):
                    async with trio.open_nursery() as callers:
                        for _ in range(2):
                            callers.start_soon(act, rng, session, notified)
            nursery.cancel_scope.cancel()


def written(records):
    """Return the outcomes in the journal: replies and results by id, failures by message."""
    found = {}
    for record in records:
        match record:
            case AgentMessageRecord(message=message):
                found[message.id] = message.text
                found.update(
                    {each.id: f"{each.status} {each.content or each.error}" for each in message.tool_results}
                )
            case CallFinishedRecord(result=result):
                found[result.id] = f"{result.status} {result.content or result.error}"
            case OutcomeRecord(id=known, text=text):
                found[known] = text
            case (
                FailureRecord(message_id=message_id, kind=kind)
                | MessageEndRecord(message_id=message_id, failed=str(kind))
            ):
                if kind not in ("refused", "journal"):  # such a message may come again
                    found[f"{message_id}/failure"] = kind
    return found


@pytest.mark.parametrize("seed", range(60))
async def test_notified_outcomes_are_durable(seed, autojump_clock):
    """With two callers, a faulty disk, and a crash or stop: the journal has each notified outcome, and no later process changes it."""
    rng = random.Random(seed)
    notified, requests = Notified(), []
    async with FaultyJournal(faults_of(rng)).running() as journal:
        dying = CrashingJournal(journal, rng.randint(2, 25)) if rng.random() < 0.6 else journal
        await live(rng, dying, notified, requests, rng.choice([1, 5, 30]))
        stored = journal.read_blocking("s", agent="clerk", limit=100_000)  # without what waits to be written
        first, requests[:] = list(notified.items), []
        journal.fault = None
        if dying is not journal:  # a process that stops may still have what it could not write
            has = written(stored)
            for known, kind, said in first:
                if kind != "open":
                    assert has.get(known) == said, (known, kind, said)
        await live(rng, journal, notified, requests, 60)
        async with open_runtime(journal=journal) as runtime:
            clerk = await runtime.start(make_agent(rng, notified, requests))
            session = await clerk.ensure_session("ada", "s")
            with trio.move_on_after(300):
                await session.wait_idle()
    outcomes = {}
    for known, _, said in notified.items:
        outcomes.setdefault(known, set()).add(said)
    assert {known: said for known, said in outcomes.items() if len(said) > 1} == {}
    failed = {known.removesuffix("/failure") for known, kind, _ in first if kind == "failure"}
    answered = {
        said.split()[1]
        for _, said in notified.of_kind("reply")[len([1 for each in first if each[1] == "reply"]) :]
    }
    assert not failed & answered
    assert not failed & set(requests)
