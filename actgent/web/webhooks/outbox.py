"""The outbox of one webhook: follows the feed, and tells the receiver session by session, in the order of the records.

Nothing is kept of what waits but the numbers of records: what is sent is read from the journal. Beyond `MAX_LINES`
sessions nothing is taken up; when there is room again, the journal is asked what was missed, as after a start.
"""

import random
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx2
import trio

from actgent.errors import FeedLagged, JournalDamaged, JournalError, WireError
from actgent.errors.printable import counted
from actgent.journal.base import Journal, SessionSummary
from actgent.journal.feed import Erased, FeedReader, Written
from actgent.journal.listing import SessionFilter, SessionKey
from actgent.journal.records import Opened
from actgent.sessions.owner_accounts import is_holder
from actgent.support.logs import Each, logger_of
from actgent.toolsets.http import Guard

from .cursors import DeliveryCursors
from .delivery import MAX_PAUSE, Attempt, deliver
from .lanes import Lanes, Line, Target
from .notifications import Notification, first_behind, may_tell, read_notifications, to_failed
from .signing import SigningKeys
from .webhook import EVENTS, Webhook

MAX_LINES = 10_000
"""Sessions that wait at a time."""
CAPACITY = 10_000
"""Steps that may wait for the outbox."""
JOURNAL_PAUSE = 1.0
"""Seconds after which a journal that failed is read again."""
LISTED = 100
"""Sessions that wait for a further attempt, as administrators are shown them."""
_PAGE = 500
_ALL = SessionFilter()
_random = random.Random()  # noqa: S311 - spreads attempts, and is no secret
_log = logger_of(__name__)


