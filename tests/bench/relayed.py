"""RELAYED: cost of a message that one node of a cluster receives and another node processes.

Run it by `python tests/bench/relayed.py`. Two nodes serve the same sessions, which the first node owns. Blocks of messages to
the first node and to the second node alternate, so both kinds run on the same machine at the same time. The second node relays
its messages to the first one. The model answers at once. PostgreSQL must run on loopback or at `ACTGENT_JOURNAL`.
"""

import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import attrs
import trio
from clustered import find_missing, names_of_one_run, playing
from gateway import TICK, Client
from measure import REFERENCE_S, calibrate

CONNECTIONS, MESSAGES = 20, 40
"""Concurrent connections, each with one session, and messages of each in a block."""
SINGLE = 200
"""Messages of a block on one connection, whose times are measured."""
ROUNDS = int(os.environ.get("ROUNDS", "5"))


@attrs.frozen
class Node:
    """A node process and its gateway."""

    pid: int
    port: int
    key: str

    def cpu(self) -> float:
        """Return the CPU seconds that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    async def connect(self) -> Client:
        return Client(await trio.open_tcp_stream("127.0.0.1", self.port), self.key)


@attrs.frozen
class Block:
    """Figures of one block of messages, in seconds per message."""

    receiver: float
    """CPU of the node that gets the messages."""
    owner: float
    """CPU of the node that processes them; 0 if it is the receiving node."""
    latency: float
    """Median time from a request to its answer on a single connection."""


async def ask(client: Client, session: str) -> None:
    path = f"/v1/sessions/{session}/messages"
    status, _ = await client.ask("POST", path, {"input": "What time is it?"}, "prefer: wait=60")
    assert status == 200, status


async def talk(client: Client, session: str) -> None:
    for _ in range(MESSAGES):
        await ask(client, session)


async def measure_block(node: Node, owner: Node, clients: list[Client], sessions: list[str]) -> Block:
    """Send a block of messages to a node, and return its figures."""
    received, owned = node.cpu(), owner.cpu()
    async with trio.open_nursery() as nursery:
        for client, session in zip(clients, sessions, strict=True):
            nursery.start_soon(talk, client, session)
    count = CONNECTIONS * MESSAGES
    received, owned = (node.cpu() - received) / count, (owner.cpu() - owned) / count
    times = []
    for _ in range(SINGLE):
        started = time.perf_counter()
        await ask(clients[0], sessions[0])
        times.append(time.perf_counter() - started)
    return Block(received, 0.0 if node is owner else owned, statistics.median(times))


async def measure(first: Node, second: Node) -> list[tuple[Block, Block]]:
    """Return the figures of the blocks of all rounds: of direct and of relayed messages."""
    direct = [await first.connect() for _ in range(CONNECTIONS)]
    relayed = [await second.connect() for _ in range(CONNECTIONS)]
    sessions = []
    for client in direct:
        status, data = await client.ask("POST", "/v1/sessions", {"agent": "clerk"})
        assert status == 201, data
        sessions.append(data.partition(b'"id":"')[2].partition(b'"')[0].decode())
    both = [partial(measure_block, first, first, direct), partial(measure_block, second, first, relayed)]
    for each in both:
        await each(sessions)
    rounds = [(await both[0](sessions), await both[1](sessions)) for _ in range(ROUNDS)]
    for client in direct + relayed:
        await client.stream.aclose()
    return rounds


def row(what: str, figure: str) -> None:
    sys.stdout.write(f"| RELAYED | {what} | {figure} |\n")
    sys.stdout.flush()


def report(rounds: list[tuple[Block, Block]], speed: float) -> None:
    def middle(place: int, name: str) -> float:
        return statistics.median(getattr(each[place], name) for each in rounds) * 1e3

    ratios = [(relayed.receiver + relayed.owner) / direct.receiver for direct, relayed in rounds]
    later = [relayed.latency - direct.latency for direct, relayed in rounds]
    row("a message to the node that owns the session: CPU of the node", f"{middle(0, 'receiver'):.2f} ms")
    row(
        "a message to another node: CPU of that node; of the owner; of both, relative to the row above",
        f"{middle(1, 'receiver'):.2f} ms; {middle(1, 'owner'):.2f} ms; {statistics.median(ratios):.2f} times",
    )
    row(
        "one connection, time until the answer: owner; another node; median difference of a round",
        f"{middle(0, 'latency'):.2f} ms; {middle(1, 'latency'):.2f} ms; {statistics.median(later) * 1e3:+.2f} ms",
    )
    row("a fixed loop took, of its time on the undisturbed machine", f"{speed:.2f}")


async def main() -> None:
    if missing := find_missing():
        sys.stdout.write(f"RELAYED is left out, as the database is missing: {missing}\n")
        return
    before = calibrate()
    async with names_of_one_run("relayed") as (journal, pool):
        nodes = []
        start = partial(playing, "node", journal, pool)
        async with start("a", "0", "0") as first, start("b", "0", "0") as second:
            for each in (first, second):
                url, key = (await each.read_line()).split()
                nodes.append(Node(each.process.pid, int(url.rpartition(":")[2]), key))
            await trio.sleep(5)  # partitions are assigned again after the second node has joined
            rounds = await measure(*nodes)
            for each in (first, second):
                for _ in range(3):
                    await each.resume()
    report(rounds, (before + calibrate()) / 2 / REFERENCE_S)


if __name__ == "__main__":
    trio.run(main)
