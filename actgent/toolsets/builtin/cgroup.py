"""Control group that limits the memory of a sandboxed command, if this process may create one.

The kernel counts for a memory cgroup all memory that its processes use: their pages, files in memory (tmpfs, memfd, also
unmapped files), and kernel memory such as inodes and socket buffers.

Documentation: https://docs.kernel.org/admin-guide/cgroup-v2.html,
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html.
"""

import functools
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PREFIX = "actgent-"


def make_cgroup(memory: int) -> Path | None:
    """Create a cgroup whose processes together use at most `memory` bytes; None if this process lacks the permission.

    Return the folder of the cgroup. The caller removes it after the last process has ended.
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
        with suppress(OSError):  # the kernel has no swap
            (path / "memory.swap.max").write_text("0", encoding="ascii")
        return
    (path / "memory.limit_in_bytes").write_text(str(memory), encoding="ascii")
    try:
        (path / "memory.memsw.limit_in_bytes").write_text(str(memory), encoding="ascii")
    except OSError:  # swap is not accounted
        (path / "memory.swappiness").write_text("0", encoding="ascii")


@functools.cache
def _parents() -> tuple[Path, ...]:
    """Return the folders in which this process may create cgroups with a memory limit; empty if no folder permits this.

    The first call removes leftover cgroups of dead processes from these folders.
    """
    try:
        parents = tuple(_find_parents())
    except OSError:
        return ()
    for parent in parents:
        _remove_stale(parent)
    return parents


def _remove_stale(parent: Path) -> None:
    """Remove the cgroups in `parent` that a dead actgent process has created. Cgroups with running processes are kept."""
    for path in parent.glob(f"{_PREFIX}*"):
        process = path.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path("/proc", process).exists():
            with suppress(OSError):  # the supervisor of an ending command removes the folder itself
                path.rmdir()


def _find_parents() -> Iterator[Path]:
    """Yield the folders of this process's memory cgroup and, with cgroup v2, of the parent of that cgroup."""
    own = dict[str, str]()
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        root, mounted = before.split(" ")[3:5]
        kind, _, options = after.split(" ")[:3]
        if kind == "cgroup" and "memory" in options.split(",") and "memory" in own:
            yield _path_below(mounted, root, own["memory"])
        elif kind == "cgroup2" and "" in own:
            here = _path_below(mounted, root, own[""])
            # A cgroup with processes cannot have children with controllers, so the new one is created as its sibling.
            for each in (here, here.parent):
                control = each / "cgroup.subtree_control"
                if control.exists() and "memory" in control.read_text(encoding="ascii").split():
                    yield each


def _path_below(mounted: str, root: str, path: str) -> Path:
    relative = os.path.relpath(path, root) if path.startswith(root) else "."
    return Path(mounted, relative)
