"""`actgent top`: how agents are just now, again and again: of a running server, or from a journal that is only read."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs
import orjson
import trio
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from actgent.cli.journals.journal import looked_at
from actgent.cli.signals import Shutdown
from actgent.cli.terminal import Terminal, one_line
from actgent.errors import UsageError
from actgent.journal.base import Journal
from actgent.sessions.owner_accounts import is_holder
from actgent.web.routes.views import of_head

from .place import PlaceOptions
from .remote import GrowingPauses, Lost, RemoteServer, open_remote

LATEST = 10
"""Sessions of a journal that are shown."""


@attrs.frozen(kw_only=True)
class TopOptions:
    """What `actgent top` was told."""

    place: PlaceOptions
    every: float = 1.0
    once: bool = False
    json: bool = False


@attrs.frozen(kw_only=True)
class Look:
    """How things were at one moment."""

    at: float
    """By trio's clock."""
    data: Mapping[str, Any]


async def top(options: TopOptions, terminal: Terminal, shutdown: Shutdown) -> int:
    """Show how things are, until the first signal; once where nobody looks at a terminal, or with `once`."""
    with shutdown.waiting():
        if options.place.is_server:
            async with open_remote(options.place) as remote:
                await _repeat(lambda: _ask(remote), options, terminal)
        else:
            async with looked_at(options.place.at) as journal:
                await _repeat(lambda: _read(journal), options, terminal)
    return 0


async def _repeat(
    look: Callable[[], Awaitable[Mapping[str, Any]]], options: TopOptions, terminal: Terminal
) -> None:
    if options.once or not (terminal.is_live or options.json):
        shown = Look(at=trio.current_time(), data=await _first(look))
        if options.json:
            terminal.raw(_json(shown, None))
        else:
            terminal.console.print(_drawn(shown, None))
        return
    if options.json:
        await _again(look, options, lambda new, old: terminal.raw(_json(new, old)))
        return
    with Live(console=terminal.console, auto_refresh=False, transient=False) as live:
        await _again(look, options, lambda new, old: live.update(_drawn(new, old), refresh=True))


async def _first(look: Callable[[], Awaitable[Mapping[str, Any]]]) -> Mapping[str, Any]:
    """One look, for which nobody waits.

    Raises:
        UsageError: the server cannot be reached.
    """
    try:
        return await look()
    except Lost as error:
        raise UsageError(str(error)) from None


async def _again(
    look: Callable[[], Awaitable[Mapping[str, Any]]],
    options: TopOptions,
    show: Callable[[Look, Look | None], object],
) -> None:
    before: Look | None = None
    pauses = GrowingPauses()
    while True:
        try:
            now = Look(at=trio.current_time(), data=await look())
        except Lost as error:
            if before is None:
                raise UsageError(str(error)) from None
            show(attrs.evolve(before, data={**before.data, "problem": f"{error}; trying again"}), None)
            await pauses.wait()
            continue
        pauses.reset()
        show(now, before)
        before = now
        await trio.sleep(options.every)


# --- looking -----------------------------------------------------------------------------


async def _ask(remote: RemoteServer) -> Mapping[str, Any]:
    """How a server is."""
    statistics = await remote.get("/statistics", totals="true")
    doors = (await remote.get("/governors"))["items"]
    return {**statistics, "governors": doors}


async def _read(journal: Journal) -> Mapping[str, Any]:
    """What a journal tells of its sessions."""
    counts = await journal.counts()
    latest = [of_head(head) for head in await journal.page(limit=LATEST) if not is_holder(head)]
    return {"sessions": dict(counts), "latest": latest}


# --- showing -----------------------------------------------------------------------------


def _json(now: Look, before: Look | None) -> str:
    return orjson.dumps({**now.data, "rates": _rates(now, before)}, default=repr).decode()


def _rates(now: Look, before: Look | None) -> dict[str, float | None]:
    """Turns a second of each agent since the look before; None where that is not known."""
    found: dict[str, float | None] = {}
    for agent, each in now.data.get("agents", {}).items():
        old = None if before is None else before.data.get("agents", {}).get(agent, {}).get("turns")
        known = (
            before is not None and old is not None and each.get("turns") is not None and now.at > before.at
        )
        found[agent] = max(0.0, (each["turns"] - old) / (now.at - before.at)) if known and before else None
    return found


def _drawn(now: Look, before: Look | None) -> RenderableType:
    data = now.data
    parts: list[RenderableType] = []
    if "problem" in data:
        parts.append(Text(one_line(data["problem"]), style="red"))
    if "sessions" in data:
        parts.append(Text("sessions: " + ", ".join(f"{n} {state}" for state, n in data["sessions"].items())))
    if "agents" in data:
        parts.append(_agents(data["agents"], _rates(now, before)))
    if data.get("governors"):
        parts.append(_governors(data["governors"]))
    if "latest" in data:
        parts.append(_latest(data["latest"]))
    return Group(*parts)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def _agents(agents: Mapping[str, Any], rates: Mapping[str, float | None]) -> Table:
    table = _table("agent", "state", "inbox", "urgent", "running", "memory", "people", "turns/s", "spent")
    for name, each in sorted(agents.items()):
        inbox, rate, spent = each["inbox"], rates.get(name), each.get("spent_usd")
        is_full = inbox["waiting"] >= each["capacity"] or inbox["senders"]
        table.add_row(
            Text(one_line(name, 40)),
            Text(each["state"], style="" if each["state"] == "running" else "red"),
            Text(f"{inbox['waiting']}/{each['capacity']}", style="red" if is_full else ""),
            str(inbox["urgent"]),
            f"{inbox['claimed']}/{each['concurrency']}",
            str(each["sessions"]),
            Text(str(each["suspended"]), style="yellow" if each["suspended"] else ""),
            "-" if rate is None else f"{rate:.1f}",
            "-" if spent is None else f"${spent:.4f}",
        )
    return table


def _governors(doors: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("provider limit", "model", "running", "window", "waiting", "refused", "paused")
    for door in doors:
        for lane in door["models"]:
            table.add_row(
                Text(one_line(door["door"], 40)),
                Text(one_line(lane["model"], 40)),
                str(lane["running"]),
                f"{lane['window']:g}",
                str(sum(lane["waiting"].values())),
                str(door["total"]["refused"]),
                f"{lane['paused']:.1f} s" if lane["paused"] else "-",
            )
    return table


def _latest(heads: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("session", "agent", "owner", "state", "records", "changed")
    for head in heads:
        table.add_row(
            *(
                Text(one_line(head[name], 40))
                for name in ("id", "agent", "owner", "state", "records", "updated_at")
            )
        )
    return table
