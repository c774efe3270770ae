"""Search for messages of a session by sender and date, and for the tool calls and results of one message's turn.

Messages are read page by page, so a long session is never loaded completely.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import get_args

import attrs

from actgent.errors import ConfigurationError, did_you_mean_or_list
from actgent.limits_and_schedules.id_and_number_validation import at_least_one
from actgent.messages import INTERMEDIATE, Message, SenderKind, ToolCall, ToolResult
from actgent.sessions.conversation import MessagePage, SessionConversation
from actgent.support.attrs_class_repr import FieldRepr

from .observations import Observed

PAGE_SIZE = 200
"""Number of messages that are read at a time."""
LOOKAHEAD = 10
"""Number of messages that are read after a page in order to find the end of its last turn."""
_ROLES: tuple[SenderKind, ...] = get_args(SenderKind)


@attrs.frozen(kw_only=True, repr=False)
class MessageFilter(FieldRepr):
    """Filter for messages of a session, by position, time and kind of sender."""

    before: int | None = None
    """Only messages before this position match; None disables the condition."""
    after: int | None = None
    """Only messages after this position match; None disables the condition."""
    until: float | None = None
    """Only messages before this Unix time (seconds) match; None disables the condition."""
    since: float | None = None
    """Only messages after this Unix time (seconds) match; None disables the condition."""
    roles: frozenset[SenderKind] | None = None
    """Kinds of senders that match; None matches all."""

    @classmethod
    def of(
        cls, before: int | datetime | None, after: int | datetime | None, roles: Collection[SenderKind] | None
    ) -> "MessageFilter":
        """Create the filter from the arguments `before=`, `after=` and `roles=` of `Session.messages`.

        Raises:
            ConfigurationError: Both arguments are positions, a date has no time zone, or a role is unknown.
        """
        if isinstance(before, int) and isinstance(after, int):
            raise ConfigurationError("before= and after= cannot both be positions: pass one of them")
        return cls(
            before=before if isinstance(before, int) else None,
            after=after if isinstance(after, int) else None,
            until=_seconds("before", before) if isinstance(before, datetime) else None,
            since=_seconds("after", after) if isinstance(after, datetime) else None,
            roles=None if roles is None else _checked_roles(roles),
        )

    @property
    def is_forward(self) -> bool:
        """True if the filter selects the first messages after a position or date. False if it selects the newest messages."""
        return self.after is not None or (
            self.since is not None and self.until is None and self.before is None
        )

    def matches(self, message: Message) -> bool:
        """Return True if the sender and the time of a message match the filter. The position is not checked."""
        at = message.created_at
        if (self.until is not None and at >= self.until) or (self.since is not None and at <= self.since):
            return False
        return self.roles is None or message.sender.kind in self.roles


def _seconds(name: str, date: datetime) -> float:
    if date.tzinfo is None:
        raise ConfigurationError(
            f"{name}= must be a date with a time zone, e.g. datetime.now(UTC), not {date!r}"
        )
    return date.timestamp()


def _checked_roles(roles: Collection[SenderKind]) -> frozenset[SenderKind]:
    if isinstance(roles, str):
        raise ConfigurationError(
            f"roles= must be a list of kinds of senders, e.g. ({roles!r},), not a string"
        )
    for role in roles:
        if role not in _ROLES:
            raise ConfigurationError(
                f"roles= has an unknown role {role!r}: {did_you_mean_or_list(str(role), _ROLES)}"
            )
    return frozenset(roles)


async def read_matching(
    conversation: SessionConversation, message_filter: MessageFilter, *, limit: int
) -> MessagePage:
    """Return a page of at most `limit` messages that match the filter.

    If the filter has `after` or `since`, these are the first messages after it; otherwise the newest messages. If the filter has
    roles, intermediate answers are omitted, so the result is the conversation as a user sees it.

    Raises:
        ConfigurationError: `limit` is less than 1.
    """
    at_least_one("limit", limit)
    found: list[tuple[int, Message]] = []
    total = len(conversation.messages)
    begin = 0 if message_filter.after is None else min(max(0, message_filter.after + 1), total)
    end = total if message_filter.before is None else min(max(0, message_filter.before), total)
    while begin < end and len(found) < limit:
        bound = {"after": begin - 1} if message_filter.is_forward else {"before": end}
        page = await conversation.read(limit=min(PAGE_SIZE, end - begin), **bound)
        left_out = frozenset[str]()
        if message_filter.roles is not None and "assistant" in message_filter.roles:
            left_out = await _intermediate_answer_ids(conversation, page)
        here = [
            (position, each)
            for position, each in enumerate(page, page.first)
            if message_filter.matches(each) and each.id not in left_out
        ]
        if message_filter.is_forward:
            begin, found = page.first + len(page), [*found, *here][:limit]
        else:
            end, found = page.first, [*here, *found][-limit:]
    first, last = (found[0][0], found[-1][0]) if found else (begin, -1)
    return MessagePage(tuple(each for _, each in found), first, total, last)


# --- the conversation without its intermediate steps ---------------------------------------


def intermediate_answers(messages: Sequence[Message], *, after: Message | None = None) -> frozenset[str]:
    """Return the ids of intermediate answers among consecutive messages: plans, answers with tool calls, invalid answers.

    Args:
        messages: Consecutive messages of a session.
        after: Next message after `messages` that is not a notice; None at the end of the session.
    """
    found = set[str]()
    for message in reversed(messages):
        if message.sender.kind == "assistant" and _is_intermediate(message, after):
            found.add(message.id)
        if not message.is_note:
            after = message
    return frozenset(found)


def _is_intermediate(answer: Message, after: Message | None) -> bool:
    """Return True if an answer is not the final answer of its turn.

    An instruction with a mapped tool is delivered as an answer before the tool runs, so its answer is not intermediate.
    """
    if answer.metadata.get(INTERMEDIATE) is True or (answer.tool_calls and not answer.cut):
        return True
    if after is None or answer.correlation_id is None or after.correlation_id != answer.correlation_id:
        return False
    calls = after.text_calls
    return not (calls and all(call.mapped for call in calls))


async def _intermediate_answer_ids(conversation: SessionConversation, page: MessagePage) -> frozenset[str]:
    """Return the ids of the intermediate answers of a page.

    The kind of the last answer depends on the next message, which is read for this purpose.
    """
    following, place = None, page.last
    while following is None:
        behind = await conversation.read(limit=LOOKAHEAD, after=place)
        if not behind.messages:
            break
        following = next((each for each in behind if not each.is_note), None)
        place = behind.last
    return intermediate_answers(page.messages, after=following)


# --- links of a message ---------------------------------------------------------


@attrs.frozen(kw_only=True, repr=False)
class MessageTrace(FieldRepr):
    """A message with its links to the other messages, tool calls, results and observations of its turn."""

    message: Message
    """The message whose turn, cause and effects the other fields describe."""
    turn: str
    """Id of the message that started the turn, from a user, another agent or a schedule."""
    traceparent: str | None
    """W3C Trace Context of the turn's sender; None without a trace."""
    cause: str | None
    """Id of the message that caused this one; None for a message that started a turn."""
    effects: tuple[str, ...]
    """Ids of the messages that this one caused, oldest first."""
    calls: tuple[ToolCall, ...]
    """Tool calls of the message, including calls written as text. If `is_whole_turn`: all tool calls of the turn."""
    results: tuple[ToolResult, ...]
    """Tool results of the calls in `calls`, as far as they exist."""
    steps: tuple[Message, ...] = ()
    """If `is_whole_turn`: the messages between the user's message and the final answer, in order. Otherwise empty."""
    is_whole_turn: bool = False
    """True if the message is the user's message or the final answer of the turn. Such a message is linked to the whole turn."""
    observations: tuple[Observed, ...] = ()
    """Observations of the message; if `is_whole_turn`: of the whole turn."""

    @property
    def trace_id(self) -> str | None:
        """Trace id of the turn, 32 hexadecimal digits; None without a trace."""
        return None if self.traceparent is None else self.traceparent.split("-")[1]

    def concerns(self, observed: Observed) -> bool:
        """Return True if an observation of the turn belongs to this message, its calls or its results."""
        if self.is_whole_turn:
            return True
        ids = {self.message.id, *(call.id for call in self.calls)}
        return any(observed.id == each or observed.id.startswith(f"{each}/") for each in ids)


