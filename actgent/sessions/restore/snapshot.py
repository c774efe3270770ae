"""A session as its records made it up to one of them, as bytes: what opening it goes on from.

Taken between two turns, so nothing that belongs to a turn is in it; made by `Reader` from records alone, and put into
one again. It has to hold all that `Reader` does to a context: a field that is forgotten here is a session that opens as
another one, and the tests compare all of it. Whoever changes what is done to a context raises `VERSION`.
"""

import zlib
from collections.abc import Mapping

import attrs

from actgent.approvals import Decision
from actgent.control.budget import NOTHING, Amounts
from actgent.errors import WireError
from actgent.journal.base import Snapshot
from actgent.journal.records import (
    DECISION_TAGS,
    Accepted,
    ActionFailed,
    Changed,
    Decided,
    Failed,
    Opened,
)
from actgent.memory.base import ModelView
from actgent.messages import MEDIA_TAGS, NO_USAGE, PART_TAGS, Medium, Message, Part, Usage
from actgent.sessions.context import SessionContext
from actgent.sessions.conversation import EarlierMessages, RecordedMessages
from actgent.sessions.waiting.schedules import SavedSchedules, bring_schedules_back, save_schedules
from actgent.state.store import SavedStore
from actgent.support.wire import Wire

from .reader import Reader

VERSION = 1
RECENT = 32
"""Messages that a snapshot holds, the newest: what protocols may look back at without a look into the journal."""


@attrs.frozen(kw_only=True)
class Mark:
    """A moment between two turns in which nothing waited: the messages behind it are made of the records behind it."""

    messages: int
    records: int


BEGINNING = Mark(messages=0, records=0)


@attrs.frozen(kw_only=True)
class SessionSnapshot:
    """What `Reader` has made of a session between two turns."""

    opened: Opened
    view: bytes
    messages: int
    """The number that there are."""
    recent: tuple[Message, ...]
    """The last of them."""
    marks: tuple[Mark, ...]
    usage: Usage = NO_USAGE
    system: str | None = None
    notices: Mapping[str, str]
    call_ids: bytes
    accepted: tuple[str, ...]
    waiting: tuple[Accepted, ...]
    failed: tuple[Failed, ...] = ()
    unwanted: Mapping[str, str] = attrs.field(factory=dict)
    spent: Amounts = NOTHING
    due: float = 0.0
    has_ledger: bool = False
    decided: tuple[Decided, ...]
    schedules: SavedSchedules
    state: SavedStore | None = None
    description: str = ""
    origin: str = ""


_WIRE = Wire(
    {
        Medium: MEDIA_TAGS,
        Part: PART_TAGS,
        Decision: DECISION_TAGS,
        Changed | ActionFailed: {"changed": Changed, "action_failed": ActionFailed},
        SessionSnapshot: {"session": SessionSnapshot},
    }
)


def encode_snapshot(taken: SessionSnapshot, records: int) -> Snapshot:
    """A snapshot of so many records as a journal keeps it.

    Raises:
        NotSerializable: it holds what is no plain data.
    """
    body = zlib.compress(_WIRE.encode([taken], SessionSnapshot), 1)
    return Snapshot(records=records, version=VERSION, body=body)


def decode_snapshot(kept: Snapshot | None) -> SessionSnapshot | None:
    """Return what was encoded; None where that is not known to this version."""
    if kept is None or kept.version != VERSION:
        return None
    try:
        taken: SessionSnapshot = _WIRE.decode(zlib.decompress(kept.body), SessionSnapshot)[0]
    except (WireError, zlib.error, IndexError):
        return None
    return taken


def take(reader: Reader, opened: Opened, marks: tuple[Mark, ...]) -> SessionSnapshot | None:
    """Return what a reader between two turns has made; None where its view can only be made from all messages."""
    context, conversation = reader.context, reader.context.conversation
    view, ledger = conversation.view.save(), context.approvals
    if view is None:
        return None
    return SessionSnapshot(
        opened=opened,
        view=view,
        messages=len(conversation.messages),
        recent=tuple(conversation.messages[-RECENT:]),
        marks=marks,
        usage=conversation.usage,
        system=conversation.system,
        notices=conversation.notices,
        call_ids=conversation.all_call_ids(),
        accepted=context.mail.accepted_ids,
        waiting=reader.accepted,
        failed=tuple(reader.failed.values()),
        unwanted=context.mail.unwanted or {},
        spent=reader.spent,
        due=reader.due,
        has_ledger=ledger is not None,
        decided=() if ledger is None else _decided(ledger.decisions),
        schedules=save_schedules(context) if context.has_timers else SavedSchedules(),
        state=context.state.save() if context.has_state else None,
        description=conversation.description,
        origin=conversation.origin,
    )


def _decided(decisions: Mapping[str, Decision]) -> tuple[Decided, ...]:
    return tuple(
        Decided(approval_id=known, decision=decision, at=0.0) for known, decision in decisions.items()
    )


def put(taken: SessionSnapshot, reader: Reader, view: ModelView, earlier: EarlierMessages | None) -> None:
    """Have a fresh reader, and its context, be as they were when this was taken."""
    context, conversation = reader.context, reader.context.conversation
    conversation.view = view
    conversation.messages = RecordedMessages(taken.messages - len(taken.recent), taken.recent, earlier)
    conversation.usage, conversation.system = taken.usage, taken.system
    conversation.description, conversation.origin = taken.description, taken.origin
    conversation.know_origins(taken.recent)
    conversation.know_notices(taken.notices)
    conversation.former_ids = taken.call_ids
    context.mail.know_accepted(taken.accepted)
    context.mail.unwanted = dict(taken.unwanted) or None
    for accepted in taken.waiting:
        reader.read(accepted)
    for failed in taken.failed:
        reader.read(failed)
    reader.spent, reader.due = taken.spent, taken.due
    _put_aside(taken, context)


def _put_aside(taken: SessionSnapshot, context: SessionContext) -> None:
    """What concerns no turn."""
    if taken.has_ledger:
        context.ledger().know_decisions({each.approval_id: each.decision for each in taken.decided})
    if taken.schedules != SavedSchedules():
        bring_schedules_back(context, taken.schedules)
    if taken.state is not None:
        context.state.bring_back(taken.state)
