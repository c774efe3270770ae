"""NODES: what a message costs with agents over several processes. A program of its own: `python tests/bench/clustered.py`.

The same conversations are held in one process with a journal in PostgreSQL, and with a node through `connect`; each process
counts its own CPU from the second message of all conversations to the last: once with a model that answers after 0 to 100 ms, as the
prototype's whose bars these are, and once after 50 ms, which has all conversations go in step. PostgreSQL has to run on loopback,
or where `ACTGENT_JOURNAL` says; the schemas are removed at the end.
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
"""Conversations at once, and messages of each that are counted, the next one behind an answer."""
ROUNDS = int(os.environ.get("ROUNDS", "5"))
Times = tuple[str, str]
AT_ANY_TIME, IN_STEP = ("0", "0.1"), ("0.05", "0.05")
"""Shortest and longest time of an answer in seconds: conversations that are each at another place, and such that go in step."""


class Slow(LLM):
    """Answers after a time between `shortest` and `longest` seconds, as models that cost nothing here."""

    name = "bench:slow"

    def __init__(self, shortest: str, longest: str) -> None:
        self._times = float(shortest), float(longest)
        self._random = random.Random(16)

    async def complete(self, chat: Any, on_text: Any = None) -> ModelResponse:
        await trio.sleep(self._random.uniform(*self._times))
        return ModelResponse(parts=(Text("It is nine o'clock."),))


@attrs.define(eq=False)
class Talk:
    """A conversation: its next message is said when the last one was answered."""

    session: Any
    _answered: trio.Event = attrs.field(factory=trio.Event)

    async def hold(self, messages: int) -> None:
        for number in range(messages):
            self._answered = trio.Event()
            await self.session.chat(f"What time is it, the {number}th time?")
            await self._answered.wait()

    def hear(self, reply: object) -> None:
        self._answered.set()


async def hold_all(talks: list[Talk], messages: int) -> None:
    async with trio.open_nursery() as nursery:
        for talk in talks:
            nursery.start_soon(talk.hold, messages)


async def converse(agent: Any) -> None:
    """Hold all conversations; says when all are open, and what this process has computed since by message, in seconds."""
    talks = []
    for number in range(SESSIONS):
        talk = Talk(await agent.create_session("ada", session_id=f"s{number}"))
        talk.session.on_conversation(talk.hear)
        talks.append(talk)
    await hold_all(talks, 1)
    say("open")
    await trio.to_thread.run_sync(sys.stdin.readline)
    begun = time.process_time()
    await hold_all(talks, MESSAGES)
    say((time.process_time() - begun) / (SESSIONS * MESSAGES))


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


async def run_alone(journal: str, *times: str) -> None:
    async with open_runtime(journal=journal) as runtime:
        await converse(await runtime.start(BareAgent("clerk", llm=Slow(*times))))


async def run_client(url: str, token: str) -> None:
    async with connect(url, token=token) as client:
        await converse(client.agent("clerk"))


async def run_node(journal: str, pool: str, *times: str) -> None:
    """Serve until a line comes; each before tells what was computed so far."""
    async with open_runtime(journal=journal, cluster=pool, node="a") as runtime:
        async with runtime.starting():
            await runtime.start(BareAgent("clerk", llm=Slow(*times)))
        await serve(runtime)


async def run_served(journal: str, *times: str) -> None:
    """The same without a cluster: a gateway of one process."""
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
    """A process of this program that plays a role, and waits for lines."""

    process: trio.Process
    _heard: bytes = b""

    async def hear(self) -> str:
        """The next line that it says."""
        while b"\n" not in self._heard:
            self._heard += await self.process.stdout.receive_some()
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    async def go_on(self) -> str:
        """Have it go on; returns what it says then."""
        await self.process.stdin.send_all(b"\n")
        return await self.hear()


@asynccontextmanager
async def playing(role: str, *words: str) -> AsyncIterator[Role]:
    """A process for the block, which ends by itself."""
    async with trio.open_nursery() as nursery:
        command = [sys.executable, __file__, role, *words]
        process = await nursery.start(partial(trio.run_process, command, stdin=PIPE, stdout=PIPE))
        yield Role(process)
        await process.stdin.aclose()


async def measure_alone(journal: str, times: Times) -> float:
    async with playing("alone", journal, *times) as alone:
        await alone.hear()
        return float(await alone.go_on())


async def measure_behind_gateway(role: str, *words: str) -> tuple[float, float]:
    """Seconds of CPU a message: of a process with a gateway, and of its client."""
    async with playing(role, *words) as server:
        url, token = (await server.hear()).split()
        await server.hear()
        async with playing("client", url, token) as client:
            await client.hear()
            before = float(await server.go_on())
            spent = float(await client.go_on())
            return (float(await server.go_on()) - before) / (SESSIONS * MESSAGES), spent


@asynccontextmanager
async def names_of_one_run(number):
    """The address of a journal, and the name of a cluster; the schema is removed after the block."""
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
    """Seconds of CPU a message: of one process, of one with a gateway, of a node, of its client; and how slow the machine was."""
    before = calibrate()
    async with names_of_one_run(3 * number) as (journal, _):
        alone = await measure_alone(journal, times)
    async with names_of_one_run(3 * number + 1) as (journal, _):
        served, _ = await measure_behind_gateway("served", journal, *times)
    async with names_of_one_run(3 * number + 2) as (journal, name):
        node, client = await measure_behind_gateway("node", journal, name, *times)
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
