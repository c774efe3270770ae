"""Small files that several processes share: written whole or not at all, changed by one at a time."""

import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

from actgent.errors import ConfigurationError

LONGEST_PART = 30
"""Characters of a name in the name of a file or schema."""
_UNFIT = re.compile(r"[^a-z0-9_]+")
PATIENCE = 60.0
"""Seconds that a process waits for another one that changes the same file."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25


@asynccontextmanager
async def file_change(path: Path, *, patience: float = PATIENCE) -> AsyncGenerator[None]:
    """A block in which no other process, or task, changes a file that is changed in such blocks only.

    It holds `PATH.lock`, which stays there; the lock ends with the process, however that ends.

    Raises:
        ConfigurationError: the folder cannot be written, or another one takes longer than `patience` seconds.
    """
    descriptor = _opened(path)
    try:
        await _lock(descriptor, path, patience)
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    try:
        return os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be changed ({error.strerror}): look at its folder"
        ) from error


async def _lock(descriptor: int, path: Path, patience: float) -> None:
    pause = _FIRST_PAUSE
    with trio.move_on_after(patience):
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            await trio.sleep(pause)  # a thread that waits in the kernel could not be cancelled
            pause = min(2 * pause, _LONGEST_PAUSE)
    raise ConfigurationError(
        f"another process has been changing {path} for {patience:g} s: try again, or end it"
    )


def write_whole(path: Path, text: str | bytes, *, mode: int = 0o644, keeps_rights: bool = False) -> None:
    """Write a file so that whoever reads it, also after a crash, finds what it was or what it is to be.

    Args:
        path: The file.
        text: What it holds then.
        mode: Of a new file.
        keeps_rights: Leave owner, group and mode to a file that is there, so that who could read it still can.

    Raises:
        OSError: it cannot be written, and is as it was.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            if keeps_rights:
                _take_rights(descriptor, path)
            file.write(text.encode() if isinstance(text, str) else text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.absolute().parent)


def _take_rights(descriptor: int, path: Path) -> None:
    """Give a file the owner, group and mode of another one; none of them where that is another user's, or not there."""
    with suppress(FileNotFoundError, PermissionError):
        seen = path.stat()
        os.fchown(descriptor, seen.st_uid, seen.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(seen.st_mode))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def plain_name(name: str) -> str:
    """Make any name a part of the name of a file or a schema; what is cut or replaced leaves a digest, so others stay others."""
    fit = _UNFIT.sub("_", name)[:LONGEST_PART]
    if fit == name:
        return name
    digest = hashlib.blake2s(name.encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return f"{fit}_{digest}"
