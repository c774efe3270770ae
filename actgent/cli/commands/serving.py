"""Commands about a server of agents: `serve`, `top`, `watch`, `token`, `webhooks`."""

from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from actgent.cli.serving.notify import NotifyOptions
from actgent.cli.serving.operation_options import OperationOptions
from actgent.cli.serving.place import PlaceOptions
from actgent.cli.terminal import Terminal

from .base import Flag, Repeated, app, run_command


@app.command
def serve(
    target: str | None = None,
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
    broker: str | None = None,
    pool: str | None = None,
    name: str | None = None,
    reload: Flag = False,
) -> int:
    """Put agents behind HTTP, for programs in any language. The extra `web` has what it needs.

    The first Ctrl-C or SIGTERM takes nothing new, tells streams that they end, and lets what runs end; the second ends it at once.
    With a broker it serves the sessions of all nodes of a cluster: as a node itself, or without a target beside them.

    Args:
        target: An agent's folder, a folder of such folders, or a Python file that defines agents; none where nodes have them all.
        journal: The file of a journal, or postgres://HOST/DATABASE; without it sessions end with the process, and those of a node
            are where the variable ACTGENT_JOURNAL says.
        bind: Where to listen, HOST:PORT. Off loopback there is no start without --tokens.
        tokens: The file of tokens that `actgent token new` makes; without it, one token is made and shown.
        origin: A site whose pages may ask, such as https://app.example.com; may be given several times.
        host: A name by which it is asked, as browsers send it; may be given several times.
        tls_cert: A certificate, where no proxy in front speaks TLS.
        tls_key: Its key.
        notify: Who is told of what happens.
        operation: How it logs, starts and ends.
        broker: The broker of a cluster, amqps://USER:PASSWORD@HOST/VHOST; with --pool, or without a target, the variable
            ACTGENT_BROKER says it, which no list of processes shows.
        pool: Which nodes of the cluster: those that host the same agents; `default` without it.
        name: How the name of this node or client of a cluster begins.
        reload: For developing: start again when a file of the agents changes, and can be run.
    """
    from actgent.cli.serving.reloading import serve_again  # noqa: PLC0415 - the SDKs take two seconds
    from actgent.cli.serving.serve import ServeOptions, serve as put  # noqa: PLC0415

    options = ServeOptions(
        target=target,
        journal=journal,
        bind=bind,
        tokens=tokens,
        origins=origin,
        hosts=host,
        tls_cert=tls_cert,
        tls_key=tls_key,
        notify=notify or NotifyOptions(),
        operation=operation or OperationOptions(),
        broker=broker,
        pool=pool,
        name=name,
    )
    play = serve_again if reload else put
    return run_command(lambda terminal, shutdown: play(options, terminal, shutdown))


@app.command
def top(
    *,
    place: PlaceOptions | None = None,
    every: Annotated[float, Parameter(validator=Number(gte=0.1))] = 1.0,
    once: Flag = False,
    json: Flag = False,
) -> int:
    """Show how agents are just now: inboxes, turns, who waits for people, provider limits, spending.

    Of a running server, until Ctrl-C; turns a second and spending take a token with the scope metrics. Of a journal, its
    sessions by their states. In a pipe it is shown once.

    Args:
        place: Where to look.
        every: Seconds between two looks.
        once: Look once.
        json: Write a JSON object a look, for programs.
    """
    from actgent.cli.serving.top import TopOptions, top as look  # noqa: PLC0415 - the SDKs take two seconds

    options = TopOptions(place=place or PlaceOptions(), every=every, once=once, json=json)
    return run_command(lambda terminal, shutdown: look(options, terminal, shutdown))


@app.command(name="watch")
def watch_one(
    session: str,
    /,
    *,
    place: PlaceOptions | None = None,
    agent: str | None = None,
    after: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    once: Flag = False,
    json: Flag = False,
) -> int:
    """Show what happens in a session, as it happens, until it is closed or Ctrl-C is pressed.

    Of a running server, over its restarts, each event once. Of a journal, which an agent may be using; nothing is written.

    Args:
        session: Its id.
        place: Where to look.
        agent: Whose it is, where several agents have one of this id.
        after: The number of the last event that is known already.
        once: Show what is there, and end.
        json: Write a JSON object an event, for programs.
    """
    from actgent.cli.serving.watch import WatchOptions, watch_session  # noqa: PLC0415 - the SDKs take two seconds

    options = WatchOptions(
        session=session, place=place or PlaceOptions(), agent=agent, after=after, once=once, json=json
    )
    return run_command(lambda terminal, shutdown: watch_session(options, terminal, shutdown))


access = App(name="token", help="Look after the tokens of a gateway: new, list, revoke.")
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
    """Make a token, and show it this once; the file holds its SHA-256 alone.

    Args:
        name: What it is called in lists.
        owner: Whose sessions it reaches, and for whom it speaks.
        scope: What it may do: read, chat, approve, journal, metrics, admin, impersonate:*; may be given several times.
        days: How long it is taken; without end if not given.
        file: The file of tokens, made where there is none.
    """
    from actgent.cli.serving.tokens import make_token  # noqa: PLC0415

    return make_token(file, Terminal(), name=name, owner=owner, scopes=scope, days=days)


@access.command(name="list")
def list_access(*, file: str = "tokens.toml") -> int:
    """Name the tokens of a file, with owners, scopes and dates.

    Args:
        file: The file of tokens.
    """
    from actgent.cli.serving.tokens import list_tokens  # noqa: PLC0415

    return list_tokens(file, Terminal())


@access.command(name="revoke")
def revoke_access(name: str, /, *, file: str = "tokens.toml") -> int:
    """Take a token out of a file; a gateway that runs refuses it a second later.

    Args:
        name: Its name.
        file: The file of tokens.
    """
    from actgent.cli.serving.tokens import revoke_token  # noqa: PLC0415

    return revoke_token(file, name, Terminal())


hooks = App(name="webhooks", help="Look after the webhooks of a running server: list, redeliver.")
app.command(hooks)


@hooks.command(name="list")
def list_hooks(*, place: PlaceOptions | None = None) -> int:
    """Name the webhooks of a running server, and what each has given up; the code is 1 where something was.

    Args:
        place: Which server; its token has the scope admin.
    """
    from actgent.cli.serving.webhooks import list_given_up  # noqa: PLC0415 - the SDKs take two seconds

    return run_command(lambda terminal, _: list_given_up(place or PlaceOptions(), terminal))


@hooks.command(name="redeliver")
def redeliver_hooks(*ids: str, place: PlaceOptions | None = None) -> int:
    """Send again what webhooks have given up: what is named, or all of it.

    Args:
        ids: As the list has them, msg_...; all that is listed without.
        place: Which server; its token has the scope admin.
    """
    from actgent.cli.serving.webhooks import send_again  # noqa: PLC0415 - the SDKs take two seconds

    return run_command(lambda terminal, _: send_again(place or PlaceOptions(), ids, terminal))
