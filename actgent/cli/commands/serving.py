"""Commands for servers: `serve`, `acp`, `top`, `watch`, `token`, `webhooks`."""

from typing import Annotated

import attrs
from cyclopts import App, Parameter
from cyclopts.validators import Number

from actgent.cli.command_options import Flag, Repeated
from actgent.cli.serving.serve_options import ACPOptions, ServeOptions
from actgent.cli.serving.server_or_journal_options import ServerOptions, TopOptions, WatchOptions
from actgent.cli.terminal_io import Terminal

from .command_app import SERVERS, app, run_command


@app.command(group=SERVERS)
def serve(agent: str, /, *, options: ServeOptions | None = None, reload: Flag = False) -> int:
    """Serve agents over HTTP. Needs the extra `web`.

    The first Ctrl-C or SIGTERM rejects new requests, closes streams and waits for running turns; the second exits at
    once. With --cluster the server is one of several nodes: each node accepts requests for all sessions. When a node
    stops, the other nodes resume its sessions.

    Args:
        agent: Agent folder, folder of agent folders, or Python file that defines agents.
        options: Journal, address, access, webhooks, log, limits, cluster and protocols.
        reload: For development: restart when a file of the agents changes and can be loaded.
    """
    from actgent.cli.serving.reloader import serve_with_reload  # noqa: PLC0415 - the SDKs take two seconds
    from actgent.cli.serving.serve_command import serve as run_server  # noqa: PLC0415

    given = attrs.evolve(options or ServeOptions(), target=agent)
    run = serve_with_reload if reload else run_server
    return run_command(lambda terminal, shutdown: run(given, terminal, shutdown))


@app.command(name="acp", group=SERVERS)
def serve_editor(agent: str, /, *, options: ACPOptions | None = None) -> int:
    """Serve an agent to an editor over standard input and output, by the Agent Client Protocol (ACP).

    The editor starts this command. Messages of the log go to standard error. Turns that run when the editor exits
    resume when it loads their session again.

    Args:
        agent: Agent folder, or Python file that defines one agent.
        options: Journal and models.
    """
    from actgent.cli.serving.stdio_servers import serve_editor as serve_client  # noqa: PLC0415 - the SDKs take two seconds

    given = attrs.evolve(options or ACPOptions(), target=agent)
    return run_command(lambda terminal, shutdown: serve_client(given, terminal, shutdown))


@app.command(group=SERVERS)
def top(*, options: TopOptions | None = None) -> int:
    """Show the current state of agents: inbox, running turns, pending approvals, provider limits and cost.

    For a running server the view refreshes until Ctrl-C; turns per second and cost need a token with the scope metrics.
    For a journal it shows sessions by state. In a pipe the state is printed once.

    Args:
        options: Server or journal, interval and output format.
    """
    from actgent.cli.serving.top_command import top as run_top  # noqa: PLC0415 - the SDKs take two seconds

    given = options or TopOptions()
    return run_command(lambda terminal, shutdown: run_top(given, terminal, shutdown))


@app.command(name="watch", group=SERVERS)
def show_session_events(session: str, /, *, options: WatchOptions | None = None) -> int:
    """Show the events of a session as they happen, until the session is closed or Ctrl-C is pressed.

    For a running server, the command reconnects after restarts and shows each event once. A journal is only read, and
    agents may be using it.

    Args:
        session: Id of the session.
        options: Server or journal, agent, first event and output format.
    """
    from actgent.cli.serving.watch_command import watch_session  # noqa: PLC0415 - the SDKs take two seconds

    given = attrs.evolve(options or WatchOptions(), session=session)
    return run_command(lambda terminal, shutdown: watch_session(given, terminal, shutdown))


access = App(name="token", help="Manage access tokens of a server: new, list, revoke.", group=SERVERS)
app.command(access)


@access.command(name="new")
def new_access(
    *,
    name: str,
    owner: str,
    scope: Repeated = ("chat",),
    days: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    file: str = "tokens.toml",
) -> int:
    """Create an access token and print it once. The file stores only its SHA-256 digest.

    Args:
        name: Name of the token in lists.
        owner: Owner of the sessions that the token can access.
        scope: Permission: read, chat, approve, journal, metrics, admin, impersonate:*; may be given several times.
        days: Lifetime in days. Default: no expiry.
        file: Token file; created if missing.
    """
    from actgent.cli.serving.token_command import make_token  # noqa: PLC0415

    return make_token(file, Terminal(), name=name, owner=owner, scopes=scope, days=days)


@access.command(name="list")
def list_access(*, file: str = "tokens.toml") -> int:
    """List the tokens of a file with owner, scopes and expiry.

    Args:
        file: Token file.
    """
    from actgent.cli.serving.token_command import list_tokens  # noqa: PLC0415

    return list_tokens(file, Terminal())


@access.command(name="revoke")
def revoke_access(name: str, /, *, file: str = "tokens.toml") -> int:
    """Remove a token from a file. A running server rejects it within one second.

    Args:
        name: Name of the token.
        file: Token file.
    """
    from actgent.cli.serving.token_command import revoke_token  # noqa: PLC0415

    return revoke_token(file, name, Terminal())


hooks = App(name="webhooks", help="Manage webhooks of a running server: list, redeliver.", group=SERVERS)
app.command(hooks)


@hooks.command(name="list")
def list_hooks(*, server: ServerOptions | None = None) -> int:
    """List the webhooks of a running server with their dead-lettered deliveries. The exit code is 1 if there are any.

    Args:
        server: Server to ask; its token needs the scope admin.
    """
    from actgent.cli.serving.webhooks_command import list_undelivered  # noqa: PLC0415 - the SDKs take two seconds

    return run_command(lambda terminal, _: list_undelivered(server or ServerOptions(), terminal))


@hooks.command(name="redeliver")
def redeliver_hooks(*ids: str, server: ServerOptions | None = None) -> int:
    """Send dead-lettered webhook deliveries again: the named ones, or all.

    Args:
        ids: Delivery ids as `actgent webhooks list` prints them (msg_...). Default: all.
        server: Server to ask; its token needs the scope admin.
    """
    from actgent.cli.serving.webhooks_command import redeliver_webhooks  # noqa: PLC0415 - the SDKs take two seconds

    return run_command(lambda terminal, _: redeliver_webhooks(server or ServerOptions(), ids, terminal))
