"""`actgent watch`: print the events of a session as they happen, from a running server or a journal."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any

import orjson
import trio

from actgent.cli.journals.journal_commands import open_read_only, session_not_found
from actgent.cli.signal_handling import Shutdown
from actgent.cli.terminal_io import Terminal, one_line
from actgent.errors import ConfigurationError, SessionNotFound, UsageError
from actgent.journal.journal_interface import Journal, only_session_key
from actgent.journal.session_list_queries import SessionKey
from actgent.web.streaming.session_events import encoder_at

from .http_client_of_running_server import (
    Backoff,
    RemoteServer,
    RemoteUnreachable,
    ServerEvent,
    SessionNotOnServer,
    open_remote,
    path_of,
)
from .server_or_journal_options import WatchOptions

POLL_SECONDS = 0.5
"""Time between two reads of a journal, in seconds."""
_PAGE_SIZE = 200
"""Number of events per request."""
_PIPE_COLUMNS = 160
"""Maximum line width of an event in a pipe."""


async def watch_session(options: WatchOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Print the events of a session until it is closed or the first signal arrives; with `once`, print the existing events.

    Raises:
        UsageError: The server cannot be reached, or the session does not exist.
    """
    view = _View(terminal, is_json=options.json)
    with shutdown.interruptible():
        if options.server.is_server:
            async with open_remote(options.server) as remote:
                try:
                    await _show(_server_events(remote, options, terminal), view)
                except SessionNotOnServer:
                    raise UsageError(
                        f"session {one_line(options.session, 200)!r} does not exist at {options.server.url}, or this token cannot "
                        "access it: check the id and --agent"
                    ) from None
                except RemoteUnreachable as error:
                    raise UsageError(f"{error}: check that `actgent serve` runs at this address") from None
        else:
            async with open_read_only(options.server.at) as journal:
                await _show(_journal_events(journal, options), view)
    view.end()
    return 0


async def _show(events: AsyncGenerator[ServerEvent, None], view: "_View") -> None:
    async with aclosing(events):
        async for event in events:
            view.show(event)
            if event.name == "closed":
                return


async def _server_events(
    remote: RemoteServer, options: WatchOptions, terminal: Terminal
) -> AsyncGenerator[ServerEvent, None]:
    """Yield each event of a session on a server once. Reconnect after lost connections and server restarts."""
    query = {} if options.agent is None else {"agent": options.agent}
    path, last = f"{path_of('sessions', options.session)}/events", str(options.after)
    if options.once:
        async for event in _stored_events(remote, path, options.after, query):
            yield event
        return
    address = path + (f"?agent={path_of(options.agent)[1:]}" if options.agent else "")
    pauses, is_disconnected = Backoff(), False
    while True:
        try:
            async with aclosing(_generator(remote.events(address, last))) as events:
                async for event in events:
                    pauses.reset()
                    if is_disconnected:
                        terminal.notice(f"{options.server.url} answers again")
                    is_disconnected, last = False, event.id or last
                    if event.name == "resync":
                        raise ConfigurationError(
                            f"the session has fewer than {last} records: the journal was restored from a backup, or the id was reused"
                        )
                    if event.name not in ("bye", "lagged"):
                        yield event
        except RemoteUnreachable as error:
            if not is_disconnected:  # one notice for all attempts
                terminal.notice(f"{error}; reconnecting")
            is_disconnected = True
        await pauses.wait()


async def _generator(events: AsyncIterator[ServerEvent]) -> AsyncGenerator[ServerEvent, None]:
    async for event in events:
        yield event


async def _stored_events(
    remote: RemoteServer, path: str, after: int, query: Mapping[str, str]
) -> AsyncGenerator[ServerEvent, None]:
    """Yield the events of a session that the server has recorded so far."""
    while True:
        page = await remote.get(path, after=after, limit=_PAGE_SIZE, **query)
        for each in page["items"]:
            yield ServerEvent(each["event"], each["data"], str(each["id"]))
        if page["cursor"] <= after:
            return
        after = page["cursor"]


async def _journal_events(journal: Journal, options: WatchOptions) -> AsyncGenerator[ServerEvent, None]:
    """Yield the events of a session from its journal records, which another process may be writing."""
    agents = await journal.agents_with_session(options.session)
    key = only_session_key(agents if options.agent is None else [options.agent], options.session)
    if key is None or await journal.head(*key) is None:
        raise session_not_found(options.session)
    encoder, number = await encoder_at(journal, key, options.after), options.after
    while True:
        steps = await journal.read_batches(key.session_id, agent=key.agent, after=number, limit=_PAGE_SIZE)
        for step in steps:
            for number, record in enumerate(step.records, step.first):
                for each in encoder.encode(number, record, step.at or 0.0):
                    yield ServerEvent(each.name, each.data, str(number))
        if not steps:
            if options.once:
                return
            await _wait_for_records(journal, key)


