"""Recovery of a damaged journal file: its undamaged records are copied into a new file."""

import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import apsw
import attrs

from actgent.errors import JournalDamaged, JournalError, JournalKeyError, WireError
from actgent.journal.encryption import current_keys
from actgent.journal.group_commit.row_format import (
    EncodedBatch,
    Head,
    Row,
    begin_head,
    decode_batch,
    find_parent,
    is_good,
    name_series,
    place_batch,
    read_key,
    unseal,
)
from actgent.journal.session_list_queries import SessionKey

from .atomic_file_writes import rename_draft, temporary_file_for
from .damage_checks_on_open import JournalFileState, check_kind, examine, prepare
from .disk_errors import translate_errors
from .lock_file import Lock
from .sql_statements import SqliteFile
from .wal_inspection import log_path, read_identity

Heads = dict[str, tuple[SessionKey, int]]
"""Session key and number of records of each series."""


@attrs.frozen
class RecoveryResult:
    """Result of `recover_file`."""

    sessions: int
    records: int
    losses: tuple[str, ...]
    """Ids of the sessions that lost their last records, or all of them."""


def find_problems(path: Path) -> list[JournalError]:
    """Return all problems of a journal file. The file is not changed.

    Raises:
        Fenced: A process uses the file.
        JournalFailed: The file cannot be read.
    """
    with (
        _copy_locked(path) as (copy, lock_note),
        translate_errors(),
        closing(apsw.Connection(str(copy))) as db,
    ):
        try:
            with translate_errors():
                file = prepare(db, examine(copy, lock_note))
        except JournalError as problem:
            return [problem]
        return list(problems_in(file))


def problems_in(file: SqliteFile) -> Iterator[JournalError]:
    """Yield the problems of an open file: structural damage, then lost session summaries and unreadable sessions."""
    structure = file.structure_problem()
    if structure:
        yield JournalDamaged(structure)
    for series, key in file.all_sessions().items():
        if key is None:
            yield JournalDamaged("the head of the session is lost", session_id=file.id_in(series))
            continue
        try:
            file.read(key)
        except JournalKeyError as problem:  # all other sessions would fail in the same way
            yield problem
            return
        except JournalError as problem:
            yield problem
        except WireError as problem:
            yield JournalDamaged(str(problem), session_id=key.session_id)


def recover_file(path: Path, new_path: Path) -> RecoveryResult:
    """Write a new journal file with each session up to its first damaged record. The old file is not changed.

    Raises:
        ConfigurationError: The new file exists.
        Fenced: A process uses the old file.
        JournalFull: The disk of the new file is full.
        JournalFailed: The old file cannot be read, or the new file cannot be written.
    """
    with _copy_locked(path) as (copy, lock_note), temporary_file_for(new_path) as draft, translate_errors():
        rows, heads = _read_good(copy, read_identity(copy, lock_note[0]))
        with closing(apsw.Connection(str(draft))) as db:
            saved = _write_recovered(prepare(db, JournalFileState()), rows, heads)
        rename_draft(draft, new_path)
        return saved


@contextmanager
def _copy_locked(path: Path) -> Iterator[tuple[Path, tuple[bytes, int]]]:
    """Context manager: lock a journal file, and give the block a copy of the file and its log, which SQLite may change."""
    with translate_errors():
        check_kind(path)
    with translate_errors(), closing(Lock(path)) as lock, tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "journal.db"
        shutil.copy(path, copy)
        if log_path(path).exists():
            shutil.copy(log_path(path), log_path(copy))
        yield copy, lock.read_note()


def _read_good(copy: Path, identity: int) -> tuple[dict[str, list[Row]], Heads]:
    """Return the undamaged rows of each session, and the session summaries. A log with another identity is ignored."""
    for _ in range(2):
        with closing(apsw.Connection(str(copy))) as db:
            with suppress(apsw.CorruptError, apsw.NotADBError):
                known = {db.execute("PRAGMA application_id").get, identity} - {0}
                if identity in known and len(known) == 1:
                    version = db.execute("PRAGMA user_version").get
                    name = "session_id" if version < _WITH_SERIES else "series"
                    at = "at" if version >= _WITH_TIMES else "NULL"
                    return _rows(db, name, at, identity.to_bytes(4, "big")), _heads(db, name)
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        log_path(copy).unlink(missing_ok=True)
    return {}, {}


