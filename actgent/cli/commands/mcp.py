"""Commands for MCP servers: `mcp list`, `call`, `prompts`, `login`, `check`, `lock`, `serve`."""

import attrs
from cyclopts import App

from actgent.cli.command_options import Flag, Repeated
from actgent.cli.serving.serve_options import MCPServeOptions

from .command_app import TOOLS, app, run_command

servers = App(
    name="mcp",
    help="Manage MCP servers: list, call, prompts, login, check, lock. Serve agents as one.",
    group=TOOLS,
)
app.command(servers)


@servers.command(name="list")
def list_servers(config: str = ".", /, *, json: Flag = False, allow_env: Repeated = ()) -> int:
    """List the MCP servers with their tools. The exit code is 1 if a server is not available.

    Args:
        config: MCP configuration file (mcp_config.json), or the folder with it.
        json: Print one JSON array with complete schemas.
        allow_env: Name of an environment variable that the file may pass to its servers; may be given several
            times.
    """
    from actgent.cli.mcp_client_commands import list_servers as show  # noqa: PLC0415

    return run_command(lambda terminal, _: show(config, terminal, json=json, allow_env=allow_env))


@servers.command(name="call")
def call_tool(
    config: str, server: str, tool: str, arguments: str = "{}", /, *, allow_env: Repeated = ()
) -> int:
    """Call one tool of a server, and print its result.

    Args:
        config: MCP configuration file (mcp_config.json), or the folder with it.
        server: Name of the server in the file.
        tool: Name of the tool.
        arguments: Arguments of the tool as a JSON object.
        allow_env: Name of an environment variable that the file may pass to its servers; may be given several
            times.
    """
    from actgent.cli.mcp_client_commands import call_tool as run_tool  # noqa: PLC0415

    return run_command(
        lambda terminal, _: run_tool(config, server, tool, arguments, terminal, allow_env=allow_env)
    )


@servers.command(name="prompts")
def show_prompts(
    config: str = ".", server: str = "", name: str = "", arguments: str = "{}", /, *, allow_env: Repeated = ()
) -> int:
    """List the prompts of the servers; with a server and a prompt name, print the text of that prompt.

    Args:
        config: MCP configuration file (mcp_config.json), or the folder with it.
        server: Name of the server in the file. Default: all servers.
        name: Name of the prompt.
        arguments: Arguments of the prompt as a JSON object.
        allow_env: Name of an environment variable that the file may pass to its servers; may be given several
            times.
    """
    from actgent.cli.mcp_client_commands import show_prompts as show  # noqa: PLC0415

    return run_command(
        lambda terminal, _: show(
            config, terminal, server=server, name=name, arguments=arguments, allow_env=allow_env
        )
    )


@servers.command(name="login")
def log_in(config: str, server: str, /, *, again: Flag = False, allow_env: Repeated = ()) -> int:
    """Authorize a server by OAuth: open the printed URL in a browser. The tokens are stored in a file.

    Args:
        config: MCP configuration file (mcp_config.json), or the folder with it.
        server: Name of the server in the file; its entry has an "oauth" member.
        again: Discard stored tokens first, e.g. to log in as another user.
        allow_env: Name of an environment variable that the file may pass to its servers; may be given several
            times.
    """
    from actgent.cli.mcp_client_commands import log_in as authorize  # noqa: PLC0415

    return run_command(
        lambda terminal, _: authorize(config, server, terminal, again=again, allow_env=allow_env)
    )


@servers.command(name="check")
def check_servers(config: str = ".", /, *, allow_env: Repeated = ()) -> int:
    """Compare the tools and prompts of each server with the lock file. The exit code is 1 if a server fails or differs.

    Args:
        config: MCP configuration file (mcp_config.json), or the folder with it.
        allow_env: Name of an environment variable that the file may pass to its servers; may be given several
            times.
    """
    from actgent.cli.mcp_client_commands import check_servers as run_check  # noqa: PLC0415

    return run_command(lambda terminal, _: run_check(config, terminal, allow_env=allow_env))


@servers.command(name="lock")
def lock_servers(config: str = ".", /, *, allow_env: Repeated = ()) -> int:
    """Record the current tools and prompts of all servers in a lock file next to the configuration, and print the differences.

    With a lock file, agents block tools and prompts that are missing in it or have changed. A server that fails
    keeps its locked entries.

    Args:
        config: MCP configuration file (mcp_config.json), or the folder with it.
        allow_env: Name of an environment variable that the file may pass to its servers; may be given several
            times.
    """
    from actgent.cli.mcp_client_commands import lock_servers as lock  # noqa: PLC0415

    return run_command(lambda terminal, _: lock(config, terminal, allow_env=allow_env))


@servers.command(name="serve")
def serve_agents(agent: str, /, *, options: MCPServeOptions | None = None) -> int:
    """Serve agents as tools of an MCP server, over standard input and output. Needs the extra `mcp`.

    The MCP host starts this command. Each agent is a tool with the arguments message and session_id. Messages of the
    log go to standard error.

    Args:
        agent: Agent folder, folder of agent folders, or Python file that defines agents.
        options: Journal, tools and models.
    """
    from actgent.cli.serving.stdio_servers import serve_host  # noqa: PLC0415 - the SDKs take two seconds

    given = attrs.evolve(options or MCPServeOptions(), target=agent)
    return run_command(lambda _, shutdown: serve_host(given, shutdown))
