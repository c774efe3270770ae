"""Copies of sessions in other journals or under new ids: export files, forks and new ids.

An export file moves sessions to another journal, a bug report or a test. It begins with `actgent-sessions 1` and a line end. A
msgpack list follows, with a list for each session: `[session id, agent, bytes of its records, CRC-32 of all three]`.
"""

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

import attrs
import msgpack  # type: ignore[import-untyped]

from actgent.approvals import Approval, approval_id
from actgent.errors import ConfigurationError, JournalDamaged, SessionExists
from actgent.journal.journal_interface import Entry, Journal, SessionSummary
from actgent.journal.record_types import (
    WIRE,
    AccountKey,
    AgentMessageRecord,
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    MessageAcceptedRecord,
    NextTimerRecord,
    Record,
    ResumptionRecord,
    ScheduleFiredRecord,
    ScheduleRecord,
    ScheduleRemovedRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    SuspensionRecord,
    TaskOutcomeRecord,
    UsageRecord,
    task_message_id,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.support.files_shared_by_processes import write_whole
from actgent.support.untrusted_text_delimiters import join_origins

_FIRST_LINE = b"actgent-sessions 1\n"
_PAGE = 200
"""Number of records per read from the journal."""


@attrs.frozen
class ExportedSession:
    """A session in an export file."""

    session_id: str
    """Id of the exported session."""
    agent: str
    """Name of the agent of the session."""
    records: tuple[Record, ...]
    """All records of the session, oldest first."""


async def read_sessions(
    journal: Journal, *, agent: str | None = None, session_id: str | None = None
) -> list[ExportedSession]:
    """Read sessions from a journal: all sessions, the sessions of one agent, or the sessions with one id.

    Several agents may have the same id.

    Raises:
        ConfigurationError: No session has this id.
        JournalDamaged: The records of a session are damaged.
    """
    found = [each for each in await journal.sessions(agent) if session_id in (None, each.session_id)]
    if session_id is not None and not found:
        raise ConfigurationError(
            f"the journal has no session {session_id!r}: `actgent inspect` lists its sessions"
        )
    return [
        ExportedSession(s.session_id, s.agent, await journal.load(s.session_id, agent=s.agent)) for s in found
    ]


async def write_sessions(journal: Journal, sessions: Sequence[ExportedSession]) -> None:
    """Write sessions to a journal, each in one atomic batch.

    Raises:
        SessionExists: The journal already has one of the sessions; none was added. If another process creates
            one during the call, earlier sessions were added.
        Fenced: This process does not own one of the sessions; earlier sessions were added.
    """
    for session in sessions:
        if await journal.head(session.agent, session.session_id) is not None:
            raise SessionExists(session.agent, session.session_id)
    for session in sessions:
        entry = Entry(session_id=session.session_id, agent=session.agent, records=session.records)
        await journal.commit(entry, epoch=journal.epoch_of(session.session_id))


def save_sessions(path: Path, sessions: Sequence[ExportedSession]) -> None:
    """Write sessions to a new export file, completely or not at all.

    Only the current user may read the file.

    Raises:
        ConfigurationError: The file exists, or cannot be written.
    """
    if path.exists():
        raise ConfigurationError(f"{path} already exists: pass the path of a new file")
    packed = msgpack.packb([_packed(session) for session in sessions], unicode_errors="surrogatepass")
    try:
        write_whole(path, _FIRST_LINE + packed, mode=0o600)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}") from error


