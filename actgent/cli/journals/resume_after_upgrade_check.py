"""`actgent check --journal`: predict how unfinished sessions resume with the agents of a new deployment."""

import attrs

from actgent.agents.agent import Agent
from actgent.agents.session_replay import RestartPreview, preview_restart
from actgent.cli.agent_folders import agents_at
from actgent.cli.terminal_io import Terminal, one_line
from actgent.errors import JournalDamaged, JournalVersion, WireError
from actgent.errors.text_escaping import counted
from actgent.journal.journal_interface import Journal

from .journal_commands import open_read_only

MAX_SHOWN = 50
"""Maximum number of sessions that are listed; the others are counted."""
PROGRESS_INTERVAL = 1000
"""Number of sessions between two progress notices."""
PAGE_SIZE = 100
"""Number of suspended sessions per read."""


@attrs.define
class _Counts:
    """Counters of sessions in the upgrade check."""

    sessions: int = 0
    """Number of unfinished sessions that were checked."""
    changed: int = 0
    """Number of sessions that would resume differently with the new agents."""
    missing: int = 0
    """Number of unfinished sessions whose agent is not part of the deployment."""


async def check_journal(location: str, target: str, terminal: Terminal) -> int:
    """Print for each unfinished session how it would resume with the agents of `target`.

    Return the exit code: 1 if a session would resume differently or its agent is missing, else 0.
    """
    agents = {agent.name: agent for agent in agents_at(target, needs_model=False)}
    counts = _Counts()
    async with open_read_only(location) as journal:
        for name, agent in sorted(agents.items()):
            for session_id in await _unfinished_sessions(journal, name):
                preview = await _preview(journal, agent, session_id)
                _print_preview(terminal, counts, name, session_id, preview)
        waiting = await journal.waiting()
    for name in sorted(waiting.keys() - agents.keys()):
        counts.missing += waiting[name]
        waiting_words = counted(waiting[name], "unfinished session waits", "unfinished sessions wait")
        terminal.line(f"agent {one_line(name, 60)} is not among these: {waiting_words} for it")
    terminal.line(
        f"{counted(counts.sessions, 'session')} in the middle: "
        f"{counted(counts.sessions - counts.changed, 'resumes', 'resume')}, {counted(counts.changed, 'changes', 'change')}; "
        f"{counted(counts.missing, 'waits', 'wait')} for other agents"
    )
    return 1 if counts.changed or counts.missing else 0


async def _unfinished_sessions(journal: Journal, agent: str) -> list[str]:
    found, after = await journal.unfinished(agent), ""
    while page := await journal.suspended(agent, after=after, limit=PAGE_SIZE):
        found += page
        after = page[-1]
    return list(dict.fromkeys(found))


async def _preview(journal: Journal, agent: Agent, session_id: str) -> RestartPreview:
    try:
        return await preview_restart(agent, session_id, await journal.load(session_id, agent=agent.name))
    except (WireError, JournalVersion) as error:
        return RestartPreview(changes=(f"left out, as a newer actgent wrote it: {error}",))
    except JournalDamaged as error:
        return RestartPreview(changes=(f"left out: {error}",))


def _print_preview(
    terminal: Terminal, counts: _Counts, agent: str, session_id: str, preview: RestartPreview
) -> None:
    counts.sessions += 1
    counts.changed += bool(preview.changes)
    if counts.sessions <= MAX_SHOWN or (preview.changes and counts.changed <= MAX_SHOWN):
        words = "; ".join((*preview.changes, *preview.resumes))
        terminal.line(
            f"{'!' if preview.changes else ' '} {_name(agent)} {_name(session_id)}: {one_line(words)}"
        )
    elif counts.sessions == MAX_SHOWN + 1:
        terminal.line(f"... from here on only sessions that change, and of these at most {MAX_SHOWN}")
    if counts.sessions % PROGRESS_INTERVAL == 0:
        terminal.notice(f"{counted(counts.sessions, 'session')} looked at")


def _name(text: str) -> str:
    return one_line(text, 60)
