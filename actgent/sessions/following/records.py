"""What a session's followers get: its records with their numbers and turns, and what grows meanwhile.

Records have numbers, and who knows the last one that it has seen reads on from there. What grows is for display: the
record voids it. So a reader holds no piece of it, only how much of it was shown; whoever comes late, or is slow, gets
all that is new at once.
"""

import io
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator

import attrs

from actgent.journal.feed import Written
from actgent.journal.records import Accepted, Appended, Ended, Record
from actgent.messages import CallProgress, Token
from actgent.protocols.growing import Growth
from actgent.sessions.context import SessionContext
from actgent.sessions.handlers import Attached
from actgent.support.quick_init import quick_init


@quick_init
@attrs.frozen(kw_only=True)
class Followed:
    """A record of a session."""

    number: int
    """The session's cursor, once this was read."""
    at: float | None
    """When it was written: Unix time in seconds; None in records of earlier versions."""
    turn: str
    """The id of the outside message whose turn it belongs to; empty where it belongs to none."""
    record: Record


@attrs.frozen(kw_only=True)
class Growing:
    """What is new of an answer that grows. It has no number: the record of the answer voids it."""

    turn: str
    """The outside message whose turn it belongs to, whose records may come later than this."""
    reply_id: str
    attempt: int = 0
    begin: int = 0
    """Characters of this answer that were shown before; 0 begins it, also anew, where a former attempt is void."""
    text: str


Follow = Followed | Growing | CallProgress
"""What a follower gets."""


def _nowhere() -> None:
    """Stand for a session that is not in memory."""


@attrs.define(eq=False)
class LiveText:
    """The answer of a session that grows, and the progress of its calls, as its followers see them."""

    turn: str = ""
    reply_id: str = ""
    attempt: int = 0
    progress: dict[str, CallProgress] = attrs.field(factory=dict)
    """The latest of each call."""
    _growth: Growth | None = None
    _text: io.StringIO = attrs.field(factory=io.StringIO)
    _wakers: "list[Waker]" = attrs.field(factory=list)
    _thinkers: "list[Waker]" = attrs.field(factory=list)
    """Of these, those that want thoughts."""
    _context: Callable[[], SessionContext | None] = _nowhere
    """The session, as long as it is in memory; to be followed does not keep it there."""
    _attached: list[Attached] = attrs.field(factory=list)

    @property
    def answer(self) -> object:
        """Another one with each answer, and with each attempt at one."""
        return self._text

    @property
    def is_growing(self) -> bool:
        """True if more may come of this answer; the record of one that is whole may be on its way still."""
        context = self._context()
        turn = None if context is None else context.turn
        return turn is not None and self._growth is not None and turn.answer.growth is self._growth

    @property
    def size(self) -> int:
        """Characters that it has."""
        return self._text.tell()

    def read(self, begin: int) -> str:
        """Return what it has behind so many characters."""
        self._text.seek(begin)
        return self._text.read()

    # --- its readers ---------------------------------------------------------------------

    def add(self, waker: "Waker", *, thinks: bool = False) -> None:
        """Have a reader woken when there is more; with `thinks` of the thoughts in an answer, too."""
        self._wakers.append(waker)
        if thinks:
            self._thinkers.append(waker)

    def remove(self, waker: "Waker") -> bool:
        """Forget a reader; returns whether it was the last, so that nobody is there any more."""
        self._wakers.remove(waker)
        if waker in self._thinkers:
            self._thinkers.remove(waker)
        if not self._wakers:
            self._detach()
        return not self._wakers

    def _detach(self) -> None:
        context, self._context = self._context(), _nowhere
        if context is not None:
            context.handlers.drop(self._attached)

    # --- its session ---------------------------------------------------------------------

    def attach(self, context: SessionContext) -> None:
        """Hear what grows in a session that is in memory, from what it has by now."""
        if context is self._context():
            return
        self._detach()
        self._context = weakref.ref(context)
        tokens = context.handlers.add("token", self._take)
        growing = context.handlers.add("growing", self._grow)
        self._attached = [tokens, growing, context.handlers.add("tool_progress", self._take_progress)]
        turn = context.turn
        if turn is not None and context.log is not None:
            context.log.flush_soon(is_awaited=True)  # the start of the turn may wait for the first answer
        if turn is not None and turn.answer.growth is not None:
            self._begin(context, turn.answer.id, 0)
            self._text.write(turn.answer.growth.visible)

    def _take(self, token: Token) -> None:
        context = self._context()
        turn = None if context is None else context.turn
        if context is None or turn is None:
            return
        if turn.answer.growth is not self._growth:
            self._begin(context, token.reply_id, token.attempt)
        self._text.seek(0, io.SEEK_END)
        self._text.write(token.text)
        self._wake()

    def _begin(self, context: SessionContext, reply_id: str, attempt: int) -> None:
        turn = context.turn
        assert turn is not None  # noqa: S101 - something of it grows
        self.turn, self.reply_id, self.attempt = turn.message.id, reply_id, attempt
        self._growth, self._text = turn.answer.growth, io.StringIO()
        self.progress.clear()  # the calls of the answer before have their results

    @property
    def whole(self) -> "tuple[str, str, str]":
        """The turn, the answer and all of its text as the model has written it, while it grows; empty where none does."""
        context = self._context()
        turn = None if context is None else context.turn
        if turn is None or turn.answer.growth is None or turn.answer.gate is not None:
            return "", "", ""
        return turn.message.id, turn.answer.id, turn.answer.growth.text.whole

    def _grow(self, _attempt: int) -> None:
        for waker in self._thinkers:
            waker.wake()

    def _take_progress(self, progress: CallProgress) -> None:
        self.progress[progress.call_id] = progress
        self._wake()

    def _wake(self) -> None:
        for waker in self._wakers:
            waker.wake()


