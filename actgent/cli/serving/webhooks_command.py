"""`actgent webhooks`: list dead-lettered deliveries of a running server, and send them again."""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from actgent.cli.terminal_io import Terminal, one_line
from actgent.errors import ConfigurationError, UsageError
from actgent.errors.text_escaping import counted

from .http_client_of_running_server import RemoteServer, RemoteUnreachable, open_remote, path_of
from .server_or_journal_options import ServerOptions


async def list_undelivered(server: ServerOptions, terminal: Terminal) -> int:
    """Print the webhooks of a server with their failed deliveries. Return 1 if there are failed deliveries, else 0."""
    async with _open_server(server) as remote:
        webhooks = (await remote.get("/webhooks"))["items"]
    if not webhooks:
        terminal.notice("the server has no webhooks: configure them with `actgent serve --notify URL`")
    for webhook in webhooks:
        where = one_line(webhook["url"] or "the addresses of sessions", 100)
        counts = f"{webhook['sent']} sent, {counted(webhook['waiting'], 'session waits', 'sessions wait')}"
        terminal.line(f"{webhook['id']}  {where}: {counts}, {len(webhook['failed'])} dead-lettered")
        for line in _lines(webhook["failed"]):
            terminal.line(line)
    return 1 if any(webhook["failed"] for webhook in webhooks) else 0


def _lines(failed: list[Mapping[str, Any]]) -> Iterator[str]:
    for each in failed:
        session = one_line(f"{each['agent']}/{each['session_id']}", 80)
        reason = one_line(each["reason"], 200)
        yield f"  {each['webhook_id']}  {each['at']}  {each['event']} of {session}: {reason}"


async def redeliver_webhooks(server: ServerOptions, ids: tuple[str, ...], terminal: Terminal) -> int:
    """Send failed webhook deliveries again: those with the given ids, or all if `ids` is empty.

    Return the exit code: 1 if an id is not one of a failed delivery, else 0.
    """
    count, unknown = 0, set(ids)
    async with _open_server(server) as remote:
        for webhook in (await remote.get("/webhooks"))["items"]:
            listed = {each["webhook_id"] for each in webhook["failed"]}
            wanted = sorted(listed & unknown) if ids else sorted(listed)
            unknown -= listed
            if wanted:
                redelivery_path = path_of("webhooks", webhook["id"], "redelivery")
                count += len((await remote.post(redelivery_path, {"webhook_ids": wanted}))["items"])
    terminal.line(f"{count} sent again; `actgent webhooks list` shows deliveries that fail again")
    for each in sorted(unknown):
        terminal.report_error(f"{one_line(each, 100)} is not a dead-lettered delivery")
    return 1 if unknown else 0


@asynccontextmanager
async def _open_server(server: ServerOptions) -> AsyncGenerator[RemoteServer, None]:
    """Yield an HTTP client of the server in the options.

    Raises:
        ConfigurationError: `--at` names a journal, or the access token is missing.
        UsageError: The server cannot be reached, or rejects the request.
    """
    if not server.is_server:
        raise ConfigurationError(
            f"webhooks are read from a running server: --at must be the URL of a server, not {server.at}"
        )
    async with open_remote(server) as remote:
        try:
            yield remote
        except RemoteUnreachable as error:
            raise UsageError(str(error)) from None
