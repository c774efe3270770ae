"""Check and record the `history=` of a new session: a conversation from another session or program."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from actgent.errors import ConfigurationError
from actgent.journal.records import Said
from actgent.messages import (
    ChatMessage,
    File,
    Image,
    Message,
    Opaque,
    Part,
    Role,
    Sender,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    new_id,
    to_parts,
)

from .context import SessionContext

Former = ChatMessage | Message | Mapping[str, object]
"""A `ChatMessage`, a message of another session's `history`, or `{"role": "user", "content": "..."}`."""
_TOOLS = Sender("tools", "tool")
_BY_KIND: Mapping[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "agent": "assistant",
    "tool": "tool",
}
_TAKEN: Mapping[Role, tuple[type, ...]] = {
    "user": (Text, Image, File),
    "assistant": (Text, Thinking, Opaque, ToolCall),
    "tool": (ToolResult,),
}
"""The parts that a message of each role may have."""


def check_history(history: Iterable[Former]) -> tuple[ChatMessage, ...]:
    """Return the messages of `history=` with unique call ids and one message of results for each message of calls.

    System messages of another session's history, such as notices, are left out. Providers require that results follow their
    calls; they allow an id to repeat in a later message. A repeated or empty call id gets a new id, in its result too.

    Raises:
        ConfigurationError: A message is invalid. The text has the position of the message, from 0, and the reason.
    """
    if isinstance(history, str | bytes | Mapping) or not isinstance(history, Iterable):
        raise ConfigurationError(f"history= is a list of messages, not {history!r:.100}")
    pairing = _CallPairing()
    for place, given in enumerate(history):
        if not _is_system(given):
            for message in _read(place, given):
                pairing.add(place, message)
    return pairing.close()


def add_history(context: SessionContext, history: Sequence[ChatMessage], *, now: float) -> None:
    """Enter messages into the record of a fresh session, with its next step in the journal."""
    senders = {"user": context.owner, "assistant": Sender(context.agent, "assistant"), "tool": _TOOLS}
    for said in history:
        message = Message(session_id=context.id, sender=senders[said.role], parts=said.parts, created_at=now)
        context.conversation.append(message)
        context.conversation.reserve_call_ids(call.id for call in message.tool_calls)
        if context.log is not None:
            context.log.add(Said(message=message))


def _is_system(given: Former) -> bool:
    return isinstance(given, Message) and given.sender.kind == "system"


def _read(place: int, given: Former) -> Iterator[ChatMessage]:
    """Yield the messages of one item, each with a role that fits its parts.

    Anthropic's API puts results and the user's next words into one message: these are two messages here.
    An assistant message without content is left out: some providers stream one before a message of calls.
    """
    role, content = _role_and_content(place, given)
    try:
        parts = to_parts(content)  # type: ignore[arg-type] # it tells what is wrong
    except TypeError as error:
        raise _wrong(place, str(error)) from None
    if isinstance(given, Message) and given.cut:  # its calls never ran
        parts = tuple(part for part in parts if not isinstance(part, ToolCall))
    if role == "user" and any(isinstance(part, ToolResult) for part in parts):
        results = tuple(part for part in parts if isinstance(part, ToolResult))
        yield ChatMessage("tool", results)
        parts = tuple(part for part in parts if not isinstance(part, ToolResult))
        if not parts:
            return
    role = _known(place, role)
    for part in parts:
        if not isinstance(part, _TAKEN[role]):
            raise _wrong(place, f"a message of the role {role} has no {type(part).__name__}")
    if not any(_says_something(part) for part in parts):
        if role == "assistant":
            return
        raise _wrong(place, "it says nothing")
    yield ChatMessage(role, parts)


def _known(place: int, role: object) -> Role:
    for known in _TAKEN:
        if role == known:
            return known
    hint = "; a system prompt is prompt= or system_prompt=" if role in ("system", "developer") else ""
    raise _wrong(place, f"its role is {role!r:.50}, not one of {', '.join(_TAKEN)}{hint}")


def _role_and_content(place: int, given: object) -> tuple[object, object]:
    if isinstance(given, Message):
        return _BY_KIND[given.sender.kind], given.parts
    if isinstance(given, ChatMessage):
        return given.role, given.parts
    if isinstance(given, Mapping) and given.keys() == {"role", "content"}:
        return given["role"], given["content"]
    raise _wrong(
        place, f"it is a ChatMessage, a Message or {{'role': ..., 'content': ...}}, not {given!r:.100}"
    )


def _says_something(part: Part) -> bool:
    return bool(part.text.strip()) if isinstance(part, Text) else not isinstance(part, Thinking)


@attrs.define
class _CallPairing:
    """Pairs calls with the results that follow them, and makes the call ids unique."""

    _messages: list[ChatMessage] = attrs.field(factory=list)
    _open: list[tuple[str, ToolCall]] = attrs.field(factory=list)
    """Calls without a result, each with the id that the recording has for it."""
    _ids: set[str] = attrs.field(factory=set)

    def add(self, place: int, message: ChatMessage) -> None:
        """Add the message at a position of `history=`.

        Raises:
            ConfigurationError: The message answers no open call, or comes before the results of the open calls.
        """
        if message.role == "tool":
            self._add_results(place, message)
            return
        if self._open:
            raise self._unpaired(place, ())
        self._messages.append(attrs.evolve(message, parts=tuple(map(self._unique, message.parts))))

    def close(self) -> tuple[ChatMessage, ...]:
        """Return all messages.

        Raises:
            ConfigurationError: The last calls have no results.
        """
        if self._open:
            ids = [recorded for recorded, _ in self._open]
            empty = "; the id '' of a call is empty" if "" in ids else ""
            raise ConfigurationError(f"history= ends with calls that have no results: {ids}{empty}")
        return tuple(self._messages)

    def _add_results(self, place: int, message: ChatMessage) -> None:
        """Add results. Several messages of results after one message of calls become one message."""
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        named = [self._answer(place, result, results) for result in results]
        if self._messages and self._messages[-1].role == "tool":
            named = [*self._messages.pop().parts, *named]
        self._messages.append(ChatMessage("tool", tuple(named)))

    def _answer(self, place: int, result: ToolResult, results: Iterable[ToolResult]) -> Part:
        for index, (recorded, call) in enumerate(self._open):
            if recorded == result.call_id:
                del self._open[index]
                if call.id == recorded:
                    return result
                return attrs.evolve(result, call_id=call.id, id=f"{call.id}/result")
        raise self._unpaired(place, results)

    def _unique(self, part: Part) -> Part:
        if not isinstance(part, ToolCall):
            return part
        call = part
        if not call.id or call.id in self._ids:
            theirs = call.provider_id if call.provider_id is not None else call.id or None
            call = attrs.evolve(call, id=new_id(), provider_id=theirs)
        self._ids.add(call.id)
        self._open.append((part.id, call))
        return call

    def _unpaired(self, place: int, results: Iterable[ToolResult]) -> ConfigurationError:
        due = [recorded for recorded, _ in self._open]
        came = [result.call_id for result in results]
        return _wrong(place, f"results of the calls {due} are due here, and {came} came")


def _wrong(place: int, why: str) -> ConfigurationError:
    return ConfigurationError(f"history[{place}]: {why}")
