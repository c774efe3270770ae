"""A channel: calls whose answers come in their order, messages out, and messages in."""

import functools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import trio
from pamqp import base, commands
from pamqp.common import FieldValue

from actgent.errors import MessageTooLarge, UsageError
from actgent.errors.printable import shown
from actgent.support.logs import logger_of

from .awaited import Awaited, MakeError
from .consuming import Consumer, Delivery
from .content import MAX_MESSAGE, Assembly, Content
from .failures import ChannelClosed, ConsumerCancelled, ProtocolError
from .framing import AnyFrame
from .frequent import Whole, encode_ack
from .publishing import Confirms, Hearer

UNCONFIRMED = 1000
"""Messages of one channel that wait for the broker's word, at most; whoever publishes more waits before."""
Arguments = Mapping[str, FieldValue]
F = TypeVar("F", bound=base.Frame)
_log = logger_of(__name__)


class Outlet(Protocol):
    """The way out of a channel: its connection."""

    frame_max: int

    def send(self, channel: int, *frames: AnyFrame) -> None: ...
    def send_content(
        self,
        channel: int,
        exchange: str,
        key: str,
        body: bytes,
        properties: commands.Basic.Properties,
        *,
        mandatory: bool,
    ) -> None: ...
    def write(self, data: bytes) -> None: ...
    async def wait_writable(self) -> None: ...
    @property
    def is_writable(self) -> bool: ...


