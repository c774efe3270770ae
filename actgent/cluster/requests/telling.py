"""The answer to a request, in pieces, each of which the broker confirms."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

import attrs
import trio
from pamqp import commands

from actgent.cluster.amqp import ChannelClosed, Delivery, NotConfirmed, Unroutable
from actgent.cluster.link import BrokerLink
from actgent.cluster.operations.figures import NodeFigures
from actgent.cluster.wire import USER, AnswerPiece, Message, encode_message, form_of, is_repeated, properties
from actgent.errors import BrokerLost, UsageError
from actgent.web.server.wired import has_moved

from .work import RequestWork

_OK = 200
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class CannotTell(trio.BrokenResourceError):
    """Nobody hears the answer, or it cannot be sent now."""


@attrs.define(eq=False)
class Telling:
    """Tells the answer to a request, in pieces: see `Tell`."""

    work: RequestWork
    link: BrokerLink
    figures: NodeFigures
    is_held: Callable[[], bool]
    """Tells whether another node is to have the partition."""
    note_begun: Callable[[RequestWork], None]
    """Hears that a stream has begun: whatever kills a node as it is begun has not."""
    is_sending: bool = False
    """True while the broker has not confirmed a piece that nobody waits for."""

    async def __call__(
        self,
        status: int,
        data: bytes,
        is_last: bool,  # noqa: FBT001 - as `Tell`
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        work = self.work
        if work.number == 0 and is_last and has_moved(status, data):
            work.has_moved = True
            return
        piece = self._piece(status, data, headers, is_last=is_last)
        if (work.is_read and not is_last) or (work.is_stop and is_last and self.is_held()):
            work.delivery.acknowledge()  # a stream has no end; a stop that was done may not stop what the next node runs
            self.note_begun(work)
        now = self.figures.now()
        if piece.number == 0 and not work.is_read:
            self.figures.note_answer(status, now - work.came_at)
        if not (is_last and self.send_last(piece, now)):
            await self.send(piece)

    def send_last(self, piece: AnswerPiece, now: float) -> bool:
        """Send the last piece if it goes at once, and have the request acknowledged when the broker has it."""
        self.work.is_confirming = not self.is_sending and self._send_now(piece, now)
        return self.work.is_confirming

    async def send(self, piece: AnswerPiece) -> None:
        """Send a piece, and wait until the broker has it."""
        begun = self.figures.now()
        try:
            await send_back(self.link, self.work.delivery, piece, priority=USER)
            self.figures.note_told(self.figures.now() - begun)
        except (Unroutable, BrokerLost, ChannelClosed, NotConfirmed) as error:
            self.work.gone.set()
            raise CannotTell from error

    def now(self, data: bytes) -> bool:
        if self.is_sending:
            return False
        work, number = self.work, self.work.number
        if not self._send_now(self._piece(_OK, data, NO_HEADERS, is_last=False), self.figures.now()):
            work.number = number
        return self.is_sending

    def _send_now(self, piece: AnswerPiece, now: float) -> bool:
        work, sent = self.work, _Sent(self, now)
        about = _about(work.delivery, USER)
        try:
            self.is_sending = self.link.publish_now(work.place[0], encode_message(piece), about, sent)
        except UsageError:  # it is too long: its own task hears of that
            return False
        return self.is_sending

    def _piece(self, status: int, data: bytes, headers: Mapping[str, str], *, is_last: bool) -> AnswerPiece:
        work = self.work
        piece = AnswerPiece(
            id=work.asked.id,
            number=work.number,
            status=status,
            data=data,
            is_last=is_last,
            headers=NO_HEADERS if work.number else headers,
            is_repeated=is_repeated(work.delivery),
        )
        work.number += 1
        return piece


@attrs.frozen(eq=False)
class _Sent:
    """A piece that nobody waits for; hears what the broker says of it."""

    telling: Telling
    begun: float

    def fulfil(self, _: None) -> None:
        self.telling.is_sending = False
        self.telling.figures.note_told(self.telling.figures.now() - self.begun)
        if self.telling.work.is_confirming:
            self.telling.work.delivery.acknowledge()

    def fail(self, error: Callable[[], Exception]) -> None:
        self.telling.is_sending = False
        self.telling.work.gone.set()
        if self.telling.work.is_confirming and isinstance(error(), Unroutable | NotConfirmed):
            self.telling.work.delivery.acknowledge()  # else it is the broker that is lost, and it comes again


async def send_back(link: BrokerLink, delivery: Delivery, message: Message, *, priority: int) -> None:
    """Send something to who asked, in the form of the question; raises as `BrokerLink.publish` does."""
    about = _about(delivery, priority)
    await link.publish(delivery.properties.reply_to or "", encode_message(message), about)


def _about(asked: Delivery, priority: int) -> commands.Basic.Properties:
    return _properties_of(form_of(asked.properties), priority)


@lru_cache(maxsize=64)
def _properties_of(form: int, priority: int) -> commands.Basic.Properties:
    """The same object for all answers of a form: nobody changes what goes out."""
    return properties(form=form, priority=priority)
