"""Sessions under other ids: copies that can stand beside the ones that they were made from."""

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

import attrs

from actgent.approvals import Approval, approval_id
from actgent.journal.listing import SessionKey
from actgent.journal.records import (
    Accepted,
    AccountKey,
    Decided,
    Opened,
    PersonAsked,
    Record,
    Resumed,
    Said,
    Scheduled,
    SuspendedRecord,
    message_id_of,
)

from .exporting import ExportedSession


def with_new_ids(sessions: Sequence[ExportedSession]) -> list[ExportedSession]:
    """The same sessions under new ids, also where they name each other as parents or payers, or wait for approvals."""
    trees: dict[str, str] = {}
    ids = {SessionKey(each.agent, each.session_id): _new_id(each.session_id, trees) for each in sessions}
    return [renamed(session, ids) for session in sessions]


def _new_id(session_id: str, trees: dict[str, str]) -> str:
    """A new id, which begins as those of the same tree do; `trees` are the new beginnings by the old ones."""
    root, _, rest = session_id.partition("/")
    if root not in trees:
        trees[root] = token_hex(16)
    return f"{trees[root]}/{token_hex(16)}" if rest else trees[root]


def renamed(
    session: ExportedSession, ids: Mapping[SessionKey, str], *, agent: str | None = None
) -> ExportedSession:
    """A session under the id that `ids` has for it, of another agent if one is given; others that it names get theirs."""
    new = SessionKey(agent or session.agent, ids[SessionKey(session.agent, session.session_id)])
    asked = [record.approval for record in session.records if isinstance(record, PersonAsked)]
    approvals = {approval.id: _moved(approval, new) for approval in asked}
    names = {old: approval.id for old, approval in approvals.items()}
    tasks = {message_id_of(session.session_id): message_id_of(new.session_id)}

    def record_of(record: Record) -> Record:
        record = attrs.evolve(record, **_task_names(record, tasks))
        if isinstance(record, Opened | Accepted | Scheduled):
            record = attrs.evolve(record, within=_payers(record.within, ids))
        if isinstance(record, Opened) and record.notify:
            record = attrs.evolve(record, notify=())  # who is told of the original did not ask for copies
        match record:
            case Opened(parent_id=str(parent)):
                above = SessionKey(record.parent_agent or session.agent, parent)
                return attrs.evolve(record, parent_id=ids.get(above, parent))
            case Accepted(message=message) | Said(message=message):
                said = attrs.evolve(message, id=tasks.get(message.id, message.id), session_id=new.session_id)
                return attrs.evolve(record, message=said)
            case PersonAsked(approval=approval):
                return attrs.evolve(record, approval=approvals[approval.id])
            case Decided(approval_id=old):
                return attrs.evolve(record, approval_id=names.get(old, old))
            case SuspendedRecord(ids=waits) | Resumed(ids=waits):
                return attrs.evolve(record, ids=tuple(names.get(wait, wait) for wait in waits))
        return record

    return ExportedSession(new.session_id, new.agent, tuple(map(record_of, session.records)))


def _task_names(record: object, tasks: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a record that name the message of a task, whose id follows from its session's."""
    named = {name: tasks.get(getattr(record, name, "")) for name in ("message_id", "turn")}
    return {name: new for name, new in named.items() if new is not None}


def _payers(within: tuple[AccountKey, ...], ids: Mapping[SessionKey, str]) -> tuple[AccountKey, ...]:
    """Budgets of sessions that have new ids are theirs still."""
    return tuple(_payer(key, ids) for key in within)


def _payer(key: AccountKey, ids: Mapping[SessionKey, str]) -> AccountKey:
    new = ids.get(SessionKey(key.agent, key.session_id))
    if new is None:
        return key
    tasks = {message_id_of(key.session_id): message_id_of(new)}
    return attrs.evolve(key, session_id=new, **_task_names(key, tasks))


def _moved(approval: Approval, key: SessionKey) -> Approval:
    """An approval of the same call in another session."""
    new = approval_id(
        key.session_id,
        approval.call_id,
        approval.tool_name,
        approval.arguments,
        approval.question,
        agent=key.agent,
    )
    return attrs.evolve(approval, id=new, session_id=key.session_id, agent=key.agent)
