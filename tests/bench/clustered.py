"""NODES: CPU per message of agents in several processes. Run it by `python tests/bench/clustered.py`.

The same conversations run in one process with a journal in PostgreSQL, and on a node through `connect`. Each process counts its
CPU from the second message of all conversations to the last. The model answers after 0 to 100 ms in the first part, and after
50 ms in the second, so that all conversations advance together. PostgreSQL must run on loopback or at `ACTGENT_JOURNAL`; the
schemas are removed at the end.
"""

import os
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from subprocess import PIPE
from typing import Any

import attrs
import psycopg
import trio
from measure import REFERENCE_S, calibrate

from actgent import (
    LLM,
    BareAgent,
    GatewayLimits,
    ModelResponse,
    Runtime,
    Text,
    connect,
    open_gateway,
    open_runtime,
)

DATABASE = os.environ.get("ACTGENT_JOURNAL", "postgresql://postgres@127.0.0.1:5432/test")
MANY = 1_000_000
LIMITS = GatewayLimits(requests=MANY, messages=None, rate=float(MANY), burst=MANY)
SESSIONS, MESSAGES = 100, 40
"""Concurrent conversations, and counted messages of each. A message follows the answer to the one before it."""
ROUNDS = int(os.environ.get("ROUNDS", "5"))
Times = tuple[str, str]
AT_ANY_TIME, IN_STEP = ("0", "0.1"), ("0.05", "0.05")
"""Shortest and longest time of an answer in seconds: spread conversations, and conversations that advance together."""


class Slow(LLM):
    """A model that answers after a random time between `shortest` and `longest` seconds, without CPU."""

    name = "bench:slow"

    def __init__(self, shortest: str, longest: str) -> None:
        self._times = float(shortest), float(longest)
        self._random = random.Random(16)

    async def complete(self, chat: Any, on_text: Any = None) -> ModelResponse:
        await trio.sleep(self._random.uniform(*self._times))
        return ModelResponse(parts=(Text("It is nine o'clock."),))


@attrs.define(eq=False)
class Talk:
    """A conversation. Its next message is sent when the last one is answered."""

    session: Any
    _answered: trio.Event = attrs.field(factory=trio.Event)

    async def hold(self, messages: int) -> None:
        for number in range(messages):
            self._answered = trio.Event()
            await self.session.chat(f"What time is it, the {number}th time?")
            await self._answered.wait()

    def note_answer(self, reply: object) -> None:
        self._answered.set()


async def hold_all(talks: list[Talk], messages: int) -> None:
    async with trio.open_nursery() as nursery:
        for talk in talks:
            nursery.start_soon(talk.hold, messages)


async def converse(agent: Any) -> None:
    """Run all conversations. Report when all are open; then return the CPU seconds of this process per message."""
    talks = []
    for number in range(SESSIONS):
        talk = Talk(await agent.create_session("ada", session_id=f"s{number}"))
        talk.session.on_conversation(talk.note_answer)
        talks.append(talk)
    await hold_all(talks, 1)
    say("open")
    await trio.to_thread.run_sync(sys.stdin.readline)
    started = time.process_time()
    await hold_all(talks, MESSAGES)
    say((time.process_time() - started) / (SESSIONS * MESSAGES))


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


async def run_alone(journal: str, *times: str) -> None:
    async with open_runtime(journal=journal) as runtime:
        await converse(await runtime.start(BareAgent("clerk", llm=Slow(*times))))


async def run_client(url: str, token: str) -> None:
    async with connect(url, token=token) as client:
        await converse(client.agent("clerk"))


async def run_node(journal: str, pool: str, name: str, *times: str) -> None:
    """Serve until a line arrives on standard input. Report the CPU at each earlier line."""
    async with open_runtime(journal=journal, cluster=pool, node=name) as runtime:
        async with runtime.starting():
            await runtime.start(BareAgent("clerk", llm=Slow(*times)))
        await serve(runtime)


async def run_served(journal: str, *times: str) -> None:
    """Serve the same agents by a gateway in one process without a cluster."""
    async with open_runtime(journal=journal) as runtime:
        await runtime.start(BareAgent("clerk", llm=Slow(*times)))
        await serve(runtime)


async def serve(runtime: Runtime) -> None:
    async with open_gateway(runtime, bind="127.0.0.1:0", limits=LIMITS) as gateway:
        say(f"{gateway.url} {gateway.key}")
        for _ in range(3):
            say(time.process_time())
            await trio.to_thread.run_sync(sys.stdin.readline)


