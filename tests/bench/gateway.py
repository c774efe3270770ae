"""GATEWAY, STREAMS and LIST: cost of agents over HTTP. Run it by `python tests/bench/gateway.py [ROW ...]`.

The server runs in another process, whose CPU and memory are measured from outside. The clients are bare sockets.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from signal import SIGTERM, SIGUSR1
from subprocess import PIPE
from typing import Any

import attrs
import trio
from measure import REFERENCE_S, calibrate

HERE = Path(__file__).parent
TICK = os.sysconf("SC_CLK_TCK")
ROUNDS = 3


@attrs.define(eq=False)
class Server:
    """The server process of a run."""

    process: trio.Process
    port: int
    key: str
    _lines: trio.abc.ReceiveStream

    def cpu(self) -> float:
        """Return the CPU seconds that the server has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def rss(self) -> int:
        """Return the resident memory of the server in bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGESIZE")

    def files(self) -> int:
        """Return the number of open files and sockets of the server."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    async def connect(self) -> "Client":
        return Client(await trio.open_tcp_stream("127.0.0.1", self.port), self.key)

    async def stalled(self) -> float:
        """Return the longest time, in seconds, for which the event loop was blocked since the last call."""
        self.process.send_signal(SIGUSR1)
        return float(await read_line(self._lines))


async def read_line(stream: trio.abc.ReceiveStream) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += await stream.receive_some()
    return line


@asynccontextmanager
async def serving(
    journal: str = "memory:", sessions: int = 0, watched: bool = False
) -> AsyncIterator[Server]:
    """Run a server for the block."""
    command = [
        sys.executable,
        str(HERE / "gateway_server.py"),
        journal,
        str(sessions),
        "watched" if watched else "",
    ]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(partial(trio.run_process, command, stdout=PIPE, check=False))
        port, key = (await read_line(process.stdout)).split()
        yield Server(process, int(port), key.decode(), process.stdout)
        process.send_signal(SIGTERM)


