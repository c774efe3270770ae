"""A node with a gateway, as a process that may be killed: `node_process.py JOURNAL POOL NAME [OPTION ...]`.

Its agent answers after a moment, asks people before it deploys, has the modes plan and act, and prints each model call and each
effect of its tools; so does `digger`, to which it may give tasks. The node dies of the message `kill`, of a list of sessions that
begin so, of what is read of one, and before it accepts a message whose id begins so, unless `ACTGENT_MENDED` is set. With
`asks=POOL` its tool `digger` asks the agent `miner` of that pool, and with `asks` the digger of its own pool; with `mines` the
node hosts that miner alone. With `tokens=FILE` the gateway takes the tokens of a file. With `awake=4` so many idle sessions of
each agent stay in memory. With `slowly=20` the model takes that many seconds for an answer to `slowly ...`.
With `deaths=FOLDER` it dies once of each session `before-N-...` or `after-N-...`, before or after its nth answer to a request
with an effect. With `advertise=URL` other nodes reach it there. With `clock=3600` its clock is ahead by so many seconds. With `code=2`
its agent is of another release, with one more tool. With `adds` it hosts one more agent.
With `protocols` its gateway serves outside protocols, too.
"""

import os
import signal
import sys
import time
from contextlib import AsyncExitStack
from functools import partial, partialmethod
from pathlib import Path
from urllib.parse import quote, unquote

import trio

from actgent import (
    LLM,
    BareAgent,
    ModelResponse,
    Modes,
    PoolAgent,
    Text,
    ToolCall,
    Usage,
    open_gateway,
    open_runtime,
    tool,
)
from actgent.approvals import session_of
from actgent.cluster.cluster_node import Node
from actgent.interop import PROTOCOLS
from actgent.journal.cluster_interface import LEAVE_GRACE_SECONDS
from actgent.runtime.message_admission import MessageAdmission
from actgent.runtime.sessions import session_table
from actgent.web.access_control import AccessFilter
from actgent.web.server.relayed_requests import RelayApplication
from actgent.web.server.request_relay import Relay, RelayedResponse
from tests.clusters import LIMITS, TOKENS, own_loopback

DEATHS = []
"""The folder in which nodes note of which sessions they died, and how many requests of each had an effect."""
DELAY = 0.05
"""Seconds that a model takes for an answer."""


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


@tool
async def list_releases() -> str:
    """List the releases; only the other release of the agent has this tool."""
    await trio.lowlevel.checkpoint()
    return "1, 2"


ARGUMENTS = {"deploy": "place", "note": "text", "look": "text", "digger": "task"}
"""The argument of each tool that a model calls when it is told `TOOL ARGUMENT`."""


class Slow(LLM):
    """Says again what it was told, word by word, each after a moment."""

    name = "slow"
    slowly = 3.0
    """Seconds for an answer to a message that begins with `slowly`."""

    async def complete(self, chat, on_text=None):
        last = chat.messages[-1]
        results = [part for part in last.parts if type(part).__name__ == "ToolResult"]
        said = "".join(part.text for part in last.parts if isinstance(part, Text))
        say(f"CALL {said or results[0].content}")
        word, _, rest = said.partition(" ")
        if word in ARGUMENTS and rest:
            call = ToolCall(word, {ARGUMENTS[word]: rest})
            return ModelResponse(parts=(call,), stop="tool_use", usage=Usage(input_tokens=1, output_tokens=1))
        if said == "kill":
            signal.raise_signal(signal.SIGKILL)
        text = f"done: {results[0].content}" if results else f"you said: {said}"
        words = text.split(" ")
        pause = (self.slowly if said.startswith("slowly") else DELAY) / len(words)
        for number, word in enumerate(words):
            await trio.sleep(pause)
            if on_text is not None:
                await on_text(word if number == 0 else f" {word}", 0)
        return ModelResponse(parts=(Text(text),), usage=Usage(input_tokens=1, output_tokens=1))


async def _die_of_a_list(page, reach, caller, query, most):
    if query.get("q") == "kill":
        signal.raise_signal(signal.SIGKILL)
    return await page(reach, caller, query, most)


async def _die_of_a_read(answer, application, request, tell, gone):
    form = request.http_request
    if form.verb == "GET" and form.path.startswith("/sessions/kill"):
        signal.raise_signal(signal.SIGKILL)
    await answer(application, request, tell, gone)


async def _die_of_a_direct_read(answer, relay, endpoint, call):
    path = call.address.removeprefix("/v1")
    if endpoint.verb == "GET" and path.startswith("/sessions/kill") and relay.is_ours(named_session(path)):
        signal.raise_signal(signal.SIGKILL)
    return await answer(relay, endpoint, call)


async def _die_of_a_message(accept, intake, context, message, **options):
    if message.id.startswith("kill") and "ACTGENT_MENDED" not in os.environ:
        signal.raise_signal(signal.SIGKILL)
    return await accept(intake, context, message, **options)


