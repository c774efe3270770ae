"""`actgent serve --reload`: the agents of changed files answer, those of broken files are not taken."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import trio

from actgent.cli.signals import Shutdown
from actgent.cli.terminal import Terminal
from actgent.errors import ConfigurationError
from actgent.web.opening import check_extra
from actgent.web.server.addresses import is_loopback, split_address
from actgent.web.tokens import new_token, write_tokens

from .serve import ServeOptions

LOOK = 0.5
"""Seconds between two looks at the files."""
_WATCHED = (".py", ".md", ".json", ".yaml", ".yml", ".toml", ".j2")
_BY_ITSELF = (1, 2)
"""The codes of a server that was not told to end."""
_COMMAND = [sys.executable, "-c", "from actgent.cli import main; main()"]
_CHECK = "from actgent.cli.serving.checked import main; main()"


async def serve_again(options: ServeOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Serve in a process of its own, which is ended and started again when a file of the agents has changed.

    What runs ends first. Files that cannot be read or run are named, and the process of before goes on. The token of the
    run stays the same.
    """
    check_extra()
    if options.target is None:
        raise ConfigurationError(
            "--reload takes the agents whose files are watched; nodes have those of a cluster"
        )
    with TemporaryDirectory(prefix="actgent-") as folder:
        tokens = options.tokens or _tokens_in(Path(folder), options, terminal)
        command = [*_COMMAND, *attrs.evolve(options, tokens=tokens).command()]
        while not shutdown.is_asked:
            stamps = _stamps(options.target)
            async with trio.open_nursery() as nursery:
                process: trio.Process = await nursery.start(_run, command, terminal)
                with shutdown.waiting():
                    await _wait_changed(options.target, stamps, terminal)
                    terminal.notice("a file has changed: starting again")
                if process.returncode is None:
                    process.terminate()
    return 0


async def _wait_changed(target: str, stamps: dict[str, tuple[int, int]], terminal: Terminal) -> None:
    """Wait until the files are others, and good."""
    while True:
        while (now := _stamps(target)) == stamps:  # noqa: ASYNC110 - nobody tells of changed files
            await trio.sleep(LOOK)
        stamps = now
        problem = await _problem_of(target)
        if not problem:
            return
        terminal.complain(f"a file has changed, and the agents of before go on: {problem}")


async def _problem_of(target: str) -> str:
    """Why the agents cannot be made, by a process that tries it; empty where they can."""
    done = await trio.run_process(
        [sys.executable, "-c", _CHECK, target], capture_stdout=True, stderr=subprocess.STDOUT, check=False
    )
    words = done.stdout.decode("utf-8", "replace").strip()
    return (words or f"code {done.returncode}") if done.returncode else ""


async def _run(command: list[str], terminal: Terminal, *, task_status: trio.TaskStatus[trio.Process]) -> None:
    process = await trio.lowlevel.open_process(command)
    task_status.started(process)
    with trio.CancelScope(shield=True):  # it ends what it has accepted
        code = await process.wait()
    if code in _BY_ITSELF:
        terminal.notice("nothing is served: this starts again when a file changes")


def _tokens_in(folder: Path, options: ServeOptions, terminal: Terminal) -> str:
    if not is_loopback(split_address(options.bind)[0]):
        raise ConfigurationError("off loopback --reload takes --tokens, too")
    secret, token = new_token("serve --reload", owner="admin", scopes=("admin",))
    write_tokens(folder / "tokens.toml", [token])
    terminal.line(f"token (of this run alone): {secret}")
    return str(folder / "tokens.toml")


def _stamps(target: str) -> dict[str, tuple[int, int]]:
    """When the files of agents were changed, and their sizes."""
    path = Path(target.partition(":")[0])
    folder = path if path.is_dir() else path.parent
    found = {}
    for file in folder.rglob("*"):
        if file.suffix in _WATCHED and not any(
            part.startswith(".") for part in file.relative_to(folder).parts
        ):
            with suppress(OSError):  # removed meanwhile
                seen = file.stat()
                found[str(file)] = (seen.st_mtime_ns, seen.st_size)
    return found
