"""Small files shared by several processes: atomic writes, and a lock for read-modify-write changes."""

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

MAX_NAME_CHARS = 30
"""Maximum length of a user's name within the name of a file or schema."""
_FORBIDDEN = re.compile(r"[^a-z0-9_]+")
LOCK_TIMEOUT_SECONDS = 60.0
"""Default lock timeout of a file in seconds."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.01, 0.25


@asynccontextmanager
async def file_change(path: Path, *, timeout_seconds: float = LOCK_TIMEOUT_SECONDS) -> AsyncGenerator[None]:
    """Hold an exclusive lock for changing a file, among all processes and tasks that use this function.

    The lock is on the file `PATH.lock`, which is not deleted. The operating system releases the lock if the process dies.

    Raises:
        ConfigurationError: The folder is not writable, or another process holds the lock longer than `timeout_seconds`.
    """
    descriptor = _open_lock_file(path)
    try:
        await _lock(descriptor, path, timeout_seconds)
        yield
    finally:
        os.close(descriptor)


def _open_lock_file(path: Path) -> int:
    try:
        return os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be locked for a change ({error.strerror}): the folder must exist and be writable"
        ) from error


async def _lock(descriptor: int, path: Path, timeout_seconds: float) -> None:
    pause = _FIRST_PAUSE_SECONDS
    with trio.move_on_after(timeout_seconds):
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            await trio.sleep(pause)  # a blocking lock in a thread could not be cancelled
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)
    raise ConfigurationError(
        f"another process has held the lock of {path} for {timeout_seconds:g} s: try again, or stop that process"
    )


def write_whole(path: Path, text: str | bytes, *, mode: int = 0o644, keeps_rights: bool = False) -> None:
    """Replace the content of a file atomically: readers see the old or the new content, also after a crash.

    Args:
        path: The file.
        text: The new content.
        mode: Permissions of a new file.
        keeps_rights: True keeps the owner, the group and the permissions of an existing file.

    Raises:
        OSError: The file cannot be written; it is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            if keeps_rights:
                with suppress(FileNotFoundError, PermissionError):
                    seen = path.stat()
                    os.fchown(descriptor, seen.st_uid, seen.st_gid)
                    os.fchmod(descriptor, stat.S_IMODE(seen.st_mode))
            file.write(text.encode() if isinstance(text, str) else text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.absolute().parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that new and renamed files in it survive a power loss.

    Raises:
        OSError: The folder cannot be written.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def plain_name(name: str) -> str:
    """Convert a name to characters that file and schema names may have.

    If the name is changed, a digest of the original name is added, so that the result stays unique.
    """
    fit = _FORBIDDEN.sub("_", name)[:MAX_NAME_CHARS]
    if fit == name:
        return name
    digest = hashlib.blake2s(name.encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return f"{fit}_{digest}"
