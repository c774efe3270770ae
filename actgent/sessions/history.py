"""What was said elsewhere, as the beginning of a new session: checked, and then in its record like all else."""

from collections.abc import Iterable, Mapping, Sequence

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
    """The messages of `history=`; those of the system, such as notices, are left out of another session's history.

    Raises:
        ConfigurationError: one of them cannot be said; the text names its place, from 0, and why.
    """
    if isinstance(history, str | bytes | Mapping) or not isinstance(history, Iterable):
        raise ConfigurationError(f"history= is a list of messages, not {history!r:.100}")
    numbered = [(place, _read(place, given)) for place, given in enumerate(history) if not _is_system(given)]
    _check_calls(numbered)
    return tuple(message for _, message in numbered)


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


def _read(place: int, given: Former) -> ChatMessage:
    """One message, with a role that its parts agree with."""
    role, content = _role_and_content(place, given)
    try:
        parts = to_parts(content)  # type: ignore[arg-type] # it tells what is wrong
    except TypeError as error:
        raise _wrong(place, str(error)) from None
    if isinstance(given, Message) and given.cut:  # its calls never ran
        parts = tuple(part for part in parts if not isinstance(part, ToolCall))
    if role == "user" and parts and all(isinstance(part, ToolResult) for part in parts):
        role = "tool"
    role = _known(place, role)
    for part in parts:
        if not isinstance(part, _TAKEN[role]):
            raise _wrong(place, f"a message of the role {role} has no {type(part).__name__}")
    if not any(_says_something(part) for part in parts):
        raise _wrong(place, "it says nothing")
    return ChatMessage(role, parts)


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


def _check_calls(messages: Iterable[tuple[int, ChatMessage]]) -> None:
    """Refuse a conversation that no provider takes: each call has one result, in the message behind it, and an id."""
    open_ids: list[str] = []
    known: set[str] = set()
    for place, message in messages:
        answered = [part.call_id for part in message.parts if isinstance(part, ToolResult)]
        if sorted(answered) != sorted(open_ids):
            raise _wrong(place, f"results of the calls {open_ids} are due here, and {answered} came")
        open_ids = [part.id for part in message.parts if isinstance(part, ToolCall)]
        for call_id in open_ids:
            if not call_id or call_id in known:
                raise _wrong(place, f"the id {call_id!r:.100} of a call is empty, or another call's, too")
            known.add(call_id)
    if open_ids:
        raise ConfigurationError(f"history= ends with calls that have no results: {open_ids}")


def _wrong(place: int, why: str) -> ConfigurationError:
    return ConfigurationError(f"history[{place}]: {why}")
