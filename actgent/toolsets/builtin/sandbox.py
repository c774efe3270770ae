"""Execution of a command line in a sandbox: start a supervisor, read the output, enforce limits, and end all processes.

The supervisor (`sandbox_supervisor.py`) is a separate process. It exits when no process of the command is left. If the command is
cancelled or this process dies, a pipe closes and the supervisor kills the command.
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

from actgent.errors import ConfigurationError, ToolError
from actgent.limits_and_schedules.id_and_number_validation import at_least_one

from .cgroup import make_cgroup
from .sandbox_supervisor import MEMORY_EXCEEDED, count_oom_kills
from .seccomp import seccomp_program

_POLL_SECONDS = 0.25
"""Interval between two measurements of a command's usage."""
WORK_FOLDER = "/work"
"""Working directory of commands, inside of the sandbox."""
SCRATCH_FOLDER = "/tmp"  # noqa: S108 - a path inside the sandbox
"""Second writable folder, in memory, inside of the sandbox."""
MEMORY_FOLDERS = (WORK_FOLDER, SCRATCH_FOLDER)
_SUPERVISOR = str(Path(__file__).with_name("sandbox_supervisor.py"))
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _check_seconds(_: object, field: "attrs.Attribute[float]", value: float) -> None:
    given: object = value
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not (is_number and 0 < value < math.inf):
        raise ConfigurationError(f"{field.name}= must be a number of seconds above 0, not {value!r:.200}")


def _check_count(_: object, field: "attrs.Attribute[int]", value: int) -> None:
    at_least_one(field.name, value)  # prlimit reads -1 as "no limit"


@attrs.frozen(kw_only=True)
class SandboxBounds:
    """Limits of a sandboxed command.

    Raises:
        ConfigurationError: A limit is not a number above 0.
    """

    seconds: float = attrs.field(default=30.0, validator=_check_seconds)
    """Maximum run time in seconds."""
    memory: int = attrs.field(default=512_000_000, validator=_check_count)
    """Maximum memory in bytes of all processes, with files in memory and the kernel memory they need.

    Without a cgroup: enforced per process at any time, for all processes four times per second, and without kernel
    memory.
    """
    processes: int = attrs.field(default=64, validator=_check_count)
    """Maximum number of concurrent processes and threads."""
    disk: int = attrs.field(default=64_000_000, validator=_check_count)
    """Maximum size in bytes of each file and of the writable folder; a persistent folder is measured four times per second."""
    files: int = attrs.field(default=50_000, validator=_check_count)
    """Maximum number of files and folders in the writable folder, counted four times per second."""
    output: int = attrs.field(default=50_000, validator=_check_count)
    """Maximum output in bytes; a command that writes more is killed."""


@attrs.frozen(kw_only=True)
class CommandResult:
    """Result of a sandboxed command."""

    output: str
    """Standard output and error as text."""
    code: int
    """Exit code of the command."""
    reason: str = ""
    """Reason why the command was killed; empty if it ended by itself."""
    has_started: bool = True
    """False if the sandbox could not be created; `output` then has the error."""


@attrs.frozen(kw_only=True)
class Sandbox:
    """Command line prefix, limits and user of a sandbox."""

    line: Sequence[str]
    """Command line of bubblewrap (program and options), to which the command is appended."""
    bounds: SandboxBounds
    """Limits of the command's time, memory, processes, disk space and output."""
    folder: Path | None
    """Persistent writable folder; None if the folder is in memory."""
    user: int | None
    """User id under which the command runs; None for the user of this process."""
    allows_unix: bool
    """True if the command may open Unix sockets that connect to a path."""


async def run_sandboxed(sandbox: Sandbox, command: Sequence[str]) -> CommandResult:
    """Run a command in a sandbox. When this returns or is cancelled, no process of the command is left.

    Raises:
        ToolError: The command cannot be started.
    """
    bounds, folder = sandbox.bounds, sandbox.folder
    running = _start(sandbox, [*sandbox.line, *command])
    try:
        with trio.move_on_after(bounds.seconds) as scope:
            await _read_output(running, bounds, folder)
        if scope.cancelled_caught:
            running.end(f"it exceeded {bounds.seconds:g} s")
    finally:
        with trio.CancelScope(shield=True):
            await running.close(bounds)
    return running.result(bounds.output)


