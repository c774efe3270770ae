"""Validation of conversations in tests, by the checks of the scripted provider."""

from collections.abc import Mapping, Sequence
from typing import Any

from actgent.errors import ConfigurationError
from actgent.llm.model_interface import ChatMessage, ModelRequest
from actgent.messages import Text, ToolCall, ToolResult

from .provider_apis import (
    PROVIDER_APIS,
    Problems,
    TranscriptTurn,
    adjacent_pairs,
    merged,
    no_prefill,
    unique_calls,
)

Transcript = ModelRequest | Mapping[str, Any] | Sequence[ChatMessage] | Sequence[Mapping[str, Any]]
"""A `ModelRequest`, a request body of a provider API, or a list of messages (or input items) of either."""


def check_transcript(transcript: Transcript, dialect: str | None = None) -> list[str]:
    """Return the errors for which a provider rejects a conversation; empty if it is valid.

    One rule is stricter than OpenAI: a conversation that ends with an assistant message is rejected for every API.

    Args:
        transcript: The conversation.
        dialect: `openai`, `openai-responses` or `anthropic`, for request bodies and their messages. A `ModelRequest` is
            checked for all APIs.

    Raises:
        ConfigurationError: The dialect is unknown.
    """
    if isinstance(transcript, ModelRequest):
        return list(_neutral(transcript.messages))
    if not isinstance(transcript, Mapping) and (not transcript or isinstance(transcript[0], ChatMessage)):
        return list(_neutral(transcript))  # type: ignore[arg-type]
    if dialect is None or dialect not in PROVIDER_APIS:
        raise ConfigurationError(f"dialect= must be one of {', '.join(PROVIDER_APIS)}, not {dialect!r}")
    if isinstance(transcript, Mapping):
        return list(PROVIDER_APIS[dialect].check_request(transcript))
    return list(PROVIDER_APIS[dialect].check_messages(transcript))


def assert_valid_transcript(transcript: Transcript, dialect: str | None = None) -> None:
    """Fail with a list of errors if a provider would reject the conversation; see `check_transcript`.

    Raises:
        AssertionError: The conversation is invalid.
    """
    if problems := check_transcript(transcript, dialect):
        raise AssertionError("the transcript is not valid:\n  " + "\n  ".join(problems))


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


def _message(location: str, message: ChatMessage) -> Problems:
    """Check one message, whose path is `location`: calls only from the assistant, results only of the role `tool`, no empty message."""
    if not any(not isinstance(part, Text) or part.text.strip() for part in message.parts):
        yield f"{location}: empty content"
    for part in message.parts:
        if isinstance(part, ToolCall) and part.native and message.role != "assistant":
            yield f"{location}: a tool call in a message of the role {message.role}"
        if isinstance(part, ToolResult) and part.native and message.role != "tool":
            yield f"{location}: a tool result in a message of the role {message.role}"


def _turn(index: int, message: ChatMessage) -> TranscriptTurn:
    calls = tuple(part.id for part in message.parts if isinstance(part, ToolCall) and part.native)
    results = tuple(part.call_id for part in message.parts if isinstance(part, ToolResult) and part.native)
    return TranscriptTurn(f"messages[{index}]", message.role, calls, results)
