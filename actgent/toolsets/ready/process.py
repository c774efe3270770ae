"""Commands in a sandbox, by bubblewrap: no network, a system that is only read, one folder to write in, and bounds.

What holds a command is the kernel: namespaces of its own for users, processes, network and mounts, which bubblewrap
(https://github.com/containers/bubblewrap) sets up without rights of root, and the limits that `prlimit` sets within.
How it runs and ends is `sandboxed.py`.
"""

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from actgent.approvals import Ask
from actgent.errors import ConfigurationError, ToolError
from actgent.tools.base import AskFor, Effect, Tool, ToolContext

from .sandboxed import PLACE, SCRATCH_PLACE, CommandEnd, Sandbox, SandboxBounds, run_sandboxed

_NOBODY = 65534
"""The user that runs commands of a process of root: the limit on processes does not hold for root."""
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/ssl/certs",
)
_SCRATCH = 16_000_000
"""Bytes of the second place that a command may write in."""
_OWN = (PLACE, "/proc", "/dev")
"""Paths that the sandbox has of its own."""
_GRACE = 5.0
"""Seconds that a call may take beyond its command, to start and to clean up."""
_TOOLS = {"bwrap": "bubblewrap", "prlimit": "util-linux"}


def process_tool(
    name: str = "run_command",
    *,
    folder: str | os.PathLike[str] | None = None,
    read: Sequence[str | os.PathLike[str]] = (),
    environment: Mapping[str, str] | None = None,
    seconds: float = SandboxBounds().seconds,
    memory: int = SandboxBounds().memory,
    processes: int = SandboxBounds().processes,
    disk: int = SandboxBounds().disk,
    files: int = SandboxBounds().files,
    output: int = SandboxBounds().output,
    approval: bool | Ask | AskFor = False,
) -> Tool:
    """Make a tool that runs a shell command in a sandbox, by the programs of this machine.

    When a call ends, is cancelled, or this process is killed, all processes of its command are killed.

    `memory` is exact where this process may create a cgroup with a memory controller (as root, in most containers, and in
    services of a user's systemd). Elsewhere the processes are measured four times a second, files without a name
    (`memfd_create`) are refused, and these are not bounded: memory of the kernel for sockets, pipes and page tables, memory
    that is taken and given back between two measurements, and space of a disk under `folder` in files that were removed but
    are still open, mapped, or in a socket.

    Args:
        name: What the model calls it by.
        folder: Where commands write, at `/work`; it stays. None: each command has an empty one in memory.
        read: Further folders and files that commands read, under their own paths; of the system they read `/usr`.
            Commands then open no Unix sockets (of x86_64 and aarch64), since a socket below these paths leads to its server.
        environment: Variables that commands have; of this process they have none.
        seconds: How long a command may take.
        memory: Bytes that its processes may take together, with files in memory.
        processes: How many processes and threads may run at once.
        disk: Bytes that the folder may take.
        files: How many files and folders may be in the folder.
        output: Bytes of output.
        approval: True: a person approves each command.

    Raises:
        ConfigurationError: bubblewrap or prlimit is not installed, the folder is not there or root's, or a path of `read`
            is not there, is no folder or file, or is below a path that the sandbox uses for itself.
    """
    bounds = SandboxBounds(
        seconds=seconds, memory=memory, processes=processes, disk=disk, files=files, output=output
    )
    tool = ProcessTool(
        name,
        folder=_checked(folder),
        read=tuple(map(_existing, read)),
        environment=dict(environment or {}),
        bounds=bounds,
    )
    tool.approval = approval
    return tool


class ProcessTool(Tool):
    """Runs a command in a sandbox."""

    outside = True
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"command": {"type": "string", "minLength": 1, "description": "For /bin/sh."}},
        "required": ["command"],
        "additionalProperties": False,
    }

    def __init__(
        self,
        name: str,
        *,
        folder: Path | None,
        read: Sequence[str],
        environment: Mapping[str, str],
        bounds: SandboxBounds,
    ) -> None:
        programs = {each: _program(each) for each in _TOOLS}
        self.name = name
        self.timeout = bounds.seconds + _GRACE
        self.effect: Effect = "pure" if folder is None else "once"
        keeps = "keeps its files" if folder is not None else "is empty at each call"
        self.description = (
            f"Run a shell command in a sandbox: no network; it writes in {PLACE}, which {keeps}, "
            f"and in /tmp; at most {bounds.seconds:g} s."
        )
        self._sandbox = Sandbox(
            line=[
                *_sandbox(programs["bwrap"], folder, read, environment, bounds),
                *_limits(programs["prlimit"], bounds),
            ],
            bounds=bounds,
            folder=folder,
            user=_user_of(folder),
            allows_unix=not read,
        )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        if "\0" in (command := arguments["command"]):
            raise ToolError("a command cannot hold NUL")
        ended = await run_sandboxed(self._sandbox, ["/bin/sh", "-c", command])
        if not ended.has_begun:
            raise ToolError(f"the sandbox cannot be set up here: {ended.output.strip()[:500]}")
        return _told(ended)


