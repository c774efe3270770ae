"""Report of one simulated run, for invariants of programs and for output."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from actgent.journal.record_types import Record

from .simulated_world import SimulatedEvent


@attrs.frozen(kw_only=True)
class ToolRun:
    """One run of a tool's function."""

    agent: str
    session: str
    """Id of the session whose turn called the tool."""
    tool: str
    call_id: str
    arguments: Mapping[str, Any]
    idempotency_key: str
    """Idempotency key that the function received."""
    process_number: int
    """Number of the simulated process in which the tool ran: 1 for the first one; each restart starts the next one."""
    began_at: float
    """Time at which the function began, in seconds since the start of the simulation."""


@attrs.define(kw_only=True)
class SessionStory:
    """One session of a simulated run."""

    agent: str
    id: str
    said: dict[str, str] = attrs.field(factory=dict)
    """Texts of the messages that callers sent, by message id."""
    began: list[ToolRun] = attrs.field(factory=list)
    """All runs of tools, also those that did not end."""
    done: list[ToolRun] = attrs.field(factory=list)
    """Runs of tools that took effect: the function returned, or failed after its effect."""
    replies: list[str] = attrs.field(factory=list)
    """Texts that `on_conversation` handlers received."""
    failures: list[str] = attrs.field(factory=list)
    """Kinds of the failures of messages that `on_exception` handlers received."""
    records: Sequence[Record] = ()
    """Records of the session in the journal after the last simulated process has ended."""

    def effects(self, tool: str | None = None) -> list[ToolRun]:
        """Return the runs of a tool that had their effect, in order. If `tool` is None, return the runs of all tools."""
        return [run for run in self.done if tool in (None, run.tool)]


@attrs.define(kw_only=True)
class Story:
    """Report of one simulated run over all its simulated processes. Passed to `@invariant` functions."""

    seed: int
    events: Sequence[SimulatedEvent] = ()
    """All events of the simulation, oldest first."""
    lives: int = 0
    """Number of simulated processes of the program. They ran one after the other."""
    kills: int = 0
    """Number of simulated processes that were killed."""
    seconds: float = 0.0
    """Simulated duration of the run in seconds."""
    found: dict[tuple[str, str], SessionStory] = attrs.field(factory=dict)
    """Sessions of the run by agent and session id."""

    def sessions(self, agent: str | None = None) -> list[SessionStory]:
        """Return the sessions of an agent; all sessions if `agent` is None."""
        return [each for each in self.found.values() if agent in (None, each.agent)]

    def session(self, agent: str, session_id: str) -> SessionStory:
        """Return the story of one session. Create an empty story if the session has no events yet."""
        key = (agent, session_id)
        if key not in self.found:
            self.found[key] = SessionStory(agent=agent, id=session_id)
        return self.found[key]


def render_story(events: Sequence[SimulatedEvent], max_lines: int = 40) -> list[str]:
    """Format events as lines with their times. Equal lines in a row become one line with their number.

    An event and its direct consequence share a line: for example a crash and the next start of the process, or a tool call and its
    error. If there are more than `max_lines` lines, the lines in the middle are left out.
    """
    groups = list[list[SimulatedEvent]]()
    for event in events:
        if not event.is_shown:
            continue
        if groups and _is_consequence(groups[-1], event):
            groups[-1].append(event)
        else:
            groups.append([event])
    shown = [_format_event_line(group) for group in groups]
    lines = [
        line if count == 1 else f"{line} ({count} times)"
        for line, count in ((line, len([*equal])) for line, equal in itertools.groupby(shown))
    ]
    if len(lines) <= max_lines:
        return lines
    half = max_lines // 2
    return [*lines[:half], f"            ... {len(lines) - 2 * half} more events ...", *lines[-half:]]


def _is_consequence(group: Sequence[SimulatedEvent], event: SimulatedEvent) -> bool:
    """Return True if an event must be shown in the line of the events before it."""
    first, name = group[0], event.text.partition(" ")[0]
    match first.kind, event.kind:
        case "kill", "life":
            return len(group) == 1
        case "tool", "tool":
            return (
                len(group) == 1
                and event.text == f"{name} has taken effect"
                and first.text.startswith(f"{name} begins")
            )
        case "model", "result":
            return first.text.startswith("the model calls ") and f" {name}(" in first.text
    return False


def _format_event_line(group: Sequence[SimulatedEvent]) -> str:
    """Format a group of events as one line. The time of a later event is shown only if it differs from the first time."""
    at = f"{group[0].at:.3f}"
    texts = [event.text if f"{event.at:.3f}" == at else f"{event.text} at {event.at:.3f}" for event in group]
    return f"{at:>10}  {'; '.join(texts)}"
