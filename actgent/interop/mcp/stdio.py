"""MCP server over two byte streams, such as standard input and output, with one JSON-RPC message on each line."""

import anyio
import mcp_types as types
import trio
from mcp.shared.message import SessionMessage

from actgent.interop.line_reader import MAX_LINE_BYTES, LongLine, read_lines
from actgent.runtime.runtime import Runtime
from actgent.support.json_rpc_decoding import decode_message, message_id

from .agent_server import make_mcp_server
from .catalog import MCPCatalog


async def serve_mcp(
    runtime: Runtime,
    receive_stream: trio.abc.ReceiveStream,
    send_stream: trio.abc.SendStream,
    *,
    catalog: MCPCatalog | None = None,
) -> None:
    """Serve the agents of a runtime as MCP tools to one client, until it closes its stream.

    Args:
        runtime: Runtime with a journal and with the agents.
        receive_stream: Stream with the lines of the client, such as standard input.
        send_stream: Stream for the lines to the client, such as standard output. Nothing else may be written to it.
        catalog: Tools, prompts and resources to offer in addition to the agents; None offers only agents.

    Raises:
        ConfigurationError: The runtime has no journal, or a tool of the catalog has the name of an agent.
    """
    server = make_mcp_server(runtime, catalog=catalog)
    received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, sent = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with received:
            try:
                async for line in read_lines(receive_stream):
                    if not line.strip():
                        continue
                    message = _decode(line)
                    if isinstance(message, Exception) and (number := message_id(line, b"method")) is not None:
                        error = types.ErrorData(code=types.PARSE_ERROR, message=str(message)[:200])
                        await outgoing.send(
                            SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=number, error=error))
                        )
                    else:
                        await received.send(message)
            except trio.BrokenResourceError:
                return  # the client is gone

    async def write() -> None:
        async with sent:
            async for message in sent:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                try:
                    await send_stream.send_all(text.encode() + b"\n")
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    nursery.cancel_scope.cancel()  # the client reads no more

    with runtime.showing_approvals():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(write)
            await server.run(incoming, outgoing, server.create_initialization_options())
            nursery.cancel_scope.cancel()


def _decode(line: bytes) -> SessionMessage | Exception:
    if isinstance(line, LongLine):
        return ValueError(f"the line is longer than {MAX_LINE_BYTES:,} bytes")
    try:
        return SessionMessage(
            types.jsonrpc_message_adapter.validate_python(decode_message(line), by_name=False)
        )
    except ValueError as error:
        return error