def _told(ended: CommandEnd) -> str:
    if ended.reason:
        return f"{ended.output}\n[ended: {ended.reason}]".lstrip("\n")
    if ended.code:
        return f"{ended.output}\n[exit code {ended.code}]".lstrip("\n")
    return ended.output or "[no output]"


# --- what a sandbox is made of -----------------------------------------------------------------


def _sandbox(
    bwrap: str,
    folder: Path | None,
    read: Sequence[str],
    environment: Mapping[str, str],
    bounds: SandboxBounds,
) -> list[str]:
    """The beginning of a command line; what comes later covers what came before."""
    line = [
        bwrap,
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--die-with-parent",
        "--new-session",
    ]
    line += ["--cap-drop", "ALL", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"]
    line += ["--ro-bind", "/usr", "/usr"]
    for path in _SYSTEM:
        if Path(path).is_symlink():
            line += ["--symlink", str(Path(path).readlink()), path]
        else:
            line += ["--ro-bind-try", path, path]
    for path in _SETTINGS:
        line += ["--ro-bind-try", path, path]
    line += [
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--remount-ro",
        "/dev",
        "--size",
        str(_SCRATCH),
        "--tmpfs",
        SCRATCH_PLACE,
    ]
    line += (
        ["--size", str(bounds.disk), "--tmpfs", PLACE] if folder is None else ["--bind", str(folder), PLACE]
    )
    for path in read:  # after the folders in memory, which would cover paths below /tmp
        line += ["--ro-bind", path, path]
    line += ["--remount-ro", "/", "--chdir", PLACE, "--clearenv"]
    told = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": PLACE, "LANG": "C.UTF-8", **environment}
    for name, text in told.items():
        line += ["--setenv", name, text]
    return line


def _limits(prlimit: str, bounds: SandboxBounds) -> list[str]:
    seconds = math.ceil(bounds.seconds) + 1
    return [
        "--",
        prlimit,
        f"--data={bounds.memory}",
        f"--nproc={bounds.processes}",
        f"--fsize={bounds.disk}",
        f"--cpu={seconds}",
        "--core=0",
        "--nofile=256",
        "--",
    ]


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ConfigurationError(
            f"commands in a sandbox need the program {name!r}, which is not installed here: "
            f"install the package {_TOOLS[name]!r} (Linux: apt install {_TOOLS[name]})"
        )
    return found


def _checked(folder: str | os.PathLike[str] | None) -> Path | None:
    if folder is None:
        return None
    path = Path(folder).resolve()
    if not path.is_dir():
        raise ConfigurationError(f"folder= is a folder that is there, not {str(folder)!r}")
    if os.geteuid() == 0 and path.stat().st_uid == 0:
        raise ConfigurationError(
            f"{path} is root's, and no command of a model runs as root: give the folder to another user (chown)"
        )
    return path


def _existing(path: str | os.PathLike[str]) -> str:
    there = Path(path).absolute()
    if not there.exists():
        raise ConfigurationError(f"read= names what is there, not {os.fspath(path)!r}")
    if not there.is_dir() and not there.is_file():
        raise ConfigurationError(
            f"read= names folders and files, and {os.fspath(path)!r} is a socket, pipe or device"
        )
    normal = Path(os.path.normpath(there))
    if normal in (Path("/"), Path(SCRATCH_PLACE)) or any(normal.is_relative_to(each) for each in _OWN):
        raise ConfigurationError(
            f"read= cannot name {os.fspath(path)!r}: the sandbox has a {normal} of its own; name a folder elsewhere"
        )
    return str(normal)


def _user_of(folder: Path | None) -> int | None:
    """Return who runs the commands; None: whoever runs this process."""
    if os.geteuid() != 0:
        return None
    return _NOBODY if folder is None else folder.stat().st_uid
