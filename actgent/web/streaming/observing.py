"""Observations of one session, for clients that read them as a stream: each subscriber reads at its own pace."""

from collections.abc import Collection
from typing import Any

import attrs
import trio

from actgent.errors import Fenced
from actgent.journal.listing import SessionKey
from actgent.runtime.following import ObservationReader
from actgent.runtime.runtime import Runtime
from actgent.sessions.following import Observed, ObservedType
from actgent.web.routes.views import foreign_error, to_date

from .streams import ALIVE, ALIVE_FRAME, RETRY, Write, bye, frame


def of_observed(observed: Observed, *, shows_foreign: bool) -> dict[str, Any]:
    """An observation as clients read it; only the scope `journal` shows words of exceptions that are not ours."""
    metadata = dict(observed.metadata)
    if not shows_foreign and (raised := metadata.get("raised")):
        metadata["error"] = foreign_error(raised)
    known = attrs.asdict(observed, recurse=False)
    return {**known, "metadata": metadata, "at": to_date(observed.at or 0.0)}


@attrs.frozen(kw_only=True)
class Observing:
    """One subscriber."""

    runtime: Runtime
    key: SessionKey
    after: int
    types: Collection[ObservedType] | None
    turn: str | None
    closing: trio.Event
    shows_foreign: bool
    """True: its scope shows words of exceptions that are not ours."""

    async def run(self, write: Write) -> None:
        """Write the observations behind a record, and then those that come, until the session or the gateway closes."""
        is_over = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._leave, nursery.cancel_scope)
            try:
                async with self.runtime.observe(
                    self.key.session_id,
                    agent=self.key.agent,
                    types=self.types,
                    turn=self.turn,
                    after=self.after,
                ) as reader:
                    await write(f"retry: {RETRY}\n\n".encode())
                    await _write_all(reader, write, shows_foreign=self.shows_foreign)
            except Fenced:  # its reader comes back to where the session lives
                await write(frame("lagged", {}))
            is_over = True
            nursery.cancel_scope.cancel()
        if not is_over:
            await write(bye())

    async def _leave(self, stream: trio.CancelScope) -> None:
        await self.closing.wait()
        stream.cancel()


async def _write_all(reader: ObservationReader, write: Write, *, shows_foreign: bool) -> None:
    """Write what comes; those of one record have its number with the last of them, and what still grows has none."""
    while True:
        observed = None
        try:
            with trio.move_on_after(ALIVE):
                observed = await reader.receive()
        except trio.EndOfChannel:
            await write(frame("end", {}, number=reader.cursor))
            return
        if observed is None:
            await write(ALIVE_FRAME)
            continue
        is_last = 0 < observed.number <= reader.cursor
        data = of_observed(observed, shows_foreign=shows_foreign)
        await write(frame("observation", data, number=observed.number if is_last else None))
