"""Where a journal's file stands: what is beside it when it is missing, and whether it is still there while it is open."""

import os
from pathlib import Path

from actgent.errors import JournalDamaged, JournalFailed
from actgent.errors.printable import counted
from actgent.support.logs import logger_of

from .lock import lock_path
from .wal import log_path

_log = logger_of(__name__)


def check_alone(path: Path, commits: int) -> None:
    """Refuse to begin a new file beside the log of one that is gone, which it would destroy, or in one that was emptied.

    Raises:
        JournalDamaged: something says that there was one.
    """
    log = log_path(path)
    size = log.stat().st_size if log.exists() else 0
    if not size and not (
        commits and path.exists()
    ):  # if the user removed file and log, there is nothing to save
        if commits:
            _log.warning(
                "the journal %s is missing and begins anew: %s notes %s of the missing file, which was removed or moved. "
                "Put the file back to continue its sessions",
                path,
                lock_path(path).name,
                counted(commits, "commit"),
            )
        return
    gone = "is empty, and it was not" if path.exists() else "is missing"
    beside = [f"{log.name} with {counted(size, 'byte')} of confirmed steps"] if size else []
    beside += [f"{lock_path(path).name}, which has noted {counted(commits, 'commit')}"] if commits else []
    move = " and ".join(each.split(maxsplit=1)[0].rstrip(",") for each in beside)
    raise JournalDamaged(
        f"its file {path.name} {gone}, but beside it stands {' and '.join(beside)}: put the file back where it was, or "
        f"begin anew by moving {move} away"
    )


class Place:
    """Where an open file and its log were found; whoever removes, replaces or cuts them is noticed."""

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
        """True if it was not there at the last look."""
        return self._is_lost

    def check(self) -> None:
        """Look again.

        Raises:
            JournalFailed: the file or its log is another one, or not there.
        """
        self._is_lost = True
        wrong = self._missed()
        if wrong is not None:
            raise _lost(wrong)
        self._is_lost = False

    def check_log(self) -> None:
        """Look whether the log was cut; call it before any work, as a write would fill the gap with zeros.

        Raises:
            JournalFailed: it was, or is another one, or not there.
        """
        if not self._finds_log():
            self._is_lost = True
            raise _lost(self._log)

    def begin_log(self) -> None:
        """The log was emptied by us, so it may be shorter than before."""
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


def _lost(path: Path) -> JournalFailed:
    return JournalFailed(
        f"{path.name} was removed, replaced or cut while the journal was open: nothing is confirmed any more. Put it "
        "back where it was, or end this process, restore the file and start again"
    )


def _id_of(path: str) -> tuple[int, int] | None:
    """Return what tells a file from others; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - as above
    except OSError:
        return None
    return found.st_dev, found.st_ino
