"""Errors that are sent before the body of the request was read."""

import pytest
import trio

from .conftest import open_served


async def exchange(stream, request):
    """Send a request. Return the head of the response in lower case, and drop the body."""
    await stream.send_all(request)
    data = b""
    while b"\r\n\r\n" not in data:
        received = await stream.receive_some()
        assert received, "the server has closed the connection"
        data += received
    head, _, rest = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line
    )
    while len(rest) < length:
        rest += await stream.receive_some()
    return head.decode().lower()


@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/nothing", "/openai/v1/nothing"])
@pytest.mark.parametrize("size", [10, 60_000, 300_000])
async def test_early_error_keeps_the_connection_or_announces_its_end(path, size):
    """The server receives and drops a small body. With a large body it announces the end of the connection, so clients open another."""
    async with open_served() as served:
        host, port = served.gateway.url.removeprefix("http://").split(":")
        head = f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
        request = f"{head}content-length: {size}\r\n\r\n".encode() + b" " * size
        with trio.fail_after(20):
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                first = await exchange(stream, request)
                assert first.split()[1] in ("401", "404")
                assert ("connection: close" in first) == (size > 65_536)
                if size <= 65_536:
                    second = await exchange(stream, request)
                    assert second.split()[1] == first.split()[1]
