"""How much of a model's context window a request takes, before it is sent.

The provider has counted the request before it, and the answer to that request. Only the text added since then is estimated,
at the provider's rate over the whole request before. Before the first answer, and for another model, all is an estimate.

What a model thinks goes back to it while it calls tools, and counts then; once the user says something providers leave it out.
"""

from collections.abc import Sequence

import attrs

from actgent.messages import ChatMessage, Part, Text, Thinking, ToolCall, ToolResult, ToolSpec
from actgent.support.token_estimate import estimate_tokens

from .base import LLM, Answer, Chat

MESSAGE_TOKENS = 4
"""What a message takes besides its words; a call and a result take as much."""
SEALED_CHARACTERS = 9
"""Characters of a sealed thought that are a token: as recorded answers of OpenAI show, which tell the length of both."""
MEDIA_TOKENS = 1_500
"""What a picture, a document or an opaque block is counted as."""
ANSWER_TOKENS = 4_096
"""What is kept free for an answer whose length nobody says, or an eighth of a window that is small."""
SURE, UNSURE = 1.04, 1.3
"""Factors of the upper bound: for tokens that the provider has counted, and for tokens that are only estimated.

20,163 requests of recorded runs of Gemini show both. A provider may count the same words 3.5 % higher one request later."""
CUT = 1.1
"""Factor of the upper bound for a request that was cut after its count. The kept part may have more tokens per character."""
UNSEEN, UNSEEN_WITH_TOOLS = 100, 600
"""Tokens that a provider may add of its own, and in a first request with tools; recorded exchanges have up to 60, and 550."""
_RATES = 0.5, 2.5
"""Between these a provider's count is believed to be of what was sent."""
_TELLING = 1_000
"""Minimum estimated tokens of a request for measuring a rate. In shorter requests the provider's additions dominate."""


