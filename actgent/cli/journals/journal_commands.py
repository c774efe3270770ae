"""`actgent inspect`, `replay` and `journal`: print, rebuild, check, copy and import stored sessions."""

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

from actgent.approvals import decision_name
from actgent.cli.terminal_io import Terminal, one_line, printable
from actgent.errors import ConfigurationError, JournalVersion, SessionExists
from actgent.errors.text_escaping import counted
from actgent.journal.journal_interface import Journal, SessionSummary
from actgent.journal.journal_url import find_journal, open_journal
from actgent.journal.record_types import (
    ActionFailureRecord,
    AgentMessageRecord,
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    CallFinishedRecord,
    CallsStartedRecord,
    CancellationRecord,
    DeliveryRecord,
    FailureRecord,
    GuardDecisionRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    NextTimerRecord,
    OutcomeRecord,
    RatingRecord,
    Record,
    ResumptionRecord,
    ScheduleFiredRecord,
    ScheduleRecord,
    SessionAnnotatedRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    StateChangeRecord,
    StateRollbackRecord,
    SuspensionRecord,
    SystemPromptRecord,
    TaskOutcomeRecord,
)
from actgent.journal.sqlite import back_up, find_problems, recover_file
from actgent.journal.transfer import load_sessions, read_sessions, save_sessions, with_new_ids, write_sessions
from actgent.journal.wrappers import WrappedJournal
from actgent.messages import Message, Part, Text, Thinking, ToolCall, ToolResult
from actgent.sessions.restore import RebuiltSession, rebuild

_COLUMNS = ("session", "agent", "owner", "begun", "records", "status")
"""Headings of the session list."""
_MAX_PART_CHARS = 200
"""Maximum characters of one message part in a transcript, unless `--full` is given."""


@asynccontextmanager
async def open_for_writing(location: str) -> AsyncGenerator[Journal, None]:
    """Open a journal for writing: acquire and yield it.

    Raises:
        Fenced: Another process owns the journal.
    """
    async with open_journal(find_journal(location)) as journal:
        await journal.acquire()
        yield journal


def to_journal_url(location: str) -> str:
    """Convert the file path or URL of a journal to a URL."""
    return location if "://" in location or location == "memory:" else f"sqlite:///{location}"


@asynccontextmanager
async def open_or_create(location: str) -> AsyncGenerator[Journal, None]:
    """Open a journal for writing: acquire and yield it. A missing journal file is created.

    Raises:
        Fenced: Another process owns the journal.
    """
    async with open_journal(to_journal_url(location)) as journal:
        await journal.acquire()
        yield journal


@asynccontextmanager
async def open_read_only(location: str) -> AsyncGenerator[Journal, None]:
    """Yield a journal for reading, while other processes may write to it.

    A file in the format of an earlier release is copied to a temporary folder, and the copy is migrated.
    """
    url = find_journal(location)
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


class SingleSessionJournal(WrappedJournal):
    """Journal wrapper that hides unfinished and due sessions except one, so that starting an agent resumes only that one."""

    def __init__(self, inner: Journal, session_id: str) -> None:
        super().__init__(inner)
        self._session_id = session_id

    async def unfinished(self, agent: str) -> list[str]:
        return [each for each in await self.inner.unfinished(agent) if each == self._session_id]

    async def due(self, agent: str) -> list[tuple[str, float]]:
        return [each for each in await self.inner.due(agent) if each[0] == self._session_id]


# --- inspect ------------------------------------------------------------------------------


async def inspect(
    location: str, terminal: Terminal, *, session: str | None, agent: str | None, steps: bool, full: bool
) -> int:
    """Print the list of sessions of a journal, or the transcript of one session.

    Args:
        location: Journal file or URL.
        terminal: Output of the command.
        session: Id of the session; None lists all sessions.
        agent: Agent of the session, or of the listed sessions; None for any.
        steps: True to print every record instead of messages.
        full: True to print complete texts.
    """
    async with open_read_only(location) as journal:
        if session is None:
            _print_sessions(await journal.sessions(agent), terminal)
            return 0
        records = await load(journal, session, agent)
    lines = _all_steps(records) if steps else _transcript(records)
    limit = 1_000_000 if full else _MAX_PART_CHARS
    for line in lines:
        terminal.line(line.show(limit), style=line.style)
    return 0