_WITH_SERIES = 4
"""Schema version since which rows contain a series. Earlier rows contain a session id."""


_WITH_TIMES = 7
"""Schema version since which rows contain a time."""


def _rows(db: apsw.Connection, series: str, at: str, identity: bytes) -> dict[str, list[Row]]:
    found: dict[str, dict[int, Row]] = {}
    select = f"SELECT {series}, first, count, body, checksum, {at} FROM steps WHERE rowid = ?"  # noqa: S608 - column names only
    for rowid in range(1, _last_row(db) + 1):
        with suppress(apsw.CorruptError, UnicodeDecodeError):
            columns = db.execute(select, (rowid,)).get
            if columns is not None and is_good(row := Row(*columns), identity):
                found.setdefault(row.series, {})[row.first] = unseal(row, identity)
    return {name: [rows[first] for first in sorted(rows)] for name, rows in found.items()}


_LAST_ROW = ("SELECT max(rowid) FROM steps NOT INDEXED", "SELECT max(rowid) FROM steps INDEXED BY places")


_ROWS_OF_A_PAGE = 64
"""Upper bound of the number of rows in a page: a row takes at least 64 of its 4,096 bytes."""


def _last_row(db: apsw.Connection) -> int:
    """Return an upper bound of the row numbers in the table of rows.

    If the end of the table is destroyed, the bound is derived from the file size.
    """
    pages = int(db.execute("PRAGMA page_count").get)
    last = 0
    for sql in _LAST_ROW:
        try:
            last = max(last, db.execute(sql).get or 0)
        except apsw.CorruptError:
            last = max(last, pages * _ROWS_OF_A_PAGE)
    return min(last, pages * 1000)


def _heads(db: apsw.Connection, series: str) -> Heads:
    """Read all readable session summaries by series name.

    The table is scanned from both ends, to pass damage in the middle.
    """
    found: Heads = {}
    for order in ("ASC", "DESC"):
        with suppress(apsw.CorruptError, UnicodeDecodeError):
            sql = f"SELECT {series}, agent, session_id, records FROM sessions NOT INDEXED ORDER BY rowid {order}"  # noqa: S608
            for name, agent, session_id, records in db.execute(sql):
                found[name] = (SessionKey(agent, session_id), records)
    return found


def _write_recovered(file: SqliteFile, rows: dict[str, list[Row]], heads: Heads) -> RecoveryResult:
    losses = [heads[series][0].session_id for series in heads if series not in rows]
    saved: dict[SessionKey, Head] = {}
    for number, (series, its_rows) in enumerate(rows.items()):
        key, count = heads.get(series) or (read_key(its_rows), None)
        kept, head = _build_session(_batches(its_rows, key), name_series(0, number), saved, file.identity)
        if head is not None and key not in saved:
            file.write(kept, [head])
            saved[key] = head
        is_whole = head is not None and head.records == count and len(kept) == len(its_rows)
        if not is_whole or saved.get(key) is not head:
            losses.append(key.session_id)
    file.end()
    return RecoveryResult(len(rows), sum(head.records for head in saved.values()), tuple(losses))


def _build_session(
    batches: Iterable[tuple[EncodedBatch, float | None]],
    series: str,
    saved: Mapping[SessionKey, Head],
    identity: bytes,
) -> tuple[list[Row], Head | None]:
    """Build the database rows and the summary of a session for the recovered journal file.

    The summary of its parent session must be in `saved`.
    """
    kept: list[Row] = []
    head: Head | None = None
    for batch, at in batches:
        if head is None:
            parent = find_parent(batch)
            above = None if parent is None else saved.get(parent)
            head = begin_head(batch, series, above, now=time.time())
        row, head = place_batch(batch, head, now=time.time(), at=at, identity=identity, keys=current_keys())
        kept.append(row)
    return kept, head


def _batches(rows: Iterable[Row], key: SessionKey) -> Iterator[tuple[EncodedBatch, float | None]]:
    """Yield the batches of a session until the first gap. Each batch comes with the Unix time of its write; None if unknown."""
    place = 1
    for row in rows:
        if row.first != place:
            return
        yield decode_batch(row, key), row.at
        place += row.count
