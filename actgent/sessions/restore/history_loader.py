"""Loader of a session's older messages, which only the journal has."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import attrs

from actgent.errors import SessionNotFound
from actgent.journal.journal_interface import Journal
from actgent.journal.record_types import ActionFailureRecord, Record, StateChangeRecord, StateRollbackRecord
from actgent.journal.session_list_queries import SessionKey
from actgent.memory.memory_interface import ModelView
from actgent.messages import ChatMessage, Message, Sender
from actgent.sessions.conversation import SessionConversation
from actgent.sessions.session_context import SessionContext
from actgent.support.field_repr import FieldRepr

from .record_replayer import RecordReplayer
from .snapshot import BEGINNING, Mark

_PAGE = 3_000
"""Number of records per read. One row of a journal has up to about 700 records."""
_WIDE = 10_000
"""Maximum number of records between two marks for which they are read in one read."""


@attrs.frozen(repr=False)
class _Part(FieldRepr):
    """The records between two marks, and the messages that they contain."""

    begin: Mark
    end: Mark

    def messages_between(self, messages: Sequence[Message], first: int, end: int) -> Sequence[Message]:
        """Return the messages of this part whose positions are in a range."""
        return messages[max(0, first - self.begin.messages) : max(0, end - self.begin.messages)]


@attrs.frozen(repr=False)
class JournalMessages(FieldRepr):
    """Messages of a session from before a snapshot, read from the journal by position. Implements `EarlierMessages`."""

    journal: Journal
    """Journal of the session."""
    key: SessionKey
    """Key of the session."""
    marks: tuple[Mark, ...]
    """Record positions at which reading can start."""
    end: Mark
    """Position of the snapshot."""

    async def read(self, first: int, end: int) -> Sequence[Message]:
        """Return the messages from position `first` to position `end - 1`.

        Raises:
            JournalError: The messages cannot be read.
        """
        found: list[Message] = []
        for part in self._parts(first, end):
            records: list[Record] = []
            while (after := part.begin.records + len(records)) < part.end.records:
                limit = min(_PAGE, part.end.records - after)
                page = await self.journal.read(
                    self.key.session_id, agent=self.key.agent, after=after, limit=limit
                )
                records += page or _lost(self.key)
            found += part.messages_between(
                messages_in(records[: part.end.records - part.begin.records]), first, end
            )
        return found

    def read_blocking(self, first: int, end: int) -> Sequence[Message]:
        """Return the messages from position `first` to position `end - 1`, and block the event loop while reading."""
        found: list[Message] = []
        for part in self._parts(first, end):
            after, count = part.begin.records, part.end.records - part.begin.records
            page = self.journal.read_blocking(
                self.key.session_id, agent=self.key.agent, after=after, limit=count
            )
            whole = page[:count] if len(page) >= count else _lost(self.key)
            found += part.messages_between(messages_in(whole), first, end)
        return found

    def _parts(self, first: int, end: int) -> Iterator[_Part]:
        edges = [BEGINNING, *self.marks, self.end]
        part: _Part | None = None
        for begin, stop in pairwise(edges):
            if begin.messages >= end or stop.messages <= first:
                continue
            if part is not None and stop.records - part.begin.records <= _WIDE:
                part = _Part(part.begin, stop)
                continue
            if part is not None:
                yield part
            part = _Part(begin, stop)
        if part is not None:
            yield part


def _lost(key: SessionKey) -> tuple[Record, ...]:
    raise SessionNotFound(key.agent, key.session_id)


def messages_in(records: Iterable[Record]) -> Sequence[Message]:
    """Return the messages that these records add to the conversation.

    The records must begin and end at marks of a snapshot, so that no record refers to an earlier one.
    """
    context = SessionContext("", Sender("nobody"), SessionConversation(_NoView()))
    reader = RecordReplayer(context)
    for record in records:
        if not isinstance(
            record, StateChangeRecord | ActionFailureRecord | StateRollbackRecord
        ):  # state records need earlier ones, which are not read
            reader.read(record)
    return context.conversation.messages


class _NoView(ModelView):
    """Memory view that shows no messages, used while only the conversation is read."""

    def add(self, message: Message, *, answered: bool = False) -> None:
        """Ignore a message. A reader of old messages needs no view."""

    def messages(self) -> Sequence[ChatMessage]:
        return ()
