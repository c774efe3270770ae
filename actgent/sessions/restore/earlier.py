"""Messages of a session that stand in its journal only, made again from the records of a part of it."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import attrs

from actgent.errors import SessionNotFound
from actgent.journal.base import Journal
from actgent.journal.listing import SessionKey
from actgent.journal.records import ActionFailed, Changed, Record, RolledBack
from actgent.memory.base import ModelView
from actgent.messages import ChatMessage, Message, Sender
from actgent.sessions.context import SessionContext
from actgent.sessions.conversation import SessionConversation

from .reader import Reader
from .snapshot import BEGINNING, Mark

_PAGE = 3_000
"""Records that are read at once: a session that is written as fast as it can be has some 700 in one row of a journal."""
_WIDE = 10_000
"""Records between marks that are read as one part, at most."""


@attrs.frozen
class _Part:
    """What stands between two marks."""

    begin: Mark
    end: Mark

    def cut(self, messages: Sequence[Message], first: int, end: int) -> Sequence[Message]:
        """Return those of its messages whose places are in a range."""
        return messages[max(0, first - self.begin.messages) : max(0, end - self.begin.messages)]


@attrs.frozen
class JournalMessages:
    """The messages of a session up to a snapshot, by their places; see `EarlierMessages`."""

    journal: Journal
    key: SessionKey
    marks: tuple[Mark, ...]
    end: Mark
    """Of the snapshot, in which messages may wait."""

    async def read(self, first: int, end: int) -> Sequence[Message]:
        """Return those from the place `first` up to `end`.

        Raises:
            JournalError: they cannot be read.
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
            found += part.cut(messages_in(records[: part.end.records - part.begin.records]), first, end)
        return found

    def read_now(self, first: int, end: int) -> Sequence[Message]:
        """The same for who cannot wait: it holds the event loop."""
        found: list[Message] = []
        for part in self._parts(first, end):
            after, count = part.begin.records, part.end.records - part.begin.records
            page = self.journal.read_now(self.key.session_id, agent=self.key.agent, after=after, limit=count)
            whole = page[:count] if len(page) >= count else _lost(self.key)
            found += part.cut(messages_in(whole), first, end)
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
    """The messages that records from between two marks bring into a conversation."""
    context = SessionContext("", Sender("nobody"), SessionConversation(_NoView()))
    reader = Reader(context)
    for record in records:
        if not isinstance(
            record, Changed | ActionFailed | RolledBack
        ):  # of a state whose beginning is not read
            reader.read(record)
    return context.conversation.messages


class _NoView(ModelView):
    """Shows nothing."""

    def add(self, message: Message, *, answered: bool = False) -> None:
        """Forget it."""

    def messages(self) -> Sequence[ChatMessage]:
        return ()