class Waker:
    """A reader that waits."""

    def wake(self) -> None:
        """Look again."""
        raise NotImplementedError


class TurnNames:
    """Which turn a record belongs to, of records in their order."""

    def __init__(self, turn: str = "") -> None:
        """Args: `turn` is the one that goes on before the first record."""
        self._turn = turn
        self._messages = {turn}
        """Those that it answers."""

    def name(self, step: Written, after: int) -> Iterator[Followed]:
        """The records of a step behind a number, with their turns."""
        for number, (record, turn) in enumerate(self.turns(step), step.first):
            if number > after:
                yield Followed(number=number, at=step.at, turn=turn, record=record)

    def turns(self, step: Written) -> list[tuple[Record, str]]:
        """The records of a step, each with its turn."""
        records, found = step.records, list[tuple[Record, str]]()
        for place, record in enumerate(records, 1):
            if type(record) is Appended:
                self._begin(record, records[place:])
            turn = self._turn_of(record) if type(record) in (Accepted, Ended) else self._turn
            found.append((record, turn))
        return found

    def _turn_of(self, record: Record) -> str:
        match record:
            case Accepted(message=message):
                return message.id
            case Ended(message_id=message_id) if message_id not in self._messages:
                return message_id
            case Ended(message_id=message_id) if message_id == self._turn:
                self._turn = ""
                return message_id
        return self._turn

    def _begin(self, record: Appended, behind: Iterable[Record]) -> None:
        """A turn is named by the last of the messages that it answers together."""
        joins = itertools.takewhile(lambda each: isinstance(each, Appended) and each.joins, behind)
        ids = [record.message_id, *(each.message_id for each in joins if isinstance(each, Appended))]
        self._messages = {*ids, *self._messages} if record.joins else {*ids}
        self._turn = ids[-1]


def turn_at_end(records: Iterable[Record]) -> str | None:
    """The turn that goes on behind these records; empty is none, None that they do not tell."""
    turn: str | None = None
    for record in records:
        match record:
            case Appended(message_id=message_id):
                turn = message_id
            case Ended(message_id=message_id) if turn in (None, message_id):
                turn = ""
    return turn