async def load(journal: Journal, session_id: str, agent: str | None) -> tuple[Record, ...]:
    """Return the records of a session.

    Raises:
        ConfigurationError: The journal has no such session, or several agents have a session with this id and `agent` is None.
    """
    records = await journal.load(session_id, agent=agent)
    if not records:
        raise session_not_found(session_id)
    return records


def session_not_found(session_id: str) -> ConfigurationError:
    """Return the error for a session id that is not in the journal."""
    return ConfigurationError(f"the journal has no session {session_id!r}: `actgent inspect` lists them")


def _print_sessions(sessions: Sequence[SessionSummary], terminal: Terminal) -> None:
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
    """One line of a transcript."""

    step: int
    """Number of the journal record that the line shows."""
    sender: str
    """Name of the message's sender, or kind of the record."""
    text: str
    """Content of the record as text."""
    style: str | None = None
    """Text style of the `rich` library; None for plain text."""

    def show(self, limit: int) -> str:
        """Format the line as text, with at most `limit` characters of the record's content."""
        text = one_line(self.text, limit) if limit <= _MAX_PART_CHARS else printable(self.text)
        return f"{self.step:>5}  {one_line(self.sender, 60)}: {text}"


def _approval_line(
    step: int, record: ApprovalRequestRecord | ApprovalDecisionRecord | SuspensionRecord | ResumptionRecord
) -> _Line:
    """Return the transcript line for a record about approvals."""
    match record:
        case ApprovalRequestRecord(approval=approval):
            called = f"{approval.tool_name}({_arguments(approval.arguments)})"
            return _Line(step, "asked", f"{approval.question} {called}", "dim")
        case ApprovalDecisionRecord():
            return _Line(step, "decided", _describe_decision(record), "dim")
    word = "suspended" if isinstance(record, SuspensionRecord) else "resumed"
    return _Line(step, word, ", ".join(record.ids), "dim")


def _transcript(records: Sequence[Record]) -> Iterator[_Line]:
    """Yield transcript lines of messages, state changes and approvals, in the order in which the model received them."""
    accepted: dict[str, Message] = {}
    for step, record in enumerate(records, 1):
        match record:
            case SessionCreatedRecord():
                yield _Line(
                    step, "session", f"opened for {record.owner.name} at {_time(record.created_at)}", "dim"
                )
            case MessageAcceptedRecord(message=message):
                accepted[message.id] = message
            case MessageAppendedRecord(message_id=message_id):
                yield from _parts(step, accepted[message_id])
            case AgentMessageRecord(message=message):
                yield from _parts(step, message)
            case MessageEndRecord(failed=str(failed)):
                yield _Line(step, "failure", failed, "red")
            case StateChangeRecord() | ActionFailureRecord() | StateRollbackRecord() | RatingRecord():
                who = "feedback" if isinstance(record, RatingRecord) else "state"
                yield _Line(step, who, _describe(record), "dim")
            case ApprovalRequestRecord() | ApprovalDecisionRecord() | SuspensionRecord() | ResumptionRecord():
                yield _approval_line(step, record)
            case SessionClosedRecord():
                yield _Line(step, "session", "closed", "dim")


def _parts(step: int, message: Message) -> Iterator[_Line]:
    who = message.sender.name + (" (cut off)" if message.cut else "")
    for part in message.parts:
        style = "dim" if isinstance(part, ToolCall | ToolResult | Thinking) else None
        yield _Line(step, who, format_part(part), style)


def format_part(part: Part) -> str:
    """Format one part of a message as text for a transcript."""
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
    """Yield a transcript line for every record."""
    for step, record in enumerate(records, 1):
        yield _Line(step, _kind(record), _describe(record))


def _kind(record: Record) -> str:
    """Return the kind of a record for display: its class name without `Record`."""
    return type(record).__name__.removesuffix("Record")


def _describe(record: Record) -> str:
    return _DESCRIPTIONS.get(type(record), _describe_fields)(record)


