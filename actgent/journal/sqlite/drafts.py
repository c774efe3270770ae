"""New files that get their names when they are whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from actgent.errors import ConfigurationError, JournalFull

from .disk_errors import translated
from .lock import lock_path
from .wal import log_path


@contextmanager
def drafted(target: Path) -> Iterator[Path]:
    """A name for a file that is not whole yet; nothing is left of it behind the block.

    Raises:
        ConfigurationError: there is a file at the target.
        JournalFull: there is no space for it.
    """
    if target.exists():
        raise ConfigurationError(f"{target} exists: name a file that does not")
    draft = target.with_name(f"{target.name}.part")
    try:
        with translated():
            _remove(draft)
            draft.touch(mode=0o600)
        yield draft
    except JournalFull as full:
        raise JournalFull(
            f"no space for {target}: free some on its disk, or name another place; nothing is left of it"
        ) from full
    finally:
        with translated():
            _remove(draft)


def name_draft(draft: Path, target: Path) -> None:
    """Give a draft that is whole its name, whenever the power goes."""
    _sync(draft)
    draft.rename(target)
    _sync(target.parent)


def _remove(draft: Path) -> None:
    for each in (draft, log_path(draft), lock_path(draft)):
        each.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
