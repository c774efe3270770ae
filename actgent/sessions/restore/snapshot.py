"""Snapshots of sessions: the data that a `RecordReplayer` has read from the records up to a position, encoded as bytes.

A snapshot is taken between two turns, so it has no data of an open turn. It must contain all data that `RecordReplayer` sets in a
context; otherwise the restored session would differ. Tests compare all fields. If the fields of a snapshot change, increase
`VERSION`.
"""

import zlib
from collections.abc import Mapping

import attrs

from actgent.approvals import Decision
from actgent.errors import WireError
from actgent.journal.journal_interface import Snapshot
from actgent.journal.record_types import (
    DECISION_TAGS,
    ActionFailureRecord,
    ApprovalDecisionRecord,
    FailureRecord,
    MessageAcceptedRecord,
    SessionCreatedRecord,
    StateChangeRecord,
)
from actgent.journal.session_tags_and_metadata import NO_SESSION_METADATA, SessionAnnotations
from actgent.limits_and_schedules.budget import NOTHING, Amounts
from actgent.memory.memory_interface import ModelView
from actgent.messages import MEDIA_TAGS, NO_USAGE, PART_TAGS, Medium, Message, Part, Usage
from actgent.sessions.conversation import EarlierMessages, RecordedMessages
from actgent.sessions.pending.schedules import SavedSchedules, restore_schedules, save_schedules
from actgent.sessions.session_context import SessionContext
from actgent.state.session_state import SavedStore
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.tagged_codec import TaggedCodec

from .record_replayer import RecordReplayer

VERSION = 2
"""Version of the snapshot format."""
RECENT = 32
"""Number of newest messages in a snapshot, which protocols can read without reading the journal."""


@attrs.frozen(kw_only=True, repr=False)
class Mark(FieldRepr):
    """Position between two turns at which no message waits, so that reading of records can start there."""

    messages: int
    """Number of messages of the session before the position."""
    records: int
    """Number of journal records of the session before the position."""


BEGINNING = Mark(messages=0, records=0)
"""Mark before the first record."""


@attrs.frozen(kw_only=True, repr=False)
class SessionSnapshot(FieldRepr):
    """Data of a session between two turns, as stored in a snapshot."""

    opened: SessionCreatedRecord
    """Record that created the session."""
    view: bytes
    """Encoded memory view."""
    messages: int
    """Number of messages of the session."""
    recent: tuple[Message, ...]
    """The newest messages."""
    marks: tuple[Mark, ...]
    """Positions between turns at which reading of older records can start."""
    usage: Usage = NO_USAGE
    """Tokens and cost of the session."""
    system: str | None = None
    """System prompt of the session; None uses the system prompt of the agent."""
    notices: Mapping[str, str]
    """Mark of the last notice to the model from each source, by source name."""
    call_ids: bytes
    """Digests of the ids of all tool calls of the session, sorted and joined."""
    accepted: tuple[str, ...]
    """Ids of the newest accepted messages, oldest first, to recognize repetitions."""
    waiting: tuple[MessageAcceptedRecord, ...]
    """Records of the accepted messages that have not ended."""
    failed: tuple[FailureRecord, ...] = ()
    """Failures of messages that have not ended."""
    unwanted: Mapping[str, str] = attrs.field(factory=dict)
    """Reasons of cancellations for messages that have not arrived, by message id."""
    spent: Amounts = NOTHING
    """Usage that counts for the limits of the whole session."""
    due: float = 0.0
    """Unix time in seconds of the next timer; 0 without a timer."""
    has_ledger: bool = False
    """True if the session ever had an approval."""
    decided: tuple[ApprovalDecisionRecord, ...]
    """Newest decisions about approvals."""
    schedules: SavedSchedules
    """Schedules of the session."""
    state: SavedStore | None = None
    """State of the session; None if it has no state."""
    description: str = ""
    """Beginning of the session's first message; empty without one."""
    origin: str = ""
    """Names of the sources of untrusted text in the conversation; empty if there is none."""
    via: str = ""
    """Names of untrusted sources that influenced the conversation without adding text to it."""
    tags: tuple[str, ...] = ()
    """Tags of the session."""
    metadata: Mapping[str, str] = NO_SESSION_METADATA
    """Metadata of the session."""


