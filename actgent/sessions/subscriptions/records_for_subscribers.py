"""Records and partial answers, as followers of a session receive them.

Records have numbers, and a reader continues after the last number that it has read. Partial answers are only for display, and the
final record replaces them. A reader stores the length of the text that it has received, so a late or slow reader receives all
missing text at once.
"""

import io
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator

import attrs

from actgent.journal.record_feed_readers import WrittenBatch
from actgent.journal.record_types import (
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    Record,
)
from actgent.messages import CallProgress, Token
from actgent.protocols.partial_answers import PartialAnswer
from actgent.sessions.session_context import SessionContext
from actgent.sessions.session_handlers import HandlerRegistration
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.fast_attrs_constructors import fast_init


@fast_init
@attrs.frozen(kw_only=True, repr=False)
class FollowedRecord(FieldRepr):
    """A record of a session, with its number and turn, as followers receive it."""

    number: int
    """Number of the record, from 1: the cursor of a reader that has processed the record."""
    at: float | None
    """Unix time in seconds at which the record was written; None for records of earlier versions."""
    turn: str
    """Id of the turn that the record belongs to, which is the id of the answered message; empty if it belongs to no turn."""
    record: Record
    """The journal record."""


@attrs.frozen(kw_only=True, repr=False)
class PartialText(FieldRepr):
    """New text of a partial answer, for display. It has no record number; the record of the final answer replaces it."""

    turn: str
    """Id of the turn that produces the answer, which is the id of the answered message. Its records may arrive later."""
    reply_id: str
    """Id of the answer that the text belongs to."""
    attempt: int = 0
    """Number of the model call's attempt, from 0. A new attempt discards the text of earlier attempts."""
    begin: int = 0
    """Length in characters of the text that was sent before; 0 at the start of an attempt."""
    text: str
    """New text of the answer, from position `begin` on."""


FollowedItem = FollowedRecord | PartialText | CallProgress
"""Items that a follower of a session receives."""


def _no_session() -> None:
    """Return None, like a dead weak reference. Default of a reader whose session is not in memory."""


@attrs.define(eq=False, repr=False)
class LiveText(FieldRepr):
    """Partial answer and tool progress of a session, shared by all followers of the session."""

    turn: str = ""
    """Id of the running turn, which is the id of the answered message; empty between turns."""
    reply_id: str = ""
    """Id of the partial answer; empty if no answer is being received."""
    attempt: int = 0
    """Number of the attempt of the model call that produces the answer, from 0."""
    progress: dict[str, CallProgress] = attrs.field(factory=dict)
    """Latest progress report of each running tool call, by call id."""
    _growth: PartialAnswer | None = None
    _text: io.StringIO = attrs.field(factory=io.StringIO)
    _wakers: "list[WakeableReader]" = attrs.field(factory=list)
    _thinkers: "list[WakeableReader]" = attrs.field(factory=list)
    """Readers that are also woken for new reasoning text."""
    _context: Callable[[], SessionContext | None] = _no_session
    """Weak reference to the session, so that readers do not keep the session in memory."""
    _attached: list[HandlerRegistration] = attrs.field(factory=list)

    @property
    def answer(self) -> object:
        """Object that identifies the current attempt of the model call. Each new attempt has another object."""
        return self._text

    @property
    def is_growing(self) -> bool:
        """True while an answer is being received. The record of a complete answer may arrive later."""
        context = self._context()
        turn = None if context is None else context.turn
        return turn is not None and self._growth is not None and turn.growth is self._growth

    @property
    def size(self) -> int:
        """Number of received characters of the partial answer."""
        return self._text.tell()

    def read(self, begin: int) -> str:
        """Return the received text of the partial answer from character index `begin` on."""
        self._text.seek(begin)
        return self._text.read()

    # --- its readers ---------------------------------------------------------------------

    def add(self, waker: "WakeableReader", *, thinks: bool = False) -> None:
        """Register a reader that is woken when the model has written new text.

        With `thinks`, new reasoning also wakes the reader.
        """
        self._wakers.append(waker)
        if thinks:
            self._thinkers.append(waker)

    def remove(self, waker: "WakeableReader") -> bool:
        """Remove a reader that `add` has registered. Return True if no reader remains."""
        self._wakers.remove(waker)
        if waker in self._thinkers:
            self._thinkers.remove(waker)
        if not self._wakers:
            self._detach()
        return not self._wakers

    def _detach(self) -> None:
        context, self._context = self._context(), _no_session
        if context is not None:
            context.handlers.drop(self._attached)

    # --- its session ---------------------------------------------------------------------

    def attach(self, context: SessionContext) -> None:
        """Subscribe to the partial answers and tool progress of a session in memory, starting with the text received so far.

        A repeated call with the same session does nothing.
        """
        if context is self._context():
            return
        self._detach()
        self._context = weakref.ref(context)
        tokens = context.handlers.add("token", self._add_token)
        growing = context.handlers.add("growing", self._grow)
        self._attached = [tokens, growing, context.handlers.add("tool_progress", self._add_progress)]
        turn = context.turn
        if turn is not None and context.log is not None:
            context.log.flush_soon(is_urgent=True)  # the start of the turn may wait for the first answer
        if turn is not None and turn.growth is not None:
            self._begin(context, turn.answer_id, 0)
            self._text.write(turn.growth.visible)

    def _add_token(self, token: Token) -> None:
        context = self._context()
        turn = None if context is None else context.turn
        if context is None or turn is None:
            return
        if turn.growth is not self._growth:
            self._begin(context, token.reply_id, token.attempt)
        self._text.seek(0, io.SEEK_END)
        self._text.write(token.text)
        self._wake()

    def _begin(self, context: SessionContext, reply_id: str, attempt: int) -> None:
        turn = context.turn
        assert turn is not None  # noqa: S101 - the turn has a partial answer
        self.turn, self.reply_id, self.attempt = turn.message.id, reply_id, attempt
        self._growth, self._text = turn.growth, io.StringIO()
        self.progress.clear()  # the calls of the previous answer have results

    @property
    def whole(self) -> "tuple[str, str, str]":
        """Id of the turn, id of the answer, and raw text of the partial answer so far.

        All are empty if no answer is being received, or if message guards still check the message.
        """
        context = self._context()
        turn = None if context is None else context.turn
        if turn is None or turn.growth is None or turn.gate is not None:
            return "", "", ""
        return turn.message.id, turn.answer_id, turn.growth.text.whole

    def _grow(self, _attempt: int) -> None:
        for waker in self._thinkers:
            waker.wake()

    def _add_progress(self, progress: CallProgress) -> None:
        self.progress[progress.call_id] = progress
        self._wake()

    def _wake(self) -> None:
        for waker in self._wakers:
            waker.wake()


