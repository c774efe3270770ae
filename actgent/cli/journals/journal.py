"""`actgent inspect`, `actgent replay` and `actgent journal`: what stands in a journal, and what to do with it."""

import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import trio
from rich import box
from rich.table import Table
from rich.text import Text as Cell

from actgent.approvals import word_for
from actgent.cli.terminal import Terminal, one_line, printable
from actgent.errors import ConfigurationError, JournalVersion, SessionExists
from actgent.errors.printable import counted
from actgent.journal.base import Journal, SessionSummary
from actgent.journal.opening import find_journal, open_journal
from actgent.journal.records import (
    Accepted,
    ActionFailed,
    Answered,
    Appended,
    Changed,
    Closed,
    Decided,
    Delivered,
    Due,
    Ended,
    Failed,
    Finished,
    Fired,
    Guarded,
    Led,
    Opened,
    PersonAsked,
    Prompted,
    Rated,
    Record,
    Resumed,
    RolledBack,
    Said,
    Scheduled,
    Spent,
    Started,
    SuspendedRecord,
    Told,
    Unscheduled,
    Unwanted,
)
from actgent.journal.sqlite import back_up, carry_over, find_problems
from actgent.journal.transfer import load_sessions, read_sessions, save_sessions, with_new_ids, write_sessions
from actgent.journal.wrapped import WrappedJournal
from actgent.messages import Message, Part, Text, Thinking, ToolCall, ToolResult
from actgent.sessions.restore import Rebuilt, rebuild

_COLUMNS = ("session", "agent", "owner", "begun", "records", "status")
_LIMIT = 200
"""Characters of one part in a transcript; `--full` shows all."""


@asynccontextmanager
async def opened(place: str) -> AsyncGenerator[Journal, None]:
    """A journal that this process owns; refused while an agent's process does."""
    async with open_journal(find_journal(place)) as journal:
        await journal.acquire()
        yield journal


@asynccontextmanager
async def looked_at(place: str) -> AsyncGenerator[Journal, None]:
    """A journal to be read, which an agent may be using; a file of an earlier actgent is copied, and the copy brought up to date."""
    url = find_journal(place)
    with tempfile.TemporaryDirectory() as folder:
        try:
            async with open_journal(url, read_only=True) as journal:
                yield journal
                return
        except JournalVersion as error:
            if error.found > error.supported or not url.startswith("sqlite:///"):
                raise
        copy = Path(folder) / "journal.db"
        await trio.to_thread.run_sync(back_up, Path(url.removeprefix("sqlite:///")), copy)
        async with open_journal(f"sqlite:///{copy}", read_only=True) as journal:
            yield journal


class OneAwake(WrappedJournal):
    """A journal in which a start finds one session to go on with, and leaves all others asleep."""

    def __init__(self, inner: Journal, session_id: str) -> None:
        super().__init__(inner)
        self._session_id = session_id

    async def unfinished(self, agent: str) -> list[str]:
        return [each for each in await self.inner.unfinished(agent) if each == self._session_id]

    async def due(self, agent: str) -> list[tuple[str, float]]:
        return [each for each in await self.inner.due(agent) if each[0] == self._session_id]


# --- inspect ------------------------------------------------------------------------------


async def inspect(
    place: str, terminal: Terminal, *, session: str | None, agent: str | None, steps: bool, full: bool
) -> int:
    """List sessions, or tell what happened in one."""
    async with looked_at(place) as journal:
        if session is None:
            _list(await journal.sessions(agent), terminal)
            return 0
        records = await load(journal, session, agent)
    lines = _all_steps(records) if steps else _transcript(records)
    limit = 1_000_000 if full else _LIMIT
    for line in lines:
        terminal.line(line.show(limit), style=line.style)
    return 0


