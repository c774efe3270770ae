"""`actgent demo`: a conversation, an urgent message, and a thousand sessions at once."""

import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.agents.presets import BareAgent
from actgent.agents.session import Session
from actgent.cli.chat import answer
from actgent.cli.models import live_models, open_models, open_script
from actgent.cli.signals import Shutdown
from actgent.cli.terminal import Terminal, one_line
from actgent.errors import ConfigurationError, InboxFull
from actgent.llm.base import LLM
from actgent.messages import Failure, Priority, Reply, Token

from .load_demo import crowd
from .offline import CHUNK, TOOLS, answer_slowly
from .script_process import open_script_process

LIVE_SESSIONS = 20
"""Sessions of a crowd that costs money, if no number is given."""
SESSIONS = 1000

_QUESTIONS = (
    "What is 17 * 23, and what weekday was 1969-07-20?",
    "And 123456789 * 987654321?",
)
_NOTES = 5


@attrs.frozen(kw_only=True)
class DemoOptions:
    """What `actgent demo` was told."""

    sessions: int | None = None
    agents: int = 10
    live: bool = False
    model: str | None = None


async def demo(options: DemoOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Play the three acts; 1 if something in them failed."""
    if options.model is not None and not options.live:
        raise ConfigurationError("--model asks a real provider: say --live too, or leave it out")
    async with _slow_models(options) as models:
        ok = await _conversation(models, terminal, shutdown)
        if ok and not shutdown.is_asked:
            ok = await _overtaking(models[0], terminal)
    async with _fast_models(options) as models:
        if ok and not shutdown.is_asked:
            _title(terminal, 3, "A crowd: many sessions on a few agents, all at once")
            if not options.live:
                terminal.line("(the provider runs in a process of its own, and answers at once)", style="dim")
            sessions = options.sessions or (LIVE_SESSIONS if options.live else SESSIONS)
            ok = await crowd(models, terminal, shutdown, sessions=sessions, agents=options.agents)
    return 0 if ok else 1


@asynccontextmanager
async def _slow_models(options: DemoOptions) -> AsyncGenerator[Sequence[LLM], None]:
    """Models whose answers grow before one's eyes."""
    if options.live:
        async with open_models(_live(options)) as models:
            yield models
    else:
        async with open_script(answer_slowly, providers=["openai", "anthropic"], chunk=CHUNK) as models:
            yield models


@asynccontextmanager
async def _fast_models(options: DemoOptions) -> AsyncGenerator[Sequence[LLM], None]:
    if options.live:
        async with open_models(_live(options)) as models:
            yield models
    else:
        async with open_script_process() as models:
            yield models


def _live(options: DemoOptions) -> Sequence[str]:
    return live_models(options.model, otherwise="leave out --live")


def _title(terminal: Terminal, number: int, text: str) -> None:
    terminal.line(f"\n{number}. {text}\n", style="bold")


# --- the first act -----------------------------------------------------------------------


async def _conversation(models: Sequence[LLM], terminal: Terminal, shutdown: Shutdown) -> bool:
    _title(terminal, 1, "A conversation with tools")
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
        if shutdown.is_asked:
            break
        terminal.line(f"> {question}", style="bold")
        ok = await answer(agent, session, question, terminal) and ok
    return ok


# --- the second act ----------------------------------------------------------------------


async def _overtaking(model: LLM, terminal: Terminal) -> bool:
    _title(terminal, 2, "An urgent message overtakes a full inbox")
    clerk = BareAgent("clerk", llm=model, role="a clerk who answers in one sentence", inbox=_NOTES)
    async with clerk:
        session = await clerk.create_session("ada")
        watch = Stopwatch(terminal, session)
        await _fill(session, watch)
        watch.say("urgent message: The kitchen is on fire!")
        await session.chat("The kitchen is on fire!", priority=Priority.URGENT)
        await session.wait_idle()
    return not watch.has_failed


async def _fill(session: Session, watch: "Stopwatch") -> None:
    await session.chat("Write a long report about the weather.")
    await watch.wait_token()
    watch.say("the clerk is writing a long report")
    for number in range(1, _NOTES + 1):
        await session.chat(f"note {number}: buy paper")
    watch.say(f"{_NOTES} notes wait behind it")
    try:
        await session.chat("one more note", enqueue_timeout=0.01)
    except InboxFull as error:
        watch.say(f"one more is refused: {error}")


class Stopwatch:
    """Tells what happens in a session, with the milliseconds since it began to look."""

    def __init__(self, terminal: Terminal, session: Session) -> None:
        self.has_failed = False
        self._terminal = terminal
        self._began = trio.current_time()
        self._answers = itertools.count(1)
        self._token = trio.Event()
        session.on_token(self._on_token)
        session.on_conversation(self._on_reply)
        session.on_exception(self._on_failure)

    def say(self, text: str) -> None:
        elapsed = (trio.current_time() - self._began) * 1000
        self._terminal.line(f"{elapsed:7.0f} ms  {one_line(text, 160)}")

    async def wait_token(self) -> None:
        """Wait until an answer has begun, or the first one is over."""
        await self._token.wait()

    def _on_token(self, _token: Token) -> None:
        self._token.set()

    def _on_reply(self, reply: Reply) -> None:
        self._token.set()
        self.say(f"answer {next(self._answers)}: {reply}")

    def _on_failure(self, failure: Failure) -> None:
        self._token.set()
        self.has_failed = self.has_failed or failure.kind != "interrupted"
        self.say(
            f"{failure.kind}: the report stops here"
            if failure.kind == "interrupted"
            else f"failed: {failure.error}"
        )
