"""What to do with a journal's file that is damaged: say where, and carry what is good into a new one."""

import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import apsw
import attrs

from actgent.errors import ConfigurationError, JournalDamaged, JournalError, WireError

from .lock import Lock
from .records import Said
from .sqlite_file import Facts, File, check_kind, examine, prepare, translated
from .steps import Head, Row, Step, is_good, place_step, read_records, read_step
from .wal import log_path, read_identity

Heads = dict[str, tuple[str, int]]
"""By session its agent, and how many records it had."""


@attrs.frozen
class Salvaged:
    """What `salvage` carried over."""

    sessions: int
    records: int
    losses: tuple[str, ...]
    """Sessions whose last records, or all of them, are lost."""


def check(path: Path) -> list[JournalError]:
    """Everything that is wrong with a journal's file; nothing is changed.

    Raises:
        Fenced: a process uses it.
        JournalFailed: it cannot be read.
    """
    with _copied(path) as (copy, noted), translated(), closing(apsw.Connection(str(copy))) as db:
        try:
            with translated():
                file = prepare(db, examine(copy, noted))
        except JournalError as problem:
            return [problem]
        return list(_problems(file))


def _problems(file: File) -> Iterator[JournalError]:
    structure = file.structure_problem()
    if structure:
        yield JournalDamaged(structure)
    for session_id in file.all_sessions():
        try:
            if not file.read(session_id).records:
                yield JournalDamaged("its head is lost", session_id=session_id)
        except JournalError as problem:
            yield problem
        except WireError as problem:
            yield JournalDamaged(str(problem), session_id=session_id)


def salvage(path: Path, new_path: Path) -> Salvaged:
    """Write a new journal with each session up to its first bad record; the old file is not changed.

    Raises:
        ConfigurationError: there is a file at the new path.
        Fenced: a process uses the old one.
        JournalFailed: it cannot be read, or the new one not be written.
    """
    if new_path.exists():
        raise ConfigurationError(f"{new_path.name} exists: name a file that does not")
    with _copied(path) as (copy, noted), translated():
        rows, heads = _read_good(copy, read_identity(copy, noted[0]))
        with closing(apsw.Connection(str(new_path))) as db:
            file = prepare(db, Facts())
            return _carry_over(file, rows, heads)


@contextmanager
def _copied(path: Path) -> Iterator[tuple[Path, tuple[bytes, int]]]:
    """A copy of a file and its log, since SQLite would change them; locked while it is made."""
    with translated():
        check_kind(path)
    with translated(), closing(Lock(path)) as lock, tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "journal.db"
        shutil.copy(path, copy)
        if log_path(path).exists():
            shutil.copy(log_path(path), log_path(copy))
        yield copy, lock.read_note()


def _read_good(copy: Path, identity: int) -> tuple[dict[str, list[Row]], Heads]:
    """The good rows of each session, and what their heads say; a log that is not of this identity is left out."""
    for _ in range(2):
        with closing(apsw.Connection(str(copy))) as db:
            with suppress(apsw.CorruptError, apsw.NotADBError):
                known = {db.execute("PRAGMA application_id").get, identity} - {0}
                if identity in known and len(known) == 1:
                    return _rows(db, identity.to_bytes(4, "big")), _heads(db)
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        log_path(copy).unlink(missing_ok=True)
    return {}, {}


def _rows(db: apsw.Connection, identity: bytes) -> dict[str, list[Row]]:
    found: dict[str, dict[int, Row]] = {}
    for rowid in range(1, _last_row(db) + 1):
        with suppress(apsw.CorruptError, UnicodeDecodeError):
            columns = db.execute(_SELECT_ROW, (rowid,)).get
            if columns is not None and is_good(row := Row(*columns), identity):
                found.setdefault(row.session_id, {})[row.first] = row
    return {session_id: [rows[first] for first in sorted(rows)] for session_id, rows in found.items()}


_SELECT_ROW = "SELECT session_id, first, count, body, checksum FROM steps WHERE rowid = ?"
_LAST_ROW = ("SELECT max(rowid) FROM steps NOT INDEXED", "SELECT max(rowid) FROM steps INDEXED BY places")


_ROWS_OF_A_PAGE = 64
"""More than fit on one, as none takes less than 64 of its 4,096 bytes."""


def _last_row(db: apsw.Connection) -> int:
    """A number that no row is beyond; where the end of the table is destroyed, the most that the file has room for."""
    pages = int(db.execute("PRAGMA page_count").get)
    last = 0
    for sql in _LAST_ROW:
        try:
            last = max(last, db.execute(sql).get or 0)
        except apsw.CorruptError:
            last = max(last, pages * _ROWS_OF_A_PAGE)
    return min(last, pages * 1000)


def _heads(db: apsw.Connection) -> Heads:
    """What can be read of the heads, from both ends of their table."""
    found: Heads = {}
    for order in ("ASC", "DESC"):
        with suppress(apsw.CorruptError, UnicodeDecodeError):
            sql = f"SELECT session_id, agent, records FROM sessions NOT INDEXED ORDER BY rowid {order}"  # noqa: S608
            for session_id, agent, records in db.execute(sql):
                found[session_id] = (agent, records)
    return found


def _carry_over(file: File, rows: dict[str, list[Row]], heads: Heads) -> Salvaged:
    losses, records = [session_id for session_id in heads if session_id not in rows], 0
    for session_id, session_rows in rows.items():
        head: Head | None = None
        kept = []
        agent, count = heads.get(session_id) or (_agent_in(session_rows), None)
        for step in _steps(session_rows, agent):
            row, head = place_step(step, head, now=time.time(), identity=file.identity)
            kept.append(row)
        if head is not None:
            file.write(kept, [head])
            records += head.records
        if head is None or len(kept) < len(session_rows) or head.records != count:
            losses.append(session_id)
    file.end()
    return Salvaged(len(rows), records, tuple(losses))


def _agent_in(rows: Iterable[Row]) -> str:
    """Whose session it is, by the first answer in it; empty where nothing tells."""
    for row in rows:
        for record in read_records(row):
            if isinstance(record, Said) and record.stop:
                return record.message.sender.name
    return ""


def _steps(rows: Iterable[Row], agent: str) -> Iterator[Step]:
    """The steps of a session up to its first gap."""
    place = 1
    for row in rows:
        if row.first != place:
            return
        yield read_step(row, agent)
        place += row.count
