"""A command line that runs in a sandbox: watched, read, and ended with all that it has started.

bubblewrap asks the kernel to be killed when its parent is, and the parent is the thread that started it. So it is started
by the thread that runs trio, and by no other, which may end before: nothing is left after kill -9 of this process.
"""

import errno
import math
import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

from actgent.control.arguments import at_least_one
from actgent.errors import ConfigurationError, ToolError

from .seccomp import seccomp_program

_LOOK = 0.25
"""Seconds between two looks at what a command takes."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _check_seconds(_: object, field: "attrs.Attribute[float]", value: float) -> None:
    given: object = value
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not (is_number and 0 < value < math.inf):
        raise ConfigurationError(f"{field.name}= is a number of seconds above 0, not {value!r:.200}")


def _check_count(_: object, field: "attrs.Attribute[int]", value: int) -> None:
    at_least_one(field.name, value)  # prlimit reads -1 as "no limit"


@attrs.frozen(kw_only=True)
class SandboxBounds:
    """What a command may take.

    Raises:
        ConfigurationError: A bound is not a number above 0.
    """

    seconds: float = attrs.field(default=30.0, validator=_check_seconds)
    memory: int = attrs.field(default=512_000_000, validator=_check_count)
    """Bytes of its processes: of each at any moment, of all together when it is looked, four times a second."""
    processes: int = attrs.field(default=64, validator=_check_count)
    """Processes and threads at once."""
    disk: int = attrs.field(default=64_000_000, validator=_check_count)
    """Bytes of each file, and of the folder that it writes in; of one that stays when it is looked."""
    output: int = attrs.field(default=50_000, validator=_check_count)
    """Bytes of output; a command that writes more is ended."""


@attrs.frozen(kw_only=True)
class CommandEnd:
    """What came of a command."""

    output: str
    code: int
    reason: str = ""
    """Why it was ended; empty: it ended by itself."""
    has_begun: bool = True
    """False: the sandbox could not be set up, and `output` says why."""


async def run_sandboxed(
    line: Sequence[str], bounds: SandboxBounds, folder: Path | None, user: int | None
) -> CommandEnd:
    """Run a command line of bubblewrap; whatever ends this, nothing that it has started is left.

    Args:
        line: The command line.
        bounds: What it may take.
        folder: The folder that it writes in and that stays; None: there is none.
        user: Who runs it; None: whoever runs this process.

    Raises:
        ToolError: it cannot be started.
    """
    command = _start(line, user)
    try:
        with trio.move_on_after(bounds.seconds) as scope:
            await _follow(command, bounds, folder)
        if scope.cancelled_caught:
            command.end(f"it ran for more than {bounds.seconds:g} s")
    finally:
        with trio.CancelScope(shield=True):
            await command.close()
    return command.told(bounds.output)


@attrs.define(eq=False)
class _Command:
    """A command at work."""

    process: "subprocess.Popen[bytes]"
    status: int
    """Where bubblewrap tells how the command ended, if it could begin it."""
    written: bytearray = attrs.field(factory=bytearray)
    reason: str = ""
    is_reported: bool = False

    def end(self, reason: str = "") -> None:
        """Kill bubblewrap, by which the kernel kills all that runs in the sandbox."""
        self.reason = self.reason or reason
        if self.process.poll() is None:
            self.process.kill()

    async def close(self) -> None:
        """End it, wait until it is gone, and close its pipes."""
        self.end()
        if self.process.poll() is None:
            waiting = os.pidfd_open(self.process.pid)
            try:
                await trio.lowlevel.wait_readable(waiting)
            finally:
                os.close(waiting)
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.is_reported = b"exit-code" in _read(self.status)

    def told(self, most: int) -> CommandEnd:
        output = bytes(self.written[:most]).decode(errors="replace")
        # The command may write what it likes, but then bubblewrap has begun it, and reports how it ended.
        has_begun = self.is_reported or bool(self.reason) or not output.startswith("bwrap: ")
        code = self.process.returncode or 0
        return CommandEnd(output=output, code=code, reason=self.reason, has_begun=has_begun)


def _start(line: Sequence[str], user: int | None) -> _Command:
    """Start a command line in this thread: see the docstring of the module. Takes some milliseconds."""
    theirs: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    reading, writing = os.pipe()
    filters = _filters()
    refused = [word for each in filters for word in ("--seccomp", str(each))]
    try:
        process = subprocess.Popen(  # noqa: S603 - the command runs in a sandbox
            [line[0], "--json-status-fd", str(writing), *refused, *line[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(writing, *filters),
            start_new_session=True,
            cwd="/",
            env={},
            **theirs,
        )
    except (OSError, ValueError) as error:
        os.close(reading)
        raise ToolError(f"the sandbox cannot be set up here: {error}") from error
    finally:
        for each in (writing, *filters):
            os.close(each)
    return _Command(process, reading)


def _filters() -> list[int]:
    """A pipe from which bubblewrap reads the filter of system calls, if there is one for this machine."""
    if not (program := seccomp_program()):
        return []
    reading, writing = os.pipe()
    os.write(writing, program)  # it has room for it
    os.close(writing)
    return [reading]


async def _follow(command: _Command, bounds: SandboxBounds, folder: Path | None) -> None:
    """Read what a command writes until it ends, or has to be ended."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, command, bounds, folder)
        assert command.process.stdout is not None  # noqa: S101 - it was asked for
        async with trio.lowlevel.FdStream(os.dup(command.process.stdout.fileno())) as stream:
            async for piece in stream:
                command.written += piece
                if len(command.written) > bounds.output:
                    command.end(f"it wrote more than {bounds.output:,} bytes of output")
                    break
        nursery.cancel_scope.cancel()


