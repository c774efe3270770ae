"""A session opened from a snapshot equals the session built from all its records, byte for byte.

A real runtime records random sessions with tools, approvals, schedules, delegated tasks, state, modes, notices, system prompts,
and collected, repeated and failed messages. Each moment between two turns gives a snapshot that is made from the one before. The
session is rebuilt from it up to later moments, and no value may differ.
"""

import functools
import random
import sys
from pathlib import Path

import attrs
import pytest
import trio

from actgent import (
    ApprovalAlreadyDecided,
    Approve,
    BareAgent,
    Edit,
    Label,
    Limits,
    Mode,
    Modes,
    Reject,
    Respond,
    ScriptedLLM,
    Sender,
    ShortTermMemory,
    ToolCall,
    open_runtime,
    tool,
)
from actgent.agents.session import internal_context
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import (
    ActionFailureRecord,
    AgentMessageRecord,
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    ScheduleFiredRecord,
    ScheduleRecord,
    ScheduleRemovedRecord,
    SessionCreatedRecord,
    SourceLiftRecord,
    StateChangeRecord,
    StateRollbackRecord,
    SystemPromptRecord,
    UsageRecord,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.sessions.conversation import SessionConversation
from actgent.sessions.restore import snapshotter
from actgent.sessions.restore.session_loader import (
    LoadedSession,
    decode_with_view,
    load_session,
    restore_loaded,
)
from actgent.sessions.restore.snapshotter import SnapshotBuilder
from actgent.sessions.session_context import SessionContext
from actgent.state.reducers import append

KEY = SessionKey("clerk", "s")
OTHERS = 12
"""Later moments that are looked at from each snapshot."""


@tool(effect="idempotent")
async def look(what: str) -> str:
    """Look at something."""
    return f"seen {what}" * random.Random(what).choice((1, 40))


@tool(exclusive=True)
async def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


@tool(approval=True)
async def buy(what: str) -> str:
    """Buy something."""
    return f"bought {what}"


def answers(dice):
    """Return the model's answer, drawn for each call."""

    def answer(chat):
        last = chat.messages[-1]
        kind = dice.random()
        if last.role == "tool" and kind < 0.5:
            return f"done {dice.randint(0, 9)}"
        if kind < 0.2:
            return [ToolCall("look", {"what": str(dice.randint(0, 99))}) for _ in range(dice.randint(1, 3))]
        if kind < 0.3:
            return [ToolCall("look", {"what": "x"}, "the same id"), ToolCall("fail", {"why": "because"})]
        if kind < 0.4:
            return [ToolCall("buy", {"what": str(dice.randint(0, 99))})]
        if kind < 0.5:
            return ""
        return f"answer {dice.randint(0, 999)} " * dice.choice((1, 1, 30))

    return answer


async def decide(session, dice):
    """Decide open approvals until none is left."""
    while session.approvals:
        for approval in session.approvals:
            decision = dice.choice(
                [Approve("yes"), Reject("no"), Edit({"what": "less"}), Respond("never mind")]
            )
            try:
                await session.answer(approval, decision)
            except ApprovalAlreadyDecided:
                continue
        await session.wait_idle()


async def act(session, dice, number):  # noqa: C901, PLR0912 - a table
    """Something that may happen in a session."""
    state = session.state
    match dice.randint(0, 15):
        case 0:
            state.dispatch(("key", {"number": number, "list": [1, (2, 3)]}))
        case 1:
            state.dispatch([("log", [number]), ("n", number)], once=f"once {dice.randint(0, 3)}")
        case 2 if state.number:
            state.rollback(dice.choice(list(state.known)))
        case 3:
            with pytest.raises(ZeroDivisionError):
                state.dispatch(lambda _: 1 / 0)
        case 4:
            await session.schedule(
                f"later {number}",
                after=dice.choice((0.01, 3600)),
                key=f"k{number % 5}",
                metadata={"number": number} if number % 2 else None,
            )
        case 5 if session.schedules:
            await session.unschedule(session.schedules[0].id)
        case 6:
            internal_context(session).set_system(f"You are number {number}.")
        case 7:
            await session.set_mode(dice.choice(("draft", "final")), by="admin", reason="a test", force=True)
        case 8:
            await session.delegate("helper", f"task {number}")
        case 9:
            for _ in range(3):
                await session.chat(f"together {number}", on_busy="collect")
        case 11:
            await session.chat("a mail", label=Label({f"mail{number % 3}"}))
        case 12 if session.label.sources:
            await session.lift(min(session.label.sources), by="ada", reason="a test")
        case 10:
            await session.chat("once", message_id=f"again {number % 3}")
        case _:
            sender = dice.choice([None, Sender("bob"), Sender("clerk", "agent"), Sender("sys", "system")])
            await session.chat(f"say {number} " * dice.choice((1, 1, 50)), sender=sender)
    if dice.random() < 0.8:
        await trio.sleep(1)  # of a clock that jumps
        await session.wait_idle()
        await decide(session, dice)


async def live(seed, memory, redact=None):
    """The records of a random life."""
    dice = random.Random(seed)
    clerk = BareAgent(
        "clerk",
        llm=ScriptedLLM(answers(dice), keep=0),
        tools=[look, fail, buy],
        memory=memory,
        modes=Modes(
            Mode("draft", [look, fail, buy]),
            Mode("final", [look, buy]),
            universal=[look, fail, buy],
            initial="draft",
        ),
        reducers={"log": append},
        limits=Limits(model_calls=6),
    )
    helper = BareAgent("helper", llm=ScriptedLLM(lambda _: "helped", keep=0))
    async with MemoryJournal().running() as journal, open_runtime(journal=journal, redact=redact) as runtime:
        await runtime.start(helper)
        await runtime.start(clerk)
        session = await clerk.create_session("ada", session_id="s", limits=Limits(tokens=10**9))
        for number in range(25):
            await act(session, dice, number)
        await session.wait_idle()
        await decide(session, dice)
        return await journal.load("s", agent="clerk")


def context_for(memory):
    return SessionContext("s", Sender("nobody"), SessionConversation(memory.open_view()), "clerk")


def plain(value):
    """The fields of an object, by name."""
    return None if value is None else {name: getattr(value, name) for name in attrs.fields_dict(type(value))}


def facts(context, restored):
    """All that opening makes of a session."""
    conversation, ledger = context.conversation, context.approvals
    state = context.state
    view = plain(conversation.current_view())
    view["_notices"] = list((view["_notices"] or {}).items())
    return {
        "messages": list(conversation.messages),
        "usage": conversation.usage,
        "system": conversation.system,
        "notices": list(conversation.notices.items()),
        "calls": conversation.all_call_ids(),
        "view": view,
        "shown": list(conversation.current_view().messages()),
        "accepted": context.accepted_ids,
        "acceptances": [
            (each.message, each.options, each.baggage) for each in (context.acceptances or {}).values()
        ],
        "unkept": plain(context.unwritten_turn)
        and {**plain(context.unwritten_turn), "progress": plain(context.unwritten_turn.progress)},
        "state": (dict(state), state.number, state.known, state.history, list(state._once or ())),
        "states": [dict(state.replay(number)) for number in state.known],
        "approvals": plain(ledger),
        "decisions": None if ledger is None else list(ledger.decisions.items()),
        "timers": [plain(timer) for timer in context.timers.values()],
        "schedules": list(context.schedules.scheduled.items()),
        "resume": plain(context.checkpoint)
        and {**plain(context.checkpoint), "progress": plain(context.checkpoint.progress)},
        "restored": attrs.evolve(restored, waiting=(), bounded=()),
        "waiting": restored.waiting,
        "bounded": restored.bounded,
    }


async def made_of(records, memory, journal, snapshot=None):
    context = context_for(memory)
    restored = await restore_loaded(LoadedSession(records, snapshot), context, journal)
    return facts(context, restored)


async def fill(journal, records):
    """A journal that has these records, some to a step."""
    epoch, dice, at = await journal.acquire(), random.Random(0), 0
    while at < len(records):
        count = dice.randint(1, 5)
        await journal.commit(
            Entry(session_id="s", agent="clerk", records=records[at : at + count]), epoch=epoch
        )
        at += count
    return epoch


SEEN = set()
"""The kinds of records that the lives had."""


@pytest.mark.parametrize("seed", range(8))
async def test_state_is_the_same_from_each_snapshot(seed, monkeypatch, autojump_clock):
    """Snapshots are made from each other. Marks are few messages apart, and one of two memories cuts soon."""
    monkeypatch.setattr(snapshotter, "MARK_MESSAGES", 4)
    memory = ShortTermMemory(max_tokens=300 if seed % 2 else 180_000)
    redact = (lambda text: text.replace("9", "*")) if seed % 4 == 3 else None
    records = await live(seed, memory, redact)
    SEEN.update(map(type, records))
    dice = random.Random(seed)
    whole = {at: await made_of(records[:at], memory, None) for at in range(1, len(records) + 1)}
    snapshots = 0
    async with MemoryJournal().running() as journal:
        epoch = await fill(journal, records)
        while True:
            kept = await journal.find_snapshot("s", agent="clerk")
            after = 0 if kept is None else kept.records
            made = await SnapshotBuilder(journal, KEY, memory).make(
                slack=len(records) - after - 1, epoch=epoch
            )
            if not made:
                break
            snapshots += 1
            kept = await journal.find_snapshot("s", agent="clerk")
            assert kept.records > after
            later = range(kept.records, len(records) + 1)
            for at in {kept.records, len(records), *dice.sample(later, min(OTHERS, len(later)))}:
                snapshot = await decode_with_view(kept, memory)
                found = await made_of(records[kept.records : at], memory, journal, snapshot)
                assert found.keys() == whole[at].keys()
                for name, value in found.items():
                    assert value == whole[at][name], (name, kept.records, at)
    assert snapshots >= 5


def test_recorded_sessions_contain_each_part_of_a_snapshot():
    """This test runs after the others."""
    expected = {
        SessionCreatedRecord,
        MessageAcceptedRecord,
        MessageAppendedRecord,
        AgentMessageRecord,
        MessageEndRecord,
        StateChangeRecord,
        ActionFailureRecord,
        StateRollbackRecord,
        ApprovalRequestRecord,
        ApprovalDecisionRecord,
    }
    assert (
        expected
        | {
            ScheduleRecord,
            ScheduleFiredRecord,
            ScheduleRemovedRecord,
            SystemPromptRecord,
            SourceLiftRecord,
            UsageRecord,
        }
        <= SEEN
    )


LIVES = Path(__file__).with_name("snapshot_lives.py")
KILLED = -9
WRITES = range(7, 130, 29)
"""Of which write of its life the process dies; the later ones are not reached by all."""


async def test_sessions_are_restored_exactly_after_kills(shared_url, process_server):
    """Before and after any write of records or snapshots, both ways of opening return the same session."""
    confirmed, covered, memory = [], set(), ShortTermMemory()
    for write in WRITES:
        command = [sys.executable, str(LIVES), shared_url, "25", str(write)]
        done = await trio.to_thread.run_sync(
            functools.partial(process_server.run, command, capture_output=True, text=True, timeout=60)
        )
        assert done.returncode in (0, KILLED), done.stderr[-2000:]
        confirmed += done.stdout.split()
        async with open_journal(shared_url) as journal:
            await journal.acquire()
            records = await journal.load("s", agent="clerk")
            loaded = await load_session(journal, KEY, memory, lookback=0)
            whole = await made_of(records, memory, journal)
            assert await made_of(loaded.records, memory, journal, loaded.snapshot) == whole
            covered.add(0 if loaded.snapshot is None else loaded.snapshot.records)
            assert set(confirmed) <= {
                record.message.id for record in records if isinstance(record, MessageAcceptedRecord)
            }
    assert len(covered) > 1
