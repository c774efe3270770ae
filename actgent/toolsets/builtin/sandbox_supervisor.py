"""Program that starts one sandboxed command and kills all its processes when its parent dies or requests it.

Run as a script by an interpreter without site packages, so it imports only the standard library. The parent holds the
other end of the control pipe. The command starts when a byte arrives on that pipe. It is
killed when the pipe closes, which the kernel also does after kill -9 of the parent.

The death signal of bubblewrap (`--die-with-parent`) is not sufficient, because bubblewrap is two processes. If the first process
dies before the second has requested the signal, the second process waits forever. Orphans of the command become children
of this process (PR_SET_CHILD_SUBREAPER, prctl(2)), which kills its children until none is left.

Arguments: the control descriptor, bubblewrap's status descriptor, the user id or `-`, the folder of the cgroup or
`-`, and the command line.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys

_SET_CHILD_SUBREAPER = 36
MEMORY_EXCEEDED = b"actgent: memory-exceeded\n"
"""Line on the status descriptor if the kernel killed a process for its cgroup's memory limit."""


def supervise() -> int:
    """Run the command in this process's arguments, kill all processes that it leaves, and return its exit code."""
    control, status = int(sys.argv[1]), int(sys.argv[2])
    user = None if sys.argv[3] == "-" else int(sys.argv[3])
    cgroup = None if sys.argv[4] == "-" else sys.argv[4]
    os.set_inheritable(control, False)  # noqa: FBT003 - positional only
    report = os.dup(status)  # the command does not inherit this copy
    libc = ctypes.CDLL(None, use_errno=True)
    code = 1
    try:
        if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0 and os.read(control, 1):
            child = _start(sys.argv[5:], user, cgroup)
            # The parent reads output and status until all copies are closed.
            _redirect(os.open(os.devnull, os.O_RDWR), 0, 1, 2, status)
            code = _wait(child, control)
    finally:
        _kill_children()
        if cgroup is not None:
            if count_oom_kills(cgroup):
                os.write(report, MEMORY_EXCEEDED)
            with contextlib.suppress(OSError):
                os.rmdir(cgroup)  # noqa: PTH106 - pathlib is slow to import
    return code


def _start(line: list[str], user: int | None, cgroup: str | None) -> int:
    """Start a command line, and return its process id.

    Args:
        line: Program and arguments.
        user: User id under which the command runs; None for the user of this process.
        cgroup: Folder of the cgroup that the command joins; None without a cgroup.
    """
    child = os.fork()
    if child:
        return child
    try:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these signals
            signal.signal(number, signal.SIG_DFL)
        if cgroup is not None:
            with open(f"{cgroup}/cgroup.procs", "w", encoding="ascii") as file:  # noqa: PTH123 - pathlib is slow to import
                file.write("0")
        if user is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        os.execve(line[0], line, {})  # noqa: S606 - bubblewrap
    except OSError as error:
        os.write(2, f"bwrap: cannot be started: {error}\n".encode())
    os._exit(127)


def _redirect(target: int, *descriptors: int) -> None:
    for descriptor in descriptors:
        os.dup2(target, descriptor)


def _wait(child: int, control: int) -> int:
    """Wait until the process `child` ends. If the control pipe closes first, kill the process. Return the exit code."""
    ended = os.pidfd_open(child)
    polling = select.poll()
    polling.register(ended, select.POLLIN)
    polling.register(control, select.POLLIN)
    ready = dict(polling.poll())
    if ended not in ready:
        return 128 + signal.SIGKILL
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _kill_children() -> None:
    """Kill all children of this process, including orphans of dead children, until no child is left."""
    while True:
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    try:
        with open("/proc/thread-self/children", "rb") as file:  # noqa: PTH123
            return [int(each) for each in file.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [int(each) for each in os.listdir("/proc") if each.isdigit() and _parent(each) == os.getpid()]  # noqa: PTH208


def _parent(process: str) -> int:
    try:
        with open(f"/proc/{process}/stat", "rb") as file:  # noqa: PTH123
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def count_oom_kills(cgroup: str) -> int:
    """Return the number of processes that the kernel killed because the cgroup with the folder `cgroup` exceeded its memory limit."""
    for name in ("memory.events", "memory.oom_control"):
        with (
            contextlib.suppress(OSError),
            open(f"{cgroup}/{name}", encoding="ascii") as file,  # noqa: PTH123
        ):
            return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    return 0


if __name__ == "__main__":
    sys.exit(supervise())
