"""A node with a gateway, as a process that a test may kill: `node_process.py JOURNAL POOL NAME [OPTION ...]`.

Its agent `clerk` answers after a moment, requires approval for `deploy`, and has the modes plan and act. It
prints each model call and each tool effect. The agent `digger` behaves the same and can get tasks.

The node kills itself at: the message `kill`; a session list with the query `kill`; a read of a session whose
id begins with `kill`; and the admission of a message whose id begins with `kill`, unless `ACTGENT_MENDED` is
set.

`asks=POOL`: the tool `digger` calls the agent `miner` of that pool. `asks`: the tool calls the digger of this
pool. `mines`: the node hosts only that miner. `tokens=FILE`: the gateway reads its tokens from a file.
`awake=4`: at most four idle sessions of each agent stay in memory. `slowly=20`: an answer to `slowly ...`
takes 20 seconds. `deaths=FOLDER`: the node dies once for each session `before-N-...` or `after-N-...`, before
or after its N-th answer to a request with an effect. `advertise=URL`: other nodes connect to that address.
`clock=3600`: the clock is 3600 seconds ahead. `code=2`: the agent is of another release, with one more tool.
`adds`: the node hosts one more agent. `protocols`: the gateway also serves outside protocols.
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
from actgent.web.server.relayed_request_handler import RelayApplication
from actgent.web.server.request_relay import Relay, RelayedResponse
from tests.clusters import LIMITS, TOKENS, own_loopback

DEATHS = []
"""The folder in which nodes record the sessions that killed them, and the answered requests of each session."""
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
"""The argument of each tool that the model calls for the message `TOOL ARGUMENT`."""


class Slow(LLM):
    """A model that repeats the message word by word, with a pause after each word."""

    name = "slow"
    slowly = 3.0
    """Seconds for an answer to a message that begins with `slowly`."""

    async def complete(self, chat, on_text=None):
        last = chat.messages[-1]
        results = [part for part in last.parts if type(part).__name__ == "ToolResult"]
        content = "".join(part.text for part in last.parts if isinstance(part, Text))
        say(f"CALL {content or results[0].content}")
        word, _, rest = content.partition(" ")
        if word in ARGUMENTS and rest:
            call = ToolCall(word, {ARGUMENTS[word]: rest})
            return ModelResponse(parts=(call,), stop="tool_use", usage=Usage(input_tokens=1, output_tokens=1))
        if content == "kill":
            signal.raise_signal(signal.SIGKILL)
        text = f"done: {results[0].content}" if results else f"you said: {content}"
        words = text.split(" ")
        pause = (self.slowly if content.startswith("slowly") else DELAY) / len(words)
        for number, word in enumerate(words):
            await trio.sleep(pause)
            if on_text is not None:
                await on_text(word if number == 0 else f" {word}", 0)
        return ModelResponse(parts=(Text(text),), usage=Usage(input_tokens=1, output_tokens=1))


async def _die_of_a_list(page, reach, caller, query, maximum):
    if query.get("q") == "kill":
        signal.raise_signal(signal.SIGKILL)
    return await page(reach, caller, query, maximum)


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
    """Count an answer.

    Return when the node dies: `before` or `after` the answer is sent, or None for neither.
    """
    session_id = named_session(path)
    when, _, rest = session_id.partition("-")
    if verb == "GET" or when not in ("before", "after") or not DEATHS:
        return None
    answered = DEATHS[0] / f"{quote(session_id, safe='')}.answered"
    with answered.open(
        "ab"
    ) as file:  # one file for all nodes: the partition of the session may move between two requests
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
    """Make `time.time()` return a time that is ahead by the given seconds."""
    real = time.time
    time.time = lambda: real() + seconds


def _reached_at(init, url, node, name, *, address, **options):
    init(node, name, address=url, **options)


async def main():
    journal, pool, name, *options_words = sys.argv[1:]
    options = dict(word.partition("=")[::2] for word in options_words)
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
    if "reached" in options:  # the address of a proxy in front of the listener for other nodes
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
