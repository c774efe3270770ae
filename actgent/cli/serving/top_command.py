"""`actgent top`: show the current state of a running server, or the sessions of a journal, and refresh it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs
import orjson
import trio
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from actgent.cli.journals.journal_commands import open_read_only
from actgent.cli.signal_handling import Shutdown
from actgent.cli.terminal_io import Terminal, one_line
from actgent.errors import UsageError
from actgent.journal.journal_interface import Journal
from actgent.journal.session_list_queries import is_internal
from actgent.web.routes.json_serializers import of_head

from .http_client_of_running_server import Backoff, RemoteServer, RemoteUnreachable, open_remote
from .server_or_journal_options import TopOptions

MAX_SESSIONS = 10
"""Number of latest sessions that are shown for a journal."""
_UNUSED: Mapping[str, Any] = {"model": "-", "running": 0, "window": 0, "waiting": {}, "paused": 0}
"""Values that are shown for a provider limit whose client has not called a model yet."""
PIPE_COLUMNS = 200
"""Table width in a pipe, where no column needs to be dropped."""


@attrs.frozen(kw_only=True)
class _Reading:
    """State of the server or journal at one moment."""

    at: float
    """Time of the reading in seconds of trio's clock."""
    data: Mapping[str, Any]
    """State of the server or journal as JSON data."""


