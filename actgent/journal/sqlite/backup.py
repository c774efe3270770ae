"""Backups of a journal file, also while a process writes it.

Inside the owner process, SQLite copies page by page and keeps the copied pages up to date. From outside, no process
may open the file, so its bytes are copied: first the file, then its log. A page that a checkpoint changed during the copy
is also in the log, so file and log together are consistent. If the log was restarted during the copy, the copy is repeated. The
owner delays such a restart as long as possible.

Each copy is opened and read completely before it gets its name.
"""

import math
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw

from actgent.errors import ConfigurationError, JournalFailed
from actgent.journal.journal_interface import Backup

from .atomic_file_writes import rename_draft, temporary_file_for
from .damage_checks_on_open import check_kind, examine, prepare
from .disk_errors import translate_errors
from .lock_file import holding_reader_lock, is_held_here, read_note
from .recovery import problems_in
from .wal_inspection import log_path

TRIES = 20
"""Maximum number of attempts to copy a file that another process owns. The owner restarts its log during a copy only
after about 64 MB.
"""
PAUSE = 0.05
"""Seconds between two attempts to copy."""
PAGES = 1000
"""Number of pages that the owner copies per step, before the journal may write again."""
_HEADER = 32
"""Number of bytes at the start of a log that change when the log is restarted."""


def back_up(path: Path, target: Path, *, say: Callable[[str], object] = lambda _: None) -> Backup:
    """Copy a journal file that a process may be using to a new file. `say` receives progress messages.

    Raises:
        ConfigurationError: The path is not a journal, or the target exists.
        JournalDamaged: The journal is damaged; the target is not created.
        JournalFull: The disk of the target is full.
        JournalFailed: The journal cannot be read, the target cannot be written, or the journal changes too
            fast to be copied from outside.
    """
    with translate_errors():
        check_kind(path)
    if not path.is_file():
        raise ConfigurationError(f"no such file: {path}; pass the path of a journal file")
    if is_held_here(path):
        raise ConfigurationError(f"this process has {path.name} open: use `await runtime.backup(path)`")
    with temporary_file_for(target) as draft:
        lock_note = _copy(path, draft, say)
        say("reading the copy")
        return seal(draft, target, lock_note)


def _copy(path: Path, draft: Path, say: Callable[[str], object]) -> tuple[bytes, int]:
    """Copy a journal file and its write-ahead log to `draft`. The copy has the state of one moment.

    Return the journal's identity and number of commits, as the lock file notes them.
    """
    for number in range(1, TRIES + 1):
        with translate_errors(), holding_reader_lock(path):
            lock_note, before = read_note(path), _round_of(path)
            shutil.copyfile(path, draft)
            _copy_log(path, draft)
            if _round_of(path) == before and _is_whole(draft, lock_note):
                return lock_note
        say(f"the journal was written during attempt {number} of {TRIES}")
        time.sleep(PAUSE)
    raise JournalFailed(
        f"{path.name} changes too fast to be copied from outside: copy it in its own process with "
        "`await runtime.backup(path)`, or stop it first"
    )


def _copy_log(path: Path, draft: Path) -> None:
    log_path(draft).unlink(missing_ok=True)
    try:
        shutil.copyfile(log_path(path), log_path(draft))
    except FileNotFoundError:  # the process has ended and merged the log into the file
        log_path(draft).unlink(missing_ok=True)


def _round_of(path: Path) -> tuple[object, ...]:
    """Return a value that changes when the write-ahead log of a file is restarted, or when a file without a log changes."""
    try:
        with log_path(path).open("rb") as log:
            if header := log.read(_HEADER):
                return (header,)
    except FileNotFoundError:
        pass
    stat = path.stat()
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns)


def _is_whole(draft: Path, lock_note: tuple[bytes, int]) -> bool:
    """Return True if the write-ahead log of a copy is consistent. A copy made during a write may lack a frame.

    `lock_note` has the journal's identity and its minimum number of commits.
    """
    facts = examine(draft, lock_note)
    with closing(apsw.Connection(str(draft))) as db:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        try:
            db.execute("SELECT count(*) FROM sqlite_schema").get  # noqa: B018 - reads the log
            accepted, _ = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        except apsw.SQLError:  # no log, or not a SQLite log
            return True
    return not facts.log.is_damaged_after(accepted)


def seal(draft: Path, target: Path, lock_note: tuple[bytes, int]) -> Backup:
    """Verify the copy `draft`, merge its write-ahead log into the file, and rename it to `target`.

    `lock_note` has the journal's identity and its minimum number of commits.

    Raises:
        JournalDamaged: The copy is damaged.
        JournalFailed: The copy could not be written.
    """
    with translate_errors():
        sessions = _resolve(draft, lock_note)
        size = draft.stat().st_size
        rename_draft(draft, target)
    return Backup(target, sessions, size)


def _resolve(draft: Path, lock_note: tuple[bytes, int]) -> int:
    facts = examine(draft, lock_note)
    with closing(apsw.Connection(str(draft))) as db:
        file = prepare(db, facts)
        for problem in problems_in(file):
            problem.add_note("nothing was written: see `actgent journal check` and `actgent journal recover`")
            raise problem
        sessions = len(file.all_sessions())
        file.end()
    return sessions


class PageCopy:
    """Copies an open file in steps of some pages. All methods run in the thread of the connection.

    If the file grows as fast as it is copied, the steps become larger, so that the copy completes.
    """

    def __init__(self, source: apsw.Connection, draft: Path) -> None:
        self._target = apsw.Connection(str(draft))
        self._backup = self._target.backup("main", source, "main")
        self._pages = PAGES
        self._missing: float = math.inf

    def step(self) -> bool:
        """Copy the next pages of the journal file. Return True if the copy is complete."""
        if self._backup.step(self._pages):
            return True
        missing = self._backup.remaining
        if missing > self._missing - self._pages / 2:
            self._pages *= 2
        self._missing = missing
        return False

    def end(self) -> None:
        """Close the copy of the journal file, complete or not. Errors are ignored, because `step` has raised them."""
        self._backup.close(force=True)
        self._target.close()


def mark_without_log(draft: Path) -> None:
    """Mark a copied file as having no write-ahead log, because SQLite made the copy without a log."""
    with translate_errors(), closing(apsw.Connection(str(draft))) as db:
        db.execute("UPDATE meta SET value = 0 WHERE key = 'open'")
