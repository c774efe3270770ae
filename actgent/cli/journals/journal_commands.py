"""`actgent inspect`, `replay` and `journal`: print, rebuild, check, search, audit, copy and import stored sessions."""

import heapq
import tempfile
from collections import defaultdict
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

from actgent.agents.unapproved_tool_call_audit import UnapprovedCall, audit_journal, labels_of_session
from actgent.approvals import decision_name
from actgent.cli.agent_folders import agents_at
from actgent.cli.terminal_io import Terminal, one_line, printable
from actgent.errors import ConfigurationError, JournalDamaged, JournalVersion, SessionExists, WireError
from actgent.errors.text_escaping import counted
from actgent.information_flow_labels import TRUSTED
from actgent.journal.journal_interface import Journal, SessionSummary
from actgent.journal.journal_url import find_journal, open_journal
from actgent.journal.journal_wrappers import WrappedJournal
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
    SourceLiftRecord,
    StateChangeRecord,
    StateRollbackRecord,
    SuspensionRecord,
    SystemPromptRecord,
    TaskOutcomeRecord,
)
from actgent.journal.session_export_and_fork import (
    load_sessions,
    read_sessions,
    save_sessions,
    with_new_ids,
    write_sessions,
)
from actgent.journal.session_list_queries import SessionFilter
from actgent.journal.sqlite import back_up, find_problems, recover_file
from actgent.messages import Message, Part, Text, Thinking, ToolCall, ToolResult
from actgent.session_index import SearchFilter, SearchHit
from actgent.session_index.session_index import open_index
from actgent.sessions.restore.session_loader import RebuiltSession, rebuild
from actgent.testing.session_history_consistency import ClientCall, find_contradictions, load_client_calls

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
    location: str,
    terminal: Terminal,
    *,
    session: str | None,
    agent: str | None,
    steps: bool,
    full: bool,
    labels: bool,
) -> int:
    """Print the list of sessions of a journal, or the transcript of one session.

    Args:
        location: Journal file or URL.
        terminal: Output of the command.
        session: Id of the session; None lists all sessions.
        agent: Agent of the session, or of the listed sessions; None for any.
        steps: True to print every record instead of messages.
        full: True to print complete texts.
        labels: True to also print the label of the session after each record that changes it.
    """
    async with open_read_only(location) as journal:
        if session is None:
            _print_sessions(await journal.sessions(agent), terminal)
            return 0
        records = await load(journal, session, agent)
    lines = _all_steps(records) if steps else _transcript(records)
    if labels:
        lines = heapq.merge(lines, _label_lines(records), key=lambda line: line.step)
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


_SENDERS: Mapping[type, str] = {
    StateChangeRecord: "state",
    ActionFailureRecord: "state",
    StateRollbackRecord: "state",
    RatingRecord: "feedback",
    SourceLiftRecord: "lifted",
}
"""Name in the first column of a transcript, of the record classes that are shown by their fields."""


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
            case ApprovalRequestRecord() | ApprovalDecisionRecord() | SuspensionRecord() | ResumptionRecord():
                yield _approval_line(step, record)
            case SessionClosedRecord():
                yield _Line(step, "session", "closed", "dim")
            case _ if name := _SENDERS.get(type(record)):
                yield _Line(step, name, _describe(record), "dim")


def _label_lines(records: Sequence[Record]) -> Iterator[_Line]:
    """Yield a line with the label of the session for each record that changes the label."""
    before = TRUSTED
    for step, label in enumerate(labels_of_session(records), 1):
        if label != before:
            yield _Line(step, "label", str(label), "dim")
        before = label


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


def _describe_lift(record: SourceLiftRecord) -> str:
    reason = f": {record.reason}" if record.reason else ""
    return f"{record.source} by {record.by}, {_time(record.at)}{reason}"


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
    SourceLiftRecord: _describe_lift,
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
        terminal.report_error(problem)
    if not problems:
        terminal.line(f"{location} is OK")
    return 1 if problems else 0


def recover_journal(location: str, new: str, terminal: Terminal) -> int:
    """Copy each session up to its first damaged record into a new journal file. Return 1 if records were lost, else 0."""
    problems = list(find_problems(_sqlite_path(location)))
    copied = recover_file(_sqlite_path(location), Path(new))
    terminal.line(f"{new}: {counted(copied.sessions, 'session')} with {counted(copied.records, 'record')}")
    for problem in problems:
        terminal.report_error(f"lost from this record on: {problem}")
    for session_id in copied.losses:
        terminal.report_error(f"lost completely or in part: session {session_id!r}")
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
                f"{location} already contains session {error.session_id!r} of agent {error.agent!r}, so no session was added: "
                "--new-ids adds copies with new ids"
            ) from None
    terminal.line(f"{location}: {counted(len(sessions), 'session')} added")
    return 0


