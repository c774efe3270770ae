"""A copy of a journal's file, also while a process writes it.

From inside of the process SQLite copies page by page, and keeps what it has copied up to date. From outside nothing may
open the file, so it is copied as bytes: first the file, then its log. A page that a checkpoint changed meanwhile stands in
the log as well, so the two make a whole, unless the log began anew in between: then the copy is made again. Its owner avoids
that for as long as it can.

Each copy is opened, read from end to end, and only then gets its name.
"""

import math
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw

from actgent.errors import ConfigurationError, JournalFailed
from actgent.journal.base import Backup

from .disk_errors import translated
from .drafts import drafted, name_draft
from .lock import is_held_here, looking, read_note
from .opening import check_kind, examine, prepare
from .salvage import problems_in
from .wal import log_path

TRIES = 20
"""How often a copy from outside is begun; its owner begins its log anew meanwhile after about 64 MB."""
PAUSE = 0.05
"""Seconds between two tries."""
PAGES = 1000
"""Pages that are first copied from inside before the journal may write again."""
_HEADER = 32
"""Bytes of a log that are other ones when it begins anew."""


def back_up(path: Path, target: Path, *, say: Callable[[str], object] = lambda _: None) -> Backup:
    """Copy a journal's file, which a process may be using, to a new file; `say` gets a line now and then.

    Raises:
        ConfigurationError: this is no journal, or there is a file at the target.
        JournalDamaged: the journal is not what was written; nothing stands at the target.
        JournalFull: there is no space at the target.
        JournalFailed: it cannot be read, the target not be written, or it is written too fast to be copied from outside.
    """
    with translated():
        check_kind(path)
    if not path.is_file():
        raise ConfigurationError(f"no such file: {path}")
    if is_held_here(path):
        raise ConfigurationError(
            f"this process has {path.name} open itself: use `await runtime.backup(path)`"
        )
    with drafted(target) as draft:
        noted = _copy(path, draft, say)
        say("reading the copy")
        return seal(draft, target, noted)


def _copy(path: Path, draft: Path, say: Callable[[str], object]) -> tuple[bytes, int]:
    """Copy the bytes of a file and its log, as of one moment; returns what was confirmed by then."""
    for number in range(1, TRIES + 1):
        with translated(), looking(path):
            noted, before = read_note(path), _round_of(path)
            shutil.copyfile(path, draft)
            _copy_log(path, draft)
            if _round_of(path) == before and _is_whole(draft, noted):
                return noted
        say(f"it is being written, try {number} of {TRIES} did not come through")
        time.sleep(PAUSE)
    raise JournalFailed(
        f"{path.name} is written too fast to be copied from outside: let its process do it, by "
        "`await runtime.backup(path)`, or stop it first"
    )


def _copy_log(path: Path, draft: Path) -> None:
    log_path(draft).unlink(missing_ok=True)
    try:
        shutil.copyfile(log_path(path), log_path(draft))
    except FileNotFoundError:  # the process has ended: the file has all that was in it
        log_path(draft).unlink(missing_ok=True)


def _round_of(path: Path) -> tuple[object, ...]:
    """Return a value that changes once the log begins anew, or the file changes without one."""
    try:
        with log_path(path).open("rb") as log:
            if header := log.read(_HEADER):
                return (header,)
    except FileNotFoundError:
        pass
    stat = path.stat()
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns)


def _is_whole(draft: Path, noted: tuple[bytes, int]) -> bool:
    """Return True if the frames of a copied log stand one behind the other; a copy that met a write may lack one."""
    facts = examine(draft, noted)
    with closing(apsw.Connection(str(draft))) as db:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        try:
            db.execute("SELECT count(*) FROM sqlite_schema").get  # noqa: B018 - reads the log
            accepted, _ = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        except apsw.SQLError:  # no log, or none of SQLite's
            return True
    return not facts.log.is_broken_behind(accepted)


def seal(draft: Path, target: Path, noted: tuple[bytes, int]) -> Backup:
    """Read a copy from end to end, make one file of it and its log, and give it its name.

    Raises:
        JournalDamaged: it is not what was written.
        JournalFailed: it could not be written.
    """
    with translated():
        sessions = _settle(draft, noted)
        size = draft.stat().st_size
        name_draft(draft, target)
    return Backup(target, sessions, size)


def _settle(draft: Path, noted: tuple[bytes, int]) -> int:
    facts = examine(draft, noted)
    with closing(apsw.Connection(str(draft))) as db:
        file = prepare(db, facts)
        for problem in problems_in(file):
            problem.add_note("nothing was written: see `actgent journal check` and `actgent journal salvage`")
            raise problem
        sessions = len(file.all_sessions())
        file.end()
    return sessions


class PageCopy:
    """The copy of an open file, some pages at a time; all of it runs in the thread of the file's connection.

    A file that grows as fast as it is copied is copied in ever larger steps, so that a copy comes to its end.
    """

    def __init__(self, source: apsw.Connection, draft: Path) -> None:
        self._target = apsw.Connection(str(draft))
        self._backup = self._target.backup("main", source, "main")
        self._pages = PAGES
        self._missing: float = math.inf

    def step(self) -> bool:
        """Copy the next pages; True where these were the last."""
        if self._backup.step(self._pages):
            return True
        missing = self._backup.remaining
        if missing > self._missing - self._pages / 2:
            self._pages *= 2
        self._missing = missing
        return False

    def end(self) -> None:
        """Close the copy, whole or not: what it failed by its last step has told."""
        self._backup.close(force=True)
        self._target.close()


def forget_log(draft: Path) -> None:
    """A copy that SQLite made has no log beside it, whatever its original says."""
    with translated(), closing(apsw.Connection(str(draft))) as db:
        db.execute("UPDATE meta SET value = 0 WHERE key = 'open'")