@attrs.define(eq=False)
class Role:
    """A process of this program with one role, controlled by lines on its standard input."""

    process: trio.Process
    _unread: bytes = b""

    async def read_line(self) -> str:
        """Return the next line that the process prints."""
        while b"\n" not in self._unread:
            self._unread += await self.process.stdout.receive_some()
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    async def resume(self) -> str:
        """Let the process continue, and return the next line that it prints."""
        await self.process.stdin.send_all(b"\n")
        return await self.read_line()


@asynccontextmanager
async def playing(role: str, *texts: str) -> AsyncIterator[Role]:
    """Run a process for the block. The process ends by itself."""
    async with trio.open_nursery() as nursery:
        command = [sys.executable, __file__, role, *texts]
        process = await nursery.start(partial(trio.run_process, command, stdin=PIPE, stdout=PIPE))
        yield Role(process)
        await process.stdin.aclose()


async def measure_alone(journal: str, times: Times) -> float:
    async with playing("alone", journal, *times) as alone:
        await alone.read_line()
        return float(await alone.resume())


async def measure_behind_gateway(role: str, *texts: str) -> tuple[float, float]:
    """Return CPU seconds per message of a process with a gateway and of its client."""
    async with playing(role, *texts) as server:
        url, token = (await server.read_line()).split()
        await server.read_line()
        async with playing("client", url, token) as client:
            await client.read_line()
            before = float(await server.resume())
            spent = float(await client.resume())
            return (float(await server.resume()) - before) / (SESSIONS * MESSAGES), spent


@asynccontextmanager
async def names_of_one_run(number):
    """Yield the address of a journal and the name of a cluster. Remove the schema after the block."""
    name = f"bench-{os.getpid()}-{number}"
    schema = name.replace("-", "_")
    mark = "&" if "?" in DATABASE else "?"
    try:
        yield f"{DATABASE}{mark}schema={schema}", name
    finally:
        with psycopg.connect(DATABASE, autocommit=True) as database:
            database.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def find_missing() -> str:
    """Return why the database cannot be reached; empty if it can."""
    try:
        psycopg.connect(DATABASE, connect_timeout=3).close()
    except psycopg.Error as error:
        return str(error) or type(error).__name__
    return ""


async def measure_round(number: int, times: Times) -> tuple[float, ...]:
    """Return CPU seconds per message of one process, of one with a gateway, of a node and its client, and the speed of the machine."""
    before = calibrate()
    async with names_of_one_run(3 * number) as (journal, _):
        alone = await measure_alone(journal, times)
    async with names_of_one_run(3 * number + 1) as (journal, _):
        served, _ = await measure_behind_gateway("served", journal, *times)
    async with names_of_one_run(3 * number + 2) as (journal, name):
        node, client = await measure_behind_gateway("node", journal, name, "a", *times)
    return alone, served, node, client, (before + calibrate()) / 2 / REFERENCE_S


async def measure(times: Times) -> tuple[str, ...]:
    """Return the figures of one process, one with a gateway, a node, its client and the machine, as medians of all rounds."""
    rounds = [await measure_round(number, times) for number in range(ROUNDS)]
    alone, served, node, client, speed = (statistics.median(each) for each in zip(*rounds, strict=True))
    ratio = statistics.median(each[2] / each[1] for each in rounds)
    return (
        f"{alone * 1e3:.2f} ms",
        f"{served * 1e3:.2f} ms",
        f"{node * 1e3:.2f} ms, {ratio:.1f} times one process with a gateway",
        f"{client * 1e3:.2f} ms",
        f"{speed:.2f}",
    )


def row(what: str, figure: str, bar: str = "") -> None:
    say(f"| NODES | {what} | {figure} | {bar} |")


async def main() -> None:
    if missing := find_missing():
        say(f"NODES is left out, as the database is missing: {missing}")
        return
    alone, served, node, client, speed = await measure(AT_ANY_TIME)
    row("one process, journal in PostgreSQL: CPU of a message and its turn", alone)
    row("one process with a gateway: the same", served)
    row("a node: the same", node, "1.5 times")
    row("a client: CPU of a message and its answer", client, "0.8 ms")
    row("a fixed loop took, of its time on the undisturbed machine", speed)
    alone, served, node, client, speed = await measure(IN_STEP)
    row(
        "all conversations in step: one process; with a gateway; a node; a client",
        f"{alone}; {served}; {node}; {client}",
    )
    row("the fixed loop", speed)


ROLES = {"alone": run_alone, "client": run_client, "node": run_node, "served": run_served}


if __name__ == "__main__":
    role, *words = sys.argv[1:] or [""]
    trio.run(ROLES.get(role, main), *words)