@attrs.define(eq=False)
class _Command:
    """A running command with its supervisor."""

    process: "subprocess.Popen[bytes]"
    """Process of the supervisor that runs the command."""
    control: int
    """Pipe whose closing makes the supervisor kill the command; -1 if it is closed."""
    status: int
    """Pipe on which bubblewrap reports that the command was started and how it ended."""
    cgroup: Path | None
    """Folder of the command's cgroup; None without a cgroup."""
    written: bytearray = attrs.field(factory=bytearray)
    """Output read so far."""
    reason: str = ""
    """Reason why the command was killed; empty if it was not killed."""
    is_reported: bool = False
    """True if bubblewrap has reported an exit code."""

    def end(self, reason: str = "") -> None:
        """Make the supervisor kill the command and all processes it has started.

        The result contains the `reason` of the first call.
        """
        self.reason = self.reason or reason
        if self.control >= 0:
            os.close(self.control)
            self.control = -1

    async def wait(self) -> None:
        """Wait until the supervisor has exited, which is after all processes of the command."""
        if self.process.poll() is None:
            waiting = os.pidfd_open(self.process.pid)
            try:
                await trio.lowlevel.wait_readable(waiting)
            finally:
                os.close(waiting)
            self.process.wait()

    async def close(self, bounds: SandboxBounds) -> None:
        """Kill the command, wait until none of its processes is left, and close its pipes."""
        self.end()
        await self.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        if self.cgroup is not None:  # removed by the supervisor, unless it was killed
            with suppress(OSError):
                self.cgroup.rmdir()
        report = _read_status(self.status)
        self.is_reported = b"exit-code" in report
        if MEMORY_EXCEEDED in report:
            self.reason = self.reason or _memory_reason(bounds)

    def result(self, limit: int) -> CommandResult:
        """Return the result of the ended command, with at most `limit` bytes of output."""
        output = bytes(self.written[:limit]).decode(errors="replace")
        # A command may print this prefix itself, but then bubblewrap has started it, and reports its exit code.
        has_started = self.is_reported or bool(self.reason) or not output.startswith("bwrap: ")
        code = self.process.returncode or 0
        return CommandResult(output=output, code=code, reason=self.reason, has_started=has_started)


def _start(sandbox: Sandbox, line: Sequence[str]) -> _Command:
    """Start a supervisor process that runs a command line, and return the running command. Takes some milliseconds.

    Raises:
        ToolError: The supervisor cannot be started.
    """
    cgroup, user = make_cgroup(sandbox.bounds.memory), sandbox.user
    listening, control = os.pipe()
    reading, writing = os.pipe()
    filters = _open_filter_pipe(
        seccomp_program(allows_memfd=cgroup is not None, allows_unix=sandbox.allows_unix)
    )
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


def _open_filter_pipe(program: bytes) -> list[int]:
    """Write a system call filter to a pipe, and return a list with its read end for bubblewrap.

    Return an empty list for an empty filter.
    """
    if not program:
        return []
    reading, writing = os.pipe()
    os.write(writing, program)  # fits into the pipe's buffer
    os.close(writing)
    return [reading]


