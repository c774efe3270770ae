"""A command line that runs in a sandbox: started by a supervisor, watched, read, and ended with all that it has started.

The supervisor (`supervisor.py`) is a process of its own. The end of a pipe tells it that the command is cancelled or that
this process is dead, and it ends when no process of the command is left.
"""

import errno
import math
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import attrs
import trio

from actgent.control.arguments import at_least_one
from actgent.errors import ConfigurationError, ToolError

from .cgroup import make_cgroup
from .seccomp import seccomp_program
from .supervisor import MEMORY_EXCEEDED, count_oom_kills

_LOOK = 0.25
"""Seconds between two looks at what a command takes."""
PLACE = "/work"
"""Where a command runs."""
SCRATCH_PLACE = "/tmp"  # noqa: S108 - one of the sandbox
"""The second place that a command may write in, in memory."""
IN_MEMORY = (PLACE, SCRATCH_PLACE)
_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))
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
    """Bytes of all processes of a command, with their files in memory and the memory that the kernel needs for them.

    Without a cgroup: of each process at any moment, of all together four times a second, without memory of the kernel.
    """
    processes: int = attrs.field(default=64, validator=_check_count)
    """Processes and threads at once."""
    disk: int = attrs.field(default=64_000_000, validator=_check_count)
    """Bytes of each file, and of the folder that a command writes in; a folder that stays is measured four times a second."""
    files: int = attrs.field(default=50_000, validator=_check_count)
    """Files and folders in the folder that a command writes in, counted four times a second."""
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


@attrs.frozen(kw_only=True)
class Sandbox:
    """What a command runs in."""

    line: Sequence[str]
    """The command line of bubblewrap, up to the command."""
    bounds: SandboxBounds
    folder: Path | None
    """The folder that the command writes in and that stays; None if that folder is in memory."""
    user: int | None
    """Id of the user that runs the command; None: the user of this process."""
    allows_unix: bool
    """True if the command may open sockets that can connect to a path."""


async def run_sandboxed(sandbox: Sandbox, command: Sequence[str]) -> CommandEnd:
    """Run a command in a sandbox. When this returns or is cancelled, no process of the command is left.

    Raises:
        ToolError: The command cannot be started.
    """
    bounds, folder = sandbox.bounds, sandbox.folder
    running = _start(sandbox, [*sandbox.line, *command])
    try:
        with trio.move_on_after(bounds.seconds) as scope:
            await _follow(running, bounds, folder)
        if scope.cancelled_caught:
            running.end(f"it ran for more than {bounds.seconds:g} s")
    finally:
        with trio.CancelScope(shield=True):
            await running.close(bounds)
    return running.told(bounds.output)


@attrs.define(eq=False)
class _Command:
    """A command that runs, with its supervisor."""

    process: "subprocess.Popen[bytes]"
    """The supervisor."""
    control: int
    """Pipe whose end makes the supervisor kill the command; -1 if it is closed."""
    status: int
    """Pipe on which bubblewrap reports how the command ended, if it could start the command."""
    cgroup: Path | None
    written: bytearray = attrs.field(factory=bytearray)
    reason: str = ""
    is_reported: bool = False

    def end(self, reason: str = "") -> None:
        """Have the supervisor kill the command and all that it has started."""
        self.reason = self.reason or reason
        if self.control >= 0:
            os.close(self.control)
            self.control = -1

    async def close(self, bounds: SandboxBounds) -> None:
        """End the command, wait until no process of it is left, and close its pipes."""
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
        if self.cgroup is not None:  # which the supervisor has removed, unless it was killed
            with suppress(OSError):
                self.cgroup.rmdir()
        report = _read(self.status)
        self.is_reported = b"exit-code" in report
        if MEMORY_EXCEEDED in report:
            self.reason = self.reason or _memory_reason(bounds)

    def told(self, most: int) -> CommandEnd:
        output = bytes(self.written[:most]).decode(errors="replace")
        # The command may write what it likes, but then bubblewrap has begun it, and reports how it ended.
        has_begun = self.is_reported or bool(self.reason) or not output.startswith("bwrap: ")
        code = self.process.returncode or 0
        return CommandEnd(output=output, code=code, reason=self.reason, has_begun=has_begun)


