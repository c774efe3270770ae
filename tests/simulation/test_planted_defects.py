"""A planted defect for each built-in invariant: the simulation finds it within few seeds, and no other invariant does."""

import itertools
from collections.abc import Callable
from pathlib import Path

import attrs
import outcome
import pytest
import trio

import actgent
from actgent.agents.session import Session
from actgent.errors import UsageError
from actgent.journal.group_commit import base_journal_with_group_commit
from actgent.journal.group_commit.base_journal_with_group_commit import GroupedJournal
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import (
    AgentMessageRecord,
    CancellationRecord,
    MessageAcceptedRecord,
    MessageEndRecord,
    ScheduleFiredRecord,
    SessionClosedRecord,
)
from actgent.messages import ToolResult
from actgent.runtime import timer_handlers
from actgent.runtime.runtime import Runtime
from actgent.runtime.sessions import session_opener
from actgent.runtime.turn_runner import TurnRunner
from actgent.sessions.pending.approval_ledger import ApprovalLedger
from actgent.simulation import Settings, play
from actgent.simulation.fault_and_workload_plan import FAULTS
from actgent.tools.tool_execution import Batch
from actgent.tools.tool_interface import ToolContext
from actgent.turns import agent_core

from .planted_faults import PLANTED_FAULTS, changed_sources
from .programs import CLERK, PLAIN, WORKSHOP

ONCE = """
from actgent import BareAgent, tool


@tool(effect="once")
async def refund(order: str) -> str:
    \"\"\"Refund an order.\"\"\"
    return "refunded"


clerk = BareAgent("clerk", llm="openai:gpt-5.2", tools=[refund])
"""
SIGNED = ONCE.replace('"once"', '"once", approval=True')
TOLD = " received a result of "
"""Part of the sentence about a result that handlers received and the journal does not have."""
STORED = " was observed before the journal had it"
"""Part of the sentence about something that was observed before its record was stored."""
MAX_SEEDS = 120
"""Maximum number of seeds until a defect is found."""


def rewrite_records(monkeypatch, change):
    """Replace each record that is written by the records that `change(record)` returns."""
    encode = base_journal_with_group_commit.encode_entry

    def encode_changed(entry):
        records = tuple(itertools.chain.from_iterable(map(change, entry.records)))
        return encode(attrs.evolve(entry, records=records))

    monkeypatch.setattr(base_journal_with_group_commit, "encode_entry", encode_changed)


def change_results(old, new):
    """Return a function that plants a defect: tool results of one status are written with another status."""

    def change_part(part):
        is_changed = isinstance(part, ToolResult) and part.status == old
        return attrs.evolve(part, status=new) if is_changed else part

    def change_record(record):
        if not isinstance(record, AgentMessageRecord):
            return [record]
        parts = tuple(map(change_part, record.message.parts))
        return [attrs.evolve(record, message=attrs.evolve(record.message, parts=parts))]

    return lambda patch: rewrite_records(patch, change_record)


def rewrite_reading(monkeypatch, change):
    """Replace the records that a session is loaded with by `await change(load, session_id, agent)`."""
    load = GroupedJournal.load

    async def load_changed(self, session_id, *, agent=None):
        async def load_one(each):
            return await load(self, each, agent=agent)

        return await change(load_one, session_id)

    monkeypatch.setattr(GroupedJournal, "load", load_changed)


# --- the defects -----------------------------------------------------------------------------


def end_messages_twice(monkeypatch):
    rewrite_records(monkeypatch, lambda record: [record] * (1 + isinstance(record, MessageEndRecord)))


def mix_sessions(monkeypatch):
    async def load_both(load, session_id):
        found = await load(session_id)
        return (*await load("s0"), *found) if session_id == "s1" else found

    rewrite_reading(monkeypatch, load_both)


def forget_failures(monkeypatch):
    def change(record):
        is_failure = isinstance(record, MessageEndRecord) and record.failed
        return [attrs.evolve(record, failed=None, error="", error_text="") if is_failure else record]

    rewrite_records(monkeypatch, change)


