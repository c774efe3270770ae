"""Messages of a session by who said them, and when, and what one of them has to do with.

They are looked for page by page, so that a long session is never in memory whole.
"""

from collections.abc import Collection
from datetime import datetime
from typing import get_args

import attrs

from actgent.control.arguments import at_least_one
from actgent.errors import ConfigurationError, nearest
from actgent.messages import Message, SenderKind, ToolCall, ToolResult
from actgent.sessions.conversation import MessagePage, SessionConversation

from .observations import Observed

PAGE = 200
"""Messages that are looked at together."""
_ROLES: tuple[SenderKind, ...] = get_args(SenderKind)


@attrs.frozen(kw_only=True)
class MessageFilter:
    """Which messages are wanted."""

    before: int | None = None
    """Those before this place."""
    after: int | None = None
    """Those behind this place."""
    until: float | None = None
    """Those from before this Unix time."""
    since: float | None = None
    """Those from behind this Unix time."""
    roles: frozenset[SenderKind] | None = None

    @classmethod
    def of(
        cls,
        before: int | datetime | None,
        after: int | datetime | None,
        roles: Collection[SenderKind] | None,
    ) -> "MessageFilter":
        """The filter for the arguments of `Session.messages`.

        Raises:
            ConfigurationError: two places are given, a date has no time zone, or a role is none.
        """
        if isinstance(before, int) and isinstance(after, int):
            raise ConfigurationError("a page is before= a place or after= one, not both")
        return cls(
            before=before if isinstance(before, int) else None,
            after=after if isinstance(after, int) else None,
            until=_seconds("before", before) if isinstance(before, datetime) else None,
            since=_seconds("after", after) if isinstance(after, datetime) else None,
            roles=None if roles is None else _checked_roles(roles),
        )

    @property
    def is_forward(self) -> bool:
        """True where the first behind a place or date are wanted, and not the newest."""
        return self.after is not None or (
            self.since is not None and self.until is None and self.before is None
        )

    def wants(self, message: Message) -> bool:
        """Return True if a message was said by one of the roles, at a time that is wanted."""
        at = message.created_at
        if (self.until is not None and at >= self.until) or (self.since is not None and at <= self.since):
            return False
        return self.roles is None or message.sender.kind in self.roles


def _seconds(name: str, date: datetime) -> float:
    if date.tzinfo is None:
        raise ConfigurationError(f"{name}= is a date with a time zone, e.g. datetime.now(UTC), not {date!r}")
    return date.timestamp()


def _checked_roles(roles: Collection[SenderKind]) -> frozenset[SenderKind]:
    if isinstance(roles, str):
        raise ConfigurationError(f"roles= is a list of kinds of senders, e.g. ({roles!r},), not a text")
    for role in roles:
        if role not in _ROLES:
            raise ConfigurationError(f"there is no role {role!r}: {nearest(str(role), _ROLES)}")
    return frozenset(roles)


async def read_matching(
    conversation: SessionConversation, wanted: MessageFilter, *, limit: int
) -> MessagePage:
    """Read at most so many of the wanted messages: the first behind a place or date, or else the newest.

    Raises:
        ConfigurationError: `limit` is less than 1.
    """
    at_least_one("limit", limit)
    found: list[tuple[int, Message]] = []
    total = len(conversation.messages)
    begin = 0 if wanted.after is None else min(max(0, wanted.after + 1), total)
    end = total if wanted.before is None else min(max(0, wanted.before), total)
    while begin < end and len(found) < limit:
        place = {"after": begin - 1} if wanted.is_forward else {"before": end}
        page = await conversation.read(limit=min(PAGE, end - begin), **place)
        here = [(place, each) for place, each in enumerate(page, page.first) if wanted.wants(each)]
        if wanted.is_forward:
            begin, found = page.first + len(page), [*found, *here][:limit]
        else:
            end, found = page.first, [*here, *found][-limit:]
    first, last = (found[0][0], found[-1][0]) if found else (begin, -1)
    return MessagePage(tuple(each for _, each in found), first, total, last)


# --- what a message has to do with ---------------------------------------------------------


@attrs.frozen(kw_only=True)
class MessageLinks:
    """What one message of a session has to do with."""

    message: Message
    turn: str
    """The id of the outside message that began its turn, and the correlation id of all that it led to."""
    traceparent: str | None
    """W3C Trace Context in which the turn was asked for; None where its sender had none."""
    cause: str | None
    """The id of the message that led to it."""
    effects: tuple[str, ...]
    """The ids of those that it led to, oldest first."""
    calls: tuple[ToolCall, ...]
    """Tool calls of the message, or of its turn where it was said from outside."""
    results: tuple[ToolResult, ...]
    """Their results, as far as there are any."""
    observations: tuple[Observed, ...] = ()

    @property
    def trace_id(self) -> str | None:
        """The 32 digits by which the trace is found; None where there is none."""
        return None if self.traceparent is None else self.traceparent.split("-")[1]

    def concerns(self, observed: Observed) -> bool:
        """Return True if an observation of its turn is of this message, or it was said from outside."""
        if self.message.id == self.turn:
            return True
        ids = {self.message.id, *(call.id for call in self.calls)}
        return any(observed.id == each or observed.id.startswith(f"{each}/") for each in ids)


async def find_links(conversation: SessionConversation, message_id: str) -> MessageLinks:
    """Find what a message has to do with, from what was said; observations stand in the journal.

    Raises:
        ConfigurationError: there is no such message.
    """
    known, end = list[Message](), len(conversation.messages)
    while end > 0 and not any(_begins(each, message_id, known) for each in known):
        page = await conversation.read(limit=PAGE, before=end)
        known, end = [*page, *known], page.first
    message = next((each for each in known if each.id == message_id), None)
    if message is None:
        raise ConfigurationError(f"the session has no message {message_id!r:.200} in its history")
    return _links_of(message, known)


def _links_of(message: Message, known: list[Message]) -> MessageLinks:
    turn = message.correlation_id or message.id
    began = next((each for each in known if each.id == turn), message)
    of_turn = [each for each in known if each.correlation_id == turn]
    calls = tuple(call for each in (message, *of_turn * (turn == message.id)) for call in each.tool_calls)
    ids = {call.id for call in calls} | {result.call_id for result in message.tool_results}
    results = (result for each in of_turn for result in each.tool_results)
    return MessageLinks(
        message=message,
        turn=turn,
        traceparent=began.traceparent,
        cause=message.causation_id,
        effects=tuple(each.id for each in known if each.causation_id == message.id),
        calls=calls,
        results=tuple(each for each in results if each.call_id in ids),
    )


def _begins(each: Message, message_id: str, known: list[Message]) -> bool:
    """Return True if this is the outside message of the turn of a message that is known."""
    found = next((one for one in known if one.id == message_id), None)
    return found is not None and each.id == (found.correlation_id or found.id)
