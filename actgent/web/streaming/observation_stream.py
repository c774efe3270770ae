"""Stream of the observations of one session as server-sent events. A slow subscriber does not delay others."""

from collections.abc import Collection
from typing import Any

import attrs
import trio

from actgent.errors import Fenced
from actgent.journal.session_list_queries import SessionKey
from actgent.runtime.runtime import Runtime
from actgent.runtime.subscriptions.observation_reader import ObservationReader
from actgent.sessions.subscriptions import Observed, ObservedType
from actgent.web.routes.json_serializers import hidden_error_text, to_date

from .sse import ALIVE_FRAME, ALIVE_INTERVAL_SECONDS, RETRY_MILLISECONDS, Write, bye, frame


def of_observed(observed: Observed, *, shows_exception_texts: bool) -> dict[str, Any]:
    """Return an observation as JSON fields.

    `shows_exception_texts=False` replaces the message of an exception that user code raised.
    """
    metadata = dict(observed.metadata)
    if not shows_exception_texts and (raised := metadata.get("raised")):
        metadata["error"] = hidden_error_text(raised)
    known = attrs.asdict(observed, recurse=False)
    return {**known, "metadata": metadata, "at": to_date(observed.at or 0.0)}


@attrs.frozen(kw_only=True)
class ObservationStream:
    """Event stream of the observations of one session for one client."""

    runtime: Runtime
    key: SessionKey
    after: int
    types: Collection[ObservedType] | None
    turn: str | None
    closing: trio.Event
    shows_exception_texts: bool
    """True to include the messages of exceptions raised by user code or libraries."""

    async def run(self, write: Write) -> None:
        """Write the observations after record number `after`, then new ones, until the session or the gateway closes."""
        is_over = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_on_closing, nursery.cancel_scope)
            try:
                async with self.runtime.observe(
                    self.key.session_id,
                    agent=self.key.agent,
                    types=self.types,
                    turn=self.turn,
                    after=self.after,
                ) as reader:
                    await write(f"retry: {RETRY_MILLISECONDS}\n\n".encode())
                    await _write_all(reader, write, shows_exception_texts=self.shows_exception_texts)
            except Fenced:  # the client reconnects and reaches the new owner of the session
                await write(frame("lagged", {}))
            is_over = True
            nursery.cancel_scope.cancel()
        if not is_over:
            await write(bye())

    async def _cancel_on_closing(self, stream: trio.CancelScope) -> None:
        await self.closing.wait()
        stream.cancel()


async def _write_all(reader: ObservationReader, write: Write, *, shows_exception_texts: bool) -> None:
    """Write observations as server-sent events until the reader closes.

    Only the last event of a record carries the record number as id. Partial answers have no id.
    """
    while True:
        observed = None
        try:
            with trio.move_on_after(ALIVE_INTERVAL_SECONDS):
                observed = await reader.receive()
        except trio.EndOfChannel:
            await write(frame("end", {}, number=reader.cursor))
            return
        if observed is None:
            await write(ALIVE_FRAME)
            continue
        is_last = 0 < observed.number <= reader.cursor
        data = of_observed(observed, shows_exception_texts=shows_exception_texts)
        await write(frame("observation", data, number=observed.number if is_last else None))