def named_session(path: str) -> str:
    """Return the id of the session that a path names; empty if it names none."""
    kind, _, rest = path.removeprefix("/").partition("/")
    if kind not in ("sessions", "approvals"):
        return ""
    named = unquote(rest.partition("/")[0])
    return named if kind == "sessions" else session_of(named)


def _count(verb, path):
    """Count an answer; return when the node dies of it: `before` it is sent, `after` that, or not (None)."""
    session_id = named_session(path)
    when, _, rest = session_id.partition("-")
    if verb == "GET" or when not in ("before", "after") or not DEATHS:
        return None
    answered = DEATHS[0] / f"{quote(session_id, safe='')}.answered"
    with answered.open("ab") as file:  # of all nodes: its partition may move between two requests
        file.write(b".")
    if str(answered.stat().st_size) != rest.partition("-")[0]:
        return None
    try:
        (DEATHS[0] / session_id).touch(exist_ok=False)
    except FileExistsError:
        return None
    return when


async def _die_of_a_relayed_answer(answer, application, request, tell, gone):
    async def tell_or_die(status, data, is_last, headers):
        when = _count(request.http_request.verb, request.http_request.path) if is_last else None
        if when == "before":
            signal.raise_signal(signal.SIGKILL)
        await tell(status, data, is_last, headers)
        if when == "after":
            await trio.sleep(DELAY)
            signal.raise_signal(signal.SIGKILL)

    await answer(application, request, tell_or_die, gone)


async def _die_of_an_answer(answer, relay, endpoint, call):
    response = await answer(relay, endpoint, call)
    if isinstance(response, RelayedResponse):
        return response
    when = _count(endpoint.verb, call.address.removeprefix("/v1"))
    if when == "before":
        signal.raise_signal(signal.SIGKILL)

    async def die_after(scope, receive, send):
        await response(scope, receive, send)
        await trio.sleep(DELAY)
        signal.raise_signal(signal.SIGKILL)

    return die_after if when == "after" else response


def set_clock_ahead(seconds):
    """Have `time.time()` return a time that is ahead by so many seconds."""
    real = time.time
    time.time = lambda: real() + seconds


def _reached_at(init, url, node, name, *, address, **options):
    init(node, name, address=url, **options)


async def main():
    journal, pool, name, *words = sys.argv[1:]
    options = dict(word.partition("=")[::2] for word in words)
    if "deaths" in options:
        DEATHS.append(Path(options["deaths"]))
    if "clock" in options:
        set_clock_ahead(float(options["clock"]))
    Slow.slowly = float(options.get("slowly", Slow.slowly))
    session_table.MAX_LOADED_IDLE = int(options.get("awake", session_table.MAX_LOADED_IDLE))
    AccessFilter.page = partialmethod(partial(_die_of_a_list, AccessFilter.page))
    RelayApplication.answer = partialmethod(partial(_die_of_a_relayed_answer, RelayApplication.answer))
    RelayApplication.answer = partialmethod(partial(_die_of_a_read, RelayApplication.answer))
    Relay.answer = partialmethod(partial(_die_of_an_answer, Relay.answer))
    Relay.answer = partialmethod(partial(_die_of_a_direct_read, Relay.answer))
    MessageAdmission.accept = partialmethod(partial(_die_of_a_message, MessageAdmission.accept))
    digger = BareAgent("digger", llm=Slow())
    asked = PoolAgent("miner", pool=options["asks"]) if options.get("asks") else digger
    others = [asked.as_tool("digger")] if "asks" in options else []
    tools = [deploy, note, look, *others, *[list_releases] * (options.get("code") == "2")]
    modes = Modes(execution=tools, initial="act")
    if "reached" in options:  # a proxy before the listener for other nodes
        Node.__init__ = partialmethod(partial(_reached_at, Node.__init__, options["reached"]))
    async with AsyncExitStack() as opened:
        runtime = await opened.enter_async_context(
            open_runtime(journal=journal, cluster=pool, node=name, advertise=options.get("advertise"))
        )
        async with runtime.starting():
            if "mines" in options:
                await runtime.start(BareAgent("miner", llm=Slow()))
            else:
                await runtime.start(BareAgent("clerk", llm=Slow(), tools=tools, modes=modes))
                if "digger" not in runtime.agents:
                    await runtime.start(digger)
                if "adds" in options:
                    await runtime.start(BareAgent("newcomer", llm=Slow()))
        gateway = open_gateway(
            runtime,
            bind=options.get("bind", f"{own_loopback()}:0"),
            tokens=options.get("tokens", TOKENS),
            hosts=["127.0.0.1"],
            limits=LIMITS,
            protocols=PROTOCOLS if "protocols" in options else (),
        )
        opened_gateway = await opened.enter_async_context(gateway)
        say(f"PORT {opened_gateway.url.rpartition('/')[2]}")
        say("READY")
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                break
        await runtime.membership.leave(LEAVE_GRACE_SECONDS)
    say("LEFT")


if __name__ == "__main__":
    trio.run(main)
