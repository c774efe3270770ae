"""Push notifications of A2A 1.0: a task is sent to the URLs of its configurations when it waits for input and when it ends.

Deliveries use the outbox of webhooks: they are retried, survive restarts, and are sent only to addresses that the gateway's
webhook for URLs of clients permits (`Webhook(None, ...)`, `actgent serve --notify-sessions`).
"""

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any
from weakref import WeakKeyDictionary

import attrs
import orjson
import trio

from actgent.errors import AddressBlocked, ConfigurationError, Fenced, JournalError
from actgent.journal.journal_interface import Journal, SessionSummary
from actgent.journal.record_feed_readers import WrittenBatch
from actgent.journal.record_types import MessageEndRecord, Record, SessionClosedRecord, SuspensionRecord
from actgent.journal.session_list_queries import SessionKey
from actgent.support.safe_logging import logger_of
from actgent.support.strict_json import encode_json
from actgent.web.gateway_context import GatewayContext
from actgent.web.streaming.session_events import find_message
from actgent.web.webhooks.delivery_cursors import DeliveryCursors
from actgent.web.webhooks.delivery_queue import DeliveryStream, Target
from actgent.web.webhooks.notifications_from_records import PAGE_SIZE, Notification
from actgent.web.webhooks.outbox import Outbox, session_keys
from actgent.web.webhooks.webhook import Webhook, check_url

from .errors import A2AError, invalid
from .json_conversion import Wire, object_param, text_param
from .push_notification_configs import PushConfig, PushConfigs
from .task_states import SEPARATOR, TaskState, read_task_states

MAX_TEXT_CHARS = 4000
"""Maximum length of a token, of credentials and of an id."""
_log = logger_of(__name__)
_CURSORS = "a2a-push-cursors"
_NOTIFIED = (SuspensionRecord, MessageEndRecord, SessionClosedRecord)


@attrs.frozen(kw_only=True)
class _TaskNotification(Notification):
    config: PushConfig
    is_last: bool
    """True if the task has ended, so that no later notification follows."""


class PushOutbox(Outbox):
    """Outbox that delivers the push notifications of the tasks of one gateway."""

    def __init__(
        self,
        webhook: Webhook,
        journal: Journal,
        cursors: DeliveryCursors,
        clients: AsyncExitStack,
        configs: PushConfigs,
    ) -> None:
        """Create an outbox for push notifications.

        Args:
            webhook: Webhook with the timeouts, pauses and permitted addresses of the deliveries.
            journal: Journal with the sessions of the tasks.
            cursors: Number of the last processed record of each session.
            clients: Exit stack that closes the HTTP clients.
            configs: Push notification configurations of the tasks.
        """
        super().__init__(webhook, journal, cursors, clients)
        self.configs = configs

    def _may_notify(self, batch: WrittenBatch) -> bool:
        return bool(self.configs.of_session(batch.key)) and any(
            isinstance(each, _NOTIFIED) for each in batch.records
        )

    async def _target_of(self, key: SessionKey) -> Target | None:
        configs = self.configs.of_session(key)
        return Target(url=configs[0].url, events=()) if configs else None

    async def _remove(self, key: SessionKey) -> None:
        await super()._remove(key)
        await self._drop(self.configs.of_session(key))

    async def _deliver_next(self, stream: DeliveryStream, notification: Notification) -> float | None:
        if isinstance(notification, _TaskNotification):
            known = self.configs.find(notification.config)
            if known is None:  # removed after the page was read
                return None
            if known != notification.config:  # replaced: read the page again
                return 0.0
        pause = await super()._deliver_next(stream, notification)
        if pause is None and isinstance(notification, _TaskNotification) and notification.is_last:
            await self._drop([notification.config])
        return pause

    async def _drop(self, configs: Iterable[PushConfig]) -> None:
        """Remove configurations of ended tasks. A failure is only logged: these configurations are removed with their session."""
        try:
            await self.configs.remove(configs)
        except (JournalError, Fenced) as error:
            _log.warning("a push notification configuration cannot be removed from the journal: %s", error)

    async def _read_page(
        self, head: SessionSummary, after: int, _events: Sequence[str]
    ) -> tuple[Sequence[Notification], int]:
        batches = await self._journal.read_batches(
            head.session_id, agent=head.agent, after=after, limit=PAGE_SIZE
        )
        found: list[Notification] = []
        number = after
        for batch in batches:
            for number, record in enumerate(batch.records, batch.first):
                if number > after and isinstance(record, _NOTIFIED):
                    found += await self._notifications(head, number, record, batch.at or 0.0)
        return found, max(number, after)

    async def _notifications(
        self, head: SessionSummary, number: int, record: Record, at: float
    ) -> list[_TaskNotification]:
        """Return the push notifications that a record of a session causes, one for each configuration of its task."""
        found: list[_TaskNotification] = []
        states: dict[str, TaskState | None] = {}
        only = getattr(record, "message_id", None)
        for config in self.configs.of_session(head.key):
            message_id = config.message_id
            if config.created_at != head.created_at:
                continue
            if number <= config.after or only not in (None, message_id):
                continue
            if message_id not in states:
                states[message_id] = await self._state_at(head, message_id, number, is_end=only is None)
            if (task := states[message_id]) is not None:
                found.append(self._notification(head, config, task, number, at))
        # After a failed delivery the page is read again from the record before, so that each receiver of a record gets it.
        return [attrs.evolve(each, number=number - 1) for each in found[:-1]] + found[-1:]

    async def _state_at(
        self, head: SessionSummary, message_id: str, number: int, *, is_end: bool
    ) -> TaskState | None:
        """Return the state of a task after a record, for a notification.

        Return None if the task is unknown, or if it had already ended when the session ended (`is_end`).
        """
        place = await find_message(self._journal, head.key, message_id, number)
        if place is None:
            return None

        async def read(records: int) -> TaskState | None:
            past = attrs.evolve(head, records=records)
            after = place.number - 1
            tasks = await read_task_states(self._journal, past, tuple, after=after, message_id=message_id)
            return tasks.get(message_id)

        before = await read(number - 1) if is_end else None
        return None if before is not None and before.has_ended else await read(number)

    def _notification(
        self, head: SessionSummary, config: PushConfig, task: TaskState, number: int, at: float
    ) -> _TaskNotification:
        words = orjson.dumps([config.entry, number, head.created_at])
        return _TaskNotification(
            id=f"msg_{hashlib.blake2b(words, digest_size=16, person=b'actgent.a2a').hexdigest()}",
            event="task",
            number=number,
            at=at,
            body=encode_json({"task": task.to_wire()}),
            target=Target(url=config.url, events=(), keys=session_keys(self.webhook, head.key, config.url)),
            headers=config.headers,
            config=config,
            is_last=task.has_ended,
        )


