"""Sessions in a file that travels: from one journal into another, into a bug report, into a test.

The file begins with `actgent-sessions 1` and a line end. A msgpack list follows, with a list for each
session: `[session id, agent, bytes of its records, CRC-32 of all three]`.
"""

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import attrs
import msgpack  # type: ignore[import-untyped]

from actgent.errors import ConfigurationError, JournalDamaged, SessionExists
from actgent.journal.base import Entry, Journal, SessionSummary
from actgent.journal.records import WIRE, Record
from actgent.support.files import write_whole

_FIRST_LINE = b"actgent-sessions 1\n"
_PAGE = 200
"""Records that are read at a time."""


@attrs.frozen
class ExportedSession:
    """A session as it stands in a file."""

    session_id: str
    """The session's id."""
    agent: str
    """The name of its agent."""
    records: tuple[Record, ...]
    """All of them, oldest first."""


async def read_sessions(
    journal: Journal, *, agent: str | None = None, session_id: str | None = None
) -> list[ExportedSession]:
    """All sessions of a journal, those of one agent, or one, which several agents may have under the same id.

    Raises:
        ConfigurationError: there is no such session.
        JournalDamaged: the records of one of them are not what was written.
    """
    found = [each for each in await journal.sessions(agent) if session_id in (None, each.session_id)]
    if session_id is not None and not found:
        raise ConfigurationError(
            f"the journal has no session {session_id!r}: `actgent inspect` lists those that it has"
        )
    return [
        ExportedSession(s.session_id, s.agent, await journal.load(s.session_id, agent=s.agent)) for s in found
    ]


async def write_sessions(journal: Journal, sessions: Sequence[ExportedSession]) -> None:
    """Add sessions to a journal, each in one step: whole or not at all.

    Raises:
        SessionExists: it has one of them already; none was added. Where somebody makes one meanwhile, those before it were.
        Fenced: this process does not own one of them; those before it were added.
    """
    for session in sessions:
        if await journal.head(session.agent, session.session_id) is not None:
            raise SessionExists(session.agent, session.session_id)
    for session in sessions:
        entry = Entry(session_id=session.session_id, agent=session.agent, records=session.records)
        await journal.commit(entry, epoch=journal.epoch_of(session.session_id))


def save_sessions(path: Path, sessions: Sequence[ExportedSession]) -> None:
    """Write sessions into a new file, whole or not at all; nobody else may read it.

    Raises:
        ConfigurationError: the file exists, or cannot be written.
    """
    if path.exists():
        raise ConfigurationError(f"{path} exists: name another file")
    packed = msgpack.packb([_packed(session) for session in sessions], unicode_errors="surrogatepass")
    try:
        write_whole(path, _FIRST_LINE + packed, mode=0o600)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}") from error


@attrs.frozen(kw_only=True)
class SessionExport:
    """The file of one session, made page by page: of a session of any length no more than a page is in memory."""

    journal: Journal
    """Where it is."""
    head: SessionSummary
    """Up to its last record the session is exported."""
    size: int
    """Bytes of the file."""
    _body: int
    """Bytes of the records."""

    @classmethod
    async def of(cls, journal: Journal, head: SessionSummary) -> "SessionExport":
        """Measure the file of a session, for which all of it is read once.

        Raises:
            JournalError: it cannot be read.
        """
        body = 0
        async for piece in _body_of(journal, head):
            body += len(piece)
        start = _start_of(head, body)
        return cls(journal=journal, head=head, size=len(start) + body + 5, body=body)

    async def write(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Write the file, piece by piece.

        Raises:
            JournalError: it cannot be read, or was erased meanwhile; what was written is no file then.
        """
        await write(_start_of(self.head, self._body))
        checksum, written = _checksum(self.head.session_id, self.head.agent, b""), 0
        async for piece in _body_of(self.journal, self.head):
            checksum, written = zlib.crc32(piece, checksum), written + len(piece)
            await write(piece)
        if written != self._body:
            raise JournalDamaged("it was erased while it was exported", session_id=self.head.session_id)
        await write(b"\xce" + checksum.to_bytes(4, "big"))


def _start_of(head: SessionSummary, body: int) -> bytes:
    """All that stands before the records: the list, the session's, its names, and the size of what follows."""
    packer = msgpack.Packer(unicode_errors="surrogatepass")
    names = packer.pack(head.session_id) + packer.pack(head.agent)
    return bytes(_FIRST_LINE + b"\x91\x94" + names + b"\xc6" + body.to_bytes(4, "big"))


async def _body_of(journal: Journal, head: SessionSummary) -> AsyncIterator[bytes]:
    """The records of a session as `_packed` encodes all of them at once: a list, of which each page leaves its own head out."""
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
    """The sessions of a file that `save_sessions` wrote.

    Raises:
        ConfigurationError: there is no such file, or it is another kind of file.
        JournalDamaged: it is not what was written.
        WireError: a newer actgent wrote it.
    """
    if not path.is_file():
        raise ConfigurationError(f"no such file: {path}")
    data = path.read_bytes()
    if not data.startswith(_FIRST_LINE):
        raise ConfigurationError(
            f"{path} is not a file of exported sessions: it does not begin with their first line"
        )
    return [_unpacked(item) for item in _items(data[len(_FIRST_LINE) :], path)]


def is_export(path: Path) -> bool:
    """Return True if a file holds exported sessions."""
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
    except Exception as error:  # foreign bytes lead to many
        raise JournalDamaged(f"{path.name} is not what was exported: {error}") from error
    if not isinstance(items, list):
        raise JournalDamaged(f"{path.name} is not what was exported")
    return items


def _unpacked(item: object) -> ExportedSession:
    match item:
        case [str(session_id), str(agent), bytes(body), int(checksum)]:
            if checksum == _checksum(session_id, agent, body):
                return ExportedSession(session_id, agent, WIRE.decode(body, Record))
            raise JournalDamaged("its checksum in the exported file is wrong", session_id=session_id)
    raise JournalDamaged("something in the exported file is not a session")


def _checksum(session_id: str, agent: str, body: bytes) -> int:
    names = f"{session_id}\0{agent}\0".encode("utf-8", "surrogatepass")
    return zlib.crc32(body, zlib.crc32(names))
