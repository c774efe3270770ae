"""New files that get their names when they are whole."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from actgent.errors import ConfigurationError, JournalFull

from .disk_errors import translated
from .lock import lock_path
from .wal import log_path


@contextmanager
def drafted(target: Path) -> Iterator[Path]:
    """A name for a file that is not whole yet, and nobody else's meanwhile; nothing is left of it behind the block.

    Raises:
        ConfigurationError: there is a file at the target, or somebody else is writing it.
        JournalFull: there is no space for it.
    """
    _check_free(target)
    draft = target.with_name(f"{target.name}.part")
    try:
        with _held(draft, target):
            _check_free(target)  # as of the moment since which nobody else can name one so
            with translated():
                _remove(draft)
                draft.touch(mode=0o600)
            yield draft
    except JournalFull as full:
        raise JournalFull(
            f"no space for {target}: free some on its disk, or name another place; nothing is left of it"
        ) from full


def _check_free(target: Path) -> None:
    if target.exists():
        raise ConfigurationError(f"{target} exists: name a file that does not")


@contextmanager
def _held(draft: Path, target: Path) -> Iterator[None]:
    """A block that one at a time is in, of all processes; the draft and what stands beside it go with it."""
    with translated():
        fd = _lock(lock_path(draft), target)
    try:
        yield
    finally:
        try:
            with translated():
                _remove(draft)
                lock_path(draft).unlink(missing_ok=True)
        finally:
            os.close(fd)


def _lock(path: Path, target: Path) -> int:
    """Lock a file beside the draft, not the draft: some disks take that for the locks that SQLite has there."""
    while True:
        with ExitStack() as otherwise:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            otherwise.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    f"{target} is being written by somebody else: wait until that has ended, or name another file"
                ) from None
            with suppress(FileNotFoundError):  # whoever had it has just removed it
                if os.path.samestat(path.stat(), os.fstat(fd)):
                    otherwise.pop_all()
                    return fd


def name_draft(draft: Path, target: Path) -> None:
    """Give a draft that is whole its name, whenever the power goes."""
    _sync(draft)
    draft.rename(target)
    _sync(target.parent)


def _remove(draft: Path) -> None:
    for each in (draft, log_path(draft)):
        each.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
