"""`Tool.run`: one direct call, with the validation and the timeout of an agent's call."""

from pathlib import Path

import pytest
import trio

from actgent import HTTPTool, InvalidArguments, ToolContext, tool
from actgent.errors import ToolTimeout


@tool
def add(a: int, b: int = 1) -> dict:
    """Add two integers."""
    return {"sum": a + b}


async def test_direct_call_returns_the_value():
    """The value is not converted to text. An exception of the tool is raised."""
    assert await add.run({"a": 2, "b": 3}) == {"sum": 5}

    @tool
    async def broken(path: str) -> str:
        """Read a file."""
        return await trio.to_thread.run_sync(Path(path).read_text)

    with pytest.raises(FileNotFoundError):
        await broken.run({"path": "/nowhere/at/all"})


@pytest.mark.parametrize(
    ("arguments", "expected"), [({"a": "two"}, "a"), ({}, "a"), ({"a": 1, "c": 2}, "c"), ('{"a": 1', "JSON")]
)
async def test_arguments_are_checked_before_it_runs(arguments, expected):
    """Wrong types, missing and unknown names, and invalid JSON text are rejected."""
    ran = []
    noting = tool(name="add")(_noted(ran))
    with pytest.raises(InvalidArguments, match=expected):
        await noting.run(arguments)
    assert ran == []


def _noted(ran):
    def add(a: int) -> int:
        """Add."""
        ran.append(a)
        return a

    return add


async def test_direct_call_receives_the_context(autojump_clock):
    """The context is the caller's. Without one the context has no session. A timeout is an error."""

    @tool(timeout=2)
    async def who(context: ToolContext[str], seconds: float = 0) -> str:
        """Tell whose it is."""
        await trio.sleep(seconds)
        return f"{context.owner or 'nobody'} of {context.tool_name}"

    told = ToolContext(owner="ada", tool_name="who", deps="shop")
    assert await who.run({}, told) == "ada of who"
    assert await who.run({}) == "nobody of who"
    with pytest.raises(ToolTimeout):
        await who.run({"seconds": 3})


async def test_http_tool_can_be_called_directly(nursery):
    """The tool opens connections only for the call."""

    async def serve(stream):
        async with stream:
            await stream.receive_some(4096)
            await stream.send_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nsunny"
            )

    listeners = await nursery.start(trio.serve_tcp, serve, 0)
    port = listeners[0].socket.getsockname()[1]
    weather = HTTPTool("weather", f"http://127.0.0.1:{port}/{{city}}", allow=["127.0.0.1"])
    assert "sunny" in str(await weather.run({"city": "Oslo"}))
    with pytest.raises(InvalidArguments, match="city"):
        await weather.run({})
