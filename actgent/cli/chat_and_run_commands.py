"""`actgent chat` and `actgent run`: an interactive conversation, one message, or one message per line of a pipe."""

import sys
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import ClassVar

import attrs

from actgent.agents.agent import Agent
from actgent.agents.bare_agent import BareAgent
from actgent.agents.session import Session
from actgent.cli.demos.scripted_models import CHUNK_CHARS, TOOLS, answer_with_delay
from actgent.cli.journals.journal_commands import SingleSessionJournal, open_or_create
from actgent.errors import ConfigurationError
from actgent.journal.journal_interface import Journal
from actgent.journal.session_list_queries import SessionFilter
from actgent.llm.model_interface import LLM
from actgent.messages import Content, Delivery, Part, Text
from actgent.protocols.bare_text_protocol import Bare
from actgent.protocols.protocol_interface import Protocol
from actgent.runtime.runtime import open_runtime
from actgent.tools.tool_interface import Tool

from .agent_folders import is_folder, load_folder
from .agents_in_python_files import file_not_found, load_agent, load_agents, open_program
from .command_options import ChatOptions
from .console.conversation_output import DeliveryView, JsonView, TextView, arguments_of
from .console.slash_commands import QUIT, attachment
from .console.terminal_message_exchange import OWNER, answer
from .model_selection import live_models, open_models, open_script
from .signal_handling import Shutdown
from .terminal_io import Lines, Terminal

__all__ = ["answer", "arguments_of", "chat", "load_agent", "load_agents", "open_agent"]


class FixedSystemPrompt(Bare):
    """Protocol of a plain agent whose role text is the complete system prompt (`--system`)."""

    template: ClassVar[str] = "{{ profile.role }}"


