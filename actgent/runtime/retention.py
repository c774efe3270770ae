"""What leaves the journal by itself: sessions that were opened for one question, and with `Retention` those that are old.

A session goes with all that stands below it, in one step, and never while something in that tree is still to come: a turn,
an approval, a task, a schedule. The storage looks at that again in the transaction that erases. A session in memory is
held still for that moment: who wants to open it waits, what its state is told waits with its log, and a message is
refused as by a closed session.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import attrs
import trio

from actgent.control.clock import Clock
from actgent.errors import ConfigurationError, Fenced, JournalError
from actgent.journal.base import Journal
from actgent.journal.listing import SessionFilter, SessionKey, State
from actgent.sessions.accounts import Accounts
from actgent.sessions.context import SessionContext

from .actor import AgentActor
from .directory import Directory

GATHER = 1.0
"""Seconds in which sessions that have ended gather, to leave together."""
GROUP = 100
"""Trees that are erased in one transaction, or looked at together: those that write have to wait as long."""
PAUSE = 0.05
"""Seconds between two groups."""
INTERVAL_BOUNDS_SECONDS = (1.0, 3600.0)
"""Shortest and longest interval between searches for old sessions; within them, a tenth of the retention time."""
RETRY = 60.0
"""Seconds until the next try after the journal failed."""
FINISH = 5.0
"""Seconds that leaving a runtime takes at most to erase what has ended; the rest goes at the next start."""
Held = tuple[AgentActor, SessionContext]
_log = logging.getLogger(__name__)


def _seconds(value: object) -> float | None:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise ConfigurationError(f"Retention takes seconds, at least 0, or timedeltas, not {value!r}")
    return float(seconds)


@attrs.frozen(kw_only=True)
class Retention:
    """How long sessions stay in a journal after their last change; what is not given stays for ever.

    Raises:
        ConfigurationError: one of them is no time.
    """

    closed: float | timedelta | None = attrs.field(default=None, converter=_seconds)
    """The age at which closed sessions leave: seconds, or a timedelta."""
    idle: float | timedelta | None = attrs.field(default=None, converter=_seconds)
    """The same of open sessions in which nothing is still to come; they are closed by that."""

    @property
    def pause(self) -> float:
        """Seconds between two looks for what is old."""
        kept = [each for each in (self.closed, self.idle) if isinstance(each, float)]
        shortest, longest = INTERVAL_BOUNDS_SECONDS
        return min(max(min(kept) / 10, shortest), longest) if kept else math.inf


@attrs.define(eq=False)
class Sweeper:
    """Has sessions leave the journal of one runtime."""

    journal: Journal
    agents: Directory
    accounts: Accounts
    clock: Clock
    retention: Retention
    _ended: dict[SessionKey, None] = attrs.field(factory=dict)
    """Sessions that were opened for one question, and are over."""
    _kept: dict[SessionKey, None] = attrs.field(factory=dict)
    """Sessions among them below which something is still to come."""
    _arrived: trio.Event = attrs.field(factory=trio.Event)

    def note(self, key: SessionKey) -> None:
        """A session that was opened for one question is over."""
        self._ended[key] = None
        self._arrived.set()

    def leave(self, is_left: Callable[[str], bool]) -> None:
        """Let other processes erase what is theirs by now."""
        for keys in (self._ended, self._kept):
            for key in [key for key in keys if is_left(key.session_id)]:
                del keys[key]

    async def run(self) -> None:
        """Erase what is to leave, in groups, for as long as the runtime is open."""
        looked = -math.inf
        while True:
            try:
                if looked == -math.inf:
                    await self._erase_left_over()
                if trio.current_time() >= looked + self.retention.pause or looked == -math.inf:
                    looked = trio.current_time()
                    await self._erase_old()
                await self.erase_ended()
            except (Fenced, JournalError) as error:
                _log.warning("what is to leave the journal stays until later: %s", error)
                await trio.sleep(RETRY)
            with trio.move_on_at(looked + self.retention.pause):
                await self._arrived.wait()
                await trio.sleep(GATHER)
            self._arrived = trio.Event()

    async def finish(self) -> None:
        """Erase what has ended by now, as the runtime is left."""
        with trio.move_on_after(FINISH):
            try:
                await self.erase_ended()
            except (Fenced, JournalError) as error:
                _log.warning("what is to leave the journal stays until the next start: %s", error)

    # --- sessions for one question -----------------------------------------------------------

    async def erase_ended(self) -> None:
        """Erase sessions that were opened for one question, and are over."""
        self._ended.update(self._kept)
        self._kept.clear()
        while self._ended:
            group = list(self._ended)[:GROUP]
            gone = set(await self._erase(group))
            for key in group:
                self._ended.pop(key, None)
                if key not in gone:
                    self._kept[key] = None

    async def _erase_left_over(self) -> None:
        """Erase what had ended when the last process did."""
        while found := await self.journal.to_erase(GROUP):
            if not await self._erase(found):
                return

    async def _erase(
        self, roots: Sequence[SessionKey], *, unchanged_since: float = math.inf
    ) -> list[SessionKey]:
        own = [key for key in roots if self.journal.owns(key.session_id)]
        gone = await self.journal.erase_trees(own, unchanged_since=unchanged_since) if own else []
        for key in gone:
            self.accounts.forget(key)
        return gone

    # --- old ones ------------------------------------------------------------------------------

    async def _erase_old(self) -> None:
        counts = {
            "closed": await self._erase_older("closed", self.retention.closed),
            "idle": await self._erase_older("idle", self.retention.idle),
        }
        if any(counts.values()):
            _log.info("retention: %d closed and %d idle sessions left the journal", *counts.values())

    async def _erase_older(self, state: State, seconds: float | timedelta | None) -> int:
        """Erase the trees whose root is in a state, and did not change for so long; returns how many sessions that were."""
        if not isinstance(seconds, float):
            return 0
        until, after, count = self.clock.now() - seconds, None, 0
        wanted = SessionFilter(roots=True, state=state, changed_before=until, oldest_first=True)
        while page := await self.journal.page(wanted, after=after, limit=GROUP):
            after = page[-1].cursor
            if state == "closed":
                count += len(await self._erase([each.key for each in page], unchanged_since=until))
            else:
                for each in filter(lambda each: self.journal.owns(each.session_id), page):
                    count += await self._erase_idle(each.key, until)
            await trio.sleep(PAUSE)
        return count

    async def _erase_idle(self, root: SessionKey, until: float) -> int:
        """Erase an open session with all below it, if nobody does anything with them at this moment."""
        tree, level = [root], [root]
        while level:
            level = [each.key for each in await self.journal.children_of(level)]
            tree += level
        with self._held_still(tree) as contexts:
            if contexts is None:
                return 0
            gone = await self._erase([root], unchanged_since=until)
            if gone:
                for _, context in contexts:
                    context.log = None
                for running, context in contexts:
                    running.lifecycle.erase(context)
        return len(gone)

    @contextmanager
    def _held_still(self, tree: Sequence[SessionKey]) -> Iterator[list[Held] | None]:
        """Let nothing happen in some sessions meanwhile; None where something does already."""
        with ExitStack() as stack:
            contexts: list[Held] = []
            for key in tree:
                opener = self.agents.opener(key.agent) if key.agent in self.agents else None
                if opener is None:
                    continue
                if not opener.may_erase(key.session_id):
                    yield None
                    return
                stack.enter_context(opener.opens(key.session_id))
                context = opener.running.sessions.find_any(key.session_id)
                if context is not None:
                    stack.enter_context(_still(opener.running, context))
                    contexts.append((opener.running, context))
            yield contexts


@contextmanager
def _still(running: AgentActor, context: SessionContext) -> Iterator[None]:
    """Refuse messages of an idle session, and keep what is noted for its log; it goes on unless it was erased."""
    context.closed = True
    if context.log is not None:
        context.log.pause()
    try:
        yield
    finally:
        if context.log is not None:
            context.closed = context.has_moved
            context.log.unpause()
            if context.face is not None:  # perhaps it was reloaded meanwhile
                running.sessions.reload(context, context.face)
