"""Export files of sessions: move sessions to another journal, a bug report or a test.

The file begins with `actgent-sessions 1` and a line end. A msgpack list follows, with a list for each session:
`[session id, agent, bytes of its records, CRC-32 of all three]`.
"""

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import attrs
import msgpack  # type: ignore[import-untyped]

from actgent.errors import ConfigurationError, JournalDamaged, SessionExists
from actgent.journal.journal_interface import Entry, Journal, SessionSummary
from actgent.journal.record_types import WIRE, Record
from actgent.support.shared_files import write_whole

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
    """Read sessions from a journal: all, those of one agent, or those with one id.

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
    """Write sessions to a journal, each in one atomic step.

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
    async def of(cls, journal: Journal, head: SessionSummary) -> "SessionExport":
        """Measure the export file of a session before it is sent.

        The session is read once.

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
