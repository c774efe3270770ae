"""Checks for a journal file or write-ahead log that is missing, replaced or truncated, also while the file is open."""

import os
from pathlib import Path

from actgent.errors import JournalDamaged, JournalFailed
from actgent.errors.text_escaping import counted
from actgent.support.safe_logging import logger_of

from .lock_file import lock_path
from .wal_inspection import log_path

_log = logger_of(__name__)


def check_no_orphaned_log(path: Path, commits: int) -> None:
    """Raise if a new journal file would destroy the log of a missing or emptied file.

    `commits` is the number of commits in the lock file's note.

    Raises:
        JournalDamaged: The log, or the note in the lock file, shows that the file had content.
    """
    log = log_path(path)
    size = log.stat().st_size if log.exists() else 0
    if not size and not (
        commits and path.exists()
    ):  # if file and log are both missing, there is nothing to protect
        if commits:
            _log.warning(
                "the journal %s is missing, so a new one is created. The lock file %s counts %s of the missing journal, which was removed or moved. "
                "Put the file back to continue its sessions",
                path,
                lock_path(path).name,
                counted(commits, "commit"),
            )
        return
    gone = "is empty but was not before" if path.exists() else "is missing"
    leftovers = [f"{log.name} with {counted(size, 'byte')} of confirmed records"] if size else []
    leftovers += [f"{lock_path(path).name}, which counts {counted(commits, 'commit')}"] if commits else []
    move = " and ".join(each.split(maxsplit=1)[0].rstrip(",") for each in leftovers)
    raise JournalDamaged(
        f"its file {path.name} {gone}, but its folder has {' and '.join(leftovers)}: put the file back, or "
        f"start a new journal by moving {move} away"
    )


class JournalFileIdentity:
    """Identity of an open journal file and its write-ahead log, to detect that one was removed, replaced or truncated."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._log = log_path(self._path)
        self._is_lost = False
        self._path_text, self._log_text = str(self._path), str(self._log)
        self._file_id, self._log_id = _id_of(self._path_text), _id_of(self._log_text)
        self._size = path.stat().st_size
        self._log_size = 0

    @property
    def is_lost(self) -> bool:
        """True if the file was missing or replaced at the last `check` or `check_log`."""
        return self._is_lost

    def check(self) -> None:
        """Check that the journal file and its write-ahead log are still those that this process has opened.

        Raises:
            JournalFailed: The file or its log is missing, or was replaced or truncated.
        """
        self._is_lost = True
        wrong = self._missed()
        if wrong is not None:
            raise _file_lost_error(wrong)
        self._is_lost = False

    def check_log(self) -> None:
        """Check that the write-ahead log is complete. Call this before a write, which would fill a gap with zeros.

        Raises:
            JournalFailed: The log is missing, or was replaced or truncated.
        """
        if not self._finds_log():
            self._is_lost = True
            raise _file_lost_error(self._log)

    def begin_log(self) -> None:
        """Record that the journal itself has emptied the log, so that a shorter log is no error."""
        self._log_size = 0

    def _missed(self) -> Path | None:
        try:
            found = os.stat(self._path_text)  # noqa: PTH116 - each commit looks, and a path takes longer
        except OSError:
            return self._path
        if (found.st_dev, found.st_ino) != self._file_id or found.st_size < self._size:
            return self._path
        return None if self._finds_log() else self._log

    def _finds_log(self) -> bool:
        try:
            log = os.stat(self._log_text)  # noqa: PTH116 - as above
        except OSError:
            return self._log_id is None
        if (log.st_dev, log.st_ino) != self._log_id or log.st_size < self._log_size:
            return False
        self._log_size = log.st_size
        return True


def _file_lost_error(path: Path) -> JournalFailed:
    return JournalFailed(
        f"{path.name} was removed, replaced or truncated while the journal was open: writes fail from now on. Put it "
        "back, or stop this process, restore the file and start again"
    )


def _id_of(path: str) -> tuple[int, int] | None:
    """Return the device and inode numbers of a file; None if it does not exist."""
    try:
        found = os.stat(path)  # noqa: PTH116 - as above
    except OSError:
        return None
    return found.st_dev, found.st_ino