class WakeableReader:
    """A reader that can be woken when new items arrive."""

    def wake(self) -> None:
        """Wake the reader, so that it checks for new items."""
        raise NotImplementedError


class TurnAssigner:
    """Assigns each record of a session to its turn, from the records before it."""

    def __init__(self, turn: str = "") -> None:
        """Args: `turn` is the id of the turn that is open before the first record; empty if no turn is open."""
        self._turn = turn
        self._messages = {turn}
        """Ids of the messages that the open turn answers."""

    def number_records(self, batch: WrittenBatch, after: int) -> Iterator[FollowedRecord]:
        """Yield the records of a written batch with a number above `after`, each with its record number, time and turn id."""
        for number, (record, turn) in enumerate(self.turns(batch), batch.first):
            if number > after:
                yield FollowedRecord(number=number, at=batch.at, turn=turn, record=record)

    def turns(self, batch: WrittenBatch) -> list[tuple[Record, str]]:
        """Return the records of a written batch, each with the id of its turn. The id is empty for records outside of a turn."""
        records, found = batch.records, list[tuple[Record, str]]()
        for following, record in enumerate(records, 1):
            if type(record) is MessageAppendedRecord:
                self._begin(record, records[following:])
            turn = (
                self._turn_of(record)
                if type(record) in (MessageAcceptedRecord, MessageEndRecord)
                else self._turn
            )
            found.append((record, turn))
        return found

    def _turn_of(self, record: Record) -> str:
        match record:
            case MessageAcceptedRecord(message=message):
                return message.id
            case MessageEndRecord(message_id=message_id) if message_id not in self._messages:
                return message_id
            case MessageEndRecord(message_id=message_id) if message_id == self._turn:
                self._turn = ""
                return message_id
        return self._turn

    def _begin(self, record: MessageAppendedRecord, later_records: Iterable[Record]) -> None:
        """Start a turn at the record of its first message. The id of the turn is the id of the last message that it answers.

        The following `later_records` may add further messages to the turn.
        """
        joins = itertools.takewhile(
            lambda each: isinstance(each, MessageAppendedRecord) and each.joins, later_records
        )
        ids = [
            record.message_id,
            *(each.message_id for each in joins if isinstance(each, MessageAppendedRecord)),
        ]
        self._messages = {*ids, *self._messages} if record.joins else {*ids}
        self._turn = ids[-1]


def turn_at_end(records: Iterable[Record]) -> str | None:
    """Return the id of the turn that is open after these records.

    Return an empty text if no turn is open, and None if the records do not show it.
    """
    turn: str | None = None
    for record in records:
        match record:
            case MessageAppendedRecord(message_id=message_id):
                turn = message_id
            case MessageEndRecord(message_id=message_id) if turn in (None, message_id):
                turn = ""
    return turn
