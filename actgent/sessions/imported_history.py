"""Import of `history=`, a conversation from another session or program, into a new session: validation and records."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from actgent.errors import ConfigurationError
from actgent.journal.record_types import AgentMessageRecord
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
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.untrusted_text_delimiters import join_origins

from .session_context import SessionContext

ImportedMessage = ChatMessage | Message | Mapping[str, object]
"""Accepted item of `history=`: a `ChatMessage`, a `Message` of another session's history, or `{"role": "user",
"content": "..."}`.
"""
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
"""Part classes that an imported message of each role may contain."""


@attrs.frozen(repr=False)
class LabelledMessage(ChatMessage):
    """A message that depends on untrusted text."""

    sources: str = ""
    """Untrusted sources of the message, separated by commas."""


def check_history(history: Iterable[ImportedMessage], *, via: str = "") -> tuple[ChatMessage, ...]:
    """Validate the messages in `history=` of a new session, and return them in normal form.

    Repeated or empty ids of tool calls are replaced, also in the results of these calls. All results for the calls of a message
    are in one message after it. System messages of another session, such as notices, are omitted.

    `via` names the untrusted sources of the turn that passes the history; empty outside of turns.

    Raises:
        ConfigurationError: A message is invalid. The text has the index of the message, from 0, and the reason.
    """
    if isinstance(history, str | bytes | Mapping) or not isinstance(history, Iterable):
        raise ConfigurationError(f"history= must be a list of messages, not {history!r:.100}")
    pairing = _CallPairing()
    for position, item in enumerate(history):
        if not _is_system(item):
            sources = join_origins(_sources_of(item), via)
            for message in _read(position, item):
                if sources and message.role != "tool":  # each result has its own sources
                    message = LabelledMessage(message.role, message.parts, sources)  # noqa: PLW2901
                pairing.add(position, message)
    return pairing.close()


def add_history(context: SessionContext, history: Sequence[ChatMessage], *, now: float) -> None:
    """Append imported messages to a new session, and add their records to its log. `now` is the Unix time in seconds."""
    senders = {"user": context.owner, "assistant": Sender(context.agent, "assistant"), "tool": _TOOLS}
    for each in history:
        message = Message(
            session_id=context.id,
            sender=senders[each.role],
            parts=each.parts,
            created_at=now,
            via=_sources_of(each),
        )
        context.conversation.append(message)
        context.conversation.reserve_call_ids(call.id for call in message.tool_calls)
        if context.log is not None:
            context.log.add(AgentMessageRecord(message=message))


def _sources_of(item: ImportedMessage) -> str:
    """Return the untrusted sources of an imported message; empty if there are none."""
    if isinstance(item, Message):
        return join_origins(item.origin, item.via)
    return item.sources if isinstance(item, LabelledMessage) else ""


def _is_system(item: ImportedMessage) -> bool:
    return isinstance(item, Message) and item.sender.kind == "system"


def _read(position: int, item: ImportedMessage) -> Iterator[ChatMessage]:
    """Convert the item at index `position` of `history=` to messages: none, one or two.

    A user message with tool results and text, as Anthropic's API has it, becomes a message of tool results and a message of
    the user. An assistant message without content is skipped, because some providers send one before a message with calls.
    """
    role, content = _role_and_content(position, item)
    try:
        parts = to_parts(content)  # type: ignore[arg-type] # to_parts raises a TypeError for other types
    except TypeError as error:
        raise _wrong(position, str(error)) from None
    if isinstance(item, Message) and item.cut:  # its calls never ran
        parts = tuple(part for part in parts if not isinstance(part, ToolCall))
    if role == "user" and any(isinstance(part, ToolResult) for part in parts):
        results = tuple(part for part in parts if isinstance(part, ToolResult))
        yield ChatMessage("tool", results)
        parts = tuple(part for part in parts if not isinstance(part, ToolResult))
        if not parts:
            return
    role = _check_role(position, role)
    for part in parts:
        if not isinstance(part, _TAKEN[role]):
            raise _wrong(
                position,
                f"a message of the role {role} cannot have a part of the class {type(part).__name__}",
            )
    if not any(_has_content(part) for part in parts):
        if role == "assistant":
            return
        raise _wrong(position, "it has no content: add text or another part, or omit the message")
    yield ChatMessage(role, parts)


def _check_role(position: int, role: object) -> Role:
    for known in _TAKEN:
        if role == known:
            return known
    hint = "; pass a system prompt as prompt= or system_prompt=" if role in ("system", "developer") else ""
    raise _wrong(position, f"its role must be one of {', '.join(_TAKEN)}, not {role!r:.50}{hint}")


def _role_and_content(position: int, item: object) -> tuple[object, object]:
    if isinstance(item, Message):
        return _BY_KIND[item.sender.kind], item.parts
    if isinstance(item, ChatMessage):
        return item.role, item.parts
    if isinstance(item, Mapping) and item.keys() == {"role", "content"}:
        return item["role"], item["content"]
    raise _wrong(
        position, f"it must be a ChatMessage, a Message or {{'role': ..., 'content': ...}}, not {item!r:.100}"
    )


def _has_content(part: Part) -> bool:
    return bool(part.text.strip()) if isinstance(part, Text) else not isinstance(part, Thinking)


@attrs.define(repr=False)
class _CallPairing(FieldRepr):
    """Collects the messages of an imported history, pairs tool calls with their results, and makes the call ids unique."""

    _messages: list[ChatMessage] = attrs.field(factory=list)
    _open: list[tuple[str, ToolCall]] = attrs.field(factory=list)
    """Tool calls without a result so far, as pairs of the id in the imported history and the call with its new id."""
    _ids: set[str] = attrs.field(factory=set)

    def add(self, position: int, message: ChatMessage) -> None:
        """Add a message from index `position` of `history=`.

        Raises:
            ConfigurationError: The message has a result for an unknown call, or precedes the results of open calls.
        """
        if message.role == "tool":
            self._add_results(position, message)
            return
        if self._open:
            raise self._unpaired(position, ())
        self._messages.append(attrs.evolve(message, parts=tuple(map(self._with_unique_id, message.parts))))

    def close(self) -> tuple[ChatMessage, ...]:
        """Check that each tool call has a result, and return all messages that were added.

        Raises:
            ConfigurationError: The history ends with tool calls that have no results.
        """
        if self._open:
            ids = [recorded for recorded, _ in self._open]
            empty = "; the id '' of a call is empty" if "" in ids else ""
            raise ConfigurationError(
                f"history= must not end with tool calls that have no results: {ids}{empty}"
            )
        return tuple(self._messages)

    def _add_results(self, position: int, message: ChatMessage) -> None:
        """Add a message of tool results. Consecutive messages of results become one message."""
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        named = [self._with_new_call_id(position, result, results) for result in results]
        if self._messages and self._messages[-1].role == "tool":
            named = [*self._messages.pop().parts, *named]
        self._messages.append(ChatMessage("tool", tuple(named)))

    def _with_new_call_id(self, position: int, result: ToolResult, results: Iterable[ToolResult]) -> Part:
        """Return a tool result with the new id of its call. The call is no longer open.

        Raises:
            ConfigurationError: No open call has the id.
        """
        for index, (recorded, call) in enumerate(self._open):
            if recorded == result.call_id:
                del self._open[index]
                if call.id == recorded:
                    return result
                return attrs.evolve(result, call_id=call.id, id=f"{call.id}/result")
        raise self._unpaired(position, results)

    def _with_unique_id(self, part: Part) -> Part:
        """Return a part. If it is a tool call, give it a unique id and add it to the open calls."""
        if not isinstance(part, ToolCall):
            return part
        call = part
        if not call.id or call.id in self._ids:
            theirs = call.provider_id if call.provider_id is not None else call.id or None
            call = attrs.evolve(call, id=new_id(), provider_id=theirs)
        self._ids.add(call.id)
        self._open.append((part.id, call))
        return call

    def _unpaired(self, position: int, results: Iterable[ToolResult]) -> ConfigurationError:
        due = [recorded for recorded, _ in self._open]
        came = [result.call_id for result in results]
        return _wrong(position, f"it must have the results of the calls {due}, and it has results of {came}")


def _wrong(position: int, why: str) -> ConfigurationError:
    return ConfigurationError(f"history[{position}]: {why}")