async def _wait_for_records(journal: Journal, key: SessionKey) -> None:
    await trio.sleep(POLL_SECONDS)  # another process writes the records, and SQLite sends no notifications
    if await journal.head(*key) is None:
        raise SessionNotFound(key.agent, key.session_id)


# --- output ------------------------------------------------------------------------------


class _View:
    """Prints events as lines of text with streamed answers, or as JSON objects."""

    def __init__(self, terminal: Terminal, *, is_json: bool) -> None:
        self._terminal = terminal
        self._is_json = is_json
        self._shown_text = ""

    def show(self, event: ServerEvent) -> None:
        """Print one event as a line, or as JSON. Partial answers are printed only on a terminal."""
        if self._is_json:
            if event.id is not None:
                row = {"id": int(event.id), "event": event.name, "data": event.data}
                self._terminal.json_line(orjson.dumps(row, default=repr).decode())
        elif event.name in ("token", "growing"):
            self._append_token(event.data)
        elif event.id is not None:
            self.end()
            begin = f"{event.id:>6}  {_time(event.data)}  {event.name:<9} "
            room = (
                max(20, self._terminal.console.width - len(begin))
                if self._terminal.is_live
                else _PIPE_COLUMNS
            )
            self._terminal.line(begin + one_line(_format(event), room), style=_style(event))

    def _append_token(self, data: Mapping[str, Any]) -> None:
        """Print the new text of a partial answer, on a terminal only."""
        text = str(data.get("text", ""))
        if self._terminal.is_live and data.get("begin", 0) == len(self._shown_text):
            self._terminal.write(text, style="dim")
            self._shown_text += text

    def end(self) -> None:
        """End the line of a printed partial answer, so that the next event starts on a new line."""
        if self._shown_text:
            self._terminal.line()
            self._shown_text = ""


def _time(data: Mapping[str, Any]) -> str:
    """Format the local time of an event; spaces if the event has no time."""
    at = data.get("at")
    return f"{datetime.fromisoformat(at).astimezone():%H:%M:%S}" if at else " " * 8


def _style(event: ServerEvent) -> str | None:
    """Return the text style of an event: red for failures, yellow for approvals, None for messages, dim for all others."""
    if event.name == "ended" and event.data["failed"]:
        return "red"
    return {"message": None, "reply": None, "approval": "yellow"}.get(event.name, "dim")


def _format(event: ServerEvent) -> str:
    words = _FORMATTERS.get(event.name)
    return "" if words is None else words(event.data)


def _answer(data: Mapping[str, Any]) -> str:
    calls = ", ".join(
        f"{each['name']}({orjson.dumps(each['arguments'], default=repr).decode()})" for each in data["calls"]
    )
    return " ".join(filter(None, (data["text"], f"calls {calls}" if calls else "")))


_FORMATTERS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "message": lambda d: f"{d['sender']['name']}: {d['text']}",
    "turn": lambda d: d["phase"],
    "answer": _answer,
    "tools": lambda d: ", ".join(d["call_ids"]),
    "result": lambda d: f"{d['tool']} {d['status']}: {d['error'] or d['content']}",
    "reply": lambda d: d["text"] if d["data"] is None else orjson.dumps(d["data"], default=repr).decode(),
    "event": lambda d: f"{d['name']} {orjson.dumps(d['data'], default=repr).decode()}",
    "route": lambda d: d["action"],
    "approval": lambda d: (
        f"{d['tool']}({orjson.dumps(d['arguments'], default=repr).decode()}) {d['question']}"
    ),
    "decision": lambda d: f"{d['word']} by {d['by'] or 'unknown'}",
    "state": lambda d: orjson.dumps(
        {k: v for k, v in d.items() if k not in ("turn", "at")}, default=repr
    ).decode(),
    "schedule": lambda d: f"{d['id']} {d['action']}",
    "feedback": lambda d: f"{d['score']:g} by {d['by']}: {d['comment']}",
    "ended": lambda d: f"failed: {d['failed']} {(d['error'] or {}).get('text', '')}" if d["failed"] else "",
}
"""Text formatter of each event type."""
