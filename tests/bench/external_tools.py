"""HANDS: cost of HTTP and MCP tools beyond the libraries that they use. Run it by `python tests/bench/external_tools.py`.

The exit code is 1 if a bar is missed. Wall time and CPU of this process are the best of interleaved batches. The servers run in
other processes.
"""

import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import httpx2
import trio

from actgent import BareAgent, HTTPTool, MCPServer, ScriptedLLM, Tool, ToolCall, ToolRegistry, open_toolset
from actgent.tools import Batch

FAULTY = str(Path(__file__).parents[1] / "toolsets" / "mcp" / "faulty_server.py")
ROUNDS, CALLS = 40, 50
HTTP_BAR, MCP_BAR = 1.3, 1.2
"""Maximum ratio to the time of the library."""
HUNG_BAR = 0.5
"""Maximum additional seconds caused by a server that hangs."""
ANSWERING = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
body = b'{"weather": "fine", "days": 3}'
while True:
    connection, _ = server.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while connection.recv(65536):
        head = b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n"
        connection.sendall(head % len(body) + body)
"""
Call = Callable[[], Awaitable[object]]


@asynccontextmanager
async def answering() -> Any:
    """Run a server on loopback in another process, and yield its address."""
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(trio.run_process, [sys.executable, "-c", ANSWERING], stdout=PIPE)
        )
        yield f"http://127.0.0.1:{int(await process.stdout.receive_some())}"
        nursery.cancel_scope.cancel()


async def batch_us(call: Call) -> tuple[float, float]:
    """Return wall time and CPU of one call, in microseconds, from a batch of sequential calls."""
    started, cpu = time.perf_counter(), time.process_time()
    for _ in range(CALLS):
        await call()
    return (time.perf_counter() - started) / CALLS * 1e6, (time.process_time() - cpu) / CALLS * 1e6


async def best(calls: Mapping[str, Call]) -> dict[str, tuple[float, float]]:
    """Return wall time and CPU of the best batch of each side. The sides alternate."""
    for call in calls.values():
        await call()
    found = [{name: await batch_us(call) for name, call in calls.items()} for _ in range(ROUNDS)]
    return {name: (min(e[name][0] for e in found), min(e[name][1] for e in found)) for name in calls}


def through(tool: Tool, arguments: Mapping[str, Any]) -> Call:
    """Call a tool as an agent does: look it up, validate, run with a timeout, and make a message of the result."""
    registry = ToolRegistry([tool])

    async def call() -> None:
        batch = Batch([ToolCall(tool.name, arguments, "c1")], registry)
        await batch.run()
        (result,) = batch.results()
        if result.status != "success":
            raise RuntimeError(result.error)

    return call


async def http() -> dict[str, tuple[float, float]]:
    """Time a GET by HTTPTool and by the library. Each keeps its connection."""
    # A server answers one connection at a time, so each side has its own server.
    async with answering() as ours, answering() as theirs, httpx2.AsyncClient(trust_env=False) as client:
        query = {"days": {"type": "integer"}}
        tool = HTTPTool("forecast", f"{ours}/cities/{{city}}", query=query, allow=["127.0.0.1"])

        async def alone() -> None:
            answer = await client.get(f"{theirs}/cities/Bern", params={"days": 3}, headers={"Accept": "*/*"})
            answer.raise_for_status()
            answer.text  # noqa: B018 - it is decoded when it is asked for

        async with open_toolset(tool):
            return await best({"alone": alone, "tool": through(tool, {"city": "Bern", "days": 3})})


async def mcp() -> dict[str, tuple[float, float]]:
    """Time a call of a server over stdio by the tool and by the SDK on the same connection."""
    server = MCPServer(name="faulty", command=sys.executable, args=[FAULTY], connect_timeout=30)
    async with open_toolset(server) as tools:
        tool = next(each for each in tools() if each.name == "echo")
        session = server.connection().session

        async def alone() -> None:
            await session.call_tool("echo", {"text": "hi"})

        return await best({"alone": alone, "tool": through(tool, {"text": "hi"})})


async def opening(*, hanging: bool) -> float:
    """Return the seconds until an agent with five MCP servers is ready, with and without one server that hangs."""
    servers = [
        MCPServer(name=f"s{n}", command=sys.executable, args=[FAULTY, "/dev/null"])
        for n in range(4 if hanging else 5)
    ]
    if hanging:
        servers.append(MCPServer(name="hung", command=sys.executable, args=[FAULTY, "/dev/null", "silent"]))
    started = time.perf_counter()
    async with BareAgent(
        "x", llm=ScriptedLLM(["a"]), tools=[each.prefixed(f"{each.name}_") for each in servers]
    ):
        return time.perf_counter() - started


async def main() -> bool:
    """Print all figures. Return True if all bars are met."""
    kept = []
    for name, measure, bar in (("HTTPTool over httpx2", http, HTTP_BAR), ("MCP over the SDK", mcp, MCP_BAR)):
        found = await measure()
        for what, tool, alone in zip(("time", "CPU"), found["tool"], found["alone"], strict=True):
            print(f"{name}, {what}: {tool:.0f} us / {alone:.0f} us = {tool / alone:.2f}")
        kept.append(_judged(f"{name}, time", found["tool"][0] / found["alone"][0], bar))
    await opening(hanging=False)
    healthy = min([await opening(hanging=False) for _ in range(3)])
    hung = min([await opening(hanging=True) for _ in range(3)])
    print(f"five servers: {healthy:.2f} s; one of them hangs: {hung:.2f} s, {hung - healthy:+.2f} s")
    kept.append(_judged("one that hangs, seconds more", hung - healthy, HUNG_BAR))
    return all(kept)


def _judged(name: str, figure: float, bar: float) -> bool:
    print(f"{name}: {figure:.2f}, bar {bar}: {'pass' if figure <= bar else 'FAIL'}")
    return figure <= bar


if __name__ == "__main__":
    sys.exit(0 if trio.run(main) else 1)
