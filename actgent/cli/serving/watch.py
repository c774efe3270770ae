"""`actgent watch`: what happens in a session, as it happens, of a running server or from a journal that is only read."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any

import attrs
import orjson
import trio

from actgent.cli.journals.journal import looked_at, no_session
from actgent.cli.signals import Shutdown
from actgent.cli.terminal import Terminal, one_line
from actgent.errors import ConfigurationError, SessionNotFound, UsageError
from actgent.journal.base import Journal, one_of
from actgent.journal.listing import SessionKey
from actgent.web.streaming.happenings import teller_at

from .place import PlaceOptions
from .remote import GrowingPauses, Lost, NotThere, RemoteServer, ServerEvent, open_remote, path_of

LOOK = 0.5
"""Seconds between two looks at a journal."""
_PAGE = 200
_WIDTH = 160


@attrs.frozen(kw_only=True)
class WatchOptions:
    """What `actgent watch` was told."""

    session: str
    place: PlaceOptions
    agent: str | None = None
    after: int = 0
    once: bool = False
    json: bool = False


async def watch_session(options: WatchOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Show a session's events until it is closed or the first signal comes; with `once`, those that are there."""
    view = _View(terminal, is_json=options.json)
    with shutdown.waiting():
        if options.place.is_server:
            async with open_remote(options.place) as remote:
                try:
                    await _show(_of_server(remote, options, terminal), view)
                except NotThere:
                    raise UsageError(
                        f"there is no session {one_line(options.session, 200)!r} at {options.place.url}, or it is out of this "
                        "token's reach: look at its id, and at --agent"
                    ) from None
                except Lost as error:
                    raise UsageError(f"{error}: look whether `actgent serve` runs there") from None
        else:
            async with looked_at(options.place.at) as journal:
                await _show(_of_journal(journal, options), view)
    view.end()
    return 0


async def _show(events: AsyncGenerator[ServerEvent, None], view: "_View") -> None:
    async with aclosing(events):
        async for event in events:
            view.show(event)
            if event.name == "closed":
                return


async def _of_server(
    remote: RemoteServer, options: WatchOptions, terminal: Terminal
) -> AsyncGenerator[ServerEvent, None]:
    """A session's events, each once, over broken connections and restarts of the server."""
    query = {} if options.agent is None else {"agent": options.agent}
    path, last = f"{path_of('sessions', options.session)}/events", str(options.after)
    if options.once:
        async for event in _pages(remote, path, options.after, query):
            yield event
        return
    address = path + (f"?agent={path_of(options.agent)[1:]}" if options.agent else "")
    pauses, is_lost = GrowingPauses(), False
    while True:
        try:
            async with aclosing(_generator(remote.events(address, last))) as events:
                async for event in events:
                    pauses.reset()
                    if is_lost:
                        terminal.notice(f"{options.place.url} answers again")
                    is_lost, last = False, event.id or last
                    if event.name == "resync":
                        raise ConfigurationError(
                            f"the session has fewer records than {last}: another one has its id, or an older copy was put back"
                        )
                    if event.name not in ("bye", "lagged"):
                        yield event
        except Lost as error:
            if not is_lost:  # once, however often it is tried
                terminal.notice(f"{error}; trying again")
            is_lost = True
        await pauses.wait()


async def _generator(events: AsyncIterator[ServerEvent]) -> AsyncGenerator[ServerEvent, None]:
    async for event in events:
        yield event


async def _pages(
    remote: RemoteServer, path: str, after: int, query: Mapping[str, str]
) -> AsyncGenerator[ServerEvent, None]:
    """The events that are there."""
    while True:
        page = await remote.get(path, after=after, limit=_PAGE, **query)
        for each in page["items"]:
            yield ServerEvent(each["event"], each["data"], str(each["id"]))
        if page["cursor"] <= after:
            return
        after = page["cursor"]


async def _of_journal(journal: Journal, options: WatchOptions) -> AsyncGenerator[ServerEvent, None]:
    """A session's events from its records, which another process may be writing."""
    agents = await journal.agents_of(options.session)
    key = one_of(agents if options.agent is None else [options.agent], options.session)
    if key is None or await journal.head(*key) is None:
        raise no_session(options.session)
    teller, number = await teller_at(journal, key, options.after), options.after
    while True:
        steps = await journal.read_steps(key.session_id, agent=key.agent, after=number, limit=_PAGE)
        for step in steps:
            for number, record in enumerate(step.records, step.first):
                for each in teller.tell(number, record, step.at or 0.0):
                    yield ServerEvent(each.name, each.data, str(number))
        if not steps:
            if options.once:
                return
            await _wait(journal, key)


async def _wait(journal: Journal, key: SessionKey) -> None:
    await trio.sleep(LOOK)  # nobody tells of what another process writes
    if await journal.head(*key) is None:
        raise SessionNotFound(key.agent, key.session_id)


# --- what is shown -----------------------------------------------------------------------


class _View:
    """Shows events: a line each, and an answer as it grows; or as JSON."""

    def __init__(self, terminal: Terminal, *, is_json: bool) -> None:
        self._terminal = terminal
        self._is_json = is_json
        self._growing = ""

    def show(self, event: ServerEvent) -> None:
        if self._is_json:
            if event.id is not None:
                row = {"id": int(event.id), "event": event.name, "data": event.data}
                self._terminal.raw(orjson.dumps(row, default=repr).decode())
        elif event.name in ("token", "growing"):
            self._grow(event.data)
        elif event.id is not None:
            self.end()
            begin = f"{event.id:>6}  {_time(event.data)}  {event.name:<9} "
            room = max(20, self._terminal.console.width - len(begin)) if self._terminal.is_live else _WIDTH
            self._terminal.line(begin + one_line(_words(event), room), style=_style(event))

    def _grow(self, data: Mapping[str, Any]) -> None:
        """Add what is new of a growing answer, where a person looks."""
        text = str(data.get("text", ""))
        if self._terminal.is_live and data.get("begin", 0) == len(self._growing):
            self._terminal.write(text, style="dim")
            self._growing += text

    def end(self) -> None:
        """End the line of an answer that grew."""
        if self._growing:
            self._terminal.line()
            self._growing = ""


def _time(data: Mapping[str, Any]) -> str:
    """When it was, by the clock on the wall; empty where a record of before does not say."""
    at = data.get("at")
    return f"{datetime.fromisoformat(at).astimezone():%H:%M:%S}" if at else " " * 8


def _style(event: ServerEvent) -> str | None:
    """What people are to see stands out; what failed and who is waited for have a colour."""
    if event.name == "ended" and event.data["failed"]:
        return "red"
    return {"message": None, "reply": None, "approval": "yellow"}.get(event.name, "dim")


def _words(event: ServerEvent) -> str:
    words = _WORDS.get(event.name)
    return "" if words is None else words(event.data)


def _answer(data: Mapping[str, Any]) -> str:
    calls = ", ".join(
        f"{each['name']}({orjson.dumps(each['arguments'], default=repr).decode()})" for each in data["calls"]
    )
    return " ".join(filter(None, (data["text"], f"calls {calls}" if calls else "")))


_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
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
    "decision": lambda d: f"{d['word']} by {d['by'] or 'nobody'}",
    "state": lambda d: orjson.dumps(
        {k: v for k, v in d.items() if k not in ("turn", "at")}, default=repr
    ).decode(),
    "schedule": lambda d: f"{d['id']} {d['action']}",
    "feedback": lambda d: f"{d['score']:g} by {d['by']}: {d['comment']}",
    "ended": lambda d: f"failed: {d['failed']} {(d['error'] or {}).get('words', '')}" if d["failed"] else "",
}
