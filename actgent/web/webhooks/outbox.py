"""Outbox of one webhook: reads the journal feed and delivers the notifications of each session in the order of its records.

Only record numbers are held in memory; the body of a notification is read from the journal before it is sent. If
`MAX_STREAMS` sessions wait, further sessions are skipped. The journal is scanned for them when half of the streams are free.
"""

import random
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from email.utils import parsedate_to_datetime

import attrs
import httpx2
import trio

from actgent.errors import AddressBlocked, FeedLagged, JournalDamaged, JournalError, WireError
from actgent.errors.text_escaping import counted
from actgent.journal.journal_interface import Journal, SessionSummary
from actgent.journal.record_feed_readers import Erased, FeedReader, WrittenBatch
from actgent.journal.record_types import SessionCreatedRecord
from actgent.journal.session_list_queries import SessionFilter, SessionKey, is_internal
from actgent.support.safe_logging import LogVariable, logger_of
from actgent.toolsets.http.internal_address_blocking import Guard
from actgent.web import json_response_types

from .delivery_cursors import DeliveryCursors
from .delivery_queue import DeliveryQueue, DeliveryStream, Target
from .notifications_from_records import (
    Notification,
    has_notification,
    last_record_before,
    read_notifications,
    to_failed,
)
from .signatures import SigningKeys
from .webhook import EVENTS, Webhook

MAX_PAUSE_SECONDS = 3600.0
"""Maximum number of seconds between two attempts."""
_GONE = 410
_HEADERS = {"content-type": "application/json", "user-agent": "actgent-webhooks"}


@attrs.frozen(kw_only=True)
class Attempt:
    """Result of one attempt to deliver a notification."""

    problem: str = ""
    """Reason why the attempt failed; empty if it succeeded."""
    is_final: bool = False
    """True if the attempt failed and a retry cannot succeed."""
    pause: float = 0.0
    """Seconds to wait before the next attempt, from the header `Retry-After`; 0 if the receiver asked for no pause."""


async def deliver(
    client: httpx2.AsyncClient, url: str, notification: Notification, keys: SigningKeys, seconds: float
) -> Attempt:
    """Send a notification to a URL once, and return the result. Errors are not raised.

    Only the status and the header `Retry-After` of the response are read. `seconds` is the timeout.
    """
    headers = {
        **_HEADERS,
        **notification.headers,
        **keys.headers(notification.id, int(time.time()), notification.body),
    }
    with trio.move_on_after(seconds):
        try:
            request = client.build_request(
                "POST", url, headers=headers, content=notification.body, timeout=None
            )
            response = await client.send(request, stream=True)
            try:
                return _attempt_from(response)
            finally:
                with trio.CancelScope(deadline=trio.current_time() + 1, shield=True):
                    await response.aclose()
        except AddressBlocked as error:
            return Attempt(problem=str(error), is_final=True)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            return Attempt(problem=f"no response: {type(error).__name__}")
    return Attempt(problem=f"no response within {seconds:g} s")


def _attempt_from(response: httpx2.Response) -> Attempt:
    if response.is_success:
        return Attempt()
    if response.is_redirect:
        return Attempt(problem=f"the receiver redirects ({response.status_code}); redirects are not followed")
    return Attempt(
        problem=f"the receiver answered {response.status_code}",
        is_final=response.status_code == _GONE,
        pause=_retry_after(response.headers.get("retry-after", "")),
    )


def _retry_after(text: str) -> float:
    """Return the pause in seconds from the value of a `Retry-After` header (RFC 9110, 10.2.3); 0 if the value is invalid."""
    if text.isascii() and text.isdigit():
        return min(float(text[:6]), MAX_PAUSE_SECONDS)
    try:
        return min(max(0.0, parsedate_to_datetime(text).timestamp() - time.time()), MAX_PAUSE_SECONDS)
    except (TypeError, ValueError, OverflowError):
        return 0.0


MAX_STREAMS = 10_000
"""Maximum number of sessions with pending notifications."""
FEED_CAPACITY = 10_000
"""Maximum number of journal batches (records written together) queued for the outbox."""
JOURNAL_RETRY_SECONDS = 1.0
"""Seconds before a failed read of the journal is retried."""
MAX_LISTED_RETRIES = 100
"""Maximum number of sessions waiting for a retry that administrators see."""
_PAGE = 500
_ALL = SessionFilter()
_random = random.Random()  # noqa: S311 - spreads attempts, and is no secret
_log = logger_of(__name__)


