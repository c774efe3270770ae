"""Tool that runs shell commands in a bubblewrap sandbox: no network, a read-only system, one writable folder, and limits.

The kernel isolates the command by namespaces for users, processes, network and mounts, and by the limits that `prlimit` sets.
bubblewrap (https://github.com/containers/bubblewrap) creates the namespaces without root. `sandbox.py` runs and ends the command.
"""

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from actgent.approvals import ApprovalRequest
from actgent.errors import ConfigurationError, ToolError
from actgent.tools.tool_interface import ApprovalRule, Effect, Tool, ToolContext

from .sandbox import SCRATCH_FOLDER, WORK_FOLDER, CommandResult, Sandbox, SandboxBounds, run_sandboxed

_NOBODY = 65534
"""User id for commands if this process runs as root, because the process limit does not apply to root."""
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/ssl/certs",
)
_SCRATCH_BYTES = 16_000_000
"""Size of the scratch folder in bytes; the folder is in memory."""
_SANDBOX_PATHS = (WORK_FOLDER, "/proc", "/dev")
"""Paths that the sandbox mounts itself."""
_GRACE_SECONDS = 5.0
"""Seconds in addition to the command's time limit, to start the sandbox and to clean up."""
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
    approval: bool | ApprovalRequest | ApprovalRule = False,
) -> Tool:
    """Make a tool that runs shell commands of this machine in a sandbox.

    When a call ends or is cancelled, or this process is killed, all processes of the command are killed.

    The `memory` limit is exact if this process may create a cgroup with a memory controller: as root, in most containers, and
    in services of a user's systemd. Otherwise processes are measured four times per second, and unnamed files
    (`memfd_create`) are forbidden. Three kinds of use are then not limited: kernel memory for sockets, pipes and page tables;
    memory that is allocated and freed between two measurements; and disk space of removed files under `folder` that are still in
    use.

    Args:
        name: Name by which the model calls the tool.
        folder: Persistent folder that commands see as `/work` and write to. None gives each command an empty folder in
            memory.
        read: Further readable folders and files, at their own paths; `/usr` is always readable. On x86_64 and aarch64,
            commands then cannot open Unix sockets, because a socket below these paths would reach its server.
        environment: Environment variables of commands; none are inherited.
        seconds: Time limit of a command in seconds.
        memory: Maximum memory in bytes of all its processes, including files in memory.
        processes: Maximum number of concurrent processes and threads.
        disk: Maximum size of the folder in bytes.
        files: Maximum number of files and folders in the folder.
        output: Maximum size of the output in bytes.
        approval: True if each command needs an approval.

    Raises:
        ConfigurationError: bubblewrap or prlimit is not installed. Or the folder does not exist, or is owned by root. Or a path of
            `read` does not exist, is not a folder or file, or is used by the sandbox itself.
    """
    bounds = SandboxBounds(
        seconds=seconds, memory=memory, processes=processes, disk=disk, files=files, output=output
    )
    tool = ProcessTool(
        name,
        folder=_check_folder(folder),
        read=tuple(map(_check_read_path, read)),
        environment=dict(environment or {}),
        bounds=bounds,
    )
    tool.approval = approval
    return tool


class ProcessTool(Tool):
    """Tool that runs a shell command of the model in a sandbox."""

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
        self.timeout = bounds.seconds + _GRACE_SECONDS
        self.effect: Effect = "pure" if folder is None else "once"
        keeps = "keeps its files" if folder is not None else "is empty at each call"
        self.description = (
            f"Run a shell command in a sandbox: no network; it writes in {WORK_FOLDER}, which {keeps}, "
            f"and in /tmp; at most {bounds.seconds:g} s."
        )
        self._sandbox = Sandbox(
            line=[
                *_sandbox(programs["bwrap"], folder, read, environment, bounds),
                *_limits(programs["prlimit"], bounds),
            ],
            bounds=bounds,
            folder=folder,
            user=_command_user(folder),
            allows_unix=not read,
        )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        if "\0" in (command := arguments["command"]):
            raise ToolError("command must not contain NUL characters")
        ended = await run_sandboxed(self._sandbox, ["/bin/sh", "-c", command])
        if not ended.has_started:
            raise ToolError(f"the sandbox cannot be set up here: {ended.output.strip()[:500]}")
        return _format_result(ended)


def _format_result(ended: CommandResult) -> str:
    if ended.reason:
        return f"{ended.output}\n[ended: {ended.reason}]".lstrip("\n")
    if ended.code:
        return f"{ended.output}\n[exit code {ended.code}]".lstrip("\n")
    return ended.output or "[no output]"


# --- the sandbox command line ------------------------------------------------------------------


def _sandbox(
    bwrap: str,
    folder: Path | None,
    read: Sequence[str],
    environment: Mapping[str, str],
    bounds: SandboxBounds,
) -> list[str]:
    """Return the command line of bubblewrap for a sandbox, without the command.

    Of the mounts in it, later ones cover earlier ones.
    """
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
        str(_SCRATCH_BYTES),
        "--tmpfs",
        SCRATCH_FOLDER,
    ]
    line += (
        ["--size", str(bounds.disk), "--tmpfs", WORK_FOLDER]
        if folder is None
        else ["--bind", str(folder), WORK_FOLDER]
    )
    for path in read:  # after the folders in memory, which would cover paths below /tmp
        line += ["--ro-bind", path, path]
    line += ["--remount-ro", "/", "--chdir", WORK_FOLDER, "--clearenv"]
    variables = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": WORK_FOLDER,
        "LANG": "C.UTF-8",
        **environment,
    }
    for name, text in variables.items():
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


def _check_folder(folder: str | os.PathLike[str] | None) -> Path | None:
    """Check and resolve the path of the folder in which commands may write; None if there is no such folder.

    Raises:
        ConfigurationError: The folder does not exist, or is owned by root.
    """
    if folder is None:
        return None
    path = Path(folder).resolve()
    if not path.is_dir():
        raise ConfigurationError(f"folder= must be an existing folder, not {str(folder)!r}")
    if os.geteuid() == 0 and path.stat().st_uid == 0:
        raise ConfigurationError(
            f"{path} is owned by root, but commands never run as root: change its owner (chown)"
        )
    return path


def _check_read_path(path: str | os.PathLike[str]) -> str:
    """Return a path of `read=` as a normalized absolute path.

    Raises:
        ConfigurationError: The path does not exist, is not a folder or file, or is used by the sandbox itself.
    """
    there = Path(path).absolute()
    if not there.exists():
        raise ConfigurationError(f"read= must contain existing paths, not {os.fspath(path)!r}")
    if not there.is_dir() and not there.is_file():
        raise ConfigurationError(
            f"read= must contain folders and files, but {os.fspath(path)!r} is a socket, pipe or device"
        )
    normal = Path(os.path.normpath(there))
    if normal in (Path("/"), Path(SCRATCH_FOLDER)) or any(
        normal.is_relative_to(each) for each in _SANDBOX_PATHS
    ):
        raise ConfigurationError(
            f"read= cannot name {os.fspath(path)!r}: the sandbox mounts {normal} itself; use a folder elsewhere"
        )
    return str(normal)


def _command_user(folder: Path | None) -> int | None:
    """Return the user id under which commands run: the owner of `folder`, or an unprivileged user without a folder.

    Return None if this process is not root; commands then run under its user.
    """
    if os.geteuid() != 0:
        return None
    return _NOBODY if folder is None else folder.stat().st_uid
