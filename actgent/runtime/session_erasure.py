"""Erasure of sessions from the journal: one-request sessions after their end, and old sessions by `Retention`.

A session is erased together with all its descendants (its tree) in one transaction. A tree is not erased while a turn, approval,
task or schedule in the tree is pending. The storage checks this condition again in the transaction. A session in memory is
frozen during the erasure: tasks that open the session or change its state wait, and new messages are rejected.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import attrs
import trio

from actgent.errors import ConfigurationError, Fenced, JournalError, JournalFailed
from actgent.journal.journal_interface import Journal
from actgent.journal.session_list_queries import SessionFilter, SessionKey, State
from actgent.limits_and_schedules.clock import Clock
from actgent.sessions.budget_accounts import BudgetAccounts
from actgent.sessions.session_context import SessionContext
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.common_mistake_hints import hints_for_retention

from .agent_actor import AgentActor
from .agent_directory import Directory
from .sessions.session_opener import SessionOpener

GATHER_SECONDS = 1.0
"""Seconds for which ended sessions are collected before they are erased in one transaction."""
MAX_TREES_PER_TRANSACTION = 100
"""Maximum number of session trees per transaction. Other writers of the journal wait for the transaction."""
PAUSE_SECONDS = 0.05
"""Seconds between two transactions."""
INTERVAL_BOUNDS_SECONDS = (1.0, 3600.0)
"""Minimum and maximum seconds between searches for old sessions; the interval is a tenth of the retention time."""
RETRY_SECONDS = 60.0
"""Seconds until erasing is retried after a journal error."""
FINISH_TIMEOUT_SECONDS = 5.0
"""Maximum seconds for erasing ended sessions when the runtime closes. The next start erases the remaining sessions."""
FrozenSession = tuple[AgentActor, SessionContext]
"""Agent and context of a frozen session."""
_log = logging.getLogger(__name__)


def _seconds(value: object) -> float | None:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise ConfigurationError(
            f"an age of Retention must be seconds of at least 0 or a timedelta, not {value!r}"
        )
    return float(seconds)


@hints_for_retention
@attrs.frozen(kw_only=True, repr=False)
class Retention(FieldRepr):
    """Maximum age of sessions in a journal since their last change. None keeps sessions forever.

    Raises:
        ConfigurationError: A value is neither seconds of at least 0 nor a timedelta.
    """

    closed: float | timedelta | None = attrs.field(default=None, converter=_seconds)
    """Maximum age of closed sessions in seconds, or a timedelta; None keeps them."""
    idle: float | timedelta | None = attrs.field(default=None, converter=_seconds)
    """Maximum age of open sessions without pending work in seconds, or a timedelta. Older ones are closed and erased. None keeps them."""

    @property
    def pause(self) -> float:
        """Seconds between two searches for old sessions."""
        kept = [each for each in (self.closed, self.idle) if isinstance(each, float)]
        shortest, longest = INTERVAL_BOUNDS_SECONDS
        return min(max(min(kept) / 10, shortest), longest) if kept else math.inf


@attrs.define(eq=False, repr=False)
class RetentionJob(FieldRepr):
    """Erases sessions from the journal of one runtime, in the background."""

    journal: Journal
    agents: Directory
    accounts: BudgetAccounts
    clock: Clock
    retention: Retention
    _ended: dict[SessionKey, None] = attrs.field(factory=dict)
    """One-request sessions that have ended and are to be erased."""
    _deferred: dict[SessionKey, None] = attrs.field(factory=dict)
    """Ended one-request sessions that cannot be erased yet, because a descendant has pending work."""
    _arrived: trio.Event = attrs.field(factory=trio.Event)

    def schedule(self, key: SessionKey) -> None:
        """Schedule the erasure of a session that was created for one request and has ended."""
        self._ended[key] = None
        self._arrived.set()

    def drop_moved(self, has_moved: Callable[[str], bool]) -> None:
        """Remove the sessions whose ids `has_moved` accepts from the sessions to erase, because other processes own them now."""
        for keys in (self._ended, self._deferred):
            for key in [key for key in keys if has_moved(key.session_id)]:
                del keys[key]

    async def run(self) -> None:
        """Erase ended one-request sessions in groups, and erase old sessions at intervals, until cancelled.

        If the journal fails, log a warning and retry after a pause.
        """
        looked = -math.inf
        while True:
            try:
                if looked == -math.inf:
                    await self._erase_ended_earlier()
                if trio.current_time() >= looked + self.retention.pause or looked == -math.inf:
                    looked = trio.current_time()
                    await self._erase_old()
                await self.erase_ended()
            except (Fenced, JournalError) as error:
                _log.warning(
                    "sessions could not be erased, and stay in the journal until the next attempt: %s", error
                )
                await trio.sleep(RETRY_SECONDS)
                continue
            with trio.move_on_at(looked + self.retention.pause):
                await self._arrived.wait()
                await trio.sleep(GATHER_SECONDS)
            self._arrived = trio.Event()

    async def finish(self) -> None:
        """Erase the ended one-request sessions when the runtime closes, within a time limit. A failure is only logged."""
        with trio.move_on_after(FINISH_TIMEOUT_SECONDS):
            try:
                await self.erase_ended()
            except (Fenced, JournalError) as error:
                _log.warning(
                    "sessions could not be erased, and stay in the journal until the next start: %s", error
                )

    # --- sessions for one question -----------------------------------------------------------

    async def erase_ended(self) -> None:
        """Erase the one-request sessions that have ended in this process."""
        self._ended.update(self._deferred)
        self._deferred.clear()
        while self._ended:
            group = list(self._ended)[:MAX_TREES_PER_TRANSACTION]
            gone = set(await self._erase(group))
            for key in group:
                self._ended.pop(key, None)
                if key not in gone:
                    self._deferred[key] = None

    async def _erase_ended_earlier(self) -> None:
        """Erase the one-request sessions that ended in an earlier process."""
        while found := await self.journal.to_erase(MAX_TREES_PER_TRANSACTION):
            if not await self._erase(found):
                return

    async def _erase(
        self, roots: Sequence[SessionKey], *, unchanged_since: float = math.inf
    ) -> list[SessionKey]:
        """Erase the sessions `roots` with all descendants, except trees in use. Return the erased sessions.

        Trees that changed at or after the Unix time `unchanged_since` in seconds are not erased.
        """
        trees = await self._trees([key for key in roots if self.journal.owns(key.session_id)])
        held: dict[SessionKey, FrozenSession | None] = {}
        with ExitStack() as still:
            quiet = [root for root, tree in trees.items() if self._freeze_tree(tree, held, still)]
            at_rest = [held[key] for root in quiet for key in trees[root]]
            gone = await self._erase_frozen(quiet, unchanged_since, at_rest) if quiet else ()
            erased = dict.fromkeys(key for each in gone for key in trees.get(each, (each,)))
            _unload_erased(held.get(key) for key in erased)
        for key in erased:
            self.accounts.forget(key)
        return [*erased]

    async def _trees(self, roots: Sequence[SessionKey]) -> dict[SessionKey, dict[SessionKey, None]]:
        """Return, by root session, the keys of the root and of all its descendants in the journal."""
        trees = {root: {root: None} for root in roots}
        level = {root: root for root in roots}
        while level:
            below = await self.journal.children_of([*level])
            level = {each.key: level[each.parent] for each in below if each.parent is not None}
            for key, root in level.items():
                trees[root][key] = None
        return trees

    async def _erase_frozen(
        self, roots: Sequence[SessionKey], until: float, held: Iterable[FrozenSession | None]
    ) -> Sequence[SessionKey]:
        """Erase frozen session trees from the journal, and return the erased sessions.

        If the journal reports a failure although it has erased trees, the roots of these trees are returned. Trees that changed
        at or after the Unix time `until` in seconds are not erased. `held` has the frozen sessions in memory.

        Raises:
            JournalError: No tree was erased, or the journal cannot be read.
        """
        try:
            return await self.journal.erase_trees(roots, unchanged_since=until)
        except JournalFailed:
            try:
                gone = [root for root in roots if await self.journal.head(*root) is None]
            except BaseException:
                _unload_erased(
                    held
                )  # an erased session that stays loaded would write records without its first ones
                raise
            if not gone:
                raise
            return gone

    def _freeze_tree(
        self, tree: Collection[SessionKey], held: dict[SessionKey, FrozenSession | None], still: ExitStack
    ) -> bool:
        """Freeze all sessions of a tree until `still` is closed, and add them to `held`. A frozen session accepts no messages.

        Return False if one of the sessions is in use. `held` has an entry per session; None for a session that is not in memory.
        """
        for key in tree:
            if key in held:
                continue
            opener = self.agents.opener(key.agent) if key.agent in self.agents else None
            openings = self.agents.pending_opens_of(key.agent)
            if key.session_id in openings or (opener is not None and not opener.may_erase(key.session_id)):
                return False
            still.enter_context(
                openings.block(key.session_id, erases=True)
            )  # also blocks agents that start during the erasure
            held[key] = each = None if opener is None else _freeze_session(opener, key, still)
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
        """Erase the session trees whose root is in `state` and has not changed for `seconds`. None as `seconds` erases none.

        Return the number of erased sessions.
        """
        if not isinstance(seconds, float):
            return 0
        until, after, count = self.clock.now() - seconds, None, 0
        wanted = SessionFilter(roots=True, state=state, changed_before=until, oldest_first=True)
        while page := await self.journal.page(wanted, after=after, limit=MAX_TREES_PER_TRANSACTION):
            after = page[-1].cursor
            keys = [each.key for each in page]
            groups = (
                [keys] if state == "closed" else [[key] for key in keys]
            )  # one transaction per open tree, since its sessions are blocked during the erasure
            for roots in groups:
                count += len(await self._erase(roots, unchanged_since=until))
            await trio.sleep(PAUSE_SECONDS)
        return count


def _freeze_session(opener: SessionOpener, key: SessionKey, still: ExitStack) -> FrozenSession | None:
    """Freeze a session in memory until `still` is closed. A frozen session accepts no messages and writes no records.

    Return the agent and the context of the session; None if the session is not in memory.
    """
    context = opener.running.sessions.find_any(key.session_id)
    if context is None:
        return None
    still.enter_context(_frozen(opener.running, context))
    return opener.running, context


def _unload_erased(held: Iterable[FrozenSession | None]) -> None:
    """Remove erased sessions from memory. `held` has the frozen sessions, with None for each session that is not in memory."""
    known = [each for each in held if each is not None]
    for _, context in known:
        context.log = None
    for running, context in known:
        running.lifecycle.erase(context)


@contextmanager
def _frozen(running: AgentActor, context: SessionContext) -> Iterator[None]:
    """Return a block in which an idle session is frozen: it rejects messages and writes no records.

    After the block, the session accepts messages again, unless it was erased or another process owns it.
    """
    context.closed = True
    if context.log is not None:
        context.log.pause()
    try:
        yield
    finally:
        if context.log is not None:
            context.closed = context.has_moved
            context.log.unpause()
            if context.public_session is not None:  # the session may have been reloaded
                running.sessions.reload(context, context.public_session)