class Outbox:
    """One webhook at work."""

    def __init__(
        self, webhook: Webhook, journal: Journal, cursors: DeliveryCursors, clients: AsyncExitStack
    ) -> None:
        """Args: `clients` closes the HTTP clients at the end of the block."""
        self.webhook = webhook
        self.sent = 0
        """Notifications that were taken, since the gateway was opened."""
        self._journal = journal
        self._cursors = cursors
        self._clients: dict[Guard, httpx2.AsyncClient] = {}
        self._opened = clients
        self._lanes = Lanes(self._tell, self._finish)
        self._lines: dict[SessionKey, Line] = {}
        self._targets: OrderedDict[SessionKey, Target | None] = OrderedDict()
        """Where the notifications of sessions go, of those that were asked for last."""
        self._again: set[str] = set()
        """Ids of what was given up and is sent again."""
        self._last_at = 0.0
        """When the last step was written that was seen."""
        self._is_whole = False
        """True: each session with something to tell has its line."""
        self._is_full = False
        self._look = trio.Event()
        """Set when the journal is to be asked what was missed."""
        self._look.set()

    @property
    def waiting(self) -> int:
        """The number of sessions that have something to tell."""
        return len(self._lines)

    def describe(self) -> dict[str, Any]:
        """What administrators are shown of it."""
        late = [
            {"agent": line.key.agent, "session_id": line.key.session_id, "attempts": line.attempts}
            for line in self._lanes.late(LISTED)
        ]
        counts = {"sent": self.sent, "waiting": self.waiting, "late": late}
        return {**self.webhook.describe(), **counts, "failed": [dict(each) for each in self._cursors.failed]}

    async def run(self) -> None:
        """Tell what happens, until the journal's block is left or it is cancelled."""
        async with self._journal.feed(capacity=CAPACITY) as feed, trio.open_nursery() as nursery:
            nursery.start_soon(self._lanes.run)
            nursery.start_soon(self._catch_up)
            await self._follow(feed)
            nursery.cancel_scope.cancel()

    # --- what is to be told --------------------------------------------------------------

    async def _follow(self, feed: FeedReader) -> None:
        """Take up what is written, to the end of the feed."""
        with suppress(trio.EndOfChannel):
            while True:
                if self._is_whole and not self._lines and not feed.has_news and self._last_at:
                    self._cursors.settle(self._last_at)
                await self._take_next(feed)

    async def _take_next(self, feed: FeedReader) -> None:
        try:
            item = await feed.receive()
            if isinstance(item, Erased):
                self._forget(item.key)
            elif not is_holder(item.key):
                self._last_at = item.at or self._last_at
                await self._take(item)
            await self._cursors.shorten()
        except FeedLagged:
            self._miss()
        except JournalError as error:
            _log.warning("webhook %s cannot read the journal: %s", self.webhook.id, error)
            self._miss()
            await trio.sleep(JOURNAL_PAUSE)

    def _miss(self) -> None:
        """Some session may have something to tell, and no line."""
        self._is_whole = False
        self._look.set()

    def _forget(self, key: SessionKey) -> None:
        self._targets.pop(key, None)
        self._cursors.forget(key)
        if (line := self._lines.pop(key, None)) is not None:
            line.is_over = True

    async def _take(self, step: Written) -> None:
        if not may_tell(step):
            return
        if (line := self._lines.get(step.key)) is not None:
            line.known = max(line.known, step.last)
        elif not self._is_whole:
            head = await self._journal.head(*step.key)
            if head is not None and not self._is_full:
                await self._look_at(head)
        elif (target := await self._target_of(step.key)) is not None:
            self._add(Line(step.key, target, step.first - 1, step.last))

    def _add(self, line: Line) -> None:
        if (there := self._lines.get(line.key)) is not None:
            there.known = max(there.known, line.known)
        elif len(self._lines) >= MAX_LINES:
            self._is_full, self._is_whole = True, False
        else:
            self._lines[line.key] = line
            self._lanes.add(line)

    async def _catch_up(self) -> None:
        """Take up all sessions that may have something to tell, at the start and whenever some were missed."""
        while True:
            await self._look.wait()
            self._look = trio.Event()
            self._is_full = False
            try:
                await self._look_at_all()
            except JournalError as error:
                _log.warning("webhook %s cannot read the journal: %s", self.webhook.id, error)
                await trio.sleep(JOURNAL_PAUSE)
                self._miss()
            self._is_whole = not self._is_full and not self._look.is_set()

    async def _look_at_all(self) -> None:
        """Look at the sessions that changed since the place of before, the latest first."""
        after, start = None, self._cursors.start
        while not self._is_full and (page := await self._journal.page(_ALL, after=after, limit=_PAGE)):
            for head in page:
                if head.updated_at < start or self._is_full:
                    return
                if not is_holder(head) and head.key not in self._lines:
                    await self._look_at(head)
            after = page[-1].cursor

    async def _look_at(self, head: SessionSummary) -> None:
        seen = self._cursors.seen(head.key)
        if seen is None or seen > head.records:
            seen = await first_behind(self._journal, head, self._cursors.start)
        if seen < head.records and (target := await self._target_of(head.key)) is not None:
            self._add(Line(head.key, target, seen, head.records))

    async def _target_of(self, key: SessionKey) -> Target | None:
        """Where a session's notifications go; None: nowhere."""
        if self.webhook.url is not None:
            return Target(url=self.webhook.url, events=self.webhook.events)
        if key not in self._targets:
            first = await self._journal.read(key.session_id, agent=key.agent, limit=1)
            self._targets[key] = self._own_target(key, first[0] if first else None)
        self._targets.move_to_end(key)
        while len(self._targets) > MAX_LINES:
            self._targets.popitem(last=False)
        return self._targets[key]

    def _own_target(self, key: SessionKey, opened: object) -> Target | None:
        if not isinstance(opened, Opened) or not opened.notify:
            return None
        url, *events = opened.notify
        return Target(url=url, events=tuple(events), keys=session_keys(self.webhook, key, url))

    async def redeliver(self, ids: Collection[str] | None = None) -> list[Mapping[str, Any]]:
        """Send again what was given up, in its own turn and as patiently as before; each stays listed until it is taken.

        Args:
            ids: Of what is sent; None is all that is listed.

        Returns:
            What is sent, as it is listed.
        """
        wanted = [each for each in self._cursors.failed if ids is None or each["webhook_id"] in ids]
        for each in wanted:
            key = SessionKey(each["agent"], each["session_id"])
            target = await self._target_of(key)
            if target is not None and each["webhook_id"] not in self._again:
                self._again.add(each["webhook_id"])
                number = each["number"]
                self._lanes.add(Line(key, target, number - 1, number, again=each["webhook_id"]))
        return wanted

    # --- telling it ----------------------------------------------------------------------

    async def _tell(self, line: Line) -> float | None:
        """Tell a page of a session; returns the seconds to the next attempt where one failed."""
        if line.again:
            return await self._tell_again(line)
        try:
            head = await self._journal.head(*line.key)
            if head is None:  # erased meanwhile
                line.is_over = True
                return None
            notifications, last = await read_notifications(self._journal, head, line.seen, line.target.events)
        except (JournalDamaged, WireError) as error:
            _log.error("webhooks of session %s end here: %s", Each(line.key.session_id), error)
            line.seen = line.known
            return None
        except JournalError:
            return JOURNAL_PAUSE
        has_more = last > line.seen
        for notification in notifications:
            if (pause := await self._tell_one(line, notification)) is not None:
                return pause
        line.seen = last if has_more else line.known
        if not line.is_over:
            self._cursors.note(line.key, line.seen, head.updated_at)
        return None

    async def _tell_again(self, line: Line) -> float | None:
        """Tell the one notification of a line that was given up before; of an erased session it is listed no more."""
        try:
            head = await self._journal.head(*line.key)
            found = [] if head is None else await self._read_one(head, line)
        except (JournalDamaged, WireError) as error:
            _log.error("webhooks of session %s end here: %s", Each(line.key.session_id), error)
            line.seen = line.known
            return None
        except JournalError:
            return JOURNAL_PAUSE
        if not found:
            self._cursors.redeem(line.again)
        elif (pause := await self._deliver(line, found[0])) is not None:
            return pause
        line.seen = line.known
        return None

    async def _read_one(self, head: SessionSummary, line: Line) -> list[Notification]:
        found, _ = await read_notifications(self._journal, head, line.seen, EVENTS)
        return [each for each in found if each.id == line.again]

    async def _tell_one(self, line: Line, notification: Notification) -> float | None:
        """Tell one notification; returns the seconds to the next attempt where one failed."""
        if (pause := await self._deliver(line, notification)) is not None:
            return pause
        line.attempts, line.seen = 0, notification.number
        if not line.is_over:
            self._cursors.mark(line.key, notification.number, notification.at)
        return None

    async def _deliver(self, line: Line, notification: Notification) -> float | None:
        """Send a notification once; returns the seconds to the next attempt, or None where it was taken or given up."""
        target, webhook = line.target, self.webhook
        attempt = await deliver(
            await self._client_for(target.url),
            target.url,
            notification,
            target.keys or webhook.keys(),
            webhook.timeout,
        )
        if attempt.problem:
            line.began = line.began if line.attempts else trio.current_time()
            line.attempts += 1
            if not attempt.is_final and trio.current_time() - line.began < webhook.patience:
                return self._pause_of(line, attempt)
            self._give_up(line, notification, attempt)
        else:
            self.sent += 1
            self._cursors.redeem(notification.id)
        return None

    async def _client_for(self, url: str) -> httpx2.AsyncClient:
        """Return the client whose guard opens what `Webhook.allow` opens for a URL."""
        guard = self.webhook.receivers.guard(url)
        if guard not in self._clients:
            client = self._clients[guard] = guard.client()
            self._opened.push_async_callback(client.aclose)
        return self._clients[guard]

    def _give_up(self, line: Line, notification: Notification, attempt: Attempt) -> None:
        _log.warning(
            "webhook %s: %s of session %s is given up after %s: %s",
            self.webhook.id,
            notification.event,
            Each(line.key.session_id),
            counted(line.attempts, "attempt"),
            attempt.problem,
        )
        self._cursors.fail(to_failed(line.key, notification, attempt.problem))

    def _pause_of(self, line: Line, attempt: Attempt) -> float:
        longest = min(self.webhook.pause * 2.0 ** min(line.attempts - 1, 30), MAX_PAUSE)
        return max(longest * _random.uniform(0.5, 1.0), attempt.pause)

    def _finish(self, line: Line) -> None:
        self._again.discard(line.again)
        if self._lines.get(line.key) is line:
            del self._lines[line.key]
        if self._is_full and len(self._lines) <= MAX_LINES // 2:
            self._look.set()


def session_keys(webhook: Webhook, key: SessionKey, url: str) -> SigningKeys:
    """What the notifications of one session are signed with, at the address that its client gave."""
    return webhook.keys().derived(*key, url)


@asynccontextmanager
async def open_outbox(webhook: Webhook, journal: Journal) -> AsyncGenerator[Outbox, None]:
    """What tells the sessions of a runtime by its journal, with its place in there and its connections, for the block.

    Raises:
        JournalError: the journal cannot be read or written.
    """
    cursors = await DeliveryCursors.load(journal, webhook.id, time.time())
    async with AsyncExitStack() as clients:
        yield Outbox(webhook, journal, cursors, clients)
