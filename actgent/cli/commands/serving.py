"""Commands for servers: `serve`, `acp`, `top`, `watch`, `token`, `webhooks`."""

from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from actgent.cli.command_options import Flag, Repeated
from actgent.cli.serving.serve_options import NotifyOptions, OperationOptions
from actgent.cli.serving.server_or_journal_options import ServerOptions
from actgent.cli.terminal_io import Terminal

from .command_app import SERVERS, app, run_command


@app.command(group=SERVERS)
def serve(
    agent: str,
    /,
    *,
    journal: str | None = None,
    bind: str = "127.0.0.1:8300",
    tokens: str | None = None,
    origin: Repeated = (),
    host: Repeated = (),
    tls_cert: str | None = None,
    tls_key: str | None = None,
    notify: NotifyOptions | None = None,
    operation: OperationOptions | None = None,
    cluster: str | None = None,
    advertise: str | None = None,
    node: str | None = None,
    protocols: str | None = None,
    reload: Flag = False,
) -> int:
    """Serve agents over HTTP. Needs the extra `web`.

    The first Ctrl-C or SIGTERM rejects new requests, closes streams and waits for running turns; the second exits at
    once. With --cluster the server is one of several nodes: each node answers for all sessions, and other nodes resume
    its sessions when it stops.

    Args:
        agent: Agent folder, folder of agent folders, or Python file that defines agents.
        journal: Journal file, or postgres://HOST/DATABASE. Default: the variable ACTGENT_JOURNAL for a cluster
            node; else sessions
            are lost when the process ends.
        bind: Listening address as HOST:PORT. An address other than loopback requires --tokens.
        tokens: Token file, as `actgent token new` writes it. Default: one new token, printed at the start.
        origin: Website that may send cross-origin requests, e.g. https://app.example.com; may be given several
            times.
        host: Allowed `Host` header; may be given several times.
        tls_cert: TLS certificate file, if no proxy terminates TLS.
        tls_key: Private key file of the certificate.
        notify: Webhooks.
        operation: Log, startup, shutdown and rate limits.
        cluster: Name of the cluster; all nodes with this name and journal share their sessions.
        advertise: URL at which other nodes reach this node, http://HOST:PORT; the port must differ from --bind.
            Default: reachable
            only by nodes on this machine.
        node: Prefix of the node's name. Default: the host name.
        protocols: Protocols of other clients to serve, separated by commas: openai, ag-ui, vercel, a2a, mcp; or
            none.
            Default: all.
        reload: For development: restart when a file of the agents changes and can be loaded.
    """
    from actgent.cli.serving.reloader import serve_with_reload  # noqa: PLC0415 - the SDKs take two seconds
    from actgent.cli.serving.serve_command import ServeOptions, serve as run_server  # noqa: PLC0415

    options = ServeOptions(
        target=agent,
        journal=journal,
        bind=bind,
        tokens=tokens,
        origins=origin,
        hosts=host,
        tls_cert=tls_cert,
        tls_key=tls_key,
        notify=notify or NotifyOptions(),
        operation=operation or OperationOptions(),
        cluster=cluster,
        advertise=advertise,
        node=node,
        protocols=protocols,
    )
    run = serve_with_reload if reload else run_server
    return run_command(lambda terminal, shutdown: run(options, terminal, shutdown))


@app.command(name="acp", group=SERVERS)
def serve_editor(agent: str, /, *, journal: str | None = None, offline: Flag = False) -> int:
    """Serve an agent to an editor over standard input and output, by the Agent Client Protocol (ACP).

    The editor starts this command. Messages of the log go to standard error. Turns that run when the editor exits
    resume when it loads their session again.

    Args:
        agent: Agent folder, or Python file that defines one agent.
        journal: Journal file, or postgres://HOST/DATABASE. Default: a file in the user's data folder for each agent
            and working directory.
        offline: Answer from a script instead of a model.
    """
    from actgent.cli.serving.acp_command import ACPOptions, serve as serve_client  # noqa: PLC0415 - the SDKs take two seconds

    options = ACPOptions(target=agent, journal=journal, offline=offline)
    return run_command(lambda terminal, shutdown: serve_client(options, terminal, shutdown))


@app.command(group=SERVERS)
def top(
    *,
    server: ServerOptions | None = None,
    interval: Annotated[float, Parameter(validator=Number(gte=0.1))] = 1.0,
    once: Flag = False,
    json: Flag = False,
) -> int:
    """Show the current state of agents: inbox, running turns, pending approvals, provider limits and cost.

    For a running server the view refreshes until Ctrl-C; turns per second and cost need a token with the scope metrics.
    For a journal it shows sessions by state. In a pipe the state is printed once.

    Args:
        server: Server or journal to read.
        interval: Time between two updates in seconds.
        once: Print the state once and exit.
        json: Print one JSON object per update.
    """
    from actgent.cli.serving.top_command import TopOptions, top as run_top  # noqa: PLC0415 - the SDKs take two seconds

    options = TopOptions(server=server or ServerOptions(), interval=interval, once=once, json=json)
    return run_command(lambda terminal, shutdown: run_top(options, terminal, shutdown))


@app.command(name="watch", group=SERVERS)
def show_session_events(
    session: str,
    /,
    *,
    server: ServerOptions | None = None,
    agent: str | None = None,
    after: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    once: Flag = False,
    json: Flag = False,
) -> int:
    """Show the events of a session as they happen, until the session is closed or Ctrl-C is pressed.

    For a running server, the command reconnects after restarts and shows each event once. A journal is only read, and
    agents may be using it.

    Args:
        session: Id of the session.
        server: Server or journal to read.
        agent: Name of the agent, if several agents have a session with this id.
        after: Number of the last event that is already known; 0 starts at the beginning.
        once: Print existing events and exit.
        json: Print one JSON object per event.
    """
    from actgent.cli.serving.watch_command import WatchOptions, watch_session  # noqa: PLC0415 - the SDKs take two seconds

    options = WatchOptions(
        session=session, server=server or ServerOptions(), agent=agent, after=after, once=once, json=json
    )
    return run_command(lambda terminal, shutdown: watch_session(options, terminal, shutdown))


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