# --- what it takes -----------------------------------------------------------------------------


async def _watch(command: _Command, bounds: SandboxBounds, folder: Path | None) -> None:
    """End a command that takes too much; a folder that holds more, or is deeper, than may be already can be tidied up."""
    disk, was_deep = bounds.disk, False
    if folder is not None:
        size, was_deep = await trio.to_thread.run_sync(_folder_size, folder, abandon_on_cancel=True)
        disk = max(disk, size)
    while True:
        await trio.sleep(_LOOK)
        taken = await trio.to_thread.run_sync(_taken, command.process.pid, abandon_on_cancel=True)
        if taken > bounds.memory:
            command.end(f"its processes took more than {bounds.memory:,} bytes of memory")
        if folder is not None:
            size, is_deep = await trio.to_thread.run_sync(_folder_size, folder, disk, abandon_on_cancel=True)
            if size > disk:
                command.end(f"its folder took more than {disk:,} bytes")
            if is_deep and not was_deep:
                command.end("its folder is so deep, or closed, that nobody can see how much is in it")


def _taken(process: int) -> int:
    """Bytes of memory that a process and those below it have, with the files that they hold open and that have no name.

    These are in memory (memfd) or take a disk on which nobody finds them.
    """
    pages, nameless = 0, dict[tuple[int, int], int]()
    for each in _tree(process):
        try:
            pages += int(Path(f"/proc/{each}/statm").read_bytes().split()[1])
            nameless.update(_nameless(f"/proc/{each}/fd"))
        except (OSError, IndexError):  # it has ended
            continue
    return pages * _PAGE + sum(nameless.values())


def _nameless(opened: str) -> Iterator[tuple[tuple[int, int], int]]:
    """The files without a name that a process has open, each by what it is, with its bytes."""
    for each in Path(opened).iterdir():
        try:
            found = each.stat()
        except OSError:  # it was closed
            continue
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
            yield (found.st_dev, found.st_ino), found.st_blocks * 512


def _tree(process: int) -> Iterator[int]:
    """A process and all below it."""
    left = [process]
    while left:
        yield (each := left.pop())
        try:
            left += map(int, Path(f"/proc/{each}/task/{each}/children").read_bytes().split())
        except OSError:
            continue


def _folder_size(folder: Path, most: int | None = None) -> tuple[int, bool]:
    """Bytes that a folder takes with what is below it, counted no further than what is over `most`; and whether some cannot be counted.

    A path has a longest length, and a folder may be closed to those who look.
    """
    size, is_deep, left = 0, False, [str(folder)]
    while left and (most is None or size <= most):
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except OSError as error:  # most often it is gone meanwhile
            is_deep = is_deep or error.errno in (errno.ENAMETOOLONG, errno.EACCES)
    return size, is_deep


def _read(status: int) -> bytes:
    os.set_blocking(status, False)
    try:
        return os.read(status, 4096)
    except BlockingIOError:
        return b""
    finally:
        os.close(status)