async def load(journal: Journal, session_id: str, agent: str | None) -> tuple[Record, ...]:
    """A session's records.

    Raises:
        ConfigurationError: there is no such session, or several agents have one and none of them is given.
    """
    records = await journal.load(session_id, agent=agent)
    if not records:
        raise no_session(session_id)
    return records


def no_session(session_id: str) -> ConfigurationError:
    """What is raised where a journal that is looked at has no such session."""
    return ConfigurationError(f"the journal has no session {session_id!r}: `actgent inspect` lists them")


def _list(sessions: Sequence[SessionSummary], terminal: Terminal) -> None:
    rows = [_row(summary) for summary in sessions]
    if terminal.is_live:
        table = Table(*_COLUMNS, box=box.SIMPLE)
        for row in rows:
            table.add_row(*(Cell(cell) for cell in row))
        terminal.console.print(table)
        return
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    for row in (_COLUMNS, *rows):
        terminal.line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _row(summary: SessionSummary) -> tuple[str, ...]:
    return (
        one_line(summary.session_id),
        one_line(summary.agent, 40),
        one_line(summary.owner, 40),
        _time(summary.created_at),
        str(summary.records),
        _status(summary),
    )


def _status(summary: SessionSummary) -> str:
    if summary.closed:
        return "closed"
    unfinished = f"{summary.unfinished} unfinished" if summary.unfinished else "idle"
    status = "suspended" if summary.suspended else unfinished
    return f"{status}, due {_time(summary.due)}" if summary.due else status


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


# --- a transcript -------------------------------------------------------------------------


@attrs.frozen
class _Line:
    step: int
    who: str
    text: str
    style: str | None = None

    def show(self, limit: int) -> str:
        text = one_line(self.text, limit) if limit <= _LIMIT else printable(self.text)
        return f"{self.step:>5}  {one_line(self.who, 60)}: {text}"


def _waiting(step: int, record: PersonAsked | Decided | SuspendedRecord | Resumed) -> _Line:
    """Render the questions to people and their decisions."""
    match record:
        case PersonAsked(approval=approval):
            called = f"{approval.tool_name}({_arguments(approval.arguments)})"
            return _Line(step, "asked", f"{approval.question} {called}", "dim")
        case Decided():
            return _Line(step, "decided", _decided(record), "dim")
    return _Line(step, _kind(record).lower(), ", ".join(record.ids), "dim")


def _transcript(records: Sequence[Record]) -> Iterator[_Line]:
    """Render what was said and done, in the order in which the model came to know it."""
    accepted: dict[str, Message] = {}
    for step, record in enumerate(records, 1):
        match record:
            case Opened():
                yield _Line(
                    step, "session", f"opened for {record.owner.name} at {_time(record.created_at)}", "dim"
                )
            case Accepted(message=message):
                accepted[message.id] = message
            case Appended(message_id=message_id):
                yield from _parts(step, accepted[message_id])
            case Said(message=message):
                yield from _parts(step, message)
            case Ended(failed=str(failed)):
                yield _Line(step, "failure", failed, "red")
            case Changed() | ActionFailed() | RolledBack() | Rated():
                who = "feedback" if isinstance(record, Rated) else "state"
                yield _Line(step, who, _describe(record), "dim")
            case PersonAsked() | Decided() | SuspendedRecord() | Resumed():
                yield _waiting(step, record)
            case Closed():
                yield _Line(step, "session", "closed", "dim")


def _parts(step: int, message: Message) -> Iterator[_Line]:
    who = message.sender.name + (" (cut off)" if message.cut else "")
    for part in message.parts:
        style = "dim" if isinstance(part, ToolCall | ToolResult | Thinking) else None
        yield _Line(step, who, part_in_words(part), style)


def part_in_words(part: Part) -> str:
    """Render one part of a message as text."""
    match part:
        case Text(text=text):
            return text
        case Thinking(text=text):
            return f"(thinking) {text}"
        case ToolCall(name=name, arguments=arguments):
            return f"calls {name}({_arguments(arguments)})"
        case ToolResult(tool_name=name, status=status):
            return f"{name} -> {part.text}" if status == "success" else f"{name} -> {status}: {part.text}"
    return f"({type(part).__name__})"