_WIRE = TaggedCodec(
    {
        Medium: MEDIA_TAGS,
        Part: PART_TAGS,
        Decision: DECISION_TAGS,
        StateChangeRecord | ActionFailureRecord: {
            "changed": StateChangeRecord,
            "action_failed": ActionFailureRecord,
        },
        SessionSnapshot: {"session": SessionSnapshot},
    }
)


def encode_snapshot(data: SessionSnapshot, records: int) -> Snapshot:
    """Encode the data of a session as a stored snapshot that covers the first `records` records.

    Raises:
        NotSerializable: A value is not plain data.
    """
    body = zlib.compress(_WIRE.encode([data], SessionSnapshot), 1)
    return Snapshot(records=records, version=VERSION, body=body)


def decode_snapshot(stored: Snapshot | None) -> SessionSnapshot | None:
    """Decode a stored snapshot; None if there is no snapshot or this version of actgent cannot read the snapshot."""
    if stored is None or stored.version != VERSION:
        return None
    try:
        data: SessionSnapshot = _WIRE.decode(zlib.decompress(stored.body), SessionSnapshot)[0]
    except (WireError, zlib.error, IndexError):
        return None
    return data


def take_snapshot(
    reader: RecordReplayer, opened: SessionCreatedRecord, marks: tuple[Mark, ...]
) -> SessionSnapshot | None:
    """Return the data for a snapshot of the session as a replayer has restored it. Call this function only between two turns.

    Return None if the memory view of the session cannot be saved.
    """
    context, conversation = reader.context, reader.context.conversation
    view, ledger = conversation.current_view().save(), context.approvals
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
        accepted=context.accepted_ids,
        waiting=reader.accepted,
        failed=tuple(reader.failed.values()),
        unwanted=context.cancellations or {},
        spent=reader.spent,
        due=reader.due,
        has_ledger=ledger is not None,
        decided=() if ledger is None else _decision_records(ledger.decisions),
        schedules=save_schedules(context) if context.has_timers else SavedSchedules(),
        state=context.state.save() if context.has_state else None,
        description=conversation.description,
        origin=conversation.origin,
        via=conversation.via,
        tags=context.annotations.tags,
        metadata=context.annotations.metadata,
    )


def _decision_records(decisions: Mapping[str, Decision]) -> tuple[ApprovalDecisionRecord, ...]:
    return tuple(
        ApprovalDecisionRecord(approval_id=known, decision=decision, at=0.0)
        for known, decision in decisions.items()
    )


def restore_snapshot(
    data: SessionSnapshot, reader: RecordReplayer, view: ModelView, earlier: EarlierMessages | None
) -> None:
    """Set up a new replayer and its session context from the data of a snapshot.

    `view` is the restored memory view. `earlier` reads the messages from before the snapshot.
    """
    context, conversation = reader.context, reader.context.conversation
    conversation.replace_view(view)
    conversation.replace_messages(RecordedMessages(data.messages - len(data.recent), data.recent, earlier))
    conversation.usage, conversation.system = data.usage, data.system
    conversation.description, conversation.origin = data.description, data.origin
    conversation.via = data.via
    if data.tags or data.metadata:
        context.annotations = SessionAnnotations(tags=data.tags, metadata=data.metadata)
    conversation.restore_notices(data.notices)
    conversation.former_ids = data.call_ids
    context.restore_accepted_ids(data.accepted)
    context.cancellations = dict(data.unwanted) or None
    for accepted in data.waiting:
        reader.read(accepted)
    for failed in data.failed:
        reader.read(failed)
    reader.spent, reader.due = data.spent, data.due
    _restore_pending(data, context)


def _restore_pending(data: SessionSnapshot, context: SessionContext) -> None:
    """Restore the approvals, schedules and state of a session from the data of a snapshot."""
    if data.has_ledger:
        context.ledger().restore_decisions({each.approval_id: each.decision for each in data.decided})
    if data.schedules != SavedSchedules():
        restore_schedules(context, data.schedules)
    if data.state is not None:
        context.state.load(data.state)
