"""`actgent replay` with an agent: whether its code still does the same, and how else it could have gone on."""

import attrs

from actgent.agents.agent import Agent
from actgent.agents.session import Session
from actgent.cli.chat import ChatOptions, arguments_of, open_agent
from actgent.cli.folders import is_folder
from actgent.cli.terminal import ConversationView, Terminal
from actgent.errors import ConfigurationError
from actgent.errors.printable import counted
from actgent.journal.base import Journal
from actgent.journal.transfer import forked, read_sessions, write_sessions
from actgent.messages import Failure
from actgent.runtime.runtime import open_runtime
from actgent.sessions.restore import rebuild
from actgent.testing.recorded import Recording

from .journal import OneAwake, load, looked_at, opened, show_rebuilt


@attrs.frozen(kw_only=True)
class ReplayOptions:
    """What `actgent replay` was told."""

    journal: str
    session: str
    of: str | None = None
    """Its agent's name, where several have a session of this id."""
    to: int | None
    fork: str | None
    """The id of the session that goes on from there; None only compares."""
    agent: ChatOptions


async def compare(options: ReplayOptions, terminal: Terminal) -> int:
    """Show the session, and the first difference that an agent's prompt and its code make today; 1 if there is one."""
    async with looked_at(options.journal) as journal:
        records = await load(journal, options.session, options.of)
    rebuilt = await rebuild(records, to=options.to)
    async with open_agent(options.agent, is_asked=False) as agent:
        show_rebuilt(rebuilt, len(records), terminal)
        recording = Recording(options.session, agent.name, records[: rebuilt.step])
        found = [await recording.compare(agent, prompts=prompts) for prompts in (True, False)]
    for difference in dict.fromkeys(filter(None, found)):
        terminal.complain(f"agent {agent.name} differs: {difference}")
    if any(found):
        return 1
    terminal.line(f"agent     {agent.name} does the same")
    return 0


async def fork(options: ReplayOptions, terminal: Terminal) -> int:
    """Let a copy of the session go on after a step, in the journal under its own id; 1 if it failed."""
    session_id, heard = options.fork or "", _Heard(terminal)
    _check_changes(options.agent)
    async with opened(options.journal) as journal, open_agent(options.agent) as agent:
        records = await load(journal, options.session, options.of)
        step = (await rebuild(records, to=options.to)).step
        (whole,) = await read_sessions(journal, agent=options.of, session_id=options.session)
        begun = forked(attrs.evolve(whole, records=records[:step]), session_id, agent.name)
        await write_sessions(journal, [begun])
        await _go_on(agent, begun.session_id, journal, message=options.agent.message, heard=heard)
        count = len(await journal.load(session_id, agent=agent.name))
    terminal.notice(
        f"session {session_id} has {counted(count, 'record')}, {len(begun.records):,} of them from before"
    )
    return 0 if heard.ok else 1


def _check_changes(who: ChatOptions) -> None:
    """Refuse changes that the agent would not take."""
    if who.file is None:
        return
    if who.system is not None:
        raise ConfigurationError(
            "--system is for a plain agent: leave out --agent, or change the agent's own prompt"
        )
    if who.model is not None and not is_folder(who.file):
        raise ConfigurationError("--model changes a folder's agent; the one of a Python file names its own")


async def _go_on(
    agent: Agent, session_id: str, journal: Journal, *, message: str | None, heard: "_Heard"
) -> None:
    """Let a session go on, and say something in it."""
    agent.on_session(heard.listen)
    async with open_runtime(journal=OneAwake(journal, session_id)) as runtime:
        await runtime.start(agent)
        session = await agent.open_session(session_id)
        await session.wait_idle()
        if message is not None:
            await session.chat(message)
            await session.wait_idle()


@attrs.define
class _Heard:
    """Shows what a session says."""

    terminal: Terminal
    ok: bool = True

    def listen(self, session: Session) -> None:
        shown = ConversationView(self.terminal)
        session.on_conversation(lambda reply: shown.reply(reply.text))
        session.on_tool_result(lambda result: shown.tool(result, arguments_of(session, result.call_id)))
        session.on_event(lambda event: shown.aside(f"event: {event.name} {event.data}"))
        session.on_exception(self._complain)

    def _complain(self, failure: Failure) -> None:
        self.ok = False
        self.terminal.complain(failure.error)
