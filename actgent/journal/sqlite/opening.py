"""Opening a journal's file, whatever state it is in: nothing is changed before it is known to be whole."""

from pathlib import Path

import apsw
import attrs

from actgent.errors import ConfigurationError, JournalDamaged, JournalFailed

from .file import SqliteFile
from .lock import Lock, LookLock
from .place import check_alone
from .schema import migrate, pragma, read_fact, version_of
from .wal import Log, log_path, may_be_journal, read_identity, read_log


@attrs.frozen
class Facts:
    """What was there before SQLite opened the file."""

    identity: int = 0
    """The application id in the file itself; through a foreign log it would be another."""
    has_log: bool = False
    noted: tuple[bytes, int] = (b"", 0)
    """What the lock file says: an identity, and how many commits there were at least."""
    log: Log = attrs.field(factory=Log)


def check_kind(path: Path) -> None:
    """Refuse what never was the file of a journal; nothing is made beside it.

    Raises:
        ConfigurationError: it is a folder, or a file of another kind.
    """
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"{path} is not a file: name a file for the journal")
    if path.exists() and not may_be_journal(path):
        raise ConfigurationError(f"{path} is not the file of a journal: name another file")


def examine(path: Path, noted: tuple[bytes, int]) -> Facts:
    """Look at a file and its log; nobody may have it open, as closing it here would drop SQLite's locks."""
    if not path.exists() or not path.stat().st_size:
        check_alone(path, noted[1])
        return Facts()
    has_log = log_path(path).exists() and log_path(path).stat().st_size > 0
    return Facts(read_identity(path, noted[0]), has_log, noted, read_log(path))


def prepare(
    db: apsw.Connection, facts: Facts, *, lock: Lock | None = None, look_lock: LookLock | None = None
) -> SqliteFile:
    """Set up a fresh connection, bring the schema up to date and look for damage; nothing is changed before."""
    if db.readonly("main"):
        raise JournalFailed("the journal's file is read-only: let this user write it, or copy it")
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    for setting in ("locking_mode=EXCLUSIVE", "mmap_size=0", "synchronous=FULL", "secure_delete=ON"):
        pragma(db, setting)
    version = version_of(db)
    if version:
        check_log(db, facts)
    elif db.execute("SELECT count(*) FROM sqlite_schema").get:
        raise ConfigurationError("the file is a SQLite database of another program: name another file")
    migrate(db, version)
    file = SqliteFile(db, lock)
    if lock is not None:
        lock.note(file.identity, file.commits)  # before the first page is written, which a power cut may tear
    file.set_open(True)
    if look_lock is not None:
        file.look_after(look_lock)
    return file


def check_identity(db: apsw.Connection, facts: Facts) -> None:
    """Raise where a log beside the file belongs to another journal."""
    identity = pragma(db, "application_id")
    if facts.identity not in (0, identity):
        raise JournalDamaged("the write-ahead log beside it belongs to another journal")
    if read_fact(db, "identity") != identity:
        raise JournalDamaged("its identity is altered, or the write-ahead log beside it is not its own")


def check_log(db: apsw.Connection, facts: Facts) -> None:
    """Raise where the log beside the file is not the one that belongs to it, or has lost its end."""
    check_identity(db, facts)
    accepted, _ = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    if facts.log.is_broken_behind(accepted):
        raise JournalDamaged("its write-ahead log is damaged, so that confirmed steps are lost")
    identity, commits = facts.noted
    is_noted = commits > 0 and identity == read_fact(db, "identity").to_bytes(4, "big")
    if is_noted and read_fact(db, "commits") < commits:
        raise JournalDamaged(
            "it lacks confirmed steps: its write-ahead log is cut, or it is an older copy of itself; "
            "to go on with what is there remove the file that ends in -lock"
        )
    # Where the count of commits is right another program of SQLite's has copied the log into the file.
    if not facts.has_log and read_fact(db, "open") and not is_noted:
        raise JournalDamaged(
            "its process was killed, and the write-ahead log and the lock file beside it are missing. Put them back. If "
            "another program of SQLite copied the log into the file (a checkpoint), the file is whole: carry it into a "
            "new one. Otherwise the last confirmed steps are lost"
        )