async def top(options: TopOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Show and refresh the state of a server or journal until the first signal. With `once` or in a pipe, print it once.

    Raises:
        UsageError: The server cannot be reached, or rejects the request.
    """
    with shutdown.interruptible():
        if options.server.is_server:
            async with open_remote(options.server) as remote:
                await _repeat(lambda: _read_server(remote), options, terminal)
        else:
            async with open_read_only(options.server.at) as journal:
                await _repeat(lambda: _read_journal(journal), options, terminal)
    return 0


async def _repeat(
    read: Callable[[], Awaitable[Mapping[str, Any]]], options: TopOptions, terminal: Terminal
) -> None:
    if options.once or not (terminal.is_live or options.json):
        shown = _Reading(at=trio.current_time(), data=await _read_once(read))
        if options.json:
            terminal.json_line(_json(shown, None))
        else:
            if not terminal.is_live:
                terminal.console.width = PIPE_COLUMNS
            terminal.console.print(_render(shown, None, terminal.console.width))
        return
    if options.json:
        await _refresh(read, options, lambda new, old: terminal.json_line(_json(new, old)))
        return
    with Live(console=terminal.console, auto_refresh=False, transient=False) as live:
        await _refresh(
            read,
            options,
            lambda new, old: live.update(_render(new, old, terminal.console.width), refresh=True),
        )


async def _read_once(read: Callable[[], Awaitable[Mapping[str, Any]]]) -> Mapping[str, Any]:
    """Call `read` once and return its result. Explain the error if the server is not reachable.

    Raises:
        UsageError: The server cannot be reached.
    """
    try:
        return await read()
    except RemoteUnreachable as error:
        raise _unreachable_error(error) from None


def _unreachable_error(error: RemoteUnreachable) -> UsageError:
    return UsageError(f"{error}: check that `actgent serve` runs there, and the address of --at")


async def _refresh(
    read: Callable[[], Awaitable[Mapping[str, Any]]],
    options: TopOptions,
    show: Callable[[_Reading, _Reading | None], object],
) -> None:
    before: _Reading | None = None
    pauses = Backoff()
    while True:
        try:
            now = _Reading(at=trio.current_time(), data=await read())
        except RemoteUnreachable as error:
            if before is None:
                raise _unreachable_error(error) from None
            show(attrs.evolve(before, data={**before.data, "problem": f"{error}; reconnecting"}), None)
            await pauses.wait()
            continue
        pauses.reset()
        show(now, before)
        before = now
        await trio.sleep(options.interval)


# --- reading -----------------------------------------------------------------------------


async def _read_server(remote: RemoteServer) -> Mapping[str, Any]:
    """Read agent statistics and provider limits from a server."""
    statistics = await remote.get("/statistics", totals="true")
    limiters = (await remote.get("/rate-limiters"))["items"]
    return {**statistics, "rate_limiters": limiters}


async def _read_journal(journal: Journal) -> Mapping[str, Any]:
    """Read the number of sessions by state, and the latest sessions, from a journal."""
    counts = await journal.counts()
    latest = [of_head(head) for head in await journal.page(limit=MAX_SESSIONS) if not is_internal(head)]
    return {"sessions": dict(counts), "latest": latest}


# --- output ------------------------------------------------------------------------------


def _json(now: _Reading, before: _Reading | None) -> str:
    return orjson.dumps({**now.data, "rates": _rates(now, before)}, default=repr).decode()


def _rates(now: _Reading, before: _Reading | None) -> dict[str, float | None]:
    """Return the turns per second of each agent since the previous reading; None for an agent without two readings."""
    found: dict[str, float | None] = {}
    for agent, each in now.data.get("agents", {}).items():
        old = None if before is None else before.data.get("agents", {}).get(agent, {}).get("turns")
        known = (
            before is not None and old is not None and each.get("turns") is not None and now.at > before.at
        )
        found[agent] = max(0.0, (each["turns"] - old) / (now.at - before.at)) if known and before else None
    return found


def _render(now: _Reading, before: _Reading | None, width: int) -> RenderableType:
    """Render a reading as tables that fit a terminal of `width` columns. `before` is the previous reading, for rates."""
    data = now.data
    parts: list[RenderableType] = []
    if "problem" in data:
        parts.append(Text(one_line(data["problem"]), style="red"))
    if "sessions" in data:
        parts.append(Text("sessions: " + ", ".join(f"{n} {state}" for state, n in data["sessions"].items())))
    if data.get("agents"):
        parts.append(_agents(data["agents"], _rates(now, before), width))
    if data.get("rate_limiters"):
        parts.append(_render_rate_limiters(data["rate_limiters"], width))
    if data.get("latest"):
        parts.append(_latest_sessions_table(data["latest"], width))
    return Group(*parts)


def _agents(agents: Mapping[str, Any], rates: Mapping[str, float | None], width: int) -> Table:
    rows = []
    for name, each in sorted(agents.items()):
        inbox, rate, spent = each["inbox"], rates.get(name), each.get("spent_usd")
        is_full = inbox["waiting"] >= each["capacity"] or inbox["senders"]
        rows.append(
            {
                "agent": Text(one_line(name, 40)),
                "state": Text(each["state"], style="" if each["state"] == "running" else "red"),
                "inbox": Text(f"{inbox['waiting']}/{each['capacity']}", style="red" if is_full else ""),
                "urgent": Text(str(inbox["urgent"])),
                "running": Text(f"{inbox['claimed']}/{each['concurrency']}"),
                "memory": Text(str(each["sessions"])),
                "people": Text(str(each["suspended"]), style="yellow" if each["suspended"] else ""),
                "turns/s": Text("-" if rate is None else f"{rate:.1f}"),
                "spent": Text("-" if spent is None else f"${spent:.4f}"),
            }
        )
    return fit_table(rows, width, ("urgent", "memory", "turns/s", "spent", "running", "state", "people"))


def _render_rate_limiters(limiters: Sequence[Mapping[str, Any]], width: int) -> Table:
    rows = [
        {
            "provider limit": Text(one_line(limiter["name"], 40)),
            "model": Text(one_line(queue["model"], 40)),
            "running": Text(str(queue["running"])),
            "window": Text(f"{queue['window']:g}"),
            "waiting": Text(str(sum(queue["waiting"].values()))),
            "refused": Text(str(limiter["total"]["refused"])),
            "paused": Text(f"{queue['paused']:.1f} s" if queue["paused"] else "-"),
        }
        for limiter in limiters
        for queue in limiter["models"] or [_UNUSED]  # a client that has called no model yet
    ]
    return fit_table(rows, width, ("refused", "window", "model", "running", "paused"))


def _latest_sessions_table(heads: Sequence[Mapping[str, Any]], width: int) -> Table:
    rows = [
        {
            "session": Text(one_line(head["id"], 60)),
            **{name: Text(one_line(head[name], 40)) for name in ("agent", "owner", "status", "records")},
            "changed": Text(f"{head['updated_at'] or '-':.19}".replace("T", " ")),
        }
        for head in heads
    ]
    return fit_table(rows, width, ("records", "owner", "agent", "changed"))


# --- tables ------------------------------------------------------------------------------

MIN_NAME_COLUMNS = 12
"""Minimum width of the name column."""
_GAP = 2
"""Spaces between two columns."""


def fit_table(rows: Sequence[Mapping[str, Text]], width: int, optional_columns: Sequence[str]) -> Table:
    """Return a table that fits the terminal. Names are truncated; numbers are shown completely or their column is dropped.

    Args:
        rows: One or more rows with the same columns, in display order. The first column contains names.
        width: Width of the terminal.
        optional_columns: Columns that may be dropped, the first one first.
    """
    columns = list(rows[0])
    widths = {name: max(len(name), *(row[name].cell_len for row in rows)) for name in columns}
    for name in optional_columns:
        if _min_width(columns, widths) > width and name in columns:
            columns.remove(name)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for number, name in enumerate(columns):
        left = None if number else max(MIN_NAME_COLUMNS, width - _figures_width(columns, widths))
        table.add_column(
            name,
            justify="right" if number else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=left,
            min_width=widths[name] if number else None,
        )
    for row in rows:
        table.add_row(*(row[name] for name in columns))
    return table


def _figures_width(columns: Sequence[str], widths: Mapping[str, int]) -> int:
    """Return the total width of all columns except the first, with the gaps between them, in characters."""
    return sum(widths[name] + _GAP for name in columns[1:])


def _min_width(columns: Sequence[str], widths: Mapping[str, int]) -> int:
    """Return the minimum width in characters of a table with these columns."""
    return min(MIN_NAME_COLUMNS, widths[columns[0]]) + _figures_width(columns, widths)
