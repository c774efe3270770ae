"""`actgent chat`: a conversation in the terminal, or with the lines of a pipe."""

import sys
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import ClassVar

import attrs

from actgent.agents.agent import Agent
from actgent.agents.presets import BareAgent
from actgent.agents.session import Session
from actgent.control.limits import Limits
from actgent.errors import ConfigurationError
from actgent.journal.base import Journal
from actgent.journal.listing import SessionFilter
from actgent.journal.opening import open_journal
from actgent.llm.base import LLM
from actgent.messages import Delivery, Part, Text
from actgent.protocols.bare import Bare
from actgent.protocols.base import Protocol
from actgent.runtime.runtime import open_runtime
from actgent.sessions.incoming import Content
from actgent.tools.base import Tool

from .console import OWNER, QUIT, DeliveryView, JsonView, TextView, answer, arguments_of, attachment
from .demos.offline import CHUNK, TOOLS, answer_slowly
from .folders import is_folder, load_folder
from .journals.journal import OneAwake
from .models import live_models, open_models, open_script
from .programs import load_agent, load_agents, no_file, open_program
from .signals import Shutdown
from .terminal import Lines, Terminal

__all__ = ["ChatOptions", "answer", "arguments_of", "chat", "load_agent", "load_agents", "open_agent"]


@attrs.frozen(kw_only=True)
class ChatOptions:
    """What `actgent chat` was told."""

    file: str | None = None
    model: str | None = None
    base_url: str | None = None
    system: str | None = None
    role: str = ""
    goal: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    limits: Limits | None = None
    """Of the conversation as a whole."""
    offline: bool = False
    message: str | None = None
    """Say this and end, `-` is all of standard input; None talks until the input ends."""
    attach: Sequence[str] = ()
    """Files that go with the first message."""
    journal: str | None = None
    session: str | None = None
    """The id to go on with, or to give to a new session; needs a journal."""
    goes_on: bool = False
    """Go on with the session of the journal that was last talked in."""
    json: bool = False


class AsTold(Bare):
    """Plain talk, with the role for the whole system prompt."""

    template: ClassVar[str] = "{{ profile.role }}"


