"""The first state of a fork: open, without a parent, and with the budget of its original."""

from actgent import Sender
from actgent.journal.record_types import (
    AccountKey,
    MessageAcceptedRecord,
    MessageEndRecord,
    NextTimerRecord,
    ScheduleRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    TaskOutcomeRecord,
    UsageRecord,
)
from actgent.journal.session_export_and_fork import ExportedSession, build_fork
from actgent.messages import Message

ABOVE = AccountKey(session_id="p", agent="lead")


def session(session_id="s", **opened):
    message = Message(id="m", session_id=session_id, sender=Sender("ada"), parts="hello")
    records = (
        SessionCreatedRecord(owner=Sender("ada"), created_at=1.0, **opened),
        MessageAcceptedRecord(message=message),
        ScheduleRecord(schedule_id="x", description="x", at=5.0),
        NextTimerRecord(at=5.0),
        UsageRecord(model_calls=2),
        UsageRecord(turn="m", model_calls=2),
        TaskOutcomeRecord(message_id="m", text="hi"),
        MessageEndRecord(message_id="m"),
        SessionClosedRecord(),
    )
    return ExportedSession(session_id, "clerk", records)


def test_fork_spends_the_budget_of_its_original_and_its_ancestors():
    """A fork has no separate budget. The spending of the original stays with the original, and a fork of the fork spends there too."""
    fork = build_fork(session(limits={"model_calls": 5.0}, within=(ABOVE,)), "f", "clerk")
    payers = (AccountKey(session_id="s", agent="clerk"), ABOVE)
    assert (fork.records[0].limits, fork.records[0].within) == ({}, payers)
    assert [record for record in fork.records if isinstance(record, UsageRecord)] == [
        UsageRecord(turn="m", model_calls=2)
    ]
    assert build_fork(fork, "g", "other").records[0].within == payers
    assert build_fork(session(), "f", "clerk").records[0].within == ()


def test_a_fork_is_open_and_has_no_parent():
    """It reports to no session and has no schedules of the original."""
    fork = build_fork(
        session(parent_id="p", parent_agent="lead", transient=True, reports=True, system="Be kind."),
        "f",
        "other",
    )
    opened, accepted, spent, ended = fork.records
    assert opened == SessionCreatedRecord(owner=Sender("ada"), created_at=1.0, system="Be kind.")
    assert (fork.session_id, fork.agent, accepted.message.session_id) == ("f", "other", "f")
    assert (type(spent), type(ended)) == (UsageRecord, MessageEndRecord)