@attrs.define(eq=False)
class PushOutboxes:
    """Push notification outboxes of all gateways that serve A2A, one for each. They start when the gateway opens."""

    _started: WeakKeyDictionary[GatewayContext, PushOutbox] = attrs.field(factory=WeakKeyDictionary)
    _lock: trio.Lock = attrs.field(factory=trio.Lock)

    async def of(self, gateway: GatewayContext) -> PushOutbox | None:
        """Return the push notification outbox of a gateway, and start it at the first call.

        Return None if the gateway sends no notifications to URLs of clients.
        """
        webhook = gateway.session_webhook
        if webhook is None:
            return None
        async with self._lock:
            if (found := self._started.get(gateway)) is None:
                found = self._started[gateway] = await gateway.nursery.start(_run, gateway, webhook)
        return found

    async def require(self, gateway: GatewayContext) -> PushOutbox:
        """Return the push notification outbox of a gateway.

        Raises:
            A2AError: The gateway sends no notifications to URLs of clients.
        """
        if (found := await self.of(gateway)) is None:
            raise A2AError(
                "PUSH_NOTIFICATION_NOT_SUPPORTED",
                "this server does not support push notifications: start it with the option --notify-sessions",
            )
        return found


async def _run(
    gateway: GatewayContext,
    webhook: Webhook,
    *,
    task_status: trio.TaskStatus[PushOutbox] = trio.TASK_STATUS_IGNORED,
) -> None:
    journal = gateway.access.journal
    configs = await PushConfigs.load(journal)
    cursors = await DeliveryCursors.load(journal, _CURSORS, time.time())
    async with AsyncExitStack() as clients:
        outbox = PushOutbox(webhook, journal, cursors, clients, configs)
        task_status.started(outbox)
        await outbox.run()


async def read_config(
    webhook: Webhook, params: Mapping[str, Any], head: SessionSummary, message_id: str, *, field: str = ""
) -> PushConfig:
    """Parse the push notification configuration in a request. `field` is its path for errors, with a dot at its end.

    Raises:
        Problem: A value is invalid, or the gateway may not send notifications to this URL.
    """
    url = text_param(params, "url", field=f"{field}url")
    try:
        check_url(url)
        await webhook.check_reachable(url)
    except (ConfigurationError, AddressBlocked) as error:
        raise invalid(f"{field}url", str(error)) from error
    authentication = object_param(params, "authentication")
    scheme = _header_text(authentication, "scheme", f"{field}authentication.")
    if authentication and (not scheme or " " in scheme):
        raise invalid(f"{field}authentication.scheme", "must be one word such as Bearer")
    config_id = _header_text(params, "id", field)
    return PushConfig(
        id=config_id or hashlib.blake2b(url.encode(), digest_size=16).hexdigest(),
        agent=head.agent,
        session_id=head.session_id,
        message_id=message_id,
        created_at=head.created_at,
        url=url,
        after=head.records,
        token=_header_text(params, "token", field),
        scheme=scheme,
        credentials=_header_text(authentication, "credentials", f"{field}authentication."),
    )


def _header_text(params: Mapping[str, Any], name: str, field: str) -> str:
    """Return the text parameter `name`, which must be valid in an HTTP header; empty if the parameter is missing."""
    value = params.get(name)
    if value is None:
        return ""
    if (
        not isinstance(value, str)
        or len(value) > MAX_TEXT_CHARS
        or not value.isascii()
        or not value.isprintable()
    ):
        raise invalid(
            f"{field}{name}", f"must be a string of at most {MAX_TEXT_CHARS} printable ASCII characters"
        )
    return value.strip()


def to_wire(config: PushConfig) -> Wire:
    """Encode a push notification configuration for clients, without its token and credentials."""
    found: Wire = {
        "id": config.id,
        "taskId": f"{config.session_id}{SEPARATOR}{config.message_id}",
        "url": config.url,
    }
    if config.scheme:
        found["authentication"] = {"scheme": config.scheme}
    return found
