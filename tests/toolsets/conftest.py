"""A loopback server that returns the received request or a scripted response."""

from contextlib import asynccontextmanager, suppress
from functools import partial

import h11
import orjson
import pytest
import trio


class Server:
    """Answers each request with `answer(request)`: (status, headers, body).

    Without it, returns the request as JSON.
    """

    def __init__(self):
        self.requests = []
        self.answer = None
        self.port = 0
        self.connections = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, stream):
        with suppress(trio.BrokenResourceError):  # a client may disconnect during the response
            await self._serve(stream)

    async def _serve(self, stream):
        self.connections += 1
        connection = h11.Connection(h11.SERVER)
        async with stream:
            while True:
                request = await self._request(connection, stream)
                if request is None:
                    return
                self.requests.append(request)
                answer = self.answer or told
                result = answer(request)
                if callable(result):  # writes the response itself
                    await result(stream)
                    return
                status, headers, body = result
                if connection.their_state is h11.MUST_CLOSE:
                    headers = {**headers, "Connection": "close"}
                head = [*headers.items(), ("Content-Length", str(len(body)))]
                await stream.send_all(connection.send(h11.Response(status_code=status, headers=head)))
                if request["method"] != "HEAD":
                    await stream.send_all(connection.send(h11.Data(data=body)))
                await stream.send_all(connection.send(h11.EndOfMessage()) or b"")
                try:
                    connection.start_next_cycle()
                except h11.LocalProtocolError:
                    return

    async def _request(self, connection, stream):
        request, body = None, b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                try:
                    connection.receive_data(await stream.receive_some(65536))
                except trio.BrokenResourceError:
                    return None
            elif isinstance(event, h11.Request):
                target = event.target.decode()
                request = {
                    "method": event.method.decode(),
                    "path": target.partition("?")[0],
                    "query": target.partition("?")[2],
                    "headers": {name.decode(): value.decode() for name, value in event.headers},
                }
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return {**request, "body": body.decode()}
            else:
                return None


def told(request):
    return 200, {"Content-Type": "application/json"}, orjson.dumps(request)


@asynccontextmanager
async def open_server():
    server = Server()
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, server.serve, 0, host="127.0.0.1"))
        server.port = listener.socket.getsockname()[1]
        yield server
        nursery.cancel_scope.cancel()


@pytest.fixture
async def server():
    async with open_server() as running:
        yield running


@pytest.fixture
async def elsewhere():
    async with open_server() as running:
        yield running