async def chat(options: ChatOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Run a conversation until the input ends. Return the exit code: 1 if a message was not answered, else 0.

    Raises:
        ConfigurationError: An option is invalid, or messages are expected from a closed standard input.
    """
    if sys.stdin is None and options.message in (None, "-"):
        raise ConfigurationError("standard input is closed: pass the message with -m TEXT")
    attached = [attachment(target) for target in options.attach]
    view = JsonView(terminal) if options.json else TextView(terminal)
    async with open_conversation(options, view) as (agent, session):
        if options.message is not None:
            text = options.message if options.message != "-" else await _read_stdin()
            content = [*attached, Text(text)] if attached else text
            return 0 if await answer(agent, session, content, terminal, view=view) else 1
        if options.json or not terminal.is_live or not sys.stdin.isatty():
            return await _answer_lines(agent, session, terminal, shutdown, view=view, attached=attached)
        from .console.conversation import TerminalConversation  # noqa: PLC0415 - the line editor takes a tenth of a second

        await TerminalConversation(
            agent, session, terminal, shutdown, attached=attached, limits=options.limits
        ).talk()
        return 0


async def _read_stdin() -> str:
    """Read standard input to its end and return it as one message."""
    lines, found = Lines(sys.stdin.fileno()), []
    while (line := await lines.receive()) is not None:
        found.append(line)
    return "\n".join(found)


async def _answer_lines(
    agent: Agent,
    session: Session,
    terminal: Terminal,
    shutdown: Shutdown,
    *,
    view: DeliveryView,
    attached: Sequence[Part],
) -> int:
    """Send each line of standard input as a message, and attachments with the first message.

    Return the exit code: 1 if a message was not answered, else 0.
    """
    lines, code = Lines(sys.stdin.fileno()), 0
    while (line := await _receive(lines, shutdown)) is not None:
        content: Content = [*attached, Text(line)] if attached else line
        attached = ()
        if not await answer(agent, session, content, terminal, view=view):
            code = 1
    return code


async def _receive(lines: Lines, shutdown: Shutdown) -> str | None:
    """Return the next input line that is not blank; None at the end of the input, at `/quit`, or after a signal."""
    line: str | None = None
    with shutdown.interruptible():
        while (line := await lines.receive()) is not None and not line.strip():
            pass
    return None if line is None or line.strip() in QUIT else line


# --- the session -------------------------------------------------------------------------


@asynccontextmanager
async def open_conversation(
    options: ChatOptions, view: DeliveryView
) -> AsyncGenerator[tuple[Agent, Session], None]:
    """Yield a running agent and a session of it. With a journal, the session is resumed from it or created in it.

    Raises:
        ConfigurationError: An option is invalid, or two options exclude each other.
        Fenced: Another process owns the journal.
    """
    if options.continue_latest and options.session is not None:
        raise ConfigurationError(
            "--continue and --session exclude each other: --continue resumes the latest session, --session a named one"
        )
    if options.journal is None and (options.continue_latest or options.session is not None):
        raise ConfigurationError(
            "--continue and --session require --journal FILE, the journal that stores the session"
        )
    if options.file is not None and not _target_exists(options.file):
        raise file_not_found(options.file, "; to send a single word as a message, write `-m WORD`")
    async with AsyncExitStack() as stack:
        agent, is_running = await stack.enter_async_context(_open(options))
        if is_running and options.journal is not None:
            raise ConfigurationError(
                f"{options.file} runs its own agent, so --journal cannot be used: configure the journal in the program"
            )
        if options.journal is not None:
            yield agent, await _session_of_journal(agent, options, options.journal, view, stack)
            return
        if not is_running:
            await stack.enter_async_context(agent)
        yield agent, await agent.create_session(OWNER, limits=options.limits)


async def _session_of_journal(
    agent: Agent, options: ChatOptions, location: str, view: DeliveryView, stack: AsyncExitStack
) -> Session:
    """Start the agent with the journal at `location`, and return the resumed or new session.

    `view` shows the deliveries of a turn that the previous process left unfinished, until this turn ends.
    """
    journal = await stack.enter_async_context(open_or_create(location))
    session_id = await _latest_open_session(journal, agent) if options.continue_latest else options.session
    resumed = _ResumedTurnView(view)
    agent.on_session(resumed.listen)
    runtime = await stack.enter_async_context(
        open_runtime(journal=SingleSessionJournal(journal, session_id or ""))
    )
    await runtime.start(agent)
    exists = session_id is not None and await journal.head(agent.name, session_id) is not None
    if session_id is None or not exists:
        session = await agent.create_session(OWNER, session_id=session_id, limits=options.limits)
    else:
        session = await agent.open_session(session_id)
        await session.wait_idle()  # an unfinished turn of the previous process resumes
    resumed.is_on = False
    return session


async def _latest_open_session(journal: Journal, agent: Agent) -> str:
    """Return the id of the agent's open session that changed last, for the option `--continue`.

    Raises:
        ConfigurationError: The journal has no open session of this agent.
    """
    wanted = SessionFilter(agent=agent.name, owner=OWNER, roots=True)
    found = [each.session_id for each in await journal.page(wanted, limit=20) if not each.closed]
    if not found:
        raise ConfigurationError(
            f"the journal has no open session of agent {agent.name!r} to continue: omit --continue to create one"
        )
    return found[0]


@attrs.define
class _ResumedTurnView:
    """Shows the deliveries of an unfinished turn that resumes when its session is opened."""

    view: DeliveryView
    is_on: bool = True
    """True while the resumed turn runs. After the turn, the conversation itself prints all deliveries."""

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


# --- the agent ---------------------------------------------------------------------------


@asynccontextmanager
async def open_agent(options: ChatOptions, *, needs_model: bool = True) -> AsyncGenerator[Agent, None]:
    """Yield the agent of a file or folder, or a plain agent made from the options.

    Args:
        options: Chat options; `file` selects the agent.
        needs_model: False if the agent will call no model, so that neither a model name nor an API key is required.

    Raises:
        ConfigurationError: The agent is missing, or its file creates it inside a function.
    """
    async with _open(options, needs_model=needs_model) as (agent, is_running):
        if is_running:
            raise ConfigurationError(
                f"{options.file} creates its agent inside a function: define the agent at the top level of the file"
            )
        yield agent


def _target_exists(target: str) -> bool:
    return is_folder(target) or Path(target.partition(":")[0]).exists()


@asynccontextmanager
async def _open(
    options: ChatOptions, *, needs_model: bool = True
) -> AsyncGenerator[tuple[Agent, bool], None]:
    """Yield the agent that the options select, and True if the program in its file already runs the agent."""
    if options.file is not None and is_folder(options.file):
        agent = load_folder(
            options.file,
            model=options.model,
            base_url=options.base_url,
            offline=options.offline,
            needs_model=needs_model,
        )
        yield agent, False
    elif options.file is not None:
        if (options.offline or options.model is not None) and _target_exists(options.file):
            raise ConfigurationError(
                f"{options.file} chooses its own model: --model and --offline work only with agent folders, and without an agent file"
            )
        async with open_program(options.file) as found:
            yield found
    elif options.offline:
        async with open_script(answer_with_delay, providers=["openai"], chunk=CHUNK_CHARS) as models:
            yield _plain_agent(options, models[0], TOOLS), False
    else:
        names = live_models(options.model, hint="talk to a script: `actgent chat --offline`")[:1]
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
            "--system replaces the whole system prompt: omit --role and --goal, or omit --system"
        )
    return FixedSystemPrompt()
