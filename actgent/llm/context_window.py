"""Estimates of the tokens that a request takes of a model's context window, before the request is sent.

The provider has counted the previous request of the conversation and the answer to it. Only the text added since then is
estimated, with the rate of counted to estimated tokens of that request. Before the first answer, and after a change of the
model, everything is an estimate.

Thinking blocks are sent back and count while the model calls tools. Providers omit them once the user sends a message.
"""

from collections.abc import Sequence

import attrs

from actgent.messages import ChatMessage, Part, Text, Thinking, ToolCall, ToolResult, ToolSpec
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.token_estimate import estimate_tokens

from .model_interface import LLM, ModelRequest, ModelResponse

MESSAGE_TOKENS = 4
"""Tokens of a message in addition to its text. A tool call and a tool result take the same."""
ENCRYPTED_CHARACTERS_PER_TOKEN = 9
"""Characters of encrypted thinking per token, measured on recorded answers of OpenAI that report both lengths."""
MEDIA_TOKENS = 1_500
"""Estimated tokens of an image, a document or an opaque block."""
ANSWER_TOKENS = 4_096
"""Tokens reserved for an answer without a maximum, at most an eighth of the context window."""
COUNTED_MARGIN, ESTIMATED_MARGIN = 1.04, 1.3
"""Factors of the upper bound, for tokens that the provider has counted and for tokens that are only estimated.

Both were measured on 20,163 recorded requests to Gemini. A provider may count the same text 3.5 % higher one request later.
"""
SHORTENED_MARGIN = 1.1
"""Factor of the upper bound for a request that was shortened after its count: the rest may have more tokens per character."""
HIDDEN_TOKENS, HIDDEN_TOKENS_WITH_TOOLS = 100, 600
"""Tokens that a provider may add to a first request without and with tools. Recorded exchanges have up to 60 and 550."""
_RATE_BOUNDS = 0.5, 2.5
"""Minimum and maximum of the measured rate. A count outside of this range is not a count of the request that was sent."""
_MIN_MEASURED_TOKENS = 1_000
"""Minimum estimated tokens of a request for measuring a rate. In shorter requests the provider's additions dominate."""


