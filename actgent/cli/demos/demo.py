"""`actgent demo`: a conversation with tools, an urgent message, and a load test with 1,000 sessions."""

import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import trio

from actgent.agents.agent import Agent
from actgent.agents.bare_agent import BareAgent
from actgent.agents.session import Session
from actgent.cli.chat_and_run_commands import answer
from actgent.cli.command_options import DemoOptions
from actgent.cli.model_selection import live_models, open_models, open_script
from actgent.cli.signal_handling import Shutdown
from actgent.cli.terminal_io import Terminal, one_line
from actgent.errors import ConfigurationError, InboxFull
from actgent.llm.model_interface import LLM
from actgent.messages import Failure, Priority, Reply, Token

from .load_test import run_load_test
from .scripted_models import CHUNK_CHARS, TOOLS, answer_with_delay
from .scripted_provider_process import open_script_process

LIVE_SESSIONS = 20
"""Default number of sessions of the load test with `--live`, which costs money."""
DEFAULT_SESSIONS = 1000
"""Default number of sessions of the load test."""

_QUESTIONS = ("What is 17 * 23, and what weekday was 1969-07-20?", "And 123456789 * 987654321?")
_QUEUED_NOTES = 5
"""Number of messages that fill the inbox before the urgent message."""


async def demo(options: DemoOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Run the three parts of the demo. Return the exit code: 1 if a part failed, else 0."""
    if options.model is not None and not options.live:
        raise ConfigurationError("--model calls a real provider: add --live, or omit --model")
    async with _slow_models(options) as models:
        ok = await _show_conversation(models, terminal, shutdown)
        if ok and not shutdown.is_requested:
            ok = await _show_urgent_message(models[0], terminal)
    async with _fast_models(options) as models:
        if ok and not shutdown.is_requested:
            _print_title(terminal, 3, "Load test: many concurrent sessions on a few agents")
            if not options.live:
                terminal.line(
                    "(the scripted provider runs in a separate process and answers without delay)",
                    style="dim",
                )
            sessions = options.sessions or (LIVE_SESSIONS if options.live else DEFAULT_SESSIONS)
            ok = await run_load_test(models, terminal, shutdown, sessions=sessions, agents=options.agents)
    return 0 if ok else 1


@asynccontextmanager
async def _slow_models(options: DemoOptions) -> AsyncGenerator[Sequence[LLM], None]:
    """Yield models whose answers are streamed slowly enough to read along."""
    if options.live:
        async with open_models(_live_models(options)) as models:
            yield models
    else:
        async with open_script(
            answer_with_delay, providers=["openai", "anthropic"], chunk=CHUNK_CHARS
        ) as models:
            yield models


@asynccontextmanager
async def _fast_models(options: DemoOptions) -> AsyncGenerator[Sequence[LLM], None]:
    """Yield models for the load test; scripted ones run in a separate process and answer without delay."""
    if options.live:
        async with open_models(_live_models(options)) as models:
            yield models
    else:
        async with open_script_process() as models:
            yield models


def _live_models(options: DemoOptions) -> Sequence[str]:
    return live_models(options.model, hint="leave out --live")


def _print_title(terminal: Terminal, number: int, text: str) -> None:
    terminal.line(f"\n{number}. {text}\n", style="bold")


# --- part 1 ------------------------------------------------------------------------------


async def _show_conversation(models: Sequence[LLM], terminal: Terminal, shutdown: Shutdown) -> bool:
    _print_title(terminal, 1, "A conversation with tools")
    ok = True
    for model in models:
        agent = BareAgent("tutor", llm=model, role="a friendly tutor who uses tools to be exact", tools=TOOLS)
        terminal.line(f"({model.name})", style="dim")
        async with agent:
            ok = await _ask_all(agent, terminal, shutdown) and ok
    return ok


async def _ask_all(agent: Agent, terminal: Terminal, shutdown: Shutdown) -> bool:
    session = await agent.create_session("ada")
    ok = True
    for question in _QUESTIONS:
        if shutdown.is_requested:
            break
        terminal.line(f"> {question}", style="bold")
        ok = await answer(agent, session, question, terminal) and ok
    return ok


# --- part 2 ------------------------------------------------------------------------------


async def _show_urgent_message(model: LLM, terminal: Terminal) -> bool:
    _print_title(terminal, 2, "An urgent message overtakes a full inbox")
    clerk = BareAgent(
        "clerk", llm=model, role="a clerk who answers in one sentence", inbox_capacity=_QUEUED_NOTES
    )
    async with clerk:
        session = await clerk.create_session("ada")
        watch = Stopwatch(terminal, session)
        await _fill_inbox(session, watch)
        watch.report("urgent message: The kitchen is on fire!")
        await session.chat("The kitchen is on fire!", priority=Priority.URGENT)
        await session.wait_idle()
    return not watch.has_failed


async def _fill_inbox(session: Session, watch: "Stopwatch") -> None:
    await session.chat("Write a long report about the weather.")
    await watch.wait_token()
    watch.report("the clerk is writing a long report")
    for number in range(1, _QUEUED_NOTES + 1):
        await session.chat(f"note {number}: buy paper")
    watch.report(f"{_QUEUED_NOTES} notes are queued")
    try:
        await session.chat("one more note", enqueue_timeout=0.01)
    except InboxFull as error:
        watch.report(f"another note is rejected: {error}")


class Stopwatch:
    """Prints events of a session with the time in milliseconds since the stopwatch was created."""

    def __init__(self, terminal: Terminal, session: Session) -> None:
        self.has_failed = False
        self._terminal = terminal
        self._began = trio.current_time()
        self._answers = itertools.count(1)
        self._token = trio.Event()
        session.on_token(self._on_token)
        session.on_conversation(self._on_reply)
        session.on_exception(self._on_failure)

    def report(self, text: str) -> None:
        """Print a line with the elapsed time."""
        elapsed = (trio.current_time() - self._began) * 1000
        self._terminal.line(f"{elapsed:7.0f} ms  {one_line(text, 160)}")

    async def wait_token(self) -> None:
        """Wait for the first token, reply or failure of the session."""
        await self._token.wait()

    def _on_token(self, _token: Token) -> None:
        self._token.set()

    def _on_reply(self, reply: Reply) -> None:
        self._token.set()
        self.report(f"answer {next(self._answers)}: {reply}")

    def _on_failure(self, failure: Failure) -> None:
        self._token.set()
        self.has_failed = self.has_failed or failure.kind != "interrupted"
        self.report(
            f"{failure.kind}: the report stops here"
            if failure.kind == "interrupted"
            else f"failed: {failure.error}"
        )
