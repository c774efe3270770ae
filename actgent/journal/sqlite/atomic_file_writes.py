"""Atomic file writes: a file gets its name when its content is complete."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from actgent.errors import ConfigurationError, JournalFull

from .disk_errors import translate_errors
from .lock_file import lock_path
from .wal_inspection import log_path


@contextmanager
def temporary_file_for(target: Path) -> Iterator[Path]:
    """Context manager: give the block the path of a temporary file, to which it writes the content of `target`.

    The temporary file is locked during the block, and deleted at its end unless `rename_draft` renamed it.

    Raises:
        ConfigurationError: The target exists, or another process is writing it.
        JournalFull: The disk is full.
    """
    _check_free(target)
    draft = target.with_name(f"{target.name}.part")
    try:
        with _hold_draft(draft, target):
            _check_free(target)  # again, now that no other process can create the target
            with translate_errors():
                _remove(draft)
                draft.touch(mode=0o600)
            yield draft
    except JournalFull as full:
        raise JournalFull(
            f"the disk of {target} is full: free space or use another file; the incomplete file was removed"
        ) from full


def _check_free(target: Path) -> None:
    if target.exists():
        raise ConfigurationError(f"{target} already exists: pass the path of a new file")


@contextmanager
def _hold_draft(draft: Path, target: Path) -> Iterator[None]:
    """Context manager: hold the lock of a temporary file, and delete the file and its log when the block exits."""
    with translate_errors():
        fd = _lock(lock_path(draft), target)
    try:
        yield
    finally:
        try:
            with translate_errors():
                _remove(draft)
                lock_path(draft).unlink(missing_ok=True)
        finally:
            os.close(fd)


def _lock(path: Path, target: Path) -> int:
    """Lock a separate lock file and return its descriptor.

    On some file systems, a lock on the temporary file would interfere with SQLite's locks.
    """
    while True:
        with ExitStack() as otherwise:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            otherwise.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    f"another process is writing {target}: wait until it has finished, or use another file"
                ) from None
            with suppress(FileNotFoundError):  # the former holder has just removed the file
                if os.path.samestat(path.stat(), os.fstat(fd)):
                    otherwise.pop_all()
                    return fd


def rename_draft(draft: Path, target: Path) -> None:
    """Rename a complete temporary file `draft` to `target`. The content and the name are synced, so they survive power loss."""
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
