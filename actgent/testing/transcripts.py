"""Whether a provider will take a conversation: the check that the loopback provider makes, for tests of your own."""

from collections.abc import Mapping, Sequence
from typing import Any

from actgent.errors import ConfigurationError
from actgent.llm.base import Chat, ChatMessage
from actgent.messages import Text, ToolCall, ToolResult

from .dialects import DIALECTS, Problems, TranscriptTurn, adjacent_pairs, merged, no_prefill, unique_calls

Transcript = Chat | Mapping[str, Any] | Sequence[ChatMessage] | Sequence[Mapping[str, Any]]
"""A neutral conversation, a request body of a wire, or only the messages (or input items) of one."""


def check_transcript(transcript: Transcript, dialect: str | None = None) -> list[str]:
    """List what a provider would refuse in a conversation; empty when nothing.

    A neutral conversation needs no dialect: it has to fit all of them. For a request body, or
    its messages, the dialect is `openai`, `openai-responses` or `anthropic`. Stricter than OpenAI in
    one thing: a conversation that ends with the model's own words is refused on every wire.

    Raises:
        ConfigurationError: an unknown dialect.
    """
    if isinstance(transcript, Chat):
        return list(_neutral(transcript.messages))
    if not isinstance(transcript, Mapping) and _is_neutral(transcript):
        return list(_neutral(transcript))  # type: ignore[arg-type]
    if dialect is None or dialect not in DIALECTS:
        raise ConfigurationError(f"no dialect {dialect!r}: there are {', '.join(DIALECTS)}")
    if isinstance(transcript, Mapping):
        return list(DIALECTS[dialect].check_request(transcript))
    return list(DIALECTS[dialect].check_messages(transcript))


def assert_valid_transcript(transcript: Transcript, dialect: str | None = None) -> None:
    """Fail with the list of problems unless `check_transcript` finds none."""
    if problems := check_transcript(transcript, dialect):
        raise AssertionError("the transcript is not valid:\n  " + "\n  ".join(problems))


def _is_neutral(messages: Sequence[object]) -> bool:
    return not messages or isinstance(messages[0], ChatMessage)


def _neutral(messages: Sequence[ChatMessage]) -> Problems:
    if not messages:
        yield "messages: at least one message is required"
    elif messages[0].role != "user":
        yield "messages[0]: the first message must be the user's"
    turns = merged(map(_turn, range(len(messages)), messages), roles=("tool",))
    for index, message in enumerate(messages):
        yield from _message(f"messages[{index}]", message)
    yield from adjacent_pairs(turns)
    yield from unique_calls(turns)
    yield from no_prefill(turns)


def _message(where: str, message: ChatMessage) -> Problems:
    """Native calls are the assistant's, native results the tools', and nobody says nothing."""
    if not any(not isinstance(part, Text) or part.text.strip() for part in message.parts):
        yield f"{where}: empty content"
    for part in message.parts:
        if isinstance(part, ToolCall) and part.native and message.role != "assistant":
            yield f"{where}: a tool call in a message of the role {message.role}"
        if isinstance(part, ToolResult) and part.native and message.role != "tool":
            yield f"{where}: a tool result in a message of the role {message.role}"


def _turn(index: int, message: ChatMessage) -> TranscriptTurn:
    calls = tuple(part.id for part in message.parts if isinstance(part, ToolCall) and part.native)
    results = tuple(part.call_id for part in message.parts if isinstance(part, ToolResult) and part.native)
    return TranscriptTurn(f"messages[{index}]", message.role, calls, results)