def _arguments(arguments: Mapping[str, Any] | str) -> str:
    if isinstance(arguments, str):
        return arguments
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def _all_steps(records: Sequence[Record]) -> Iterator[_Line]:
    """Every record, as it is numbered."""
    for step, record in enumerate(records, 1):
        yield _Line(step, _kind(record), _describe(record))


def _kind(record: Record) -> str:
    """Return what kind of record it is, as lists show it."""
    return type(record).__name__.removesuffix("Record")


def _describe(record: Record) -> str:
    return _WORDS[type(record)](record)


def _said(record: Said | Accepted) -> str:
    message = record.message
    stop = f" [{record.stop}]" if isinstance(record, Said) and record.stop else ""
    return f"{message.id} {message.sender.name}{stop}: {' | '.join(map(part_in_words, message.parts))}"


def _decided(record: Decided) -> str:
    by = f" by {record.by}" if record.by else ""
    return f"{record.approval_id} {word_for(record.decision)}{by}, {_time(record.at)}"


def _spent(record: Spent | Led) -> str:
    amounts = {each.name: getattr(record, each.name) for each in attrs.fields(type(record))}
    return ", ".join(f"{name} {amount}" for name, amount in amounts.items() if amount)


_WORDS: Mapping[type, Callable[[Any], str]] = {
    Opened: lambda r: f"owner {r.owner.name}, {_time(r.created_at)}",
    Accepted: _said,
    Appended: lambda r: str(r.message_id),
    Said: _said,
    Started: lambda r: ", ".join(r.call_ids),
    Finished: lambda r: f"{r.result.call_id} {part_in_words(r.result)}",
    Changed: lambda r: f"{r.action or 'changed'} {dict(r.changes)!r}",
    ActionFailed: lambda r: f"{r.action or 'an action'} failed: {r.error}",
    RolledBack: lambda r: f"back to {counted(r.number, 'change')}",
    Told: lambda r: " ".join(filter(None, (r.id, r.kind, r.name, r.text, r.data))),
    Delivered: lambda r: ", ".join(r.ids),
    Failed: lambda r: f"{r.message_id} {r.kind} {r.error}".rstrip(),
    Ended: lambda r: f"{r.message_id} {'answered' if r.failed is None else f'{r.failed} {r.error}'.rstrip()}",
    Unwanted: lambda r: f"{r.message_id} {r.reason}".rstrip(),
    Rated: lambda r: (
        f"{r.message_id} {r.score:g} by {r.by}: {' | '.join(filter(None, (r.comment, r.expected)))}"
    ),
    Prompted: lambda r: f"{counted(len(r.system), 'character')}",
    Due: lambda r: f"at {_time(r.at)}" if r.at else "nothing",
    Answered: lambda r: f"{r.message_id} {'' if r.failed is None else r.failed}: {r.text}",
    Spent: _spent,
    Led: _spent,
    Guarded: lambda r: (
        f"{r.answer or r.message_id}{'' if r.refused is None else f' was refused by {r.guard}: {r.refused}'}"
    ),
    PersonAsked: lambda r: f"{r.approval.id} {r.approval.tool_name}: {r.approval.question}",
    Decided: _decided,
    SuspendedRecord: lambda r: f"{r.message_id} waits for {', '.join(r.ids)}",
    Scheduled: lambda r: f"{r.schedule_id} {r.cron or _time(r.at)} {r.zone}: {r.description}",
    Fired: lambda r: f"{r.schedule_id}{'' if r.message_id else ' was passed over'}",
    Unscheduled: lambda r: str(r.schedule_id),
    Resumed: lambda r: ", ".join(r.ids),
    Closed: lambda _: "",
}


# --- replay -------------------------------------------------------------------------------