def _describe_message(record: AgentMessageRecord | MessageAcceptedRecord) -> str:
    message = record.message
    stop = f" [{record.stop}]" if isinstance(record, AgentMessageRecord) and record.stop else ""
    return f"{message.id} {message.sender.name}{stop}: {' | '.join(map(format_part, message.parts))}"


def _describe_decision(record: ApprovalDecisionRecord) -> str:
    by = f" by {record.by}" if record.by else ""
    return f"{record.approval_id} {decision_name(record.decision)}{by}, {_time(record.at)}"


def _describe_annotations(record: SessionAnnotatedRecord | SessionCreatedRecord) -> str:
    """Format the tags and metadata of a record as text, such as `billing, ticket=4711`."""
    return ", ".join([*record.tags, *(f"{key}={value}" for key, value in record.metadata.items())])


def _describe_fields(record: Any) -> str:
    """Format names and values of all non-empty fields of a record as text."""
    values = {each.name: getattr(record, each.name) for each in attrs.fields(type(record))}
    return ", ".join(f"{name} {value}" for name, value in values.items() if value)


_DESCRIPTIONS: Mapping[type, Callable[[Any], str]] = {
    SessionCreatedRecord: lambda r: ", ".join(
        filter(None, (f"owner {r.owner.name}", _time(r.created_at), _describe_annotations(r)))
    ),
    MessageAcceptedRecord: _describe_message,
    MessageAppendedRecord: lambda r: str(r.message_id),
    AgentMessageRecord: _describe_message,
    CallsStartedRecord: lambda r: ", ".join(r.call_ids),
    CallFinishedRecord: lambda r: f"{r.result.call_id} {format_part(r.result)}",
    StateChangeRecord: lambda r: f"{r.action or 'changed'} {dict(r.changes)!r}",
    ActionFailureRecord: lambda r: f"{r.action or 'an action'} failed: {r.error}",
    StateRollbackRecord: lambda r: f"back to {counted(r.number, 'change')}",
    OutcomeRecord: lambda r: " ".join(filter(None, (r.id, r.kind, r.name, r.text, r.data))),
    DeliveryRecord: lambda r: ", ".join(r.ids),
    FailureRecord: lambda r: f"{r.message_id} {r.kind} {r.error}".rstrip(),
    MessageEndRecord: lambda r: (
        f"{r.message_id} {'answered' if r.failed is None else f'{r.failed} {r.error}'.rstrip()}"
    ),
    CancellationRecord: lambda r: f"{r.message_id} {r.reason}".rstrip(),
    RatingRecord: lambda r: (
        f"{r.message_id} {r.score:g} by {r.by}: {' | '.join(filter(None, (r.comment, r.expected)))}"
    ),
    SessionAnnotatedRecord: _describe_annotations,
    SystemPromptRecord: lambda r: f"{counted(len(r.system), 'character')}",
    NextTimerRecord: lambda r: f"at {_time(r.at)}" if r.at else "nothing",
    TaskOutcomeRecord: lambda r: f"{r.message_id} {'' if r.failed is None else r.failed}: {r.text}",
    GuardDecisionRecord: lambda r: (
        f"{r.answer or r.message_id}{'' if r.refused is None else f' was rejected by {r.guard}: {r.refused}'}"
    ),
    ApprovalRequestRecord: lambda r: f"{r.approval.id} {r.approval.tool_name}: {r.approval.question}",
    ApprovalDecisionRecord: _describe_decision,
    SuspensionRecord: lambda r: f"{r.message_id} waits for {', '.join(r.ids)}",
    ScheduleRecord: lambda r: f"{r.schedule_id} {r.cron or _time(r.at)} {r.zone}: {r.description}",
    ScheduleFiredRecord: lambda r: f"{r.schedule_id}{'' if r.message_id else ' was skipped'}",
    ResumptionRecord: lambda r: ", ".join(r.ids),
}
"""Formatters of record classes for `--steps`; `_describe_fields` formats the others."""


# --- replay -------------------------------------------------------------------------------