MAX_SNIPPET_CHARS = 160
"""Maximum length of the printed part of a message, in characters."""


async def search(
    location: str, query: str, terminal: Terminal, *, search_filter: SearchFilter, limit: int
) -> int:
    """Print the newest messages that match a search, at most `limit`. Return 1 if no message matches, else 0.

    Args:
        location: Journal file or URL.
        query: Words to search for.
        terminal: Output of the command.
        search_filter: Conditions on messages and sessions.
        limit: Maximum number of messages.

    Raises:
        ConfigurationError: The journal has no index, or the query has text but no word.
    """
    async with open_read_only(location) as journal, open_index(journal, read_only=True) as index:
        page = await index.search(query, search_filter, limit=limit)
        hits = [hit for hit in page.hits if await journal.head(hit.agent, hit.session_id) is not None]
    for hit in hits:
        terminal.line(_describe_hit(hit))
    return 0 if hits else 1


def _describe_hit(hit: SearchHit) -> str:
    at = datetime.fromtimestamp(hit.at, UTC).strftime("%Y-%m-%d %H:%M")
    place = f"{one_line(hit.agent, 40)} {one_line(hit.session_id)} {one_line(hit.owner, 40)}"
    return f"{at} {place} {hit.role}: {one_line(hit.snippet, MAX_SNIPPET_CHARS)}"


async def audit(location: str, terminal: Terminal, *, code: str | None) -> int:
    """Print each recorded tool call that depended on untrusted text and ran without approval.

    Return the exit code: 1 if there are such calls, else 0.

    Args:
        location: Journal file or URL.
        terminal: Output of the command.
        code: Agent folder or Python file with the agents whose tools declare sinks; None uses only the journal.
    """
    agents = [] if code is None else agents_at(code, needs_model=False)
    sessions = calls = 0
    async with open_read_only(location) as journal:
        async for _, found in audit_journal(journal, agents):
            sessions += 1
            calls += len(found)
            for each in found:
                terminal.line(_describe_call(each))
    terminal.line(
        f"{counted(sessions, 'session')}: {counted(calls, 'call')} with untrusted sinks ran without an approval"
    )
    return 1 if calls else 0


def _describe_call(found: UnapprovedCall) -> str:
    place = f"{one_line(found.agent, 40)} {one_line(found.session_id)} record {found.record}"
    names = one_line(", ".join(found.labels) or "the call")
    shown = f"{place}: {one_line(format_part(found.call), 200)}"
    if not found.label.is_trusted:
        sources = ", ".join(sorted(found.label.sources))
        shown = f"{shown}: {names} may come from {one_line(sources)}"
    if found.label.readers is not None:
        shown = f"{shown}: only {one_line(found.label.reader_names)} may read data that {names} may send"
    return shown


async def check_histories(location: str, terminal: Terminal, *, log: str | None) -> int:
    """Print each contradiction in the records of a journal. Return the exit code: 1 if contradictions were found, else 0.

    Args:
        location: Journal file or URL.
        terminal: Output of the command.
        log: Path of a log file of a client's calls, to compare with the records; None checks only the records.

    Raises:
        ConfigurationError: The log is not readable, or no call of the log belongs to a session of the journal.
    """
    calls = defaultdict[str, list[ClientCall]](list)
    for call in [] if log is None else load_client_calls(log):
        calls[call.session_id].append(call)
    sessions = problems = 0
    async with open_read_only(location) as journal:
        after, seen = None, set[str]()
        while page := await journal.page(SessionFilter(), after=after, limit=100):
            after = page[-1].cursor
            for summary in page:
                sessions += 1
                seen.add(summary.session_id)
                try:
                    records = await journal.load(summary.session_id, agent=summary.agent)
                except (JournalDamaged, WireError) as error:
                    found = [str(error)]
                else:
                    own = [
                        each
                        for each in calls.get(summary.session_id, ())
                        if each.agent in ("", summary.agent)
                    ]
                    found = list(find_contradictions(records, own))
                problems += len(found)
                for each in found:
                    terminal.report_error(
                        f"{one_line(summary.agent, 40)} {one_line(summary.session_id, 60)}: {each}"
                    )
    if log is not None and not calls.keys() & seen:
        raise ConfigurationError(
            f"no call in the log {log} belongs to a session of the journal: check that the log and the journal belong together"
        )
    for session_id in sorted(calls.keys() - seen):
        problems += 1
        terminal.report_error(
            f"the journal has no session {one_line(session_id, 60)}, but a client has called it"
        )
    count = sum(map(len, calls.values()))
    terminal.line(
        f"{counted(sessions, 'session')}, {counted(count, 'call')} of clients: {counted(problems, 'contradiction')}"
    )
    return 1 if problems else 0
