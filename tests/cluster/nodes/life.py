"""A node, as a process of its own that may be killed: `life.py JOURNAL BROKER POOL NAME [OPTION ...]`.

Its agent answers after a moment, asks people before it deploys, has the modes plan and act, and says each model call that it
makes, and each effect of its tools, on stdout; so does `digger`, whom it may give tasks. It dies of the message `kill`, of a list of sessions that begin so, of
what is read of one, and before it accepts a message whose id begins so, unless `ACTGENT_MENDED` is set. With `quorum` the queues of partitions are quorum
queues, as they are on brokers from 4 on; with `asks=POOL` the agent may ask the digger of that pool, too, and with `asks` its own one; with `tokens=FILE`
there is a gateway, whose port is said; with `awake=4` so many idle sessions of each agent stay in memory.
"""

import os
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial, partialmethod

import trio

from actgent import (
    LLM,
    Answer,
    BareAgent,
    GatewayLimits,
    Modes,
    PoolAgent,
    Text,
    ToolCall,
    Usage,
    open_gateway,
    open_runtime,
    tool,
)
from actgent.cluster import node, queues
from actgent.cluster.requests import Telling
from actgent.cluster.wire import deaths_of, session_named
from actgent.runtime.intake import Intake
from actgent.runtime.sessions import table
from actgent.web.reach import Reach
from actgent.web.server.wired import WiredApplication

ANSWERED = Counter()
"""The requests of each session that had an effect."""
DELAY = 0.05
SLOWLY = 3.0
"""Seconds that a model takes for an answer, and for one that it gives slowly."""


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@tool(approval=True, effect="once")
async def deploy(place: str) -> str:
    """Deploy to a place."""
    say(f"DID deploy {place}")
    return f"deployed to {place}"


@tool(effect="once")
async def note(text: str) -> str:
    """Write something down, after a moment."""
    await trio.sleep(DELAY)
    say(f"DID note {text}")
    return f"noted {text}"


@tool(effect="idempotent")
async def look(text: str) -> str:
    """Look something up, after a moment."""
    await trio.sleep(DELAY)
    return f"looked at {text}"


LIMITS = GatewayLimits(rate=100_000, burst=100_000, requests=1000, messages=10_000, grace=1)
ARGUMENTS = {"deploy": "place", "note": "text", "look": "text", "digger": "task"}
"""The argument of each tool that a model calls when it is told `TOOL ARGUMENT`."""


class Slow(LLM):
    """Says again what it was told, word by word, each after a moment."""

    name = "slow"

    async def complete(self, chat, on_text=None):
        last = chat.messages[-1]
        results = [part for part in last.parts if type(part).__name__ == "ToolResult"]
        said = "".join(part.text for part in last.parts if isinstance(part, Text))
        say(f"CALL {said or results[0].content}")
        word, _, rest = said.partition(" ")
        if word in ARGUMENTS and rest:
            call = ToolCall(word, {ARGUMENTS[word]: rest})
            return Answer(parts=(call,), stop="tool_use", usage=Usage(input_tokens=1, output_tokens=1))
        if said == "kill":
            signal.raise_signal(signal.SIGKILL)
        text = f"done: {results[0].content}" if results else f"you said: {said}"
        words = text.split(" ")
        pause = (SLOWLY if said.startswith("slowly") else DELAY) / len(words)
        for number, word in enumerate(words):
            await trio.sleep(pause)
            if on_text is not None:
                await on_text(word if number == 0 else f" {word}", 0)
        return Answer(parts=(Text(text),), usage=Usage(input_tokens=1, output_tokens=1))


async def _die_of_a_list(page, reach, caller, query, most):
    if query.get("q") == "kill":
        signal.raise_signal(signal.SIGKILL)
    return await page(reach, caller, query, most)


async def _die_of_a_read(answer, application, request, tell, gone):
    if request.verb == "GET" and request.path.startswith("/sessions/kill"):
        signal.raise_signal(signal.SIGKILL)
    await answer(application, request, tell, gone)


def _may_die_of(work):
    return work.asked.verb != "GET" and session_named(work.asked).startswith(("before-", "after-"))


def _wait_for_an_answer(send_last, telling, piece, now):
    """An answer that may be died of is waited for, until the broker has it."""
    return not _may_die_of(telling.work) and send_last(telling, piece, now)


async def _die_of_a_message(accept, intake, context, message, **options):
    if message.id.startswith("kill") and "ACTGENT_MENDED" not in os.environ:
        signal.raise_signal(signal.SIGKILL)
    return await accept(intake, context, message, **options)


async def _die_of_an_answer(send, telling, piece):
    """Before or after the nth answer of a session `before-N-...` or `after-N-...`, which was delivered once."""
    work = telling.work
    when, _, rest = session_named(work.asked).partition("-")
    if not _may_die_of(work):
        return await send(telling, piece)
    has_died = work.delivery.redelivered or deaths_of(work.delivery)  # a node, of it
    ANSWERED[session_named(work.asked)] += 1000 if has_died else 1
    is_last = str(ANSWERED[session_named(work.asked)]) == rest.partition("-")[0]
    if is_last and when == "before":
        signal.raise_signal(signal.SIGKILL)
    await send(telling, piece)
    if is_last:
        signal.raise_signal(signal.SIGKILL)
    return None


def _as_of_version_4(make, pool, generation, partition, _):
    return make(pool, generation, partition, (4,))


async def main():
    journal, broker, pool, name, *words = sys.argv[1:]
    options = dict(word.partition("=")[::2] for word in words)
    if "quorum" in options:
        node.partition_queue = partial(_as_of_version_4, queues.partition_queue)
    table.MAX_LOADED_IDLE = int(options.get("awake", table.MAX_LOADED_IDLE))
    Reach.page = partialmethod(partial(_die_of_a_list, Reach.page))
    WiredApplication.answer = partialmethod(partial(_die_of_a_read, WiredApplication.answer))
    Intake.accept = partialmethod(partial(_die_of_a_message, Intake.accept))
    Telling.send = partialmethod(partial(_die_of_an_answer, Telling.send))
    Telling.send_last = partialmethod(partial(_wait_for_an_answer, Telling.send_last))
    digger = BareAgent("digger", llm=Slow())
    asked = PoolAgent("digger", pool=options["asks"]) if options.get("asks") else digger
    others = [asked.as_tool()] if "asks" in options else []
    tools = [deploy, note, look, *others]
    modes = Modes(execution=tools, initial="act")
    async with AsyncExitStack() as opened:
        runtime = await opened.enter_async_context(
            open_runtime(journal=journal, broker=broker, pool=pool, node=name)
        )
        async with runtime.starting():
            await runtime.start(BareAgent("clerk", llm=Slow(), tools=tools, modes=modes))
            if "digger" not in runtime.agents:
                await runtime.start(digger)
        if "tokens" in options:
            gateway = open_gateway(
                runtime, bind="127.0.0.1:0", tokens=options["tokens"], hosts=["127.0.0.1"], limits=LIMITS
            )
            say(f"PORT {(await opened.enter_async_context(gateway)).url.rpartition(':')[2]}")
        say("READY")
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                break
    say("LEFT")


if __name__ == "__main__":
    trio.run(main)
