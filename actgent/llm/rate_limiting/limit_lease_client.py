"""`LimitLeaseClient`: requests leases of shared rate limits for this process. `shared_rate_limits.py` holds the accounting."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

import trio

from actgent.errors import ActgentError
from actgent.llm.rate_limiter_statistics import LimitLeaser
from actgent.messages import new_secret
from actgent.support.plain_nursery import plain_nursery
from actgent.support.safe_logging import LogVariable, logger_of

from .shared_rate_limits import LEASE_SECONDS, LeasedLimit

RETRY_SECONDS = 0.5
"""Delay before a failed lease request is retried."""
_log = logger_of(__name__)


class _Lent(Protocol):
    """Answer of the shared lease table to a lease request; `LeasedLimit.renew` describes the fields."""

    @property
    def lent(self) -> float: ...
    @property
    def held(self) -> float: ...
    @property
    def wait(self) -> float: ...
    @property
    def room(self) -> float: ...


class _Lends(Protocol):
    """Async function that leases units of a shared rate limit to one process, the `holder`.

    `name` and `kind` (such as `tokens`) identify the limit. `lasts` is the validity of the lease in seconds. The other
    arguments are those of `LeaseRequest`.
    """

    async def __call__(
        self,
        name: str,
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


class LimitLeaseClient(LimitLeaser):
    """Client of the shared lease table: leases units for the rate limiters of one process, until the `running` block ends."""

    def __init__(self, lends: _Lends) -> None:
        self._lends = lends
        self._shares: dict[LeasedLimit, tuple[str, trio.Event]] = {}
        self._nursery: trio.Nursery | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Context manager: lease units of the shared rate limits on demand while the block runs.

        After the block, each rate limiter applies its limits locally.
        """
        try:
            async with plain_nursery() as self._nursery:
                for share in self._shares:
                    self._nursery.start_soon(self._keep, share)
                yield
                self._nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            for share in list(self._shares):
                share.on_closed()

    def add(self, share: LeasedLimit, name: str) -> None:
        """Start leasing units of a shared rate limit for `share`, which is this process's part of the limit.

        `name` identifies the rate limit in all processes.
        """
        self._shares[share] = name, trio.Event()
        share.on_request = partial(self._want, share)
        if self._nursery is not None:
            self._nursery.start_soon(self._keep, share)

    def remove(self, share: LeasedLimit) -> None:
        """Stop leasing units of a shared rate limit for `share`, this process's part of the limit."""
        _, wanted = self._shares.pop(share)
        wanted.set()

    def _want(self, share: LeasedLimit) -> None:
        if share in self._shares:
            self._shares[share][1].set()

    async def _keep(self, share: LeasedLimit) -> None:
        holder, is_failing = new_secret(), False
        while share in self._shares:
            name, wanted = self._shares[share]
            await wanted.wait()
            await trio.sleep_until(share.next_at)
            if share in self._shares:
                self._shares[share] = name, trio.Event()
                if share.needs_lease:
                    is_failing = await self._fails(share, name, holder, is_known=is_failing)

    async def _fails(self, share: LeasedLimit, name: str, holder: str, *, is_known: bool) -> bool:
        """Request a lease once. Return True if the request failed and is retried later.

        `is_known` is True if the previous request also failed, so that this failure is not logged.
        """
        try:
            await self._ask(share, name, holder)
        except ActgentError as error:
            if not is_known:
                _log.warning(
                    "no lease for the rate limits of %s: %s", LogVariable(name), LogVariable(str(error))
                )
            share.next_at = trio.current_time() + RETRY_SECONDS
            share.on_request()
            return True
        return False

    async def _ask(self, share: LeasedLimit, name: str, holder: str) -> None:
        asked = share.lease_request(trio.current_time())
        found = await self._lends(
            name,
            share.kind,
            rate=share.rate,
            capacity=share.capacity,
            holder=holder,
            held=asked.held,
            charge=asked.charge,
            least=asked.least,
            wanted=asked.wanted,
            lasts=LEASE_SECONDS,
        )
        share.renew(asked, lent=found.lent, held=found.held, wait=found.wait, room=found.room)