async def _read_output(command: _Command, bounds: SandboxBounds, folder: Path | None) -> None:
    """Read the output of a command until the command exits. Kill the command if it exceeds one of its limits.

    `folder` is the persistent writable folder, whose size and number of files are also bounded; None without one.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, command, bounds, folder)
        assert command.process.stdout is not None  # noqa: S101 - opened with a pipe
        async with trio.lowlevel.FdStream(os.dup(command.process.stdout.fileno())) as stream:
            async for piece in stream:
                command.written += piece
                if len(command.written) > bounds.output:
                    command.end(f"it wrote more than {bounds.output:,} bytes of output")
                    break
        # A process closes its output before its exit can be waited for. A kill in between would change its exit code.
        await command.wait()
        nursery.cancel_scope.cancel()


# --- measuring usage ---------------------------------------------------------------------------


async def _watch(command: _Command, bounds: SandboxBounds, folder: Path | None) -> None:
    """Measure a running command, and kill it if it uses too much memory, too many files or too much disk space.

    If the folder exceeds its limits before the command starts, the command is killed only if it adds to the folder.
    So commands can clean up.
    """
    disk, files, was_deep = bounds.disk, bounds.files, False
    if folder is not None:
        before = await trio.to_thread.run_sync(_measure, folder, abandon_on_cancel=True)
        disk, files, was_deep = max(disk, before.size), max(files, before.files), before.is_deep
    while True:
        await trio.sleep(_POLL_SECONDS)
        taken = await trio.to_thread.run_sync(_used_memory, command, abandon_on_cancel=True)
        if taken > bounds.memory:
            command.end(_memory_reason(bounds))
        if folder is None:
            made = await trio.to_thread.run_sync(_count_files, command.process.pid, abandon_on_cancel=True)
        else:
            found = await trio.to_thread.run_sync(_measure, folder, disk, files, abandon_on_cancel=True)
            made = found.files
            if found.size > disk:
                command.end(f"its folder exceeded {disk:,} bytes")
            if found.is_deep and not was_deep:
                command.end(
                    "its folder has parts that cannot be measured: a path is too long or a folder is not readable"
                )
        if made > files:
            command.end(f"it created more than {files:,} files")


def _memory_reason(bounds: SandboxBounds) -> str:
    return f"its processes used more than {bounds.memory:,} bytes of memory"


def _count_files(supervisor: int) -> int:
    """Return the number of files and folders that a command has in its in-memory folders, such as `/tmp`.

    `supervisor` is the process id of the command's supervisor.
    """
    limit = 0
    for process in _descendants(supervisor):
        found = 0
        for place in MEMORY_FOLDERS:
            inside = f"/proc/{process}/root{place}"
            with suppress(OSError):
                # Before bubblewrap has created the sandbox, this path is the host's folder.
                if not (host := Path(place)).exists() or Path(inside).stat().st_dev != host.stat().st_dev:
                    there = os.statvfs(inside)
                    found += there.f_files - there.f_ffree
        limit = max(limit, found)
    return limit


def _used_memory(command: _Command) -> float:
    """Return the memory of a command's processes in bytes, with unlinked files that they have open.

    Return infinity if the kernel killed a process because of the memory limit.

    Unlinked files are in memory (memfd), or use disk space without being found in the folder.
    """
    if command.cgroup is not None and count_oom_kills(str(command.cgroup)):
        return math.inf
    pages, nameless = 0, dict[tuple[int, int], int]()
    for each in _descendants(command.process.pid):
        try:
            pages += int(Path(f"/proc/{each}/statm").read_bytes().split()[1])
            nameless.update(_unlinked_files(f"/proc/{each}/fd"))
        except (OSError, IndexError):  # the process has ended
            continue
    return pages * _PAGE + sum(nameless.values())


def _unlinked_files(opened: str) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield the unlinked files that a process has open, as ((device, inode), size in bytes)."""
    for each in Path(opened).iterdir():
        try:
            found = each.stat()
        except OSError:  # closed since it was listed
            continue
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
            yield (found.st_dev, found.st_ino), found.st_blocks * 512


def _descendants(supervisor: int) -> Iterator[int]:
    """Yield the process ids of all descendants of the supervisor with the process id `supervisor`."""
    left = [supervisor]
    while left:
        if (process := left.pop()) != supervisor:
            yield process
        with suppress(OSError):
            for thread in Path(f"/proc/{process}/task").iterdir():
                with suppress(OSError):
                    left += map(int, (thread / "children").read_bytes().split())


@attrs.frozen
class _FolderSize:
    """Disk usage and number of files of a folder."""

    size: int
    """Disk usage in bytes of everything below the measured folder."""
    files: int
    """Number of files and folders below the measured folder."""
    is_deep: bool
    """True if a part of the folder cannot be measured: a path is too long, or a folder is not readable."""


def _measure(folder: Path, limit: int | None = None, max_files: int | None = None) -> _FolderSize:
    """Measure the disk usage and the number of files of a folder.

    The measurement stops when it exceeds `limit` bytes or `max_files` files; None disables this limit.
    """
    size, files, is_deep, left = 0, 0, False, [str(folder)]
    while left and (limit is None or size <= limit) and (max_files is None or files <= max_files):
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    files += 1
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except OSError as error:  # usually because the folder was removed after it was listed
            is_deep = is_deep or error.errno in (errno.ENAMETOOLONG, errno.EACCES)
    return _FolderSize(size, files, is_deep)


def _read_status(status: int) -> bytes:
    """Return the data that can be read from the supervisor's status pipe without waiting, and close the pipe."""
    os.set_blocking(status, False)
    try:
        return os.read(status, 4096)
    except BlockingIOError:
        return b""
    finally:
        os.close(status)