async def replay(place: str, session: str, terminal: Terminal, *, of: str | None, to: int | None) -> int:
    """Make a session again as it was after a step, without model and tools."""
    async with looked_at(place) as journal:
        records = await load(journal, session, of)
    show_rebuilt(await rebuild(records, to=to), len(records), terminal)
    return 0


def show_rebuilt(rebuilt: Rebuilt, last: int, terminal: Terminal) -> None:
    """Show a session as it was at a step."""
    rows: dict[str, object] = {
        "step": f"{rebuilt.step} of {last}",
        "digest": rebuilt.digest,
        "messages": len(rebuilt.history),
        "waiting": len(rebuilt.waiting),
        "tokens": f"{rebuilt.usage.input_tokens} in, {rebuilt.usage.output_tokens} out",
    }
    for name, value in rows.items():
        terminal.line(f"{name:<9} {value}")
    for key in sorted(rebuilt.state):
        terminal.line(f"state     {one_line(key, 60)} = {one_line(repr(rebuilt.state[key]), _LIMIT)}")


# --- journal ------------------------------------------------------------------------------


def check(place: str, terminal: Terminal) -> int:
    """Name all that is wrong with a journal's file; 1 where something is."""
    problems = list(find_problems(_file(place)))
    for problem in problems:
        terminal.complain(problem)
    if not problems:
        terminal.line(f"{place} is OK")
    return 1 if problems else 0


def salvage(place: str, new: str, terminal: Terminal) -> int:
    """Carry what is good into a new file; 1 where something was lost."""
    problems = list(find_problems(_file(place)))
    saved = carry_over(_file(place), Path(new))
    terminal.line(f"{new}: {counted(saved.sessions, 'session')} with {counted(saved.records, 'record')}")
    for problem in problems:
        terminal.complain(f"lost, from there on: {problem}")
    for session_id in saved.losses:
        terminal.complain(f"lost, in whole or in part: session {session_id!r}")
    return 1 if problems or saved.losses else 0


def _file(place: str) -> Path:
    url = find_journal(place)
    if not url.startswith("sqlite:///"):
        raise ConfigurationError(
            "only the files of SQLite can be looked at so: PostgreSQL has tools of its own, such as pg_dump"
        )
    return Path(url.removeprefix("sqlite:///"))


def backup(place: str, file: str, terminal: Terminal) -> int:
    """Copy a journal's file, in use or not, and read the copy."""
    saved = back_up(_file(place), Path(file), say=terminal.notice)
    terminal.line(
        f"{file}: {counted(saved.sessions, 'session')} in {counted(saved.size, 'byte')}, read and good"
    )
    return 0


async def export(place: str, file: str, terminal: Terminal, *, agent: str | None, session: str | None) -> int:
    """Write sessions into a file."""
    async with looked_at(place) as journal:
        sessions = await read_sessions(journal, agent=agent, session_id=session)
    if not sessions:
        raise ConfigurationError(
            "the journal has no such sessions: `actgent inspect` lists those that it has"
        )
    save_sessions(Path(file), sessions)
    terminal.line(f"{file}: {counted(len(sessions), 'session')}")
    return 0


async def import_(place: str, file: str, terminal: Terminal, *, new_ids: bool) -> int:
    """Add the sessions of a file to a journal, which is made where there is none."""
    sessions = load_sessions(Path(file))
    if new_ids:
        sessions = with_new_ids(sessions)
    url = place if "://" in place else f"sqlite:///{place}"
    async with open_journal(url) as journal:
        await journal.acquire()
        try:
            await write_sessions(journal, sessions)
        except SessionExists as error:
            raise ConfigurationError(
                f"agent {error.agent!r} has a session {error.session_id!r} already in {place}, so nothing was added: "
                "--new-ids adds copies that have ids of their own"
            ) from None
    terminal.line(f"{place}: {counted(len(sessions), 'session')} added")
    return 0