def reserved_answer_tokens(llm: LLM, chat: ModelRequest, window: int) -> int:
    """Return how many tokens of a context window of `window` tokens are reserved for the answer.

    This is the configured maximum of the answer, or else at most an eighth of the window.
    """
    return chat.max_tokens or llm.max_tokens or min(ANSWER_TOKENS, window // 8)


@attrs.frozen(repr=False)
class CountedRequest(FieldRepr):
    """Estimated tokens of a request and its answer, and the provider's counts of both.

    All are without thinking, which is not always sent back.
    """

    model: str
    estimate: float
    """Estimated tokens of the request."""
    counted: float
    """Tokens of the request by the provider's count."""
    answer_estimate: float
    """Estimated tokens of the answer."""
    answer: float
    """Tokens of the answer by the provider's count."""
    thoughts: float = 0.0
    """Tokens of thinking since the user's last message, which are sent back to the model."""

    @property
    def rate(self) -> float:
        """Counted tokens per estimated token of the whole request; 1.0 if the request is too short for a measurement."""
        if self.estimate < _MIN_MEASURED_TOKENS:
            return 1.0
        lowest, highest = _RATE_BOUNDS
        return min(max(self.counted / self.estimate, lowest), highest)


def count_answered(
    llm: LLM, chat: ModelRequest, answer: ModelResponse, before: CountedRequest | None = None
) -> CountedRequest | None:
    """Return the token counts of an answered request from the usage of its answer, to estimate the next request.

    Return None if the usage is empty. `before` has the counts of the previous request.
    """
    usage = answer.usage
    if not usage.input_tokens:
        return None
    before = before if before is not None and before.model == llm.name else None
    size, answer_tokens = estimate_request(chat), sum(map(_part_tokens, answer.parts)) + MESSAGE_TOKENS
    thinking_before = min(_thinking_tokens_in(chat, before), usage.input_tokens)
    thinking = _answer_thinking_tokens(answer, answer_tokens)
    counted = usage.input_tokens - thinking_before
    is_within = (
        thinking <= usage.output_tokens
    )  # some providers do not include thinking tokens in the output tokens
    kept = usage.output_tokens - thinking if is_within else usage.output_tokens
    goes_back = any(isinstance(part, Thinking) and part.dialect == llm.dialect for part in answer.parts)
    return CountedRequest(
        llm.name,
        size,
        counted,
        answer_tokens,
        kept,
        thinking_before + thinking if goes_back else thinking_before,
    )


def count_unsent(llm: LLM, chat: ModelRequest, tokens: int, before: CountedRequest | None) -> CountedRequest:
    """Return the token counts of a request that the provider counted without answering it.

    `tokens` is the provider's count. `before` has the counts of the previous request.
    """
    known = before if before is not None and before.model == llm.name else None
    thinking_before = min(_thinking_tokens_in(chat, known), tokens)
    return CountedRequest(
        llm.name, estimate_request(chat), tokens - thinking_before, 0.0, 0.0, thinking_before
    )


def _answer_thinking_tokens(answer: ModelResponse, answer_tokens: float) -> float:
    """Return the thinking tokens of an answer, as counted by the provider or estimated from the other output tokens.

    `answer_tokens` are the estimated tokens of the visible parts.
    """
    usage = answer.usage
    if usage.reasoning_tokens or not any(isinstance(part, Thinking) for part in answer.parts):
        return usage.reasoning_tokens
    return max(0.0, usage.output_tokens - answer_tokens)


def _thinking_tokens_in(chat: ModelRequest, before: CountedRequest | None) -> float:
    """Return the tokens of earlier thinking that the provider counts in a request: thinking after the user's last message."""
    if before is not None:
        return before.thoughts if _continues_turn(chat) else 0.0
    found = 0.0
    for message in reversed(chat.messages):
        if message.role == "user":
            break
        found += sum(map(_thinking_tokens, message.parts))
    return found


def _continues_turn(chat: ModelRequest) -> bool:
    """Return True if the request continues the model's turn: its last message, apart from tool results, is from the model."""
    return next((each.role for each in reversed(chat.messages) if each.role != "tool"), "user") == "assistant"


def _thinking_tokens(part: Part) -> float:
    if not isinstance(part, Thinking):
        return 0.0
    return estimate_tokens(part.text) if part.text else len(str(part.data)) / ENCRYPTED_CHARACTERS_PER_TOKEN


def expected_tokens(llm: LLM, chat: ModelRequest, before: CountedRequest | None) -> int:
    """Estimate the prompt tokens of a request. The last counted request of its conversation, `before`, corrects the estimate."""
    size = estimate_request(chat)
    if before is None or before.model != llm.name:
        return int(size + _thinking_tokens_in(chat, None))
    thoughts = _thinking_tokens_in(chat, before)
    new = size - before.estimate - before.answer_estimate
    if new >= 0:
        return int(before.counted + before.answer + thoughts + new * before.rate)
    return int(size * before.rate + thoughts)


def upper_bound(llm: LLM, chat: ModelRequest, before: CountedRequest | None) -> int:
    """Return an upper bound for the tokens of a request. `before` is the last counted request of its conversation.

    New text may have more tokens per character than the counted text, so a rate below 1 is not applied to it.
    """
    size = estimate_request(chat)
    if before is None or before.model != llm.name:
        unseen = HIDDEN_TOKENS_WITH_TOOLS if chat.tools else HIDDEN_TOKENS
        return int((size + _thinking_tokens_in(chat, None)) * ESTIMATED_MARGIN) + unseen
    thoughts, rate = _thinking_tokens_in(chat, before), max(1.0, before.rate)
    new = size - before.estimate - before.answer_estimate
    if new >= 0:
        return (
            int((before.counted + before.answer + thoughts) * COUNTED_MARGIN + new * rate * ESTIMATED_MARGIN)
            + HIDDEN_TOKENS
        )
    return int((size * rate * SHORTENED_MARGIN + thoughts) * COUNTED_MARGIN) + HIDDEN_TOKENS


def lower_bound(llm: LLM, chat: ModelRequest, before: CountedRequest | None) -> int:
    """Return a lower bound for the tokens of a request. `before` is the last counted request of its conversation."""
    size = estimate_request(chat)
    if before is None or before.model != llm.name:
        return int((size + _thinking_tokens_in(chat, None)) / ESTIMATED_MARGIN)
    thoughts, rate = _thinking_tokens_in(chat, before), min(1.0, before.rate)
    new = size - before.estimate - before.answer_estimate
    if new >= 0:
        return int(
            (before.counted + before.answer + thoughts) / COUNTED_MARGIN + new * rate / ESTIMATED_MARGIN
        )
    return int((size * rate / SHORTENED_MARGIN + thoughts) / COUNTED_MARGIN)


def estimate_request(chat: ModelRequest) -> float:
    """Estimate the tokens of a request from its texts alone, without any provider count."""
    size = estimate_tokens(chat.system) + tool_tokens(chat.tools) + conversation_tokens(chat.messages)
    if chat.response_format is not None:
        size += estimate_tokens(repr(chat.response_format.schema))
    return size


def conversation_tokens(messages: Sequence[ChatMessage]) -> float:
    """Estimate the tokens of messages, with a constant overhead for each message."""
    return sum([MESSAGE_TOKENS + sum(map(_part_tokens, message.parts)) for message in messages])


def tool_tokens(tools: Sequence[ToolSpec]) -> float:
    """Return the estimated tokens of tool names, descriptions and schemas."""
    return sum(
        [
            estimate_tokens(tool.name)
            + estimate_tokens(tool.description)
            + estimate_tokens(str(tool.parameters))
            for tool in tools
        ]
    )


def _part_tokens(part: Part) -> float:
    match part:
        case Text():
            return estimate_tokens(part.text)
        case Thinking():
            return 0.0  # see `CountedRequest.thoughts`
        case ToolResult():
            return MESSAGE_TOKENS + estimate_tokens(part.text) + MEDIA_TOKENS * len(part.media)
        case ToolCall():
            return MESSAGE_TOKENS + estimate_tokens(part.name) + estimate_tokens(str(part.arguments))
        case _:
            return MEDIA_TOKENS
