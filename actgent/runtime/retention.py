"""What leaves the journal by itself: sessions that were opened for one question, and with `Retention` those that are old.

A session goes with all that stands below it, in one step, and never while something in that tree is still to come: a turn,
an approval, a task, a schedule. The storage looks at that again in the transaction that erases. A session in memory is
held still for that moment: who wants to open it waits, what its state is told waits with its log, and a message is
refused as by a closed session.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import attrs
import trio

from actgent.control.clock import Clock
from actgent.errors import ConfigurationError, Fenced, JournalError, JournalFailed
from actgent.journal.base import Journal
from actgent.journal.listing import SessionFilter, SessionKey, State
from actgent.sessions.accounts import Accounts
from actgent.sessions.context import SessionContext

from .actor import AgentActor
from .directory import Directory
from .sessions.opener import SessionOpener

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
                continue
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
        """Erase these with all below them, but where somebody does something in a tree at this moment; returns what is gone."""
        trees = await self._trees([key for key in roots if self.journal.owns(key.session_id)])
        held: dict[SessionKey, Held | None] = {}
        with ExitStack() as still:
            quiet = [root for root, tree in trees.items() if self._hold_still(tree, held, still)]
            at_rest = [held[key] for root in quiet for key in trees[root]]
            gone = await self._erase_quiet(quiet, unchanged_since, at_rest) if quiet else ()
            erased = dict.fromkeys(key for each in gone for key in trees.get(each, (each,)))
            _forget(held.get(key) for key in erased)
        for key in erased:
            self.accounts.forget(key)
        return [*erased]

    async def _trees(self, roots: Sequence[SessionKey]) -> dict[SessionKey, dict[SessionKey, None]]:
        """Each of these with all that the journal has below it."""
        trees = {root: {root: None} for root in roots}
        level = {root: root for root in roots}
        while level:
            below = await self.journal.children_of([*level])
            level = {each.key: level[each.parent] for each in below if each.parent is not None}
            for key, root in level.items():
                trees[root][key] = None
        return trees

    async def _erase_quiet(
        self, roots: Sequence[SessionKey], until: float, held: Iterable[Held | None]
    ) -> Sequence[SessionKey]:
        """Erase trees that are held; where the journal fails they may be gone all the same."""
        try:
            return await self.journal.erase_trees(roots, unchanged_since=until)
        except JournalFailed:
            try:
                gone = [root for root in roots if await self.journal.head(*root) is None]
            except BaseException:
                _forget(held)  # one that is gone and goes on would be written without its beginning
                raise
            if not gone:
                raise
            return gone

    def _hold_still(
        self, tree: Collection[SessionKey], held: dict[SessionKey, Held | None], still: ExitStack
    ) -> bool:
        """Let nothing happen in some sessions until `still` ends; False where something does already."""
        for key in tree:
            if key in held:
                continue
            opener = self.agents.opener(key.agent) if key.agent in self.agents else None
            openings = self.agents.openings_of(key.agent)
            if key.session_id in openings or (opener is not None and not opener.may_erase(key.session_id)):
                return False
            still.enter_context(openings.block(key.session_id, erases=True))  # also for an agent that starts
            held[key] = each = None if opener is None else _hold(opener, key, still)
            if each is not None and any(child.key not in tree for child in each[1].family()):  # just made
                return False
        return True

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
            keys = [each.key for each in page]
            groups = [keys] if state == "closed" else [[key] for key in keys]  # open ones are held meanwhile
            for roots in groups:
                count += len(await self._erase(roots, unchanged_since=until))
            await trio.sleep(PAUSE)
        return count


def _hold(opener: SessionOpener, key: SessionKey, still: ExitStack) -> Held | None:
    """Hold a session still if it is in memory."""
    context = opener.running.sessions.find_any(key.session_id)
    if context is None:
        return None
    still.enter_context(_still(opener.running, context))
    return opener.running, context


def _forget(held: Iterable[Held | None]) -> None:
    """Have sessions leave memory that are gone, and write nothing any more."""
    known = [each for each in held if each is not None]
    for _, context in known:
        context.log = None
    for running, context in known:
        running.lifecycle.erase(context)


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
