"""`actgent check --journal`: what a journal's sessions in the middle will make of the agents that are about to be deployed."""

import attrs

from actgent.agents.agent import Agent
from actgent.agents.upgrading import Outlook, foresee
from actgent.cli.folders import agents_at
from actgent.cli.terminal import Terminal, one_line
from actgent.errors import JournalDamaged, JournalVersion, WireError
from actgent.errors.printable import counted
from actgent.journal.base import Journal

from .journal import looked_at

SHOWN = 50
"""Sessions that are told of one by one; the others are counted."""
PROGRESS = 1000
PAGE = 100


@attrs.define
class Tally:
    """The findings so far."""

    sessions: int = 0
    changed: int = 0
    missing: int = 0
    """Sessions whose agent is none of these."""


async def check_journal(place: str, target: str, terminal: Terminal) -> int:
    """Say what happens to each session in the middle; 1 where somebody should know before."""
    agents = {agent.name: agent for agent in agents_at(target, is_asked=False)}
    tally = Tally()
    async with looked_at(place) as journal:
        for name, agent in sorted(agents.items()):
            for session_id in await _in_the_middle(journal, name):
                outlook = await _outlook(journal, agent, session_id)
                _tell(terminal, tally, name, session_id, outlook)
        waiting = await journal.waiting()
    for name in sorted(waiting.keys() - agents.keys()):
        tally.missing += waiting[name]
        waiting_words = counted(waiting[name], "unfinished session waits", "unfinished sessions wait")
        terminal.line(f"agent {one_line(name, 60)} is not among these: {waiting_words} for it")
    terminal.line(
        f"{counted(tally.sessions, 'session')} in the middle: "
        f"{counted(tally.sessions - tally.changed, 'goes on', 'go on')}, {counted(tally.changed, 'changes', 'change')}; "
        f"{counted(tally.missing, 'waits', 'wait')} for other agents"
    )
    return 1 if tally.changed or tally.missing else 0


async def _in_the_middle(journal: Journal, agent: str) -> list[str]:
    found, after = await journal.unfinished(agent), ""
    while page := await journal.suspended(agent, after=after, limit=PAGE):
        found += page
        after = page[-1]
    return list(dict.fromkeys(found))


async def _outlook(journal: Journal, agent: Agent, session_id: str) -> Outlook:
    try:
        return await foresee(agent, session_id, await journal.load(session_id, agent=agent.name))
    except (WireError, JournalVersion) as error:
        return Outlook(changes=(f"left out, as a newer actgent wrote it: {error}",))
    except JournalDamaged as error:
        return Outlook(changes=(f"left out: {error}",))


def _tell(terminal: Terminal, tally: Tally, agent: str, session_id: str, outlook: Outlook) -> None:
    tally.sessions += 1
    tally.changed += bool(outlook.changes)
    if tally.sessions <= SHOWN or (outlook.changes and tally.changed <= SHOWN):
        words = "; ".join((*outlook.changes, *outlook.goes_on))
        terminal.line(
            f"{'!' if outlook.changes else ' '} {_name(agent)} {_name(session_id)}: {one_line(words)}"
        )
    elif tally.sessions == SHOWN + 1:
        terminal.line(f"... from here on only sessions that change, and of these at most {SHOWN}")
    if tally.sessions % PROGRESS == 0:
        terminal.notice(f"{counted(tally.sessions, 'session')} looked at")


def _name(text: str) -> str:
    return one_line(text, 60)
