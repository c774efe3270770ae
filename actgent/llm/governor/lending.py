"""Asks a lender for shares, again and again: the half of `shares.py` that waits."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

import trio

from actgent.errors import ActgentError
from actgent.llm.doors import Lender
from actgent.messages import new_secret
from actgent.support.concurrency import plain_nursery
from actgent.support.logs import Each, logger_of

from .shares import LASTS, Share

AGAIN = 0.5
"""Seconds until a lender that did not answer is asked again."""
_log = logger_of(__name__)


class _Lent(Protocol):
    """The answer of a lender; see `Share.lend`."""

    @property
    def lent(self) -> float: ...
    @property
    def held(self) -> float: ...
    @property
    def wait(self) -> float: ...
    @property
    def room(self) -> float: ...


class _Lends(Protocol):
    """Lends of a limit, by its door and kind, to one of its holders."""

    async def __call__(
        self,
        door: str,
        kind: str,
        *,
        rate: float,
        capacity: float,
        holder: str,
        held: float,
        charge: float,
        least: float,
        wanted: float,
        lasts: float,
    ) -> _Lent: ...


class ShareLender(Lender):
    """The shares of one process: of all governors that were told of it, until it is closed."""

    def __init__(self, lends: _Lends) -> None:
        self._lends = lends
        self._shares: dict[Share, tuple[str, trio.Event]] = {}
        self._nursery: trio.Nursery | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """A block in which is asked for what is wanted; at its end each governor has its limits for itself again."""
        try:
            async with plain_nursery() as self._nursery:
                for share in self._shares:
                    self._nursery.start_soon(self._keep, share)
                yield
                self._nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            for share in list(self._shares):
                share.on_ended()

    def add(self, share: Share, door: str) -> None:
        """Have a share lent, whenever calls want it, under the name that its limits have in all processes."""
        self._shares[share] = door, trio.Event()
        share.on_wanted = partial(self._want, share)
        if self._nursery is not None:
            self._nursery.start_soon(self._keep, share)

    def remove(self, share: Share) -> None:
        """Ask for a share no more."""
        _, wanted = self._shares.pop(share)
        wanted.set()

    def _want(self, share: Share) -> None:
        if share in self._shares:
            self._shares[share][1].set()

    async def _keep(self, share: Share) -> None:
        holder, is_failing = new_secret(), False
        while share in self._shares:
            door, wanted = self._shares[share]
            await wanted.wait()
            await trio.sleep_until(share.next_at)
            if share in self._shares:
                self._shares[share] = door, trio.Event()
                if share.is_wanted:
                    is_failing = await self._fails(share, door, holder, is_known=is_failing)

    async def _fails(self, share: Share, door: str, holder: str, *, is_known: bool) -> bool:
        """Ask for a share; returns True, and has it asked for again, if nobody answers."""
        try:
            await self._ask(share, door, holder)
        except ActgentError as error:
            if not is_known:
                _log.warning("nothing is lent of the limits of %s: %s", Each(door), Each(str(error)))
            share.next_at = trio.current_time() + AGAIN
            share.on_wanted()
            return True
        return False

    async def _ask(self, share: Share, door: str, holder: str) -> None:
        asked = share.ask(trio.current_time())
        found = await self._lends(
            door,
            share.kind,
            rate=share.rate,
            capacity=share.capacity,
            holder=holder,
            held=asked.held,
            charge=asked.charge,
            least=asked.least,
            wanted=asked.wanted,
            lasts=LASTS,
        )
        share.lend(asked, lent=found.lent, held=found.held, wait=found.wait, room=found.room)