class Outbox:
    """Outbox that reads the journal and delivers the notifications of one webhook."""

    def __init__(
        self, webhook: Webhook, journal: Journal, cursors: DeliveryCursors, clients: AsyncExitStack
    ) -> None:
        """Args: `clients` is the exit stack that closes the HTTP clients of the outbox."""
        self.webhook = webhook
        self.sent = 0
        """Number of notifications delivered since the gateway was opened."""
        self._journal = journal
        self._cursors = cursors
        self._clients: dict[Guard, httpx2.AsyncClient] = {}
        self._opened = clients
        self._queue = DeliveryQueue(self._deliver_page, self._finish)
        self._streams: dict[SessionKey, DeliveryStream] = {}
        self._targets: OrderedDict[SessionKey, Target | None] = OrderedDict()
        """Cache of delivery targets by session; None for a session without a webhook."""
        self._redelivered: set[str] = set()
        """Ids of failed notifications that are being sent again."""
        self._last_at = 0.0
        """Unix time in seconds of the last batch received from the feed."""
        self._is_complete = False
        """True if each session with pending notifications has a stream in memory."""
        self._is_full = False
        """True if sessions were skipped because of `MAX_STREAMS`."""
        self._scan_needed = trio.Event()
        """Event that is set when the journal must be scanned for skipped sessions."""
        self._scan_needed.set()

    @property
    def waiting(self) -> int:
        """Number of sessions with notifications that were not delivered yet."""
        return len(self._streams)

    def describe(self) -> json_response_types.WebhookDocument:
        """Return the webhook with its delivery counts and failed deliveries as a JSON object for administrators."""
        late: list[json_response_types.LateDelivery] = [
            {"agent": stream.key.agent, "session_id": stream.key.session_id, "attempts": stream.attempts}
            for stream in self._queue.waiting_for_retry(MAX_LISTED_RETRIES)
        ]
        return {
            "id": self.webhook.id,
            "url": self.webhook.shown_url,
            "events": self.webhook.events,
            "sent": self.sent,
            "waiting": self.waiting,
            "late": late,
            "failed": self._cursors.failed,
        }

    async def run(self) -> None:
        """Deliver notifications until the journal closes or the task is cancelled."""
        async with self._journal.feed(capacity=FEED_CAPACITY) as feed, trio.open_nursery() as nursery:
            nursery.start_soon(self._queue.run)
            nursery.start_soon(self._catch_up)
            await self._follow(feed)
            nursery.cancel_scope.cancel()

    # --- collecting notifications --------------------------------------------------------

    async def _follow(self, feed: FeedReader) -> None:
        """Queue the sessions of newly written records until the journal feed ends."""
        with suppress(trio.EndOfChannel):
            while True:
                if self._is_complete and not self._streams and not feed.has_news and self._last_at:
                    self._cursors.advance(self._last_at)
                await self._receive(feed)

    async def _receive(self, feed: FeedReader) -> None:
        try:
            item = await feed.receive()
            if isinstance(item, Erased):
                await self._remove(item.key)
            elif not is_internal(item.key):
                self._last_at = item.at or self._last_at
                await self._add_batch(item)
            await self._cursors.compact()
        except FeedLagged:
            self._request_scan()
        except JournalError as error:
            _log.warning("webhook %s cannot read the journal: %s", self.webhook.id, error)
            self._request_scan()
            await trio.sleep(JOURNAL_RETRY_SECONDS)

    def _request_scan(self) -> None:
        """Request a scan of the journal, because a session without a stream may have pending notifications."""
        self._is_complete = False
        self._scan_needed.set()

    async def _remove(self, key: SessionKey) -> None:
        self._targets.pop(key, None)
        self._cursors.reset(key)
        if (stream := self._streams.pop(key, None)) is not None:
            stream.is_erased = True

    async def _add_batch(self, batch: WrittenBatch) -> None:
        if not self._may_notify(batch):
            return
        if (stream := self._streams.get(batch.key)) is not None:
            stream.last = max(stream.last, batch.last)
        elif not self._is_complete:
            head = await self._journal.head(*batch.key)
            if head is not None and not self._is_full:
                await self._add_session(head)
        elif (target := await self._target_of(batch.key)) is not None:
            self._add(DeliveryStream(batch.key, target, batch.first - 1, batch.last))

    def _add(self, stream: DeliveryStream) -> None:
        if (existing := self._streams.get(stream.key)) is not None:
            existing.last = max(existing.last, stream.last)
        elif len(self._streams) >= MAX_STREAMS:
            self._is_full, self._is_complete = True, False
        else:
            self._streams[stream.key] = stream
            self._queue.add(stream)

    async def _catch_up(self) -> None:
        """Scan the journal for sessions with pending notifications, at the start and after each `_request_scan`."""
        while True:
            await self._scan_needed.wait()
            self._scan_needed = trio.Event()
            self._is_full = False
            try:
                await self._scan()
            except JournalError as error:
                _log.warning("webhook %s cannot read the journal: %s", self.webhook.id, error)
                await trio.sleep(JOURNAL_RETRY_SECONDS)
                self._request_scan()
            self._is_complete = not self._is_full and not self._scan_needed.is_set()

    async def _scan(self) -> None:
        """Queue the sessions that have changed since `DeliveryCursors.start`, the latest change first."""
        after, start = None, self._cursors.start
        while not self._is_full and (page := await self._journal.page(_ALL, after=after, limit=_PAGE)):
            for head in page:
                if head.updated_at < start or self._is_full:
                    return
                if not is_internal(head) and head.key not in self._streams:
                    await self._add_session(head)
            after = page[-1].cursor

    async def _add_session(self, head: SessionSummary) -> None:
        seen = self._cursors.seen(head.key)
        if seen is None or seen > head.records:
            seen = await last_record_before(self._journal, head, self._cursors.start)
        if seen < head.records and (target := await self._target_of(head.key)) is not None:
            self._add(DeliveryStream(head.key, target, seen, head.records))

    async def _target_of(self, key: SessionKey) -> Target | None:
        """Return the receiver of a session's notifications; None if notifications of the session are not sent."""
        if self.webhook.url is not None:
            return Target(url=self.webhook.url, events=self.webhook.events)
        if key not in self._targets:
            first = await self._journal.read(key.session_id, agent=key.agent, limit=1)
            self._targets[key] = self._session_target(key, first[0] if first else None)
        self._targets.move_to_end(key)
        while len(self._targets) > MAX_STREAMS:
            self._targets.popitem(last=False)
        return self._targets[key]

    def _session_target(self, key: SessionKey, opened: object) -> Target | None:
        if not isinstance(opened, SessionCreatedRecord) or not opened.notify:
            return None
        url, *events = opened.notify
        return Target(url=url, events=tuple(events), keys=session_keys(self.webhook, key, url))

    async def redeliver(self, ids: Collection[str] | None = None) -> list[json_response_types.FailedDelivery]:
        """Queue failed notifications again, with all retries. A notification stays in the failed list until it is delivered.

        Args:
            ids: Ids of the notifications; None for all failed notifications.

        Returns:
            The list entries of the queued notifications.
        """
        wanted = [each for each in self._cursors.failed if ids is None or each["webhook_id"] in ids]
        for each in wanted:
            key = SessionKey(each["agent"], each["session_id"])
            target = await self._target_of(key)
            if target is not None and each["webhook_id"] not in self._redelivered:
                self._redelivered.add(each["webhook_id"])
                number = each["number"]
                self._queue.add(
                    DeliveryStream(key, target, number - 1, number, redelivered_id=each["webhook_id"])
                )
        return wanted

    def _may_notify(self, batch: WrittenBatch) -> bool:
        """Return True if newly written records include one that may need a notification. Subclasses may report other records."""
        return has_notification(batch)

    async def _read_page(
        self, head: SessionSummary, after: int, events: Sequence[str]
    ) -> tuple[Sequence[Notification], int]:
        """Read one page of a session's records after the number `after`. Subclasses may read other notifications.

        Return the notifications for `events` and the number of the last record read.
        """
        return await read_notifications(self._journal, head, after, events)

    # --- delivering ----------------------------------------------------------------------

    async def _deliver_page(self, stream: DeliveryStream) -> float | None:
        """Deliver the notifications of one page of a stream's records, or the one notification that is sent again.

        Return the seconds until the retry if an attempt failed, else None.
        """
        events = EVENTS if stream.redelivered_id else stream.target.events
        try:
            head = await self._journal.head(*stream.key)
            found = None if head is None else await self._read_page(head, stream.seen, events)
        except (JournalDamaged, WireError) as error:
            _log.error(
                "webhooks of session %s stopped, because its records cannot be read: %s",
                LogVariable(stream.key.session_id),
                error,
            )
            stream.seen = stream.last
            return None
        except JournalError:
            return JOURNAL_RETRY_SECONDS
        notifications, last = found or ((), stream.last)
        if stream.redelivered_id:
            return await self._redeliver(stream, notifications)
        if head is None:  # the session was erased
            stream.is_erased = True
            return None
        has_more = last > stream.seen
        for notification in notifications:
            if stream.is_erased:  # the session was erased during a delivery
                break
            if (pause := await self._deliver_next(stream, notification)) is not None:
                return pause
        stream.seen = last if has_more else stream.last
        if not stream.is_erased:
            self._cursors.mark_in_memory(stream.key, stream.seen, head.updated_at)
        return None

    async def _redeliver(self, stream: DeliveryStream, notifications: Sequence[Notification]) -> float | None:
        """Deliver the failed notification of a stream again. If it no longer exists, remove it from the failed list.

        Return the seconds until the retry if the attempt failed, else None.
        """
        failed = next((each for each in notifications if each.id == stream.redelivered_id), None)
        if failed is None:
            self._cursors.remove_failed(stream.redelivered_id)
        elif (pause := await self._deliver(stream, failed)) is not None:
            return pause
        stream.seen = stream.last
        return None

    async def _deliver_next(self, stream: DeliveryStream, notification: Notification) -> float | None:
        """Deliver the next notification of a stream, and store the number of its record as processed.

        Return the seconds until the retry if the attempt failed, else None.
        """
        if (pause := await self._deliver(stream, notification)) is not None:
            return pause
        stream.attempts, stream.seen = 0, notification.number
        if not stream.is_erased:
            self._cursors.mark(stream.key, notification.number, notification.at)
        return None

    async def _deliver(self, stream: DeliveryStream, notification: Notification) -> float | None:
        """Send a notification once.

        Return the seconds until the retry. None means that the notification was delivered, or was added to the failed ones.
        """
        target, webhook = notification.target or stream.target, self.webhook
        attempt = await deliver(
            await self._client_for(target.url),
            target.url,
            notification,
            target.keys or webhook.keys(),
            webhook.timeout,
        )
        if attempt.problem:
            stream.first_failed_at = stream.first_failed_at if stream.attempts else trio.current_time()
            stream.attempts += 1
            if not attempt.is_final and trio.current_time() - stream.first_failed_at < webhook.retry_timeout:
                longest = min(self.webhook.pause * 2.0 ** min(stream.attempts - 1, 30), MAX_PAUSE_SECONDS)
                return max(longest * _random.uniform(0.5, 1.0), attempt.pause)
            self._record_failure(stream, notification, attempt)
        else:
            self.sent += 1
            self._cursors.remove_failed(notification.id)
        return None

    async def _client_for(self, url: str) -> httpx2.AsyncClient:
        """Return an HTTP client for a URL, which connects only to addresses that `Webhook.allow` permits for this URL."""
        guard = self.webhook.receivers.guard(url)
        if guard not in self._clients:
            client = self._clients[guard] = guard.client()
            self._opened.push_async_callback(client.aclose)
        return self._clients[guard]

    def _record_failure(self, stream: DeliveryStream, notification: Notification, attempt: Attempt) -> None:
        _log.warning(
            "webhook %s: notification %s of session %s failed after %s: %s",
            self.webhook.id,
            notification.event,
            LogVariable(stream.key.session_id),
            counted(stream.attempts, "attempt"),
            attempt.problem,
        )
        self._cursors.fail(to_failed(stream.key, notification, attempt.problem))

    def _finish(self, stream: DeliveryStream) -> None:
        self._redelivered.discard(stream.redelivered_id)
        if self._streams.get(stream.key) is stream:
            del self._streams[stream.key]
        if self._is_full and len(self._streams) <= MAX_STREAMS // 2:
            self._scan_needed.set()


def session_keys(webhook: Webhook, key: SessionKey, url: str) -> SigningKeys:
    """Return the signing keys for the URL that a client set for one session, derived from the keys of the webhook."""
    return webhook.keys().derive(*key, url)


@asynccontextmanager
async def open_outbox(webhook: Webhook, journal: Journal) -> AsyncGenerator[Outbox, None]:
    """Load the delivery cursors of a webhook and yield its outbox. When the block exits, its HTTP connections are closed.

    Raises:
        JournalError: The journal cannot be read or written.
    """
    cursors = await DeliveryCursors.load(journal, webhook.id, time.time())
    async with AsyncExitStack() as clients:
        yield Outbox(webhook, journal, cursors, clients)
