"""`actgent chat`: a conversation in the terminal, or with the lines of a pipe."""

import runpy
import sys
import traceback
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.agents.presets import BareAgent
from actgent.agents.session import Session
from actgent.approvals import Approval
from actgent.control.limits import Limits
from actgent.errors import ActgentError, ConfigurationError
from actgent.llm.base import LLM
from actgent.messages import Delivery, Event, Failure, Reply, Route, Token, ToolResult
from actgent.protocols.bare import Bare
from actgent.protocols.base import Protocol
from actgent.tools.base import Tool

from .approvals import Receive, ask
from .folders import is_folder, load_folder
from .models import live_models, open_models, open_script
from .offline import CHUNK, TOOLS, answer_slowly
from .signals import Shutdown
from .terminal import ConversationView, Lines, Terminal, one_line

_QUIT = ("/quit", "/exit")


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
    """Say this and end; None talks until the input ends."""


class AsTold(Bare):
    """Plain talk, with the role for the whole system prompt."""

    template: ClassVar[str] = "{{ profile.role }}"


async def chat(options: ChatOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Talk until the input ends; 1 if a message of a pipe was not answered."""
    if sys.stdin is None:
        raise ConfigurationError("there is no standard input to read messages from")
    async with open_agent(options) as agent, agent:
        session = await agent.create_session("user", limits=options.limits)
        if options.message is not None:
            return 0 if await answer(agent, session, options.message, terminal) else 1
        if not terminal.is_live or not sys.stdin.isatty():
            return await _answer_all(agent, session, terminal, shutdown)
        await _talk(agent, session, terminal, shutdown)
        return 0


async def _talk(agent: Agent, session: Session, terminal: Terminal, shutdown: Shutdown) -> None:
    terminal.line(f"Talking to {agent.name}. /quit or Ctrl-D ends it.", style="dim")
    lines = Lines(sys.stdin.fileno())
    receive = partial(_receive, lines, shutdown)
    while (line := await _next_line(lines, terminal, shutdown)) is not None:
        await answer(agent, session, line, terminal, receive=receive)
    terminal.line()


async def _next_line(lines: Lines, terminal: Terminal, shutdown: Shutdown) -> str | None:
    terminal.write("> ", style="bold")
    return await _receive(lines, shutdown)


async def _answer_all(agent: Agent, session: Session, terminal: Terminal, shutdown: Shutdown) -> int:
    lines, code = Lines(sys.stdin.fileno()), 0
    while (line := await _receive(lines, shutdown)) is not None:
        if not await answer(agent, session, line, terminal):
            code = 1
    return code


async def _receive(lines: Lines, shutdown: Shutdown) -> str | None:
    """The next line with something on it; None when the conversation ends."""
    line: str | None = None
    with shutdown.waiting():
        while (line := await lines.receive()) is not None and not line.strip():
            pass
    return None if line is None or line.strip() in _QUIT else line


async def answer(
    agent: Agent, session: Session, text: str, terminal: Terminal, *, receive: Receive | None = None
) -> bool:
    """Say something and show what comes of it; False if that was a failure.

    A person who can `receive` decides over the tool calls that need one; without, they are rejected.
    """
    async with agent.stream(text, session=session) as deliveries:
        ok = await _read(session, deliveries, terminal, receive)
    while session.status == "suspended":
        async with agent.follow(session) as deliveries:
            for approval in session.approvals:
                ok = await ask(session, approval, terminal, receive) and ok
            ok = await _read(session, deliveries, terminal, receive) and ok
    return ok


async def _read(
    session: Session,
    deliveries: trio.abc.ReceiveChannel[Delivery],
    terminal: Terminal,
    receive: Receive | None,
) -> bool:
    """Show what comes; False if it is a failure, or nobody decided what the agent's own agents asked."""
    shown, ok = ConversationView(terminal), True
    async for delivery in deliveries:
        _show(delivery, session, shown)
        if isinstance(delivery, Failure):
            terminal.complain(delivery.error)
            ok = False
        elif isinstance(delivery, Approval) and delivery.session_id != session.id:
            ok = await ask(session, delivery, terminal, receive) and ok
    return ok


def _show(delivery: Delivery, session: Session, shown: ConversationView) -> None:
    match delivery:
        case Token():
            shown.token(delivery.text, (delivery.reply_id, delivery.attempt))
        case Reply():
            shown.reply(delivery.text)
        case ToolResult():
            shown.tool(delivery, arguments_of(session, delivery.call_id))
        case Event():
            shown.aside(f"event: {delivery.name} {delivery.data}")
        case Route():
            shown.aside(f"route: {delivery.action} {delivery.data}")
        case Failure() | Approval():
            shown.break_off()


def arguments_of(session: Session, call_id: str) -> Mapping[str, Any] | str:
    """Return the arguments of a tool call: the latest calls stand at the end of the history."""
    for message in reversed(session.history):
        for call in message.tool_calls:
            if call.id == call_id:
                return call.arguments
    return ""


# --- whom to talk to ---------------------------------------------------------------------


@asynccontextmanager
async def open_agent(options: ChatOptions) -> AsyncGenerator[Agent, None]:
    """The agent of a file, or a plain one with the model that was named."""
    if options.file is not None and is_folder(options.file):
        yield load_folder(options.file, model=options.model, base_url=options.base_url)
    elif options.file is not None:
        yield load_agent(options.file)
    elif options.offline:
        async with open_script(answer_slowly, providers=["openai"], chunk=CHUNK) as models:
            yield _plain_agent(options, models[0], TOOLS)
    else:
        names = live_models(options.model, otherwise="talk to a script with --offline")[:1]
        async with open_models(names, base_url=options.base_url) as models:
            yield _plain_agent(options, models[0])


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


def load_agent(place: str) -> Agent:
    """The agent that a Python file defines: `FILE.py`, or `FILE.py:NAME` where there are several.

    Raises:
        ConfigurationError: there is no such file or agent, or the file cannot be run.
    """
    path, _, name = place.partition(":")
    if not Path(path).is_file():
        raise ConfigurationError(f"no such file: {path}; name a Python file that defines an agent")
    found = {key: value for key, value in _run(path).items() if isinstance(value, Agent)}
    if name in found:
        return found[name]
    if name or len({id(agent) for agent in found.values()}) != 1:
        known = ", ".join(found) or "none"
        raise ConfigurationError(f"say which agent of {path} you mean, as {path}:NAME; it defines: {known}")
    return next(iter(found.values()))


def load_agents(place: str) -> list[Agent]:
    """All agents that a Python file defines, by themselves or in lists; `FILE.py:NAME` is one of them.

    Raises:
        ConfigurationError: there is no such file, no agent in it, or the file cannot be run.
    """
    path, _, name = place.partition(":")
    if name:
        return [load_agent(place)]
    if not Path(path).is_file():
        raise ConfigurationError(f"no such file: {path}; name a Python file that defines agents, or a folder")
    values = _run(path).values()
    listed = [item for value in values if isinstance(value, list | tuple) for item in value]
    found = {id(each): each for each in (*values, *listed) if isinstance(each, Agent)}
    if not found:
        raise ConfigurationError(f"{path} defines no agent at its top level")
    return list(found.values())


def _run(path: str) -> dict[str, object]:
    sys.path.insert(0, str(Path(path).resolve().parent))  # as `python FILE.py` does
    try:
        return runpy.run_path(path)
    except ActgentError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{path} cannot be run: {type(error).__name__} in line {_line_of(error, path)}: {one_line(error)}"
        ) from error


def _line_of(error: Exception, path: str) -> int | None:
    """Where in the file it went wrong."""
    if isinstance(error, SyntaxError):
        return error.lineno
    steps = traceback.extract_tb(error.__traceback__)
    return next((step.lineno for step in reversed(steps) if step.filename == path), None)
