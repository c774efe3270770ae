"""`actgent webhooks`: what the webhooks of a running server have given up, and sending it again."""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from actgent.cli.terminal import Terminal, one_line
from actgent.errors import ConfigurationError, UsageError
from actgent.errors.printable import counted

from .place import PlaceOptions
from .remote import Lost, RemoteServer, open_remote, path_of


async def list_given_up(place: PlaceOptions, terminal: Terminal) -> int:
    """Name the webhooks of a server, and what each has given up. 1 if something was."""
    async with _server(place) as server:
        webhooks = (await server.get("/webhooks"))["items"]
    if not webhooks:
        terminal.notice("the server has no webhooks: `actgent serve --notify` gives it some")
    for webhook in webhooks:
        where = one_line(webhook["url"] or "the addresses of sessions", 100)
        counts = f"{webhook['sent']} sent, {counted(webhook['waiting'], 'session waits', 'sessions wait')}"
        terminal.line(f"{webhook['id']}  {where}: {counts}, {len(webhook['failed'])} given up")
        for line in _lines(webhook["failed"]):
            terminal.line(line)
    return 1 if any(webhook["failed"] for webhook in webhooks) else 0


def _lines(failed: list[Mapping[str, Any]]) -> Iterator[str]:
    for each in failed:
        session = one_line(f"{each['agent']}/{each['session_id']}", 80)
        reason = one_line(each["reason"], 200)
        yield f"  {each['webhook_id']}  {each['at']}  {each['event']} of {session}: {reason}"


async def send_again(place: PlaceOptions, ids: tuple[str, ...], terminal: Terminal) -> int:
    """Have what was given up sent again: what is named, or all of it. 1 if something that is named is not listed."""
    count, unknown = 0, set(ids)
    async with _server(place) as server:
        for webhook in (await server.get("/webhooks"))["items"]:
            listed = {each["webhook_id"] for each in webhook["failed"]}
            wanted = sorted(listed & unknown) if ids else sorted(listed)
            unknown -= listed
            if wanted:
                place_of_it = path_of("webhooks", webhook["id"], "redelivery")
                count += len((await server.post(place_of_it, {"webhook_ids": wanted}))["items"])
    terminal.line(f"{count} sent again; `actgent webhooks list` names those that are not taken")
    for each in sorted(unknown):
        terminal.complain(f"{one_line(each, 100)} was not given up")
    return 1 if unknown else 0


@asynccontextmanager
async def _server(place: PlaceOptions) -> AsyncGenerator[RemoteServer, None]:
    """The server that is asked, for the block.

    Raises:
        ConfigurationError: a journal is named, which sends nothing; or there is no token.
        UsageError: it cannot be reached, or refuses.
    """
    if not place.is_server:
        raise ConfigurationError(
            f"webhooks are sent by a running server: --at takes its address, not {place.at}"
        )
    async with open_remote(place) as server:
        try:
            yield server
        except Lost as error:
            raise UsageError(str(error)) from None
