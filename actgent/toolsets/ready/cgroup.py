"""A control group that bounds the memory of one sandboxed command, on machines where this process may create one.

The kernel charges a memory cgroup with all that its processes cause: their own pages, files in memory (tmpfs, memfd, also
those that no process has mapped), and memory of the kernel such as inodes and socket buffers.
Documentation: https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/admin-guide/cgroup-v1/memory.html.
"""

import functools
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PREFIX = "actgent-"


def make_cgroup(memory: int) -> Path | None:
    """Create a cgroup whose processes together take at most `memory` bytes; None if this process may not.

    The caller removes the folder after the last process has ended.
    """
    for parent in _parents():
        path = parent / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        try:
            path.mkdir()
        except OSError:
            continue
        try:
            _set_limit(path, memory)
        except OSError:
            path.rmdir()
            continue
        return path
    return None


def _set_limit(path: Path, memory: int) -> None:
    if (path / "memory.max").exists():
        (path / "memory.max").write_text(str(memory), encoding="ascii")
        (path / "memory.oom.group").write_text("1", encoding="ascii")
        with suppress(OSError):  # a kernel without swap
            (path / "memory.swap.max").write_text("0", encoding="ascii")
        return
    (path / "memory.limit_in_bytes").write_text(str(memory), encoding="ascii")
    try:
        (path / "memory.memsw.limit_in_bytes").write_text(str(memory), encoding="ascii")
    except OSError:  # swap is not counted here
        (path / "memory.swappiness").write_text("0", encoding="ascii")


@functools.cache
def _parents() -> tuple[Path, ...]:
    """Return the folders in which a cgroup with a memory limit may be created: of this process, or of its parent cgroup."""
    try:
        parents = tuple(_find_parents())
    except OSError:
        return ()
    for parent in parents:
        _remove_stale(parent)
    return parents


def _remove_stale(parent: Path) -> None:
    """Remove the cgroups of processes that were killed before they had started a command."""
    for path in parent.glob(f"{_PREFIX}*"):
        process = path.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path("/proc", process).exists():
            with suppress(OSError):  # the supervisor of a command that is ending removes the folder itself
                path.rmdir()


def _find_parents() -> Iterator[Path]:
    own = dict[str, str]()
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        root, mounted = before.split(" ")[3:5]
        kind, _, options = after.split(" ")[:3]
        if kind == "cgroup" and "memory" in options.split(",") and "memory" in own:
            yield _below(mounted, root, own["memory"])
        elif kind == "cgroup2" and "" in own:
            here = _below(mounted, root, own[""])
            # A cgroup with processes has no children with controllers, so the new one stands next to it.
            for each in (here, here.parent):
                control = each / "cgroup.subtree_control"
                if control.exists() and "memory" in control.read_text(encoding="ascii").split():
                    yield each


def _below(mounted: str, root: str, path: str) -> Path:
    relative = os.path.relpath(path, root) if path.startswith(root) else "."
    return Path(mounted, relative)
