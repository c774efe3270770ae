"""How a fork begins: open, working for nobody, and paid from the budget of its original."""

from actgent import Sender
from actgent.journal.records import (
    Accepted,
    AccountKey,
    Answered,
    Closed,
    Due,
    Ended,
    Opened,
    Scheduled,
    Spent,
)
from actgent.journal.transfer import ExportedSession, forked
from actgent.messages import Message

ABOVE = AccountKey(session_id="p", agent="lead")


def session(session_id="s", **opened):
    message = Message(id="m", session_id=session_id, sender=Sender("ada"), parts="hello")
    records = (
        Opened(owner=Sender("ada"), created_at=1.0, **opened),
        Accepted(message=message),
        Scheduled(schedule_id="x", description="x", at=5.0),
        Due(at=5.0),
        Spent(model_calls=2),
        Spent(turn="m", model_calls=2),
        Answered(message_id="m", text="hi"),
        Ended(message_id="m"),
        Closed(),
    )
    return ExportedSession(session_id, "clerk", records)


def test_a_fork_spends_from_its_original_and_from_those_above():
    """It has no budget of its own; what the original spent stays with the original, and a fork of it spends there, too."""
    fork = forked(session(limits={"model_calls": 5.0}, within=(ABOVE,)), "f", "clerk")
    payers = (AccountKey(session_id="s", agent="clerk"), ABOVE)
    assert (fork.records[0].limits, fork.records[0].within) == ({}, payers)
    assert [record for record in fork.records if isinstance(record, Spent)] == [
        Spent(turn="m", model_calls=2)
    ]
    assert forked(fork, "g", "other").records[0].within == payers
    assert forked(session(), "f", "clerk").records[0].within == ()


def test_a_fork_is_open_and_works_for_nobody():
    """Not for the session that asked its original, and not at the times at which that one is to be told something."""
    fork = forked(
        session(parent_id="p", parent_agent="lead", transient=True, reports=True, system="Be kind."),
        "f",
        "other",
    )
    opened, accepted, spent, ended = fork.records
    assert opened == Opened(owner=Sender("ada"), created_at=1.0, system="Be kind.")
    assert (fork.session_id, fork.agent, accepted.message.session_id) == ("f", "other", "f")
    assert (type(spent), type(ended)) == (Spent, Ended)
