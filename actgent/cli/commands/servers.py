"""`actgent mcp`."""

from cyclopts import App

from .base import Flag, Repeated, app, run_command

servers = App(name="mcp", help="Look after MCP servers: list their tools, call one, check them, lock them.")
app.command(servers)


@servers.command(name="list")
def list_servers(target: str = ".", /, *, json: Flag = False, allow_env: Repeated = ()) -> int:
    """List the servers with their tools. 1 if one of them is not available.

    Args:
        target: A file like mcp_config.json, or a folder with one.
        json: Whole schemas too, as one line of JSON.
        allow_env: An environment variable that the file may pass to its servers; may be given several times.
    """
    from actgent.cli.serving.servers import list_servers as show  # noqa: PLC0415

    return run_command(lambda terminal, _: show(target, terminal, json=json, allow_env=allow_env))


@servers.command(name="call")
def call_tool(
    target: str, server: str, tool: str, arguments: str = "{}", /, *, allow_env: Repeated = ()
) -> int:
    """Run one tool of a server, and print its result.

    Args:
        target: A file like mcp_config.json, or a folder with one.
        server: The server's name in it.
        tool: The tool's name.
        arguments: A JSON object.
        allow_env: An environment variable that the file may pass to its servers; may be given several times.
    """
    from actgent.cli.serving.servers import call_tool as ask  # noqa: PLC0415

    return run_command(
        lambda terminal, _: ask(target, server, tool, arguments, terminal, allow_env=allow_env)
    )


@servers.command(name="prompts")
def show_prompts(
    target: str = ".", server: str = "", name: str = "", arguments: str = "{}", /, *, allow_env: Repeated = ()
) -> int:
    """List the prompts that servers suggest; with a server and a name, show that one's text.

    Args:
        target: A file like mcp_config.json, or a folder with one.
        server: The server's name in it; all of them without.
        name: The prompt's name.
        arguments: Its arguments, as a JSON object.
        allow_env: An environment variable that the file may pass to its servers; may be given several times.
    """
    from actgent.cli.serving.servers import show_prompts as show  # noqa: PLC0415

    return run_command(
        lambda terminal, _: show(
            target, terminal, server=server, name=name, arguments=arguments, allow_env=allow_env
        )
    )


@servers.command(name="login")
def log_in(target: str, server: str, /, *, again: Flag = False, allow_env: Repeated = ()) -> int:
    """Authorize a server by OAuth: open the address that is printed in a browser. Its tokens are kept in a file.

    Args:
        target: A file like mcp_config.json, or a folder with one.
        server: The server's name in it; it has an "oauth" there.
        again: Forget what is known of it first, e.g. to be somebody else.
        allow_env: An environment variable that the file may pass to its servers; may be given several times.
    """
    from actgent.cli.serving.servers import log_in as authorize  # noqa: PLC0415

    return run_command(
        lambda terminal, _: authorize(target, server, terminal, again=again, allow_env=allow_env)
    )


@servers.command(name="check")
def check_servers(target: str = ".", /, *, allow_env: Repeated = ()) -> int:
    """Connect to each server, and compare its tools and prompts with the lock. 1 if one fails, or one is not as it was locked.

    Args:
        target: A file like mcp_config.json, or a folder with one.
        allow_env: An environment variable that the file may pass to its servers; may be given several times.
    """
    from actgent.cli.serving.servers import check_servers as look_at  # noqa: PLC0415

    return run_command(lambda terminal, _: look_at(target, terminal, allow_env=allow_env))


@servers.command(name="lock")
def lock_servers(target: str = ".", /, *, allow_env: Repeated = ()) -> int:
    """Show how tools and prompts differ from the lock, and write them into it as they are now, beside the file of the servers.

    A server that fails keeps what it had. Where there is a lock, a tool or prompt that is not in it, or differs, is withheld.

    Args:
        target: A file like mcp_config.json, or a folder with one.
        allow_env: An environment variable that the file may pass to its servers; may be given several times.
    """
    from actgent.cli.serving.servers import lock_servers as lock  # noqa: PLC0415

    return run_command(lambda terminal, _: lock(target, terminal, allow_env=allow_env))