async def find_links(conversation: SessionConversation, message_id: str) -> MessageTrace:
    """Return a message with its links to the other messages, calls and results of its turn, without observations.

    Raises:
        ConfigurationError: The history has no message with this id.
    """
    known, end = list[Message](), len(conversation.messages)
    while end > 0 and not any(_begins_turn_of(each, message_id, known) for each in known):
        page = await conversation.read(limit=PAGE_SIZE, before=end)
        known, end = [*page, *known], page.first
    message = next((each for each in known if each.id == message_id), None)
    if message is None:
        raise ConfigurationError(f"the session has no message {message_id!r:.200} in its history")
    return _links_of(message, known)


def _links_of(message: Message, known: Sequence[Message]) -> MessageTrace:
    turn = message.correlation_id or message.id
    began = next((each for each in known if each.id == turn), message)
    of_turn = [each for each in known if each.correlation_id == turn]
    is_whole_turn = message.id == turn or _is_final(message, known)
    related = (message, *of_turn) if is_whole_turn else _with_results(message, of_turn)
    calls = tuple(
        {call.id: call for each in related for call in (*each.tool_calls, *each.text_calls)}.values()
    )
    ids = {call.id for call in calls} | {result.call_id for result in message.tool_results}
    results = (result for each in of_turn for result in each.tool_results)
    return MessageTrace(
        message=message,
        turn=turn,
        traceparent=began.traceparent,
        cause=message.causation_id,
        effects=tuple(each.id for each in known if each.causation_id == message.id),
        calls=calls,
        results=tuple(each for each in results if each.call_id in ids),
        steps=_steps(of_turn) if is_whole_turn else (),
        is_whole_turn=is_whole_turn,
    )


def _is_final(message: Message, known: Sequence[Message]) -> bool:
    return message.sender.kind == "assistant" and message.id not in intermediate_answers(known)


def _steps(of_turn: Sequence[Message]) -> tuple[Message, ...]:
    """Return the intermediate messages of a turn: all of its messages except final answers and empty messages."""
    steps = intermediate_answers(of_turn)
    return tuple(
        each for each in of_turn if each.parts and (each.sender.kind != "assistant" or each.id in steps)
    )


def _with_results(message: Message, of_turn: Sequence[Message]) -> Sequence[Message]:
    """Return a message, together with the next message of its turn if that contains the results of its tool calls."""
    if message.sender.kind != "assistant" or message not in of_turn:
        return (message,)
    later = of_turn[of_turn.index(message) + 1 :]
    return (message, later[0]) if later and later[0].sender.kind == "tool" else (message,)


def _begins_turn_of(each: Message, message_id: str, known: Sequence[Message]) -> bool:
    """Return True if `each` is the message that started the turn of the message `message_id`.

    `known` are the messages in which the message `message_id` is searched.
    """
    found = next((one for one in known if one.id == message_id), None)
    return found is not None and each.id == (found.correlation_id or found.id)
