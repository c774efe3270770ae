"""A TCP relay that breaks connections in the middle of the data."""

import random
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import trio


class Relay:
    """Forwards bytes, and breaks each connection after a random number of them until `cuts` connections are broken."""

    def __init__(self, url, *, seed, cuts, longest=3000):
        self._target = urlsplit(url)
        self._random = random.Random(seed)
        self._longest = longest
        self.left = cuts
        self.url = ""

    async def serve(self, client):
        async with client, await trio.open_tcp_stream(self._target.hostname, self._target.port) as server:
            room = self._random.randrange(1, self._longest) if self.left > 0 else None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pass_on, client, server, None, nursery.cancel_scope)
                nursery.start_soon(self._pass_on, server, client, room, nursery.cancel_scope)

    async def _pass_on(self, source, sink, room, scope):
        try:
            while data := await source.receive_some(1000):
                piece = data if room is None else data[:room]
                await sink.send_all(piece)
                if room is not None and len(data) >= room:
                    self.left -= 1
                    break
                room = None if room is None else room - len(data)
        except trio.BrokenResourceError:
            pass  # the other side has closed the connection
        scope.cancel()


@asynccontextmanager
async def open_relay(url, **options):
    relay = Relay(url, **options)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        relay.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, relay.serve, [listener])
        yield relay
        nursery.cancel_scope.cancel()