def _start(sandbox: Sandbox, line: Sequence[str]) -> _Command:
    """Start the supervisor, and let it start a command line. Takes some milliseconds."""
    cgroup, user = make_cgroup(sandbox.bounds.memory), sandbox.user
    listening, control = os.pipe()
    reading, writing = os.pipe()
    filters = _filters(seccomp_program(allows_memfd=cgroup is not None, allows_unix=sandbox.allows_unix))
    refused = [word for each in filters for word in ("--seccomp", str(each))]
    try:
        process = subprocess.Popen(  # noqa: S603 - the command runs in a sandbox
            [
                *(sys.executable, "-I", "-S", _SUPERVISOR, str(listening), str(writing)),
                "-" if user is None else str(user),
                "-" if cgroup is None else str(cgroup),
                *(line[0], "--json-status-fd", str(writing), *refused, *line[1:]),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(listening, writing, *filters),
            start_new_session=True,
            cwd="/",
            env={},
        )
        os.write(control, b"!")
    except (OSError, ValueError) as error:
        os.close(reading)
        os.close(control)
        if cgroup is not None:
            cgroup.rmdir()
        raise ToolError(f"the sandbox cannot be set up here: {error}") from error
    finally:
        for each in (listening, writing, *filters):
            os.close(each)
    return _Command(process, control, reading, cgroup)


def _filters(program: bytes) -> list[int]:
    """Return a pipe from which bubblewrap reads a filter of system calls; [] for an empty filter."""
    if not program:
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
    """End a command that takes too much.

    A folder that holds more, or is deeper, than the bounds allow at the start may still be tidied up by a command.
    """
    disk, files, was_deep = bounds.disk, bounds.files, False
    if folder is not None:
        before = await trio.to_thread.run_sync(_measure, folder, abandon_on_cancel=True)
        disk, files, was_deep = max(disk, before.size), max(files, before.files), before.is_deep
    while True:
        await trio.sleep(_LOOK)
        taken = await trio.to_thread.run_sync(_taken, command, abandon_on_cancel=True)
        if taken > bounds.memory:
            command.end(_memory_reason(bounds))
        if folder is None:
            made = await trio.to_thread.run_sync(_count_files, command.process.pid, abandon_on_cancel=True)
        else:
            found = await trio.to_thread.run_sync(_measure, folder, disk, files, abandon_on_cancel=True)
            made = found.files
            if found.size > disk:
                command.end(f"its folder took more than {disk:,} bytes")
            if found.is_deep and not was_deep:
                command.end("its folder is so deep, or closed, that nobody can see how much is in it")
        if made > files:
            command.end(f"it made more than {files:,} files")


def _memory_reason(bounds: SandboxBounds) -> str:
    return f"its processes took more than {bounds.memory:,} bytes of memory"


def _count_files(supervisor: int) -> int:
    """Return how many files and folders a command has in the folders in memory that it writes in."""
    most = 0
    for process in _tree(supervisor):
        found = 0
        for place in IN_MEMORY:
            inside = f"/proc/{process}/root{place}"
            with suppress(OSError):
                # Before bubblewrap has set up the sandbox, this path is the folder of the machine.
                if not (host := Path(place)).exists() or Path(inside).stat().st_dev != host.stat().st_dev:
                    there = os.statvfs(inside)
                    found += there.f_files - there.f_ffree
        most = max(most, found)
    return most


def _taken(command: _Command) -> float:
    """Bytes of memory that the processes of a command have, with the files that they hold open and that have no name.

    These files are in memory (memfd), or take space of a disk without being found there. Infinite if the kernel killed a
    process for the limit of the cgroup.
    """
    if command.cgroup is not None and count_oom_kills(str(command.cgroup)):
        return math.inf
    pages, nameless = 0, dict[tuple[int, int], int]()
    for each in _tree(command.process.pid):
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


def _tree(supervisor: int) -> Iterator[int]:
    """Yield the processes below a supervisor; any thread of a process may have children."""
    left = [supervisor]
    while left:
        if (process := left.pop()) != supervisor:
            yield process
        with suppress(OSError):
            for thread in Path(f"/proc/{process}/task").iterdir():
                with suppress(OSError):
                    left += map(int, (thread / "children").read_bytes().split())


@attrs.frozen
class _Measured:
    size: int
    """Bytes that a folder takes with all below it."""
    files: int
    is_deep: bool
    """True if a part of the folder cannot be measured: a path is too long, or a folder is closed."""


def _measure(folder: Path, most: int | None = None, most_files: int | None = None) -> _Measured:
    """Measure a folder, until it is larger than `most` bytes or has more than `most_files` files."""
    size, files, is_deep, left = 0, 0, False, [str(folder)]
    while left and (most is None or size <= most) and (most_files is None or files <= most_files):
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    files += 1
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except OSError as error:  # most often the folder was removed in the meantime
            is_deep = is_deep or error.errno in (errno.ENAMETOOLONG, errno.EACCES)
    return _Measured(size, files, is_deep)


def _read(status: int) -> bytes:
    os.set_blocking(status, False)
    try:
        return os.read(status, 4096)
    except BlockingIOError:
        return b""
    finally:
        os.close(status)