@attrs.define(eq=False)
class Client:
    """One HTTP connection with a minimum of code."""

    stream: trio.SocketStream
    key: str
    _left: bytes = b""

    async def send(self, verb: str, path: str, body: Any = None, *headers: str) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{verb} {path} HTTP/1.1",
            f"host: 127.0.0.1:{self.stream.socket.getpeername()[1]}",
            f"authorization: Bearer {self.key}",
            "content-type: application/json",
            f"content-length: {len(data)}",
            *headers,
        ]
        await self.stream.send_all("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    async def head(self) -> tuple[int, int]:
        """Return the status and the content length of the next response."""
        while b"\r\n\r\n" not in self._left:
            self._left += await self._more()
        head, _, self._left = self._left.partition(b"\r\n\r\n")
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        return int(head[9:12]), int(length[0].partition(b":")[2]) if length else 0

    async def ask(self, verb: str, path: str, body: Any = None, *headers: str) -> tuple[int, bytes]:
        """Send a request and read its response."""
        await self.send(verb, path, body, *headers)
        status, length = await self.head()
        while len(self._left) < length:
            self._left += await self._more()
        found, self._left = self._left[:length], self._left[length:]
        return status, found

    async def _more(self) -> bytes:
        received = await self.stream.receive_some(1 << 16)
        if not received:
            raise EOFError("the server has closed the connection")
        return bytes(received)


def row(name: str, what: str, figure: str, bar: str) -> None:
    sys.stdout.write(f"| {name} | {what} | {figure} | {bar} |\n")
    sys.stdout.flush()


# --- GATEWAY -----------------------------------------------------------------------------


async def flood(
    server: Server, *, connections: int, each: int, size: int = 40
) -> tuple[float, float, list[float], int]:
    """Send messages over many connections, one session each. Return CPU per message, throughput, latency of 202, and rejections."""
    times: list[float] = []
    refused = 0
    clients = [await server.connect() for _ in range(connections)]
    run = os.urandom(4).hex()
    for number, client in enumerate(clients):
        assert (await client.ask("PUT", f"/v1/sessions/{run}-{number}", {"agent": "clerk"}))[0] == 201

    async def talk(number: int, client: Client) -> None:
        nonlocal refused
        path = f"/v1/sessions/{run}-{number}/messages"
        for turn in range(each):
            wait = ["prefer: wait=60"] if turn == each - 1 else []
            started = time.perf_counter()
            status, _ = await client.ask("POST", path, {"input": "x" * size}, *wait)
            if not wait:
                times.append(time.perf_counter() - started)
            refused += status not in (200, 202)

    cpu, started = server.cpu(), time.perf_counter()
    async with trio.open_nursery() as nursery:
        for number, client in enumerate(clients):
            nursery.start_soon(talk, number, client)
    wall, count = time.perf_counter() - started, connections * each
    figures = (server.cpu() - cpu) / count, count / wall, times, refused
    for client in clients:
        await client.stream.aclose()
    return figures


async def gateway() -> None:
    """Measure 1,000 messages a second."""
    found = []
    for _ in range(ROUNDS):
        async with serving() as server:
            await flood(server, connections=10, each=20)
            found.append(await flood(server, connections=100, each=50))
    cpu, rate = (statistics.median(each[place] for each in found) for place in (0, 1))
    row(
        "GATEWAY",
        "journal in memory, 100 connections: CPU of a message and its turn",
        f"{cpu * 1e3:.2f} ms",
        "1.2 ms",
    )
    row("GATEWAY", "the same: messages and turns a second", f"{rate:.0f}", "700, or what one core gives")
    with tempfile.TemporaryDirectory() as folder:
        async with serving(f"sqlite:///{folder}/j.db") as server:
            cpu, rate, times, refused = await flood(server, connections=100, each=20)
    p99 = sorted(times)[int(len(times) * 0.99)]
    row(
        "GATEWAY",
        "SQLite: messages and turns a second; 99 % of the 202 within; other answers",
        f"{rate:.0f}; {p99:.2f} s; {refused}",
        "the disk's; 0.5 s; none but 429",
    )


# --- STREAMS -----------------------------------------------------------------------------


async def follow(server: Server, session: str, into: list[Client]) -> None:
    client = await server.connect()
    await client.send("GET", f"/v1/sessions/{session}/events", None, "accept: text/event-stream")
    into.append(client)


async def open_streams(server: Server, count: int, session: str) -> list[Client]:
    """Return the streams whose response headers have arrived."""
    clients: list[Client] = []
    for _ in range(0, count, 50):
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(follow, server, session, clients)
    for client in clients:
        assert (await client.head())[0] == 200
    return clients


async def settled(look: Any, wanted: Any) -> float:
    """Return the seconds until a figure of the server reaches its expected value."""
    started = time.perf_counter()
    while not wanted(look()):
        await trio.sleep(0.02)
        if time.perf_counter() - started > 60:
            return float("inf")
    return time.perf_counter() - started


async def make(server: Server, session: str, agent: str) -> Client:
    client = await server.connect()
    status, _ = await client.ask("PUT", f"/v1/sessions/{session}", {"agent": agent})
    assert status == 201
    return client


async def streams() -> None:
    """Measure 2,000 readers of one session."""
    count = 2000
    async with serving() as server:
        await (await make(server, "s1", "teller")).stream.aclose()
        for client in await open_streams(server, 100, "s1"):
            await client.stream.aclose()
        await trio.sleep(1)
        files, rss, cpu = server.files(), server.rss(), server.cpu()
        clients = await open_streams(server, count, "s1")
        row("STREAMS", "memory of each of 2,000", f"{(server.rss() - rss) / count / 1024:.0f} KB", "36 KB")
        row("STREAMS", "CPU to open each", f"{(server.cpu() - cpu) / count * 1e3:.2f} ms", "2 ms")
        cpu = server.cpu()
        await trio.sleep(20)
        row("STREAMS", "CPU a second of all, idle", f"{(server.cpu() - cpu) / 20 * 1e3:.0f} ms", "20 ms")
        await fan_out(server, clients)
        gone = []
        for _ in range(40):
            for client in clients:
                await client.stream.aclose()
            gone.append(await settled(server.files, lambda now: now <= files))
            sizes = server.rss()
            clients = await open_streams(server, count // 4, "s1")
            if len(gone) == 3:
                early = sizes
        row(
            "STREAMS",
            "40 storms: gone within, the longest; growth since the third",
            f"{max(gone):.2f} s; {(sizes - early) / 1024:+.0f} KB",
            "2 s; none",
        )
        for client in clients:
            await client.stream.aclose()


async def fan_out(server: Server, clients: list[Client]) -> None:
    async def drain(client: Client) -> None:
        while b"event: ended" not in (client._left + await client._more()):
            pass

    async def turn() -> float:
        cpu = server.cpu()
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(drain, client)
            asking = await server.connect()
            await asking.ask("POST", "/v1/sessions/s1/messages", {"input": "tell"}, "prefer: wait=60")
            await asking.stream.aclose()
        return server.cpu() - cpu

    costs = [await turn() for _ in range(5)]
    row(
        "STREAMS",
        "a turn of 40 tokens in 0.2 s: CPU a reader",
        f"{statistics.median(costs) / len(clients) * 1e3:.2f} ms",
        "0.3 ms, or five sends",
    )


async def mute() -> None:
    """Measure readers that never read."""

    async def said(readers: int) -> tuple[float, float, float]:
        async with serving() as server:
            asking = await make(server, "s1", "clerk")
            before, rss = server.files(), server.rss()
            clients: list[Client] = []
            for _ in range(readers):
                await follow(server, "s1", clients)
            await trio.sleep(2)
            cpu, maximum = server.cpu(), rss
            for number in range(1000):
                wait = ["prefer: wait=60"]
                await asking.ask("POST", "/v1/sessions/s1/messages", {"input": "x" * 20_000}, *wait)
                if number % 20 == 0:
                    maximum = max(maximum, server.rss())
            spent = server.cpu() - cpu
            cut = await settled(server.files, lambda now: now <= before) if readers else 0.0
            for client in clients:
                await client.stream.aclose()
            return spent, maximum - rss, cut

    ratios, grown, cuts = [], [], []
    for _ in range(ROUNDS):
        alone, own, _ = await said(0)
        spent, maximum, cut = await said(100)
        ratios.append(spent / alone)
        grown.append(maximum - own)
        cuts.append(cut)
    row(
        "STREAMS",
        "100 readers that never read, 1,000 messages of 20 KB: CPU of the turns",
        f"{statistics.median(ratios) - 1:+.1%} ({', '.join(f'{each - 1:+.1%}' for each in ratios)})",
        "+5 %",
    )
    row(
        "STREAMS",
        "the same: memory; all cut within",
        f"{statistics.median(grown) / 1e6:+.0f} MB; {max(cuts):.1f} s",
        "+50 MB; 10 s of a send",
    )
    async with serving() as server:
        asking = await make(server, "s1", "clerk")
        clients = []
        for _ in range(100):
            await follow(server, "s1", clients)
        for _ in range(100):
            await asking.ask("POST", "/v1/sessions/s1/messages", {"input": "x" * 20_000})
        started = time.perf_counter()
        server.process.send_signal(SIGTERM)
        await server.process.wait()
        ended = time.perf_counter() - started
        for client in clients:
            await client.stream.aclose()
    row(
        "STREAMS",
        "SIGTERM with 100 of them there, grace of 2 s: ended after",
        f"{ended:.1f} s",
        "grace + 2 s",
    )


# --- LIST --------------------------------------------------------------------------------


async def listing() -> None:
    """Measure lists of 100,000 sessions."""
    with tempfile.TemporaryDirectory() as folder:
        async with serving(f"sqlite:///{folder}/j.db", 100_000, watched=True) as server:
            client = await server.connect()
            await client.ask("GET", "/v1/sessions?limit=100")
            await client.ask("GET", "/v1/statistics")
            await server.stalled()
            request = {
                "the newest": "limit=100",
                "of an owner": "owner=owner-07&limit=100",
                "by the beginning of an id": "q=s-0421&limit=100",
                "in a state": "state=idle&limit=100",
            }
            for text, query in request.items():
                await pages(server, client, text, f"/v1/sessions?{query}")
            await pages(server, client, "of 500", "/v1/sessions?limit=500")
            await pages(server, client, "of 500, of an owner", "/v1/sessions?owner=owner-07&limit=500")
            times, after = [], ""
            while after is not None:
                started = time.perf_counter()
                _, data = await client.ask("GET", f"/v1/sessions?limit=500{after and '&after=' + after}")
                times.append(time.perf_counter() - started)
                after = json.loads(data)["next"]
            row(
                "LIST",
                "all of it in pages of 500: the slowest, the median",
                f"{max(times) * 1e3:.1f}, {statistics.median(times) * 1e3:.1f} ms of {len(times)}; {await server.stalled() * 1e3:.1f} ms",
                "20 ms; 10 ms",
            )
            times = sorted([await timed(client, "/v1/statistics") for _ in range(20)])
            row(
                "LIST",
                "counts by state",
                f"{times[10] * 1e3:.1f} ms; {await server.stalled() * 1e3:.1f} ms",
                "20 ms; 10 ms",
            )


async def pages(server: Server, client: Client, text: str, path: str) -> None:
    """Request a page repeatedly. Compare the longest block of the event loop with that of an equal time without requests."""
    started, cpu = time.perf_counter(), server.cpu()
    times = sorted([await timed(client, path) for _ in range(100)])
    wall, spent = time.perf_counter() - started, server.cpu() - cpu
    stall = await server.stalled()
    idle = server.cpu()
    await trio.sleep(wall)
    own = spent - (server.cpu() - idle)
    without = await server.stalled()
    figures = f"{own * 10:.1f} ms CPU; {times[0] * 1e3:.1f}, {times[50] * 1e3:.1f}, {times[95] * 1e3:.1f} ms; {stall * 1e3:.1f}, {without * 1e3:.1f} ms"
    row(
        "LIST",
        f"a page, {text}: CPU; best, median, 95 %; the loop stood still, and without",
        figures,
        "20 ms; 10 ms",
    )


async def timed(client: Client, path: str) -> float:
    started = time.perf_counter()
    status, _ = await client.ask("GET", path)
    assert status == 200, path
    return time.perf_counter() - started


ROWS = {"GATEWAY": (gateway,), "STREAMS": (streams, mute), "LIST": (listing,)}


async def main(names: list[str]) -> None:
    for name in names or ROWS:
        for measure in ROWS[name]:
            before = calibrate()
            await measure()
            speed = (before + calibrate()) / 2 / REFERENCE_S
            row(name, "a fixed loop took, of its time on the undisturbed machine", f"{speed:.2f}", "")


if __name__ == "__main__":
    trio.run(main, sys.argv[1:])