def answer_room(llm: LLM, chat: Chat, window: int) -> int:
    """Return the tokens that are kept free for the answer."""
    return chat.max_tokens or llm.max_tokens or min(ANSWER_TOKENS, window // 8)


@attrs.frozen
class Counted:
    """A request that its provider has counted, and the answer that it gave.

    Both without thoughts, which may count the next time or not.
    """

    model: str
    estimate: float
    """Tokens of the request, as we had estimated them."""
    counted: float
    """Tokens of the request, as the provider says."""
    answer_estimate: float
    answer: float
    """Tokens of the answer."""
    thoughts: float = 0.0
    """Tokens of what was thought since the user said something, as far as it goes back to the model."""

    @property
    def rate(self) -> float:
        """Counted tokens per estimated token of the whole request; 1.0 if the request is too short for a measurement."""
        if self.estimate < _TELLING:
            return 1.0
        lowest, highest = _RATES
        return min(max(self.counted / self.estimate, lowest), highest)


def note(llm: LLM, chat: Chat, answer: Answer, before: Counted | None = None) -> Counted | None:
    """Return what an answer's usage says of a request, given the last one that was counted; None where it says nothing."""
    usage = answer.usage
    if not usage.input_tokens:
        return None
    before = before if before is not None and before.model == llm.name else None
    size, said = estimate(chat), sum(map(_part, answer.parts)) + MESSAGE_TOKENS
    told = min(_thoughts_within(chat, before), usage.input_tokens)
    thought = _thought_tokens(answer, said)
    counted = usage.input_tokens - told
    is_within = thought <= usage.output_tokens  # some providers count thoughts apart from the answer
    kept = usage.output_tokens - thought if is_within else usage.output_tokens
    goes_back = any(isinstance(part, Thinking) and part.dialect == llm.dialect for part in answer.parts)
    return Counted(llm.name, size, counted, said, kept, told + thought if goes_back else told)


def counted_before(llm: LLM, chat: Chat, tokens: int, before: Counted | None) -> Counted:
    """Return what a provider has counted of a request that was not sent yet."""
    known = before if before is not None and before.model == llm.name else None
    told = min(_thoughts_within(chat, known), tokens)
    return Counted(llm.name, estimate(chat), tokens - told, 0.0, 0.0, told)


def _thought_tokens(answer: Answer, said: float) -> float:
    """Tokens of an answer's thoughts: as its provider says, else all that its words do not account for."""
    usage = answer.usage
    if usage.reasoning_tokens or not any(isinstance(part, Thinking) for part in answer.parts):
        return usage.reasoning_tokens
    return max(0.0, usage.output_tokens - said)


def _thoughts_within(chat: Chat, before: Counted | None) -> float:
    """Tokens of thoughts that a request has in it, and that count: those behind the last words of the user."""
    if before is not None:
        return before.thoughts if _goes_on(chat) else 0.0
    found = 0.0
    for message in reversed(chat.messages):
        if message.role == "user":
            break
        found += sum(map(_thought, message.parts))
    return found


def _goes_on(chat: Chat) -> bool:
    """Return True if the user has said nothing behind the last answer: the model goes on with what it thought."""
    return next((each.role for each in reversed(chat.messages) if each.role != "tool"), "user") == "assistant"


def _thought(part: Part) -> float:
    if not isinstance(part, Thinking):
        return 0.0
    return estimate_tokens(part.text) if part.text else len(str(part.data)) / SEALED_CHARACTERS


def expected_tokens(llm: LLM, chat: Chat, before: Counted | None) -> int:
    """Return about how many tokens a request takes, given the last counted request of its conversation."""
    size = estimate(chat)
    if before is None or before.model != llm.name:
        return int(size + _thoughts_within(chat, None))
    thoughts = _thoughts_within(chat, before)
    new = size - before.estimate - before.answer_estimate
    if new >= 0:
        return int(before.counted + before.answer + thoughts + new * before.rate)
    return int(size * before.rate + thoughts)


def at_most(llm: LLM, chat: Chat, before: Counted | None) -> int:
    """Return an upper bound for the tokens of a request, given the last counted request of its conversation.

    New text may be denser than the counted text, so a rate below 1 is not relied on.
    """
    size = estimate(chat)
    if before is None or before.model != llm.name:
        unseen = UNSEEN_WITH_TOOLS if chat.tools else UNSEEN
        return int((size + _thoughts_within(chat, None)) * UNSURE) + unseen
    thoughts, rate = _thoughts_within(chat, before), max(1.0, before.rate)
    new = size - before.estimate - before.answer_estimate
    if new >= 0:
        return int((before.counted + before.answer + thoughts) * SURE + new * rate * UNSURE) + UNSEEN
    return int((size * rate * CUT + thoughts) * SURE) + UNSEEN


def at_least(llm: LLM, chat: Chat, before: Counted | None) -> int:
    """Return a lower bound for the tokens of a request, given the last counted request of its conversation."""
    size = estimate(chat)
    if before is None or before.model != llm.name:
        return int((size + _thoughts_within(chat, None)) / UNSURE)
    thoughts, rate = _thoughts_within(chat, before), min(1.0, before.rate)
    new = size - before.estimate - before.answer_estimate
    if new >= 0:
        return int((before.counted + before.answer + thoughts) / SURE + new * rate / UNSURE)
    return int((size * rate / CUT + thoughts) / SURE)


def estimate(chat: Chat) -> float:
    """Tokens of a request by the rule of thumb."""
    size = estimate_tokens(chat.system) + tool_tokens(chat.tools) + conversation(chat.messages)
    if chat.response_format is not None:
        size += estimate_tokens(repr(chat.response_format.schema))
    return size


def conversation(messages: Sequence[ChatMessage]) -> float:
    """Tokens of what was said."""
    return sum([MESSAGE_TOKENS + sum(map(_part, message.parts)) for message in messages])


def tool_tokens(tools: Sequence[ToolSpec]) -> float:
    """Tokens of the descriptions of tools."""
    return sum(
        [
            estimate_tokens(tool.name)
            + estimate_tokens(tool.description)
            + estimate_tokens(str(tool.parameters))
            for tool in tools
        ]
    )


def _part(part: Part) -> float:
    match part:
        case Text():
            return estimate_tokens(part.text)
        case Thinking():
            return 0.0  # see `Counted.thoughts`
        case ToolResult():
            return MESSAGE_TOKENS + estimate_tokens(part.text) + MEDIA_TOKENS * len(part.media)
        case ToolCall():
            return MESSAGE_TOKENS + estimate_tokens(part.name) + estimate_tokens(str(part.arguments))
        case _:
            return MEDIA_TOKENS
