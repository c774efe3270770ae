"""`actgent mcp serve`: agents as tools of an MCP server, over standard input and output."""

import importlib.util

from actgent.cli.agent_folders import agents_at
from actgent.cli.signal_handling import Shutdown
from actgent.errors import ConfigurationError
from actgent.runtime.runtime import open_runtime

from .serve_options import MCPServeOptions
from .standard_streams import protocol_streams


async def serve(options: MCPServeOptions, shutdown: Shutdown) -> int:
    """Serve one MCP client until it closes standard input, or until the first signal. Return the exit code.

    Raises:
        ConfigurationError: The target has no agent, an option is invalid, or the extra `mcp` is missing.
        Fenced: Another process owns the journal.
    """
    if importlib.util.find_spec("mcp") is None:
        raise ConfigurationError("an MCP server needs the package extra mcp: pip install 'actgent[mcp]'")
    from actgent.interop.mcp import MCPCatalog, serve_mcp  # noqa: PLC0415 - of the extra
    from actgent.interop.mcp.catalog import tools_of  # noqa: PLC0415

    location = options.journal or "memory:"
    url = location if "://" in location or location == "memory:" else f"sqlite:///{location}"
    with protocol_streams() as (receive_stream, send_stream):
        agents = agents_at(options.target, offline=options.offline)
        catalog = MCPCatalog(tools=tools_of(agents)) if options.tools else None
        async with open_runtime(journal=url) as runtime:
            async with runtime.starting():
                for agent in agents:
                    agent.grace = 0.0
                    await runtime.start(agent)
            with shutdown.interruptible():
                await serve_mcp(runtime, receive_stream, send_stream, catalog=catalog)
    return 0