class Channel:
    """One line of work with a broker; made by `connection.open_channel`. What the broker refuses closes it, and nothing else."""

    def __init__(self, number: int, outlet: Outlet, on_free: Callable[[int], object]) -> None:
        """Args: `on_free` hears when the number may be used again."""
        self.number = number
        self._outlet = outlet
        self._on_free = on_free
        self._closed: MakeError | None = None
        self._is_closing = False
        """True if we have said that it ends, and the broker has not yet."""
        self._calls: deque[tuple[base.Frame, Awaited[base.Frame]]] = deque()
        """What was asked and not answered; the broker answers in the order of the questions."""
        self._confirms: Confirms | None = None
        self._room = trio.Event()
        """Set when there is room again for messages that are not confirmed."""
        self._consumers: dict[str, Consumer] = {}
        self._numbers = 0
        self._prefetch = 0
        self._held: dict[int, Consumer] = {}
        """Deliveries that are not settled, and their consumers."""
        self._assembly = Assembly()

    @property
    def is_closed(self) -> bool:
        """True if nothing goes through it any more."""
        return self._closed is not None

    # --- calls -----------------------------------------------------------------------------

    async def open(self, *, prefetch: int, confirms: bool) -> None:
        """Have the broker know of it; called once. Cancelled, it is closed."""
        try:
            await self._ask(commands.Channel.Open())
            if prefetch:
                await self._ask(commands.Basic.Qos(prefetch_count=prefetch))
            if confirms:
                await self._ask(commands.Confirm.Select())
        except BaseException:
            self.close()
            raise
        self._prefetch = prefetch
        self._confirms = Confirms() if confirms else None

    async def _ask(self, question: base.Frame) -> base.Frame:
        """Send a method, and wait for its answer; cancelled, the answer is dropped when it comes."""
        return await self._begin(question).wait()

    def _begin(self, question: base.Frame) -> Awaited[base.Frame]:
        answer = Awaited[base.Frame]()
        self._send(question)
        self._calls.append((question, answer))
        return answer

    async def declare_queue(
        self,
        name: str = "",
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        passive: bool = False,
        arguments: Arguments | None = None,
    ) -> commands.Queue.DeclareOk:
        """Have a queue; `passive` only looks. Its name, messages and consumers; without a name the broker gives one.

        Raises:
            ChannelClosed: there is one of another kind (406), or of another connection (405); passive, there is none (404).
        """
        asked = commands.Queue.Declare(
            queue=name,
            passive=passive,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=dict(arguments or {}),
        )
        return _expect(commands.Queue.DeclareOk, await self._ask(asked))

    async def declare_durable_queues(self, forms: Mapping[str, Arguments]) -> None:
        """Have durable queues, by their names with their arguments, in one round trip; raises as `declare_queue`."""
        asked = [
            self._begin(commands.Queue.Declare(queue=name, durable=True, arguments=dict(arguments)))
            for name, arguments in forms.items()
        ]
        for each in asked:
            await each.wait()

    async def delete_queue(self, name: str, *, if_empty: bool = False) -> int:
        """Delete a queue; returns how many messages were in it. Nothing happens where there is none.

        Raises:
            ChannelClosed: with `if_empty`, it is not empty (406).
        """
        asked = commands.Queue.Delete(queue=name, if_empty=if_empty)
        return _expect(commands.Queue.DeleteOk, await self._ask(asked)).message_count or 0

    async def begin_transactions(self) -> None:
        """Have what is sent and acknowledged take effect together with `commit`, or not at all; for channels that do not confirm."""
        await self._ask(commands.Tx.Select())

    async def commit(self) -> None:
        """Have all of it take effect since the last time; raises `ChannelClosed`, `BrokerLost`: it has, or it has not."""
        await self._ask(commands.Tx.Commit())

    async def delete_exchange(self, name: str) -> None:
        """Delete an exchange; nothing happens where there is none."""
        await self._ask(commands.Exchange.Delete(exchange=name))

    async def declare_exchange(self, name: str, kind: str = "direct", *, durable: bool = False) -> None:
        """Have an exchange; raises `ChannelClosed` where there is one of another kind."""
        await self._ask(commands.Exchange.Declare(exchange=name, exchange_type=kind, durable=durable))

    async def bind(self, queue: str, exchange: str, routing_key: str = "") -> None:
        """Have a queue get what an exchange is given under a key."""
        await self._ask(commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=routing_key))

    # --- out ------------------------------------------------------------------------------

    async def publish(
        self,
        routing_key: str,
        body: bytes,
        properties: commands.Basic.Properties | None = None,
        *,
        exchange: str = "",
    ) -> None:
        """Send a message, and return when a queue has it. Cancelled or lost, it may be there or not.

        It waits while the broker takes nothing (`connection.is_blocked`). `correlation_id` is not the message's own.

        Raises:
            UsageError: the channel does not confirm, or the message is too long, or no AMQP.
            Unroutable: no queue takes it.
            NotConfirmed: the broker did not take it.
            ChannelClosed, BrokerLost: nobody knows whether it did.
        """
        confirms = self._confirms
        if confirms is None:
            raise UsageError("publish() is for channels that confirm: open_channel(confirms=True), or send()")
        if not self._outlet.is_writable:
            await self._outlet.wait_writable()
        while len(confirms.waiting) >= UNCONFIRMED and self._closed is None:
            if self._room.is_set():
                self._room = trio.Event()
            await self._room.wait()
        self._check_open()
        properties = properties or commands.Basic.Properties()
        properties.correlation_id = str(confirms.next_number)
        self._publish(exchange, routing_key, body, properties, mandatory=True)
        await confirms.expect().wait()

    def publish_now(
        self, routing_key: str, body: bytes, properties: commands.Basic.Properties, hearer: Hearer
    ) -> bool:
        """Send a message if it goes at once, without an exchange; `hearer` hears what `publish` returns or raises.

        Returns False if it does not: nothing was sent.

        Raises:
            UsageError: as `publish`.
        """
        confirms = self._confirms
        if confirms is None:
            raise UsageError("publish_now() is for channels that confirm: open_channel(confirms=True)")
        is_full = len(confirms.waiting) >= UNCONFIRMED
        if self._closed is not None or is_full or not self._outlet.is_writable:
            return False
        properties.correlation_id = str(confirms.next_number)
        self._publish("", routing_key, body, properties, mandatory=True)
        confirms.expect_for(hearer)
        return True

    def send(
        self,
        routing_key: str,
        body: bytes,
        properties: commands.Basic.Properties | None = None,
        *,
        exchange: str = "",
    ) -> bool:
        """Send a message of which nobody hears again; False where it is dropped, as too much waits, or all is lost.

        Raises:
            UsageError: the channel confirms, or the message is too long, or no AMQP.
        """
        if self._confirms is not None:
            raise UsageError(
                "send() is for channels that do not confirm: its number would be that of another message"
            )
        if self._closed is not None or not self._outlet.is_writable:
            return False
        self._publish(exchange, routing_key, body, properties or commands.Basic.Properties(), mandatory=False)
        return True

    async def send_certainly(
        self, routing_key: str, body: bytes, properties: commands.Basic.Properties
    ) -> None:
        """Send a message in a transaction; waits while too much waits. Raises as `send`, and if all is lost."""
        await self._outlet.wait_writable()
        self._check_open()
        self._publish("", routing_key, body, properties, mandatory=False)

    def _publish(
        self, exchange: str, key: str, body: bytes, properties: commands.Basic.Properties, *, mandatory: bool
    ) -> None:
        if len(body) > MAX_MESSAGE:
            raise MessageTooLarge("the broker", len(body), MAX_MESSAGE)
        self._check_open()
        self._outlet.send_content(self.number, exchange, key, body, properties, mandatory=mandatory)

    # --- in --------------------------------------------------------------------------------

    async def consume(
        self,
        queue: str,
        *,
        exclusive: bool = False,
        arguments: Arguments | None = None,
        take: Callable[[Delivery], object] | None = None,
    ) -> Consumer:
        """Take what a queue delivers, at most the channel's `prefetch` of it unacknowledged; use it as a block.

        With `take` that gets each delivery as soon as it comes, which may be before this returns; it must not raise.

        Raises:
            UsageError: the channel has no prefetch, so that nothing would bound what comes.
            ChannelClosed: there is no such queue (404), or it is exclusively another one's (403, 405).
        """
        if not self._prefetch:
            raise UsageError("a consumer needs a bound: open_channel(prefetch=...)")
        self._check_open()
        self._numbers += 1
        consumer = Consumer(f"{self.number}.{self._numbers}", self._leave, take)
        self._consumers[consumer.tag] = consumer
        asked = commands.Basic.Consume(
            queue=queue, consumer_tag=consumer.tag, exclusive=exclusive, arguments=dict(arguments or {})
        )
        try:
            await self._ask(asked)
        except BaseException:
            consumer.cancel()
            raise
        return consumer

    def _leave(self, consumer: Consumer) -> None:
        """A consumer takes no more. What is on its way to it goes back when it comes."""
        if self._consumers.pop(consumer.tag, None) is not None and self._closed is None:
            self._send(commands.Basic.Cancel(consumer_tag=consumer.tag, nowait=True))
        consumer.end(functools.partial(ConsumerCancelled, "the consumer's block was left"))
        for delivery in reversed(consumer.take_back()):
            delivery.requeue()

    def _settle(self, delivery: Delivery, is_done: bool) -> None:  # noqa: FBT001 - private
        if delivery.is_settled or self._closed is not None:
            return
        delivery.is_settled = True
        self._held.pop(delivery.tag).held -= 1
        if is_done:
            self._outlet.write(encode_ack(self.number, delivery.tag))
        else:
            self._send(commands.Basic.Nack(delivery.tag, requeue=True))

    # --- closing -----------------------------------------------------------------------------

    def close(self) -> None:
        """End it: what was delivered and not acknowledged goes back. Its number is used again when the broker has heard of it."""
        if self._closed is None:
            self._send(commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
            self._is_closing = True
            self.fail(functools.partial(ChannelClosed, "it was closed here"))

    def fail(self, error: MakeError) -> None:
        """All who wait for something hear that it will not come."""
        if self._closed is not None:
            return
        self._closed = error
        for _, answer in self._calls:
            answer.fail(error)
        for consumer in self._consumers.values():
            consumer.take_back()
            consumer.end(error)
        if self._confirms is not None:
            self._confirms.fail(error)
        self._room.set()
        self._calls.clear()
        self._consumers.clear()
        self._held.clear()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed()

    def _send(self, *frames: AnyFrame) -> None:
        self._check_open()
        self._outlet.send(self.number, *frames)

    # --- what the broker says ----------------------------------------------------------------

    def take(self, frame: AnyFrame | Whole) -> None:
        """A frame for this channel came, or a message that is whole.

        Raises:
            ProtocolError: it is not one that may come now.
        """
        if isinstance(frame, tuple):
            self._take_whole(frame)
        elif self._is_closing:
            self._take_last(frame)
        elif (
            self._assembly.is_begun
            or not isinstance(frame, base.Frame)
            or isinstance(frame, commands.Basic.Deliver | commands.Basic.Return)
        ):
            self._add(frame)
        elif isinstance(frame, commands.Basic.Ack | commands.Basic.Nack):
            self._confirm(frame)
        elif isinstance(frame, commands.Basic.Cancel):
            self._cancel_consumer(frame)
        elif isinstance(frame, commands.Channel.Close):
            self._end(frame)
        else:
            self._answer(frame)

    def _take_whole(self, whole: Whole) -> None:
        method, properties, body = whole
        if self._assembly.is_begun:
            raise ProtocolError(f"a {method.name} came where a message goes on")
        if not self._is_closing:
            self._deliver(Content(method, properties, body), method)

    def _take_last(self, frame: AnyFrame) -> None:
        """We have said that it ends: all else was on its way by then."""
        if isinstance(frame, commands.Channel.Close):  # we have met in the middle
            self._outlet.send(self.number, commands.Channel.CloseOk())
        elif isinstance(frame, commands.Channel.CloseOk):
            self._on_free(self.number)

    def _answer(self, frame: base.Frame) -> None:
        if not self._calls:
            raise ProtocolError(f"{frame.name} answers nothing that was asked")
        question, answer = self._calls[0]
        if frame.name not in question.valid_responses:
            raise ProtocolError(f"{frame.name} is no answer to {question.name}")
        self._calls.popleft()
        answer.fulfil(frame)

    def _end(self, frame: commands.Channel.Close) -> None:
        self._outlet.send(self.number, commands.Channel.CloseOk())
        why = f"{frame.reply_code} {shown(frame.reply_text)}"
        self.fail(functools.partial(ChannelClosed, why, frame.reply_code or 0))
        self._on_free(self.number)

    def _confirm(self, frame: commands.Basic.Ack | commands.Basic.Nack) -> None:
        if self._confirms is None:
            raise ProtocolError(f"{frame.name} on a channel that does not confirm")
        is_taken = isinstance(frame, commands.Basic.Ack)
        self._confirms.settle(frame.delivery_tag or 0, multiple=frame.multiple, is_taken=is_taken)
        if len(self._confirms.waiting) < UNCONFIRMED:
            self._room.set()

    def _cancel_consumer(self, frame: commands.Basic.Cancel) -> None:
        consumer = self._consumers.pop(frame.consumer_tag or "", None)
        if consumer is not None:
            consumer.end(functools.partial(ConsumerCancelled, "the broker took its queue away"))

    def _add(self, frame: AnyFrame) -> None:
        content = self._assembly.add(frame)
        if content is None:
            return
        if isinstance(content.method, commands.Basic.Deliver):
            self._deliver(content, content.method)
        elif self._confirms is not None:
            self._confirms.note_return(content, content.method.reply_text or "")

    def _deliver(self, content: Content, method: commands.Basic.Deliver) -> None:
        tag, consumer = method.delivery_tag or 0, self._consumers.get(method.consumer_tag or "")
        if tag in self._held:
            raise ProtocolError(f"delivery {tag} came twice")
        if consumer is None:  # its block was left meanwhile
            self._send(commands.Basic.Nack(tag, requeue=True))
            return
        if consumer.held >= self._prefetch:
            raise ProtocolError(f"more than {self._prefetch} deliveries that are not acknowledged")
        if not content.is_readable:
            self._reject(tag, method)
            return
        self._held[tag] = consumer
        consumer.held += 1
        consumer.deliver(Delivery(content, tag, method.redelivered, self._settle))

    def _reject(self, tag: int, method: commands.Basic.Deliver) -> None:
        """Have the broker drop a message that nobody can read: put back, it would come again for good."""
        _log.error(
            "a message that was sent to %s is rejected, as it is longer than %s bytes, or its properties cannot be read as AMQP "
            "0-9-1: find who sends it, and take their right to write to the queues of the cluster; a dead-letter-exchange in a "
            "policy keeps such messages",
            shown(method.routing_key or ""),
            f"{MAX_MESSAGE:,}",
        )
        self._send(commands.Basic.Nack(tag, requeue=False))


def _expect(kind: type[F], frame: base.Frame) -> F:
    """The answer to a question that has only one."""
    assert isinstance(frame, kind)  # noqa: S101 - it is a valid response
    return frame
