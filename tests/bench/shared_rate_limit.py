"""LIMITER: sessions share a provider's rate limit, over HTTP with the provider's SDK.

Sockets and CPU are real. The clock is virtual, so a minute takes no time and other load on the machine changes no count.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import trio
from measure import ANSWER, Figures, Stopwatch, expect

from actgent.llm.model_interface import ModelResponse
from actgent.messages import Text, Usage
from actgent.testing import Provider, ProviderRequest, RateLimits, Slow, open_provider

LIMITS = RateLimits(requests=500, tokens=300_000, burst=0.2)
USAGE = Usage(input_tokens=100, output_tokens=60)
URGENT_EVERY = 1.0
"""Seconds from one urgent call to the next."""
Ask = Callable[[str, bool], Awaitable[object]]
"""Makes one call for a session id; True makes it urgent."""


@attrs.define(eq=False)
class Shared:
    """A provider for many sessions, with counts of its calls."""

    provider: Provider = attrs.field(init=False)
    ends: list[float] = attrs.field(factory=list)
    asked: dict[str, int] = attrs.field(factory=dict)
    """Number of admitted calls at the request of each urgent session."""
    _let_go: Callable[[], int] = attrs.field(init=False)
    is_done: bool = False
    waits: list[int] = attrs.field(factory=list)
    """Number of calls admitted before each urgent one."""

    def answer(self, request: ProviderRequest) -> Slow:
        if request.text in self.asked:
            self.waits.append(request.number - self.asked.pop(request.text) - 1)
        return Slow(ModelResponse(parts=(Text(ANSWER),), usage=USAGE), delay=1.0)

    async def measure(self, ask: Ask, sessions: int, *, let_go: Callable[[], int]) -> Figures:
        """Make one call for each session, all at once, and an urgent call at regular times."""
        await ask("the first", False)  # includes the cost of the first call of a client
        self._let_go = let_go
        watch = Stopwatch()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._be_urgent, ask)
            async with trio.open_nursery() as crowd:
                for number in range(sessions):
                    crowd.start_soon(self._talk, ask, f"s{number}")
            self.is_done = True
        expect(seen=len(self.ends) >= sessions, wanted=True, what="all were answered")
        expect(seen=len(self.waits) > 0, wanted=True, what="urgent calls came through")
        statistics = self.provider.statistics()
        rate = LIMITS.requests / LIMITS.period
        first, last = len(self.ends) // 5, int(len(self.ends) * 0.97)
        used = (last - first) / (self.ends[last] - self.ends[first]) / rate
        return {
            "refused_percent": 100 * statistics.refused / statistics.requests,
            "unused_percent": 100 * max(0.0, 1 - used),
            "urgent_calls": float(max(self.waits)),
            "call_us": watch.cpu_us(sessions),
        }

    async def _talk(self, ask: Ask, session: str, *, urgent: bool = False) -> None:
        await ask(session, urgent)
        self.ends.append(trio.current_time())

    async def _be_urgent(self, ask: Ask) -> None:
        number = 0
        while not self.is_done:
            await trio.sleep(URGENT_EVERY)
            number += 1
            self.asked[f"urgent {number}"] = self._let_go()
            await self._talk(ask, f"urgent {number}", urgent=True)


@asynccontextmanager
async def open_shared() -> AsyncGenerator[Shared]:
    """Open a provider with rate limits."""
    shared = Shared()
    async with open_provider(shared.answer, limits=LIMITS) as shared.provider:
        yield shared
