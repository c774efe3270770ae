"""Nodes that own partitions and run turns, in this process and as processes that a test may kill.

As a program: `owner_nodes.py JOURNAL NAME SECONDS`. It writes `READY`, `CALL text` for each model call, and
`DONE text` for each answer. The message `kill` kills the process. For each input line `say TEXT` it creates a
session and sends TEXT to it.
"""
# ruff: noqa: ASYNC110, ASYNC220 - no event signals changes of the database or of another process

import contextlib
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from actgent import LLM, BareAgent, ModelResponse, Text, Usage, open_runtime
from actgent.cluster.cluster_member import DEFAULT_PARTITIONS

LIFE = Path(__file__)


class Slow(LLM):
    """A model that answers after some seconds, and kills the process for one text."""

    name = "slow"

    def __init__(self, seconds, note=lambda *_: None):
        self.seconds, self.note = seconds, note

    async def complete(self, chat, on_text=None):
        text = "".join(part.text for part in chat.messages[-1].parts if isinstance(part, Text))
        self.note("CALL", text)
        if text == "kill":
            signal.raise_signal(signal.SIGKILL)
        await trio.sleep(self.seconds)
        self.note("DONE", text)
        return ModelResponse(parts=(Text(f"you said: {text}"),), usage=Usage(input_tokens=1, output_tokens=1))


@asynccontextmanager
async def open_owner(journal, name, *agents):
    """Yield a runtime whose node owns partitions."""
    async with open_runtime(journal=journal, cluster="test", node=name) as runtime:
        async with runtime.starting():
            for agent in agents or (BareAgent("clerk", llm=Slow(0.05)),):
                await runtime.start(agent)
        yield runtime


def node_of(runtime):
    """Return the node of a runtime."""
    return runtime.membership.node


async def wait_serving(runtime, share=1):
    """Wait until a node serves one part in `share` of all partitions."""
    while len(node_of(runtime).serving) != DEFAULT_PARTITIONS // share:
        await trio.sleep(0.005)


# --- processes -------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Process:
    """A node in a separate process."""

    name: str
    popen: subprocess.Popen
    lines: list = attrs.field(factory=list)

    def kill(self, number=signal.SIGKILL):
        os.killpg(self.popen.pid, number)

    def say(self, text):
        self.popen.stdin.write(f"say {text}\n".encode())
        self.popen.stdin.flush()

    def count(self, word):
        """Return how often the process printed each text after a word."""
        return [line.partition(" ")[2] for line in self.lines if line.startswith(f"{word} ")]

    async def wait_line(self, line):
        while line not in self.lines:
            assert self.popen.poll() is None or line in self.lines, f"{self.name} has ended"
            await trio.sleep(0.01)

    async def read(self):
        rest = b""
        async with trio.lowlevel.FdStream(os.dup(self.popen.stdout.fileno())) as stream:
            async for data in stream:
                *lines, rest = (rest + data).split(b"\n")
                self.lines += [line.decode() for line in lines]


@asynccontextmanager
async def open_processes(journal):
    """Yield `start(name, seconds)`, which starts a node and waits until it is ready."""
    started = []
    async with trio.open_nursery() as nursery:

        async def start(name, seconds=0.05):
            popen = subprocess.Popen(
                [sys.executable, LIFE, journal, name, str(seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            process = Process(name, popen)
            started.append(process)
            nursery.start_soon(process.read)
            await process.wait_line("READY")
            return process

        try:
            yield start
        finally:
            for each in started:
                with contextlib.suppress(ProcessLookupError):
                    each.kill(signal.SIGCONT)
                    each.kill()
                each.popen.wait()
                each.popen.stdin.close()
                each.popen.stdout.close()
            nursery.cancel_scope.cancel()


def say(*words):
    sys.stdout.write(f"{' '.join(words)}\n")
    sys.stdout.flush()


async def main():
    journal, name, seconds = sys.argv[1:]
    agent = BareAgent("clerk", llm=Slow(float(seconds), say))
    async with open_owner(journal, name, agent) as runtime, trio.open_nursery() as nursery:
        nursery.start_soon(run_commands, runtime, agent)
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            say("READY")
            async for _ in signals:
                break
        nursery.cancel_scope.cancel()
    say("LEFT")


async def run_commands(runtime, agent):
    rest = b""
    async with trio.lowlevel.FdStream(os.dup(0)) as stream:
        async for data in stream:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                await wait_any(runtime)
                session = await agent.create_session(owner="ada")
                await session.chat(line.decode().removeprefix("say "))
                say("SAID", session.id)


async def wait_any(runtime):
    while not node_of(runtime).serving:
        await trio.sleep(0.01)


if __name__ == "__main__":
    trio.run(main)
