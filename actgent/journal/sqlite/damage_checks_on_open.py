"""Opening of a journal file, with checks for damage before anything is changed."""

from pathlib import Path

import apsw
import attrs

from actgent.errors import ConfigurationError, JournalDamaged, JournalFailed

from .lock_file import Lock, ReaderLock
from .replaced_file_checks import check_no_orphaned_log
from .schema import migrate, pragma, read_fact, version_of
from .sql_statements import SqliteFile
from .wal_inspection import Log, log_path, may_be_journal, read_identity, read_log


@attrs.frozen
class JournalFileState:
    """State of a journal file and its write-ahead log before SQLite opened them."""

    identity: int = 0
    """SQLite application id in the file itself.
    SQLite would return the id in the write-ahead log, which may belong to another journal.
    """
    has_log: bool = False
    lock_note: tuple[bytes, int] = (b"", 0)
    """Content of the lock file: identity of the journal, and the minimum number of commits that the journal must have."""
    log: Log = attrs.field(factory=Log)


def check_kind(path: Path) -> None:
    """Raise if the path exists and is not a journal file.

    A missing file is accepted; nothing is created.

    Raises:
        ConfigurationError: The path is a folder, or a file of another kind.
    """
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"{path} is not a file: pass the path of a file for the journal")
    if path.exists() and not may_be_journal(path):
        raise ConfigurationError(
            f"{path} is not the file of a journal: pass the path of a journal, or of a file that does not exist yet"
        )


def examine(path: Path, lock_note: tuple[bytes, int]) -> JournalFileState:
    """Return the state of a journal file and its write-ahead log, without SQLite.

    The file must not be open in this process, because closing it here would drop SQLite's locks.
    """
    if not path.exists() or not path.stat().st_size:
        check_no_orphaned_log(path, lock_note[1])
        return JournalFileState()
    has_log = log_path(path).exists() and log_path(path).stat().st_size > 0
    return JournalFileState(read_identity(path, lock_note[0]), has_log, lock_note, read_log(path))


def _other_program_error(db: apsw.Connection) -> ConfigurationError:
    name = Path(db.filename).name
    return ConfigurationError(
        f"{name} is a SQLite database of another program, or a file of memories: use another file for the journal"
    )


def prepare(
    db: apsw.Connection,
    facts: JournalFileState,
    *,
    lock: Lock | None = None,
    reader_lock: ReaderLock | None = None,
) -> SqliteFile:
    """Configure a new connection, check for damage and migrate the schema. Nothing is changed before the checks."""
    if db.readonly("main"):
        raise JournalFailed("the journal file is read-only: give this user write access, or copy the file")
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    for setting in ("locking_mode=EXCLUSIVE", "mmap_size=0", "synchronous=FULL", "secure_delete=ON"):
        pragma(db, setting)
    version = version_of(db)
    if version:
        if not db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'meta'").get:
            raise _other_program_error(db)  # such as a file of memories, which has a version, too
        check_log(db, facts)
    elif db.execute("SELECT count(*) FROM sqlite_schema").get:
        raise _other_program_error(db)
    migrate(db, version)
    file = SqliteFile(db, lock)
    if lock is not None:
        lock.note(
            file.identity, file.commits
        )  # before the first page is written, because a power cut may tear it
    file.set_open(True)
    if reader_lock is not None:
        file.use_reader_lock(reader_lock)
    return file


def check_identity(db: apsw.Connection, facts: JournalFileState) -> None:
    """Raise `JournalDamaged` if the write-ahead log belongs to another journal."""
    identity = pragma(db, "application_id")
    if facts.identity not in (0, identity):
        raise JournalDamaged(
            "the write-ahead log belongs to another journal: restore both files from a backup"
        )
    if read_fact(db, "identity") != identity:
        raise JournalDamaged(
            "the identity in the file was changed, or the write-ahead log belongs to another journal: restore both files from a "
            "backup"
        )


def check_log(db: apsw.Connection, facts: JournalFileState) -> None:
    """Raise `JournalDamaged` if the write-ahead log does not belong to the file, or its end is missing."""
    check_identity(db, facts)
    accepted, _ = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    if facts.log.is_damaged_after(accepted):
        raise JournalDamaged("its write-ahead log is damaged, so that confirmed records are lost")
    identity, commits = facts.lock_note
    is_noted = commits > 0 and identity == read_fact(db, "identity").to_bytes(4, "big")
    if is_noted and read_fact(db, "commits") < commits:
        raise JournalDamaged(
            "it lacks confirmed records: its write-ahead log is truncated, or the file is an older copy; "
            "to continue with the remaining records, remove the file that ends in -lock"
        )
    # If the number of commits is right, another SQLite program has copied the log into the file.
    if not facts.has_log and read_fact(db, "open") and not is_noted:
        raise JournalDamaged(
            "the process that wrote it was killed, and the files that end in -wal and -lock are missing: put both back. If "
            "another SQLite program has copied the -wal file into the journal (a checkpoint), nothing is lost: recover the "
            "journal into a new file. Otherwise the last confirmed records are lost"
        )
