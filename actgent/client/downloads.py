"""Downloads of files. A file gets its name when the download is complete; a lost connection restarts the download."""

import os
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

import attrs
import trio

from actgent.errors import ConfigurationError, ServerUnreachable

from .error_conversion import error_of
from .request_sender import BrokenConnections, RequestSender, RetryBackoff
from .transport_interface import ConnectionLost, Refused, RemoteRequest


@asynccontextmanager
async def new_file(path: Path) -> AsyncGenerator[BinaryIO, None]:
    """Open an `async with` block that writes a temporary file; if the block succeeds, link the file to `path`.

    Raises:
        ConfigurationError: The file exists, or its folder cannot be written.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    file = await trio.to_thread.run_sync(_open_draft, draft, path)
    try:
        yield file
        await trio.to_thread.run_sync(_publish, file, draft, path)
    finally:
        file.close()
        draft.unlink(missing_ok=True)


def _open_draft(draft: Path, path: Path) -> BinaryIO:
    """Create the temporary file, readable only by the current user.

    Raise if `path` exists or the folder is not writable.
    """
    if path.exists():
        raise _exists(path)
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"file {path} cannot be created: {error.strerror}; check its folder"
        ) from error
    return os.fdopen(descriptor, "wb")


def _publish(file: BinaryIO, draft: Path, path: Path) -> None:
    """Fsync the temporary file and link it to its final path. Raise if the path exists by now."""
    file.flush()
    os.fsync(file.fileno())
    try:
        os.link(draft, path)  # a rename would replace an existing file
    except FileExistsError:
        raise _exists(path) from None


def _exists(path: Path) -> ConfigurationError:
    """Return the error for a target file that already exists."""
    return ConfigurationError(f"file {path} already exists: choose another name")


async def download(requests: RequestSender, request: RemoteRequest, file: BinaryIO) -> int:
    """Download the answer of a request into a file. Return the number of bytes written.

    After a lost connection the download starts again from the first byte. It is retried for `requests.retry_timeout` seconds,
    counted from the last try that got further than all tries before.

    Raises:
        ServerUnreachable: No complete answer arrived in time.
        ActgentError: The server answered with an error.
    """
    backoff, furthest, deadline = RetryBackoff(), 0, trio.current_time() + requests.retry_timeout
    broken = BrokenConnections(requests.transport, request)
    while True:
        target = _DownloadTarget(file)
        await trio.to_thread.run_sync(target.clear)
        begun = trio.current_time()
        try:
            async with requests.transport.download(broken.add_count(request)) as pieces:
                async for piece in pieces:
                    await target.write(piece)
                return target.size
        except ConnectionLost as lost:
            failure: ConnectionLost | Refused = lost
            pause = backoff.next_pause()
        except Refused as refused:
            if not refused.is_temporary:
                raise error_of(refused, request) from None
            failure, pause = refused, backoff.next_pause(refused.retry_after)
        if target.size > furthest:
            furthest, deadline = target.size, trio.current_time() + requests.retry_timeout
        with trio.move_on_at(deadline):
            await broken.record(failure, begun=begun)
            await broken.wait_calm()
        if trio.current_time() + pause > deadline:
            raise ServerUnreachable(str(failure))
        await trio.sleep(pause)


@attrs.define
class _DownloadTarget:
    """File into which one try of a download writes."""

    file: BinaryIO
    size: int = 0
    """Bytes written by the current try."""

    def clear(self) -> None:
        """Truncate the file to zero bytes, because the download starts again."""
        self.file.seek(0)
        self.file.truncate()

    async def write(self, piece: bytes) -> None:
        """Append bytes to the file, in a worker thread."""
        await trio.to_thread.run_sync(self.file.write, piece)
        self.size += len(piece)
