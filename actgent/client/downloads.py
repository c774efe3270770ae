"""Files of a server: written whole or not at all, over any number of connections."""

import os
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

import attrs
import trio

from actgent.errors import ConfigurationError, ServerUnreachable

from .calls import Calls, Pauses
from .problems import error_of
from .transport import ConnectionLost, Refused, RemoteRequest


@asynccontextmanager
async def new_file(path: Path) -> AsyncGenerator[BinaryIO, None]:
    """A block that writes a new file, which is there when the block has ended well; nobody else may read it.

    Raises:
        ConfigurationError: the file exists, or cannot be written.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    file = await trio.to_thread.run_sync(_open_draft, draft, path)
    try:
        yield file
        await trio.to_thread.run_sync(_keep, file, draft, path)
    finally:
        file.close()
        draft.unlink(missing_ok=True)


def _open_draft(draft: Path, path: Path) -> BinaryIO:
    if path.exists():
        raise _exists(path)
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be written ({error.strerror}): look at its folder"
        ) from error
    return os.fdopen(descriptor, "wb")


def _keep(file: BinaryIO, draft: Path, path: Path) -> None:
    """Give a draft its name, unless another file got it meanwhile."""
    file.flush()
    os.fsync(file.fileno())
    try:
        os.link(draft, path)  # a rename would replace what is there
    except FileExistsError:
        raise _exists(path) from None


def _exists(path: Path) -> ConfigurationError:
    return ConfigurationError(f"{path} exists: name another file")


async def download(calls: Calls, request: RemoteRequest, file: BinaryIO) -> int:
    """Write the answer of a request into a file, from its beginning after each lost connection; returns its bytes.

    It is tried again as long as there is patience, which begins anew when a try gets further than those before.

    Raises:
        ServerUnreachable: there was no whole answer in time.
        ActgentError: the answer is an error.
    """
    pauses, furthest, until = Pauses(), 0, trio.current_time() + calls.patience
    while True:
        copied = _Copied(file)
        await trio.to_thread.run_sync(copied.empty)
        try:
            async with calls.transport.download(request) as pieces:
                async for piece in pieces:
                    await copied.write(piece)
                return copied.size
        except ConnectionLost as lost:
            error, pause = ServerUnreachable(str(lost)), pauses.next()
        except Refused as refused:
            if not refused.is_passing:
                raise error_of(refused, request) from None
            error, pause = ServerUnreachable(str(refused)), pauses.next(refused.retry_after)
        if copied.size > furthest:
            furthest, until = copied.size, trio.current_time() + calls.patience
        if trio.current_time() + pause > until:
            raise error
        await trio.sleep(pause)


@attrs.define
class _Copied:
    """What one try has written."""

    file: BinaryIO
    size: int = 0

    def empty(self) -> None:
        self.file.seek(0)
        self.file.truncate()

    async def write(self, piece: bytes) -> None:
        await trio.to_thread.run_sync(self.file.write, piece)
        self.size += len(piece)