def reverse_messages(monkeypatch):
    async def load_reversed(load, session_id):
        found = list(await load(session_id))
        places = [n for n, record in enumerate(found) if isinstance(record, MessageAcceptedRecord)]
        accepted = [found[place] for place in reversed(places)]
        for place, record in zip(places, accepted, strict=True):
            found[place] = record
        return tuple(found)

    rewrite_reading(monkeypatch, load_reversed)


def write_results_twice(monkeypatch):
    def change(record):
        return [record] * (1 + (isinstance(record, AgentMessageRecord) and bool(record.message.tool_results)))

    rewrite_records(monkeypatch, change)


def repeat_once_calls(monkeypatch):
    set_result = Batch.set_result

    def forget_unknown(self, index, result):
        if result is not None:
            set_result(self, index, result)

    monkeypatch.setattr(Batch, "set_result", forget_unknown)


def change_effect_keys(monkeypatch):
    numbers = itertools.count()
    monkeypatch.setattr(ToolContext, "idempotency_key", property(lambda _: f"key {next(numbers)}"))


def confirm_nothing(monkeypatch):
    async def write_nothing(self, rows, heads, epoch):
        pass

    monkeypatch.setattr(MemoryJournal, "_write", write_nothing)


def drop_ends_of_sessions(monkeypatch):
    rewrite_records(monkeypatch, lambda record: [] if isinstance(record, SessionClosedRecord) else [record])


def forget_stops(monkeypatch):
    rewrite_records(monkeypatch, lambda record: [] if isinstance(record, CancellationRecord) else [record])


def decide_at_once(monkeypatch):
    async def wait_written(self, approval_id):
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(ApprovalLedger, "wait_written", wait_written)


def forget_decisions_being_written(monkeypatch):
    monkeypatch.setattr(ApprovalLedger, "is_deciding", False)


def fire_schedules_being_set(monkeypatch):
    async def is_set(context, timer):
        return True

    monkeypatch.setattr(timer_handlers, "is_set", is_set)


def answer_before_the_write(monkeypatch):
    async def write_nothing(turn, log, deliveries, *, is_watched):
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(agent_core, "_write_answer", write_nothing)


def erase_parents_first(monkeypatch):
    erase = Runtime._erase

    async def find_no_children(_journal, _keys):
        return []

    async def erase_before_children(self, journal, key):
        below = [each.key for each in await journal.children_of([key])]
        with monkeypatch.context() as patch:
            patch.setattr(type(journal), "children_of", find_no_children)
            await erase(self, journal, key)
        return below

    monkeypatch.setattr(Runtime, "_erase", erase_before_children)


def forget_firings(monkeypatch):
    rewrite_records(monkeypatch, lambda record: [] if isinstance(record, ScheduleFiredRecord) else [record])


def forget_suspension(monkeypatch):
    monkeypatch.setattr(TurnRunner, "record_suspended_again", lambda *_: None)


def keep_failed_decisions(monkeypatch):
    monkeypatch.setattr(ApprovalLedger, "undo", lambda *_: None)


def resume_nothing(monkeypatch):
    async def find_nothing(self, agents):
        return [outcome.Value([]) for _ in agents]

    monkeypatch.setattr(MemoryJournal, "_list_unfinished_of", find_nothing)


def close_restored_children(monkeypatch):
    async def is_orphan(*_):
        return True

    monkeypatch.setattr(session_opener, "is_orphan", is_orphan)


def refuse_interrupts(monkeypatch):
    async def interrupt(self, **_):
        raise UsageError("no interrupts")

    monkeypatch.setattr(Session, "interrupt", interrupt)


@attrs.frozen
class Defect:
    """A defect, and the sentences with which the simulation reports it."""

    plant: Callable[[pytest.MonkeyPatch], object]
    words: tuple[str, ...]
    """Parts of the sentences of one invariant, or of two invariants that cannot be broken separately."""
    program: str = CLERK
    faults: frozenset[str] = frozenset(FAULTS)