@attrs.frozen(kw_only=True)
class SessionExport:
    """Export file of one session, generated page by page. Only one page of records is in memory."""

    journal: Journal
    """Journal from which the session is read."""
    head: SessionSummary
    """Summary of the session. Records after `head.records` are not exported."""
    size: int
    """Size of the export file in bytes."""
    _body: int
    """Size of the encoded records in the file, in bytes."""

    @classmethod
    async def measure(cls, journal: Journal, head: SessionSummary) -> "SessionExport":
        """Return the export of a session, with the size that its file will have.

        This reads all records of the session once.

        Raises:
            JournalError: The session cannot be read.
        """
        body = 0
        async for piece in _body_of(journal, head):
            body += len(piece)
        start = _start_of(head, body)
        return cls(journal=journal, head=head, size=len(start) + body + 5, body=body)

    async def write(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Write the export file in pieces by calling `write` with the bytes of each piece.

        Raises:
            JournalError: The session cannot be read, or was erased during the export. The written pieces are
                then not a valid file.
        """
        await write(_start_of(self.head, self._body))
        checksum, written = _checksum(self.head.session_id, self.head.agent, b""), 0
        async for piece in _body_of(self.journal, self.head):
            checksum, written = zlib.crc32(piece, checksum), written + len(piece)
            await write(piece)
        if written != self._body:
            raise JournalDamaged("the session was erased during the export", session_id=self.head.session_id)
        await write(b"\xce" + checksum.to_bytes(4, "big"))


def _start_of(head: SessionSummary, body: int) -> bytes:
    """Return the bytes of an export file before its records: list headers, session id, agent and size of the records.

    `body` is the size of the encoded records in bytes.
    """
    packer = msgpack.Packer(unicode_errors="surrogatepass")
    names = packer.pack(head.session_id) + packer.pack(head.agent)
    return bytes(_FIRST_LINE + b"\x91\x94" + names + b"\xc6" + body.to_bytes(4, "big"))


async def _body_of(journal: Journal, head: SessionSummary) -> AsyncIterator[bytes]:
    """Yield the encoded records of a session page by page, identical to one encoded list of all records."""
    yield msgpack.Packer().pack_array_header(head.records)
    number = 0
    while number < head.records:
        limit = min(_PAGE, head.records - number)
        records = await journal.read(head.session_id, agent=head.agent, after=number, limit=limit)
        page = records[: head.records - number]
        if not page:
            return
        number += len(page)
        yield WIRE.encode(page, Record)[len(msgpack.Packer().pack_array_header(len(page))) :]


def load_sessions(path: Path) -> list[ExportedSession]:
    """Read the sessions of a file that `save_sessions` wrote.

    Raises:
        ConfigurationError: The file does not exist, or is not an export file.
        JournalDamaged: The file is damaged.
        WireError: A newer actgent wrote the file.
    """
    if not path.is_file():
        raise ConfigurationError(f"no such file: {path}; pass the path of an export file")
    data = path.read_bytes()
    if not data.startswith(_FIRST_LINE):
        raise ConfigurationError(
            f"{path} is not a file of exported sessions: it lacks the header that an export writes first"
        )
    return [_unpacked(item) for item in _items(data[len(_FIRST_LINE) :], path)]


def is_export(path: Path) -> bool:
    """Return True if the path is a file with exported sessions. A missing file returns False."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_FIRST_LINE)) == _FIRST_LINE


def _packed(session: ExportedSession) -> list[object]:
    body = WIRE.encode(session.records, Record)
    return [session.session_id, session.agent, body, _checksum(session.session_id, session.agent, body)]


def _items(data: bytes, path: Path) -> list[object]:
    try:
        items = msgpack.unpackb(data, unicode_errors="surrogatepass")
    except Exception as error:  # msgpack raises many types for invalid data
        raise JournalDamaged(f"{path.name} is damaged: {error}") from error
    if not isinstance(items, list):
        raise JournalDamaged(f"{path.name} is damaged")
    return items


def _unpacked(item: object) -> ExportedSession:
    match item:
        case [str(session_id), str(agent), bytes(body), int(checksum)]:
            if checksum == _checksum(session_id, agent, body):
                return ExportedSession(session_id, agent, WIRE.decode(body, Record))
            raise JournalDamaged("the checksum in the export file is wrong", session_id=session_id)
    raise JournalDamaged("an item of the export file is not a session")


def _checksum(session_id: str, agent: str, body: bytes) -> int:
    names = f"{session_id}\0{agent}\0".encode("utf-8", "surrogatepass")
    return zlib.crc32(body, zlib.crc32(names))


def with_new_ids(sessions: Sequence[ExportedSession]) -> list[ExportedSession]:
    """Return copies of sessions with new random ids, so that the copies can be added to the journal of the originals.

    References between the sessions (parents, budgets, approvals) are changed to the new ids.
    """
    trees: dict[str, str] = {}
    ids = {SessionKey(each.agent, each.session_id): _new_id(each.session_id, trees) for each in sessions}
    return [copy_with_new_id(session, ids) for session in sessions]


def _new_id(session_id: str, trees: dict[str, str]) -> str:
    """Return a new session id that begins with the id of the session's root session.

    `trees` maps old root ids to new ones.
    """
    root, _, rest = session_id.partition("/")
    if root not in trees:
        trees[root] = token_hex(16)
    return f"{trees[root]}/{token_hex(16)}" if rest else trees[root]


def copy_with_new_id(
    session: ExportedSession, ids: Mapping[SessionKey, str], *, agent: str | None = None
) -> ExportedSession:
    """Return a copy of a session with its new id in `ids`. `agent` is the agent of the copy; None keeps the agent.

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
            record = attrs.evolve(record, within=_copy_account_keys(record.within, ids))
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


def _copy_account_keys(
    accounts: tuple[AccountKey, ...], ids: Mapping[SessionKey, str]
) -> tuple[AccountKey, ...]:
    """Return the keys of budget accounts, with old session ids replaced by the new ids in `ids`."""
    return tuple(_copy_account_key(key, ids) for key in accounts)


def _copy_account_key(key: AccountKey, ids: Mapping[SessionKey, str]) -> AccountKey:
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


_LEFT_OUT = (
    SessionClosedRecord,
    NextTimerRecord,
    ScheduleRecord,
    ScheduleFiredRecord,
    ScheduleRemovedRecord,
    TaskOutcomeRecord,
)
"""Record classes that a fork does not copy. A fork is open, has no schedules and reports to no parent session."""


def build_fork(
    session: ExportedSession, session_id: str, agent: str, *, asker: str = "", via: str = ""
) -> ExportedSession:
    """Build a fork of a session: a copy of its records under a new id and agent.

    A session that was created with limits shares its budget: the fork draws on the budgets of the original and of its
    parent sessions. An unfinished turn resumes with the rest of its limits at that point. `asker` identifies the request
    for the fork, and is stored as `SessionCreatedRecord.asker`. `via` names the untrusted sources of the caller.
    """
    ids = {SessionKey(session.agent, session.session_id): session_id}
    copy = copy_with_new_id(session, ids, agent=agent)
    return ExportedSession(session_id, agent, tuple(_records_of_fork(copy, session, asker, via)))


def _records_of_fork(
    copy: ExportedSession, original: ExportedSession, asker: str, via: str
) -> Iterator[Record]:
    for record in copy.records:
        match record:
            case SessionCreatedRecord():
                payer = AccountKey(session_id=original.session_id, agent=original.agent)
                yield _creation_record_of_fork(record, payer, copy.agent, asker, via)
            case UsageRecord(turn=""):
                pass  # recorded in the original session, whose budget it is
            case _ if not isinstance(record, _LEFT_OUT):
                yield record


def _creation_record_of_fork(
    record: SessionCreatedRecord, original: AccountKey, agent: str, asker: str, via: str
) -> SessionCreatedRecord:
    within = (original, *record.within) if record.limits else record.within
    return SessionCreatedRecord(
        agent=agent if record.agent else "",
        owner=record.owner,
        created_at=record.created_at,
        on_busy=record.on_busy,
        system=record.system,
        within=within,
        asker=asker,
        tags=record.tags,
        metadata=record.metadata,
        via=join_origins(record.via, via),
    )
