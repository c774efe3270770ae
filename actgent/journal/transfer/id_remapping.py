"""Copies of sessions under new ids, so that they can be in one journal with the originals."""

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

import attrs

from actgent.approvals import Approval, approval_id
from actgent.journal.record_types import (
    AccountKey,
    AgentMessageRecord,
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    MessageAcceptedRecord,
    Record,
    ResumptionRecord,
    ScheduleRecord,
    SessionCreatedRecord,
    SuspensionRecord,
    task_message_id,
)
from actgent.journal.session_list_queries import SessionKey

from .export_file import ExportedSession


def with_new_ids(sessions: Sequence[ExportedSession]) -> list[ExportedSession]:
    """Return copies of sessions under new random ids, so that they can be added to the journal of the originals.

    References between the sessions (parents, budgets, approvals) are changed to the new ids.
    """
    trees: dict[str, str] = {}
    ids = {SessionKey(each.agent, each.session_id): _new_id(each.session_id, trees) for each in sessions}
    return [renamed(session, ids) for session in sessions]


def _new_id(session_id: str, trees: dict[str, str]) -> str:
    """Return a new session id that keeps the id of its root session as a prefix.

    `trees` maps old root ids to new ones.
    """
    root, _, rest = session_id.partition("/")
    if root not in trees:
        trees[root] = token_hex(16)
    return f"{trees[root]}/{token_hex(16)}" if rest else trees[root]


def renamed(
    session: ExportedSession, ids: Mapping[SessionKey, str], *, agent: str | None = None
) -> ExportedSession:
    """Return a copy of a session under its new id in `ids`. `agent` is the agent of the copy; None keeps the agent.

    References to other sessions in `ids` change as well.
    """
    new = SessionKey(agent or session.agent, ids[SessionKey(session.agent, session.session_id)])
    asked = [record.approval for record in session.records if isinstance(record, ApprovalRequestRecord)]
    approvals = {approval.id: _rebound_approval(approval, new) for approval in asked}
    names = {old: approval.id for old, approval in approvals.items()}
    tasks = {task_message_id(session.session_id): task_message_id(new.session_id)}

    def record_of(record: Record) -> Record:
        record = attrs.evolve(record, **_task_names(record, tasks))
        if isinstance(record, SessionCreatedRecord | MessageAcceptedRecord | ScheduleRecord):
            record = attrs.evolve(record, within=_payers(record.within, ids))
        if isinstance(record, SessionCreatedRecord) and record.notify:
            record = attrs.evolve(record, notify=())  # the webhook subscribed to the original only
        match record:
            case SessionCreatedRecord(parent_id=str(parent)):
                above = SessionKey(record.parent_agent or session.agent, parent)
                return attrs.evolve(record, parent_id=ids.get(above, parent))
            case MessageAcceptedRecord(message=message) | AgentMessageRecord(message=message):
                copy = attrs.evolve(message, id=tasks.get(message.id, message.id), session_id=new.session_id)
                return attrs.evolve(record, message=copy)
            case ApprovalRequestRecord(approval=approval):
                return attrs.evolve(record, approval=approvals[approval.id])
            case ApprovalDecisionRecord(approval_id=old):
                return attrs.evolve(record, approval_id=names.get(old, old))
            case SuspensionRecord(ids=waits) | ResumptionRecord(ids=waits):
                return attrs.evolve(record, ids=tuple(names.get(wait, wait) for wait in waits))
        return record

    return ExportedSession(new.session_id, new.agent, tuple(map(record_of, session.records)))


def _task_names(record: object, tasks: Mapping[str, str]) -> dict[str, Any]:
    """Return new values for the fields of a record that contain the id of a delegated task's message.

    `tasks` maps old message ids to new ones; both are derived from session ids.
    """
    named = {name: tasks.get(getattr(record, name, "")) for name in ("message_id", "turn")}
    return {name: new for name, new in named.items() if new is not None}


def _payers(accounts: tuple[AccountKey, ...], ids: Mapping[SessionKey, str]) -> tuple[AccountKey, ...]:
    """Return a copied session's budget accounts, with old session ids in their keys replaced by the new ids in `ids`."""
    return tuple(_payer(key, ids) for key in accounts)


def _payer(key: AccountKey, ids: Mapping[SessionKey, str]) -> AccountKey:
    new = ids.get(SessionKey(key.agent, key.session_id))
    if new is None:
        return key
    tasks = {task_message_id(key.session_id): task_message_id(new)}
    return attrs.evolve(key, session_id=new, **_task_names(key, tasks))


def _rebound_approval(approval: Approval, key: SessionKey) -> Approval:
    """Return a copy of an approval for the same call in the session `key`.

    The approval gets a new id, which depends on the session.
    """
    new = approval_id(
        key.session_id,
        approval.call_id,
        approval.tool_name,
        approval.arguments,
        approval.question,
        agent=key.agent,
    )
    return attrs.evolve(approval, id=new, session_id=key.session_id, agent=key.agent)