KILL = frozenset(["kill"])
DEFECTS = {
    "two ends": Defect(end_messages_twice, (" has the records accepted ",)),
    "mixed sessions": Defect(mix_sessions, (" of s0 is in s1", "s1: its "), PLAIN, frozenset()),
    "forgotten failure": Defect(forget_failures, (" was reported as failed (",), PLAIN),
    "reversed messages": Defect(
        reverse_messages, (", but comes after it in the journal", STORED), PLAIN, frozenset()
    ),
    "two results": Defect(write_results_twice, (" has 2 results",), ONCE),
    "repeated once": Defect(repeat_once_calls, (" once, but began ", " took effect "), ONCE, KILL),
    "new effect keys": Defect(change_effect_keys, (" idempotency keys",)),
    "error called success": Defect(change_results("error", "success"), (" took no effect", TOLD), ONCE),
    "unknown called cancelled": Defect(
        change_results("outcome_unknown", "cancelled"),
        (" is reported as cancelled, but began", TOLD),
        ONCE,
        KILL,
    ),
    "success called error": Defect(
        change_results("success", "error"), (" outcomes of call ", TOLD), ONCE, KILL
    ),
    "session left open": Defect(
        drop_ends_of_sessions,
        (" returned, but the session is open in the journal", ", but did not complete in it", STORED),
        PLAIN,
        frozenset(["close", "kill"]),
    ),
    "stop forgotten by a crash": Defect(
        forget_stops, (", but a model answered it later", STORED), PLAIN, frozenset(["interrupt", "kill"])
    ),
    "two decisions": Defect(
        decide_at_once,
        (" has the decisions ", " decisions of the approval ", " was rejected, but it began"),
        SIGNED,
        frozenset(),
    ),
    "idle during a decision": Defect(
        forget_decisions_being_written,
        (" returned while its approvals were being decided",),
        SIGNED,
        frozenset(["kill"]),
    ),
    "schedule fires before it is set": Defect(
        fire_schedules_being_set,
        (" was not set, but sent a message to ", ": its timers in memory is "),
        PLAIN,
        frozenset(["schedule", "journal"]),
    ),
    "reply before its record": Defect(
        answer_before_the_write, (STORED, " received the reply "), PLAIN, frozenset()
    ),
    "parent erased before its children": Defect(
        erase_parents_first,
        ("a crash now would leave ", " without its parent "),
        WORKSHOP,
        frozenset(["erase", "task"]),
    ),
    "memory differs from the journal": Defect(
        forget_firings, (" in memory is ", " messages in "), PLAIN, frozenset(["schedule"])
    ),
    "suspension forgotten by a refused message": Defect(
        forget_suspension,
        (" is suspended, but its summary is not", " suspended turn in memory is "),
        SIGNED,
        frozenset(["priority", "cancel", "kill"]),
    ),
    "decision taken although its write failed": Defect(
        keep_failed_decisions,
        ("a decision is being written, but no write is in progress",),
        SIGNED,
        frozenset(["journal"]),
    ),
    "work is not resumed": Defect(
        resume_nothing,
        (" has unfinished work in the journal, but it is not in memory",),
        PLAIN,
        frozenset(["kill"]),
    ),
    "children closed by a restart": Defect(
        close_restored_children, (" is closed, but no caller closed it",), CLERK, KILL
    ),
    "unexpected error of a call": Defect(
        refuse_interrupts, (" raised UsageError(",), PLAIN, frozenset(["interrupt"])
    ),
    "nothing written": Defect(
        confirm_nothing, (", but the journal does not have ", STORED), PLAIN, frozenset()
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_planted_defect_is_found_by_its_invariant_only(tmp_path, monkeypatch, name):
    """Some seed fails for this reason only. The same seed has no problem without the defect."""
    defect = DEFECTS[name]
    settings = Settings(program=tmp_path / "app.py", faults=defect.faults)
    settings.program.write_text(defect.program, encoding="utf-8")

    def is_found(seed):
        problems = play(seed, settings).problems
        return bool(problems) and all(any(words in each for words in defect.words) for each in problems)

    with monkeypatch.context() as patch:
        defect.plant(patch)
        found = next(filter(is_found, range(MAX_SEEDS)), None)
    assert found is not None
    assert not play(found, settings).problems


@pytest.mark.parametrize("name", PLANTED_FAULTS)
def test_planted_fault_fits_the_source(name):
    """Each text that a fault replaces occurs once in its module, and the changed module compiles."""
    changed = changed_sources(PLANTED_FAULTS[name], Path(actgent.__file__).parent)
    for path, source in changed.items():
        compile(source, str(path), "exec")
        assert source != path.read_text(encoding="utf-8")
