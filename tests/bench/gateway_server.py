"""The server process of `gateway.py`. SIGUSR1 makes it report the longest block of its event loop; SIGTERM ends it."""

import signal
import sys
import time

import trio

from actgent import BareAgent, ScriptedLLM, open_gateway, open_runtime
from actgent.journal.journal_interface import Entry
from actgent.journal.record_types import SessionCreatedRecord
from actgent.messages import Sender
from actgent.runtime.runtime import Runtime
from actgent.web.gateway_limits import GatewayLimits

WIDE = GatewayLimits(rate=1e6, burst=1_000_000, requests=100_000, messages=1_000_000, grace=2)
"""Limits for the load of one token, which exceeds the default limits."""
PIECES, BETWEEN = 40, 0.005
"""Pieces of a streamed answer, and seconds between pieces."""
AT_ONCE = 2000


def agents() -> list[BareAgent]:
    """Return an agent that answers immediately and an agent that streams its answers."""
    grows = ScriptedLLM(lambda _: "word " * PIECES, chunk=5, chunk_delay=BETWEEN)
    answers = ScriptedLLM(lambda _: "This is an answer of forty characters...", keep=1)
    return [BareAgent("clerk", llm=answers, inbox_capacity=100_000), BareAgent("encoder", llm=grows)]


async def fill(runtime: Runtime, count: int) -> None:
    """Write empty sessions of a hundred owners."""
    now = time.time()
    for begin in range(0, count, AT_ONCE):
        async with trio.open_nursery() as nursery:
            for number in range(begin, min(count, begin + AT_ONCE)):
                nursery.start_soon(write, runtime, number, now - count + number)


async def write(runtime: Runtime, number: int, at: float) -> None:
    opened = SessionCreatedRecord(owner=Sender(f"owner-{number % 100:02}"), created_at=at, agent="clerk")
    entry = Entry(session_id=f"s-{number:06}", agent="clerk", records=(opened,))
    assert runtime.journal is not None
    await runtime.journal.commit(entry, epoch=runtime.journal.epoch_of(entry.session_id))


class Stalls:
    """Times for which the event loop was blocked."""

    longest = 0.0

    async def watch(self) -> None:
        """Measure every millisecond how late this task runs."""
        while True:
            wanted = trio.current_time() + 0.001
            await trio.sleep_until(wanted)
            self.longest = max(self.longest, trio.current_time() - wanted)

    async def obey(self) -> None:
        """Report the longest block since the last report at SIGUSR1, and end at SIGTERM."""
        with trio.open_signal_receiver(signal.SIGUSR1, signal.SIGTERM) as signals:
            async for each in signals:
                if each == signal.SIGTERM:
                    return
                print(self.longest, flush=True)
                self.longest = 0.0


async def main(journal: str, sessions: int, watched: bool) -> None:
    stalls = Stalls()
    async with trio.open_nursery() as nursery:
        async with open_runtime(journal=journal) as runtime:
            await fill(runtime, sessions)
            for agent in agents():
                await runtime.start(agent)
            async with open_gateway(runtime, bind="127.0.0.1:0", limits=WIDE) as gateway:
                if watched:
                    nursery.start_soon(stalls.watch)
                print(gateway.url.rpartition(":")[2], gateway.key, flush=True)
                await stalls.obey()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]), sys.argv[3] == "watched")
