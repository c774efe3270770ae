"""Sessions under other ids: copies that can stand beside the ones that they were made from."""

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

import attrs

from actgent.approvals import Approval, approval_id

from .exporting import ExportedSession
from .records import (
    Accepted,
    AccountKey,
    Decided,
    Opened,
    PersonAsked,
    Record,
    Resumed,
    Said,
    Suspended,
    message_id_of,
)


def with_new_ids(sessions: Sequence[ExportedSession]) -> list[ExportedSession]:
    """The same sessions under new ids, also where they name each other as parents or payers, or wait for approvals."""
    ids = {session.session_id: token_hex(16) for session in sessions}
    return [renamed(session, ids) for session in sessions]


def renamed(session: ExportedSession, ids: Mapping[str, str]) -> ExportedSession:
    """A session under the id that `ids` has for it; others that it names get theirs."""
    new = ids[session.session_id]
    asked = [record.approval for record in session.records if isinstance(record, PersonAsked)]
    approvals = {approval.id: _moved(approval, new) for approval in asked}
    names = {old: approval.id for old, approval in approvals.items()}
    tasks = {message_id_of(old): message_id_of(new) for old, new in ids.items()}

    def record_of(record: Record) -> Record:
        record = attrs.evolve(record, **_task_names(record, tasks))
        if isinstance(record, Opened | Accepted):
            record = attrs.evolve(record, within=_payers(record.within, ids))
        match record:
            case Opened(parent_id=str(parent)):
                return attrs.evolve(record, parent_id=ids.get(parent, parent))
            case Accepted(message=message) | Said(message=message):
                said = attrs.evolve(message, id=tasks.get(message.id, message.id), session_id=new)
                return attrs.evolve(record, message=said)
            case PersonAsked(approval=approval):
                return attrs.evolve(record, approval=approvals[approval.id])
            case Decided(approval_id=old):
                return attrs.evolve(record, approval_id=names.get(old, old))
            case Suspended(ids=waits) | Resumed(ids=waits):
                return attrs.evolve(record, ids=tuple(names.get(wait, wait) for wait in waits))
        return record

    return attrs.evolve(session, session_id=new, records=tuple(map(record_of, session.records)))


def _task_names(record: object, tasks: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a record that name the message of a task, whose id follows from its session's."""
    named = {name: tasks.get(getattr(record, name, "")) for name in ("message_id", "turn")}
    return {name: new for name, new in named.items() if new is not None}


def _payers(within: tuple[AccountKey, ...], ids: Mapping[str, str]) -> tuple[AccountKey, ...]:
    """Budgets of sessions that have new ids are theirs still."""
    tasks = {message_id_of(old): message_id_of(new) for old, new in ids.items()}
    return tuple(
        attrs.evolve(key, session_id=ids.get(key.session_id, key.session_id), **_task_names(key, tasks))
        for key in within
    )


def _moved(approval: Approval, session_id: str) -> Approval:
    """An approval of the same call in another session."""
    new = approval_id(session_id, approval.call_id, approval.tool_name, approval.arguments, approval.question)
    return attrs.evolve(approval, id=new, session_id=session_id)