async def replay(
    location: str, session: str, terminal: Terminal, *, agent: str | None, to: int | None
) -> int:
    """Rebuild a session as it was after a record, and print its digest, counts and state. No model and no tool runs.

    Args:
        location: Journal file or URL.
        session: Id of the session.
        terminal: Output of the command.
        agent: Agent of the session, if several agents have a session with this id.
        to: Number of the last record to replay; None replays all records.
    """
    async with open_read_only(location) as journal:
        records = await load(journal, session, agent)
    print_rebuilt_session(await rebuild(records, to=to), len(records), terminal)
    return 0


def print_rebuilt_session(rebuilt: RebuiltSession, last: int, terminal: Terminal) -> None:
    """Print digest, counts and state of a rebuilt session. `last` is the number of its last record in the journal."""
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
        terminal.line(
            f"state     {one_line(key, 60)} = {one_line(repr(rebuilt.state[key]), _MAX_PART_CHARS)}"
        )


# --- journal ------------------------------------------------------------------------------


def check(location: str, terminal: Terminal) -> int:
    """Print all damaged records of a journal file. Return the exit code: 1 if records are damaged, else 0."""
    problems = list(find_problems(_sqlite_path(location)))
    for problem in problems:
        terminal.complain(problem)
    if not problems:
        terminal.line(f"{location} is OK")
    return 1 if problems else 0


def recover_journal(location: str, new: str, terminal: Terminal) -> int:
    """Copy each session up to its first damaged record into a new journal file. Return 1 if records were lost, else 0."""
    problems = list(find_problems(_sqlite_path(location)))
    copied = recover_file(_sqlite_path(location), Path(new))
    terminal.line(f"{new}: {counted(copied.sessions, 'session')} with {counted(copied.records, 'record')}")
    for problem in problems:
        terminal.complain(f"lost from this record on: {problem}")
    for session_id in copied.losses:
        terminal.complain(f"lost completely or in part: session {session_id!r}")
    return 1 if problems or copied.losses else 0


def _sqlite_path(location: str) -> Path:
    """Return the file path of a SQLite journal, for commands that work only with files.

    Raises:
        ConfigurationError: The journal is in PostgreSQL.
    """
    url = find_journal(location)
    if not url.startswith("sqlite:///"):
        raise ConfigurationError(
            "this command works only with SQLite journal files: for a journal in PostgreSQL, use tools such as pg_dump"
        )
    return Path(url.removeprefix("sqlite:///"))


def backup(location: str, file: str, terminal: Terminal) -> int:
    """Copy a journal to a new file and verify the copy. Other processes may be using the journal."""
    copied = back_up(_sqlite_path(location), Path(file), say=terminal.notice)
    terminal.line(
        f"{file}: {counted(copied.sessions, 'session')} in {counted(copied.size, 'byte')}, copy verified"
    )
    return 0


async def export(
    location: str, file: str, terminal: Terminal, *, agent: str | None, session: str | None
) -> int:
    """Write sessions of a journal to an export file.

    Raises:
        ConfigurationError: The journal has no matching session.
    """
    async with open_read_only(location) as journal:
        sessions = await read_sessions(journal, agent=agent, session_id=session)
    if not sessions:
        raise ConfigurationError(
            "the journal has no session that matches the options: list all sessions with `actgent inspect`"
        )
    save_sessions(Path(file), sessions)
    terminal.line(f"{file}: {counted(len(sessions), 'session')}")
    return 0


async def import_(location: str, file: str, terminal: Terminal, *, new_ids: bool) -> int:
    """Add the sessions of an export file to a journal. A missing journal file is created.

    Raises:
        ConfigurationError: A session with the same agent and id already exists. Nothing has been added.
    """
    sessions = load_sessions(Path(file))
    if new_ids:
        sessions = with_new_ids(sessions)
    async with open_or_create(location) as journal:
        try:
            await write_sessions(journal, sessions)
        except SessionExists as error:
            raise ConfigurationError(
                f"{location} already contains session {error.session_id!r} of agent {error.agent!r}, so nothing was added: "
                "--new-ids adds copies with new ids"
            ) from None
    terminal.line(f"{location}: {counted(len(sessions), 'session')} added")
    return 0