async def chat(options: ChatOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Talk until the input ends; 1 if a message of a pipe was not answered."""
    if sys.stdin is None and options.message in (None, "-"):
        raise ConfigurationError("there is no standard input to read messages from")
    attached = [attachment(place) for place in options.attach]
    view = JsonView(terminal) if options.json else TextView(terminal)
    async with open_conversation(options, view) as (agent, session):
        if options.message is not None:
            text = options.message if options.message != "-" else await _all_of_stdin()
            said = [*attached, Text(text)] if attached else text
            return 0 if await answer(agent, session, said, terminal, view=view) else 1
        if options.json or not terminal.is_live or not sys.stdin.isatty():
            return await _answer_all(agent, session, terminal, shutdown, view=view, attached=attached)
        from .console import TerminalConversation  # noqa: PLC0415 - the line editor takes a tenth of a second

        await TerminalConversation(
            agent, session, terminal, shutdown, attached=attached, limits=options.limits
        ).talk()
        return 0


async def _all_of_stdin() -> str:
    lines, found = Lines(sys.stdin.fileno()), []
    while (line := await lines.receive()) is not None:
        found.append(line)
    return "\n".join(found)


async def _answer_all(
    agent: Agent,
    session: Session,
    terminal: Terminal,
    shutdown: Shutdown,
    *,
    view: DeliveryView,
    attached: Sequence[Part],
) -> int:
    """Answer each line; files go with the first one."""
    lines, code = Lines(sys.stdin.fileno()), 0
    while (line := await _receive(lines, shutdown)) is not None:
        said: Content = [*attached, Text(line)] if attached else line
        attached = ()
        if not await answer(agent, session, said, terminal, view=view):
            code = 1
    return code


async def _receive(lines: Lines, shutdown: Shutdown) -> str | None:
    """The next line with something on it; None when the conversation ends."""
    line: str | None = None
    with shutdown.waiting():
        while (line := await lines.receive()) is not None and not line.strip():
            pass
    return None if line is None or line.strip() in QUIT else line


# --- where the conversation takes place --------------------------------------------------


@asynccontextmanager
async def open_conversation(
    options: ChatOptions, view: DeliveryView
) -> AsyncGenerator[tuple[Agent, Session], None]:
    """A running agent and a session with it, of a journal if one is named.

    Raises:
        ConfigurationError: an option is wrong, or does not go with another.
        Fenced: another process owns the journal.
    """
    if options.journal is None and (options.goes_on or options.session is not None):
        raise ConfigurationError(
            "--continue and --session go with --journal: name the file that keeps the session"
        )
    if options.file is not None and not _is_there(options.file):
        raise no_file(options.file, "; one word to be said is written as `-m WORD`")
    async with AsyncExitStack() as stack:
        agent, is_running = await stack.enter_async_context(_open(options))
        if is_running and options.journal is not None:
            raise ConfigurationError(f"{options.file} runs its agent itself: --journal has no effect on it")
        if options.journal is not None:
            yield agent, await _session_of_journal(agent, options, options.journal, view, stack)
            return
        if not is_running:
            await stack.enter_async_context(agent)
        yield agent, await agent.create_session(OWNER, limits=options.limits)


async def _session_of_journal(
    agent: Agent, options: ChatOptions, place: str, view: DeliveryView, stack: AsyncExitStack
) -> Session:
    journal = await stack.enter_async_context(open_journal(place if "://" in place else f"sqlite:///{place}"))
    await journal.acquire()
    session_id = await _latest(journal, agent) if options.goes_on else options.session
    hearing = _Hearing(view)
    agent.on_session(hearing.listen)
    runtime = await stack.enter_async_context(open_runtime(journal=OneAwake(journal, session_id or "")))
    await runtime.start(agent)
    is_there = session_id is not None and await journal.head(agent.name, session_id) is not None
    if session_id is None or not is_there:
        session = await agent.create_session(OWNER, session_id=session_id, limits=options.limits)
    else:
        session = await agent.open_session(session_id)
        await session.wait_idle()  # a turn that the last process left goes on
    hearing.is_on = False
    return session


async def _latest(journal: Journal, agent: Agent) -> str:
    wanted = SessionFilter(agent=agent.name, owner=OWNER, roots=True)
    found = [each.session_id for each in await journal.page(wanted, limit=20) if not each.closed]
    if not found:
        raise ConfigurationError(
            f"the journal has no session of {agent.name!r} to continue: leave --continue out to begin one"
        )
    return found[0]


@attrs.define
class _Hearing:
    """Shows what comes of a turn that goes on by itself when its session is opened."""

    view: DeliveryView
    is_on: bool = True

    def listen(self, session: Session) -> None:
        def show(delivery: Delivery) -> None:
            if self.is_on:
                self.view.show(delivery, session)

        for attach in (
            session.on_conversation,
            session.on_tool_result,
            session.on_event,
            session.on_exception,
        ):
            attach(show)


# --- whom to talk to ---------------------------------------------------------------------


@asynccontextmanager
async def open_agent(options: ChatOptions, *, is_asked: bool = True) -> AsyncGenerator[Agent, None]:
    """The agent of a file, or a plain one with the model that was named; `is_asked` is that of `load_folder`.

    Raises:
        ConfigurationError: there is none, or the file makes its agent in the course of its `main()`.
    """
    async with _open(options, is_asked=is_asked) as (agent, is_running):
        if is_running:
            raise ConfigurationError(
                f"{options.file} makes its agent inside of a function: define it at the top level"
            )
        yield agent


def _is_there(place: str) -> bool:
    return is_folder(place) or Path(place.partition(":")[0]).exists()


@asynccontextmanager
async def _open(options: ChatOptions, *, is_asked: bool = True) -> AsyncGenerator[tuple[Agent, bool], None]:
    """The same, and whether its program runs it already."""
    if options.file is not None and is_folder(options.file):
        agent = load_folder(
            options.file,
            model=options.model,
            base_url=options.base_url,
            offline=options.offline,
            is_asked=is_asked,
        )
        yield agent, False
    elif options.file is not None:
        if (options.offline or options.model is not None) and _is_there(options.file):
            raise ConfigurationError(
                f"{options.file} names its own model: --model and --offline are for folders and plain agents"
            )
        async with open_program(options.file) as found:
            yield found
    elif options.offline:
        async with open_script(answer_slowly, providers=["openai"], chunk=CHUNK) as models:
            yield _plain_agent(options, models[0], TOOLS), False
    else:
        names = live_models(options.model, otherwise="talk to a script: `actgent chat --offline`")[:1]
        async with open_models(names, base_url=options.base_url) as models:
            yield _plain_agent(options, models[0]), False


def _plain_agent(options: ChatOptions, model: LLM, tools: Iterable[Tool] = ()) -> Agent:
    return BareAgent(
        "assistant",
        llm=model,
        role=options.role if options.system is None else options.system,
        goal=options.goal,
        tools=tools,
        protocol=_protocol(options),
        temperature=options.temperature,
        max_tokens=options.max_tokens,
    )


def _protocol(options: ChatOptions) -> Protocol:
    if options.system is None:
        return Bare()
    if options.role or options.goal:
        raise ConfigurationError(
            "--system is the whole system prompt: leave out --role and --goal, or --system"
        )
    return AsTold()
