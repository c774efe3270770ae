"""`actgent serve`: agents over HTTP, to the first signal; then what runs ends, and streams are told so."""

import ssl
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import trio

from actgent.cli.folders import agents_at
from actgent.cli.signals import Shutdown
from actgent.cli.terminal import Terminal, one_line
from actgent.errors import ConfigurationError
from actgent.runtime.runtime import open_runtime
from actgent.web.bounds import GatewayLimits
from actgent.web.opening import ADDRESS, check_extra, open_gateway
from actgent.web.server.addresses import is_loopback, split_address
from actgent.web.tokens import new_token, write_tokens

GRACE = 5.0
"""Seconds for requests at the end; agents have theirs."""
LOOK = 0.5
"""Seconds between two looks at the files of `--reload`."""
_WATCHED = (".py", ".md", ".json", ".yaml", ".yml", ".toml", ".j2")


@attrs.frozen(kw_only=True)
class ServeOptions:
    """What `actgent serve` was told."""

    target: str
    journal: str = "memory:"
    bind: str = ADDRESS
    tokens: str | None = None
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None


async def serve(options: ServeOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Serve the agents of a target, to the first signal."""
    check_extra()
    tls = _tls_of(options)
    agents = agents_at(options.target)
    place = options.journal
    journal = place if "://" in place or place == "memory:" else f"sqlite:///{place}"
    async with open_runtime(journal=journal) as runtime:
        async with runtime.starting():
            for agent in agents:
                await runtime.start(agent)
        async with open_gateway(
            runtime,
            bind=options.bind,
            tokens=options.tokens,
            hosts=options.hosts,
            origins=options.origins,
            limits=GatewayLimits(grace=GRACE),
            tls=tls,
        ) as gateway:
            names = ", ".join(one_line(agent.name, 60) for agent in agents)
            terminal.line(f"{names} at {gateway.url}/v1; Ctrl-C ends it")
            if gateway.key is not None:
                terminal.line(f"token (of this run alone): {gateway.key}")
                terminal.line(f"dashboard: {gateway.link}")
            with shutdown.waiting():
                await trio.Event().wait()
    return 0


def _tls_of(options: ServeOptions) -> ssl.SSLContext | None:
    cert, key = options.tls_cert, options.tls_key
    if cert is None or key is None:
        if cert is not None or key is not None:
            raise ConfigurationError("--tls-cert and --tls-key go together")
        return None
    from actgent.web.server.serving import tls_context  # noqa: PLC0415 - of the extra

    return tls_context(cert, key)


# --- developing --------------------------------------------------------------------------


async def serve_again(options: ServeOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Serve in a process of its own, which is ended and started again when a file of the agents has changed.

    The token of the run stays the same.
    """
    check_extra()
    with TemporaryDirectory(prefix="actgent-") as folder:
        tokens = options.tokens or _tokens_in(Path(folder), options, terminal)
        command = _command(attrs.evolve(options, tokens=tokens))
        while not shutdown.is_asked:
            stamps = _stamps(options.target)
            async with trio.open_nursery() as nursery:
                process: trio.Process = await nursery.start(_run, command)
                with shutdown.waiting():
                    while _stamps(options.target) == stamps:  # noqa: ASYNC110 - nobody tells of changed files
                        await trio.sleep(LOOK)
                    terminal.notice("a file has changed: starting again")
                if process.returncode is None:
                    process.terminate()
    return 0


async def _run(command: list[str], *, task_status: trio.TaskStatus[trio.Process]) -> None:
    process = await trio.lowlevel.open_process(command)
    task_status.started(process)
    with trio.CancelScope(shield=True):  # it ends what it has accepted
        await process.wait()


def _tokens_in(folder: Path, options: ServeOptions, terminal: Terminal) -> str:
    if not is_loopback(split_address(options.bind)[0]):
        raise ConfigurationError("off loopback --reload takes --tokens, too")
    secret, token = new_token("serve --reload", owner="admin", scopes=("admin",))
    write_tokens(folder / "tokens.toml", [token])
    terminal.line(f"token (of this run alone): {secret}")
    return str(folder / "tokens.toml")


def _command(options: ServeOptions) -> list[str]:
    command = [sys.executable, "-c", "from actgent.cli import main; main()", "serve", options.target]
    for name, value in attrs.asdict(options).items():
        option = f"--{name.removesuffix('s') if name in ('hosts', 'origins') else name}".replace("_", "-")
        values: Iterable[str] = value if isinstance(value, tuple) else ([] if value is None else [value])
        if name != "target":
            command += [part for each in values for part in (option, each)]
    return command


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
