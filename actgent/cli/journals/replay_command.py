"""`actgent replay` with an agent: compare its current behaviour with the recorded session, or fork the session."""

import attrs

from actgent.agents.agent import Agent
from actgent.agents.session import Session
from actgent.cli.agent_folders import is_folder
from actgent.cli.chat_and_run_commands import arguments_of, open_agent
from actgent.cli.command_options import ChatOptions, ReplayOptions
from actgent.cli.terminal_io import ConversationView, Terminal
from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import counted
from actgent.journal.journal_interface import Journal
from actgent.journal.session_export_and_fork import build_fork, read_sessions, write_sessions
from actgent.messages import Failure
from actgent.runtime.runtime import open_runtime
from actgent.sessions.restore.session_loader import rebuild
from actgent.testing.recorded_sessions import Recording

from .journal_commands import (
    SingleSessionJournal,
    load,
    open_for_writing,
    open_read_only,
    print_rebuilt_session,
)


async def compare(options: ReplayOptions, terminal: Terminal) -> int:
    """Print the rebuilt session, and the first differences to the prompts and behaviour of the agent's current code.

    Return the exit code: 1 if the behaviour differs, else 0.
    """
    async with open_read_only(options.journal) as journal:
        records = await load(journal, options.session, options.agent)
    rebuilt = await rebuild(records, to=options.to)
    async with open_agent(options.chat, needs_model=False) as agent:
        print_rebuilt_session(rebuilt, len(records), terminal)
        recording = Recording(options.session, agent.name, records[: rebuilt.step])
        found = [await recording.compare(agent, prompts=prompts) for prompts in (True, False)]
    for difference in dict.fromkeys(filter(None, found)):
        terminal.report_error(f"agent {agent.name} differs: {difference}")
    if any(found):
        return 1
    terminal.line(f"agent     {agent.name} does the same")
    return 0


async def fork(options: ReplayOptions, terminal: Terminal) -> int:
    """Copy a session up to a record to a new session, and continue the new one. Return 1 if a turn failed, else 0.

    Raises:
        ConfigurationError: An option does not apply to the agent, or the session does not exist.
        Fenced: Another process owns the journal.
    """
    session_id, view = options.fork or "", _ForkView(terminal)
    _check_changes(options.chat)
    async with open_for_writing(options.journal) as journal, open_agent(options.chat) as agent:
        records = await load(journal, options.session, options.agent)
        step = (await rebuild(records, to=options.to)).step
        (whole,) = await read_sessions(journal, agent=options.agent, session_id=options.session)
        begun = build_fork(attrs.evolve(whole, records=records[:step]), session_id, agent.name)
        await write_sessions(journal, [begun])
        await _resume(agent, begun.session_id, journal, message=options.message, view=view)
        count = len(await journal.load(session_id, agent=agent.name))
    terminal.notice(
        f"session {session_id} has {counted(count, 'record')}, {len(begun.records):,} of them from before"
    )
    return 0 if view.ok else 1


def _check_changes(options: ChatOptions) -> None:
    """Check that the options `--system` and `--model` can be applied to the agent."""
    if options.file is None:
        return
    if options.system is not None:
        raise ConfigurationError(
            "--system works only with a plain agent: omit --code, or change the agent's own prompt"
        )
    if options.model is not None and not is_folder(options.file):
        raise ConfigurationError(
            "--model works only with agent folders: an agent in a Python file chooses its own model"
        )


async def _resume(
    agent: Agent, session_id: str, journal: Journal, *, message: str | None, view: "_ForkView"
) -> None:
    """Resume the unfinished turn of a session, then send `message` unless it is None."""
    agent.on_session(view.listen)
    async with open_runtime(journal=SingleSessionJournal(journal, session_id)) as runtime:
        await runtime.start(agent)
        session = await agent.open_session(session_id)
        await session.wait_idle()
        if message is not None:
            await session.chat(message)
            await session.wait_idle()


@attrs.define
class _ForkView:
    """Prints the deliveries of a forked session, and notes failures."""

    terminal: Terminal
    ok: bool = True
    """True until a turn fails."""

    def listen(self, session: Session) -> None:
        shown = ConversationView(self.terminal)
        session.on_conversation(lambda reply: shown.reply(reply.text))
        session.on_tool_result(lambda result: shown.tool(result, arguments_of(session, result.call_id)))
        session.on_event(lambda event: shown.aside(f"event: {event.name} {event.data}"))
        session.on_exception(self._print_failure)

    def _print_failure(self, failure: Failure) -> None:
        self.ok = False
        self.terminal.report_error(failure.error)
