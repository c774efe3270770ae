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

from .columns import fitted
from .place import PlaceOptions
from .remote import GrowingPauses, Lost, RemoteServer, open_remote

LATEST = 10
"""Sessions of a journal that are shown."""
_UNUSED: Mapping[str, Any] = {"model": "-", "running": 0, "window": 0, "waiting": {}, "paused": 0}
"""Shown for a provider limit that no call has used."""
WIDE = 200
"""Columns in a pipe, where nothing needs to be left out."""


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
            if not terminal.is_live:
                terminal.console.width = WIDE
            terminal.console.print(_drawn(shown, None, terminal.console.width))
        return
    if options.json:
        await _again(look, options, lambda new, old: terminal.raw(_json(new, old)))
        return
    with Live(console=terminal.console, auto_refresh=False, transient=False) as live:
        await _again(
            look,
            options,
            lambda new, old: live.update(_drawn(new, old, terminal.console.width), refresh=True),
        )


async def _first(look: Callable[[], Awaitable[Mapping[str, Any]]]) -> Mapping[str, Any]:
    """One look, for which nobody waits.

    Raises:
        UsageError: the server cannot be reached.
    """
    try:
        return await look()
    except Lost as error:
        raise _not_there(error) from None


def _not_there(error: Lost) -> UsageError:
    return UsageError(f"{error}: look whether `actgent serve` runs there, and at the address of --at")


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
                raise _not_there(error) from None
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


def _drawn(now: Look, before: Look | None, width: int) -> RenderableType:
    """How things are, in so many columns of a terminal."""
    data = now.data
    parts: list[RenderableType] = []
    if "problem" in data:
        parts.append(Text(one_line(data["problem"]), style="red"))
    if "sessions" in data:
        parts.append(Text("sessions: " + ", ".join(f"{n} {state}" for state, n in data["sessions"].items())))
    if data.get("agents"):
        parts.append(_agents(data["agents"], _rates(now, before), width))
    if data.get("governors"):
        parts.append(_governors(data["governors"], width))
    if data.get("latest"):
        parts.append(_latest(data["latest"], width))
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
    return fitted(rows, width, ("urgent", "memory", "turns/s", "spent", "running", "state", "people"))


def _governors(doors: Sequence[Mapping[str, Any]], width: int) -> Table:
    rows = [
        {
            "provider limit": Text(one_line(door["door"], 40)),
            "model": Text(one_line(lane["model"], 40)),
            "running": Text(str(lane["running"])),
            "window": Text(f"{lane['window']:g}"),
            "waiting": Text(str(sum(lane["waiting"].values()))),
            "refused": Text(str(door["total"]["refused"])),
            "paused": Text(f"{lane['paused']:.1f} s" if lane["paused"] else "-"),
        }
        for door in doors
        for lane in door["models"] or [_UNUSED]  # a client that has called no model yet
    ]
    return fitted(rows, width, ("refused", "window", "model", "running", "paused"))


def _latest(heads: Sequence[Mapping[str, Any]], width: int) -> Table:
    rows = [
        {
            "session": Text(one_line(head["id"], 60)),
            **{name: Text(one_line(head[name], 40)) for name in ("agent", "owner", "state", "records")},
            "changed": Text(f"{head['updated_at'] or '-':.19}".replace("T", " ")),
        }
        for head in heads
    ]
    return fitted(rows, width, ("records", "owner", "agent", "changed"))
