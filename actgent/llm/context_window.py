"""How much of a model's context window a request takes, before it is sent.

The provider has counted the request before it: what was sent then, and what it answered. Only what is new is estimated, at
the rate at which the last new words became tokens. Before the first answer, and for another model, all is an estimate.

What a model thinks goes back to it while it calls tools, and counts then; once the user says something providers leave it out.
"""

import re
from collections.abc import Sequence

import attrs

from actgent.messages import ChatMessage, Part, Text, Thinking, ToolCall, ToolResult, ToolSpec

from .base import LLM, Answer, Chat

CHARACTERS_A_TOKEN = 4
"""Of ASCII text; of other text a token is three bytes, which is a Chinese character."""
MESSAGE_TOKENS = 4
"""What a message takes besides its words; a call and a result take as much."""
SEALED_CHARACTERS = 9
"""Characters of a sealed thought that are a token: as recorded answers of OpenAI show, which tell the length of both."""
MEDIA_TOKENS = 1_500
"""What a picture, a document or an opaque block is counted as."""
ANSWER_TOKENS = 4_096
"""What is kept free for an answer whose length nobody says, or an eighth of a window that is small."""
SURE, UNSURE = 1.01, 1.15
"""By how much tokens that were counted, and those that are estimated, may be more than we think."""
UNSEEN, UNSEEN_WITH_TOOLS = 100, 600
"""Tokens that a provider may add of its own, and in a first request with tools; recorded exchanges have up to 60, and 550."""
_RATES = 0.5, 2.5
"""Between these a provider's count is believed to be of what was sent."""
_TELLING = 200
"""Tokens from which on what is new tells a rate."""
_LONG = 200
"""Characters from which on it is looked at how dense a text is, in samples of `_SAMPLE`."""
_SAMPLE = 400
_PIECES = re.compile(r"[A-Z]?[a-z]{1,8}|[A-Z]{1,3}|\d{1,3}|[^\sA-Za-z\d]{1,2}")
"""About what tokenizers split ASCII into; short words and their spaces make up for long ones."""
_DENSEST = 1.5
_MOST_KNOWN = 10_000
_densities: dict[int, float] = {}
"""Characters a token of long texts, by their hashes: the same ones stand in each request of a conversation."""


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
    rate: float = 1.0
    """Tokens of the provider's for one of ours, as far as two requests have told it."""


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
    kept = max(0.0, usage.output_tokens - thought)
    rate = 1.0 if before is None else _rate(before, size, counted)
    goes_back = any(isinstance(part, Thinking) and part.dialect == llm.dialect for part in answer.parts)
    return Counted(llm.name, size, counted, said, kept, told + thought if goes_back else told, rate)


def counted_before(llm: LLM, chat: Chat, tokens: int, before: Counted | None) -> Counted:
    """Return what a provider has counted of a request that was not sent yet."""
    known = before if before is not None and before.model == llm.name else None
    told = min(_thoughts_within(chat, known), tokens)
    return Counted(
        llm.name, estimate(chat), tokens - told, 0.0, 0.0, told, 1.0 if known is None else known.rate
    )


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
    return words(part.text) if part.text else len(str(part.data)) / SEALED_CHARACTERS


def _rate(before: Counted, size: float, counted: float) -> float:
    """The rate at which what was new since the last request became tokens; as before where that was little."""
    new = size - before.estimate - before.answer_estimate
    if new < _TELLING:
        return before.rate
    lowest, highest = _RATES
    return min(max((counted - before.counted - before.answer) / new, lowest), highest)


def expected_tokens(llm: LLM, chat: Chat, before: Counted | None) -> int:
    """About how many tokens a request takes, given the last one of its conversation that was counted."""
    known, new, rate = _known_and_new(llm, chat, before)
    return int(known + new * rate)


def at_most(llm: LLM, chat: Chat, before: Counted | None) -> int:
    """The same, and as much more as the estimate of what was not counted may be wrong by.

    What is new may be denser than what told the rate, so one below 1 is not relied on.
    """
    known, new, rate = _known_and_new(llm, chat, before)
    unseen = UNSEEN_WITH_TOOLS if not known and chat.tools else UNSEEN
    return int(known * SURE + new * max(1.0, rate) * UNSURE) + unseen


def at_least(llm: LLM, chat: Chat, before: Counted | None) -> int:
    """The same, and as much less."""
    known, new, rate = _known_and_new(llm, chat, before)
    return int(known / SURE + new * min(1.0, rate) / UNSURE)


def _known_and_new(llm: LLM, chat: Chat, before: Counted | None) -> tuple[float, float, float]:
    """Tokens of a request that the provider has counted, those that are estimated, and how many of its a token of ours is."""
    size = estimate(chat)
    if before is None or before.model != llm.name:
        return 0.0, size + _thoughts_within(chat, None), 1.0
    thoughts = _thoughts_within(chat, before)
    new = size - before.estimate - before.answer_estimate
    if new >= 0:
        return before.counted + before.answer + thoughts, new, before.rate
    left = before.counted + (size - before.estimate) * before.rate  # it was cut since
    return 0.0, max(left, size) + thoughts, 1.0


def estimate(chat: Chat) -> float:
    """Tokens of a request by the rule of thumb."""
    size = words(chat.system) + tool_tokens(chat.tools) + conversation(chat.messages)
    if chat.response_format is not None:
        size += words(repr(chat.response_format.schema))
    return size


def conversation(messages: Sequence[ChatMessage]) -> float:
    """Tokens of what was said."""
    return sum([MESSAGE_TOKENS + sum(map(_part, message.parts)) for message in messages])


def tool_tokens(tools: Sequence[ToolSpec]) -> float:
    """Tokens of the descriptions of tools."""
    return sum([words(tool.name) + words(tool.description) + words(str(tool.parameters)) for tool in tools])


def words(text: str) -> float:
    """Tokens of a text."""
    if not text.isascii():
        return len(text.encode("utf-8", "surrogatepass")) / 3
    if len(text) < _LONG:
        return len(text) / CHARACTERS_A_TOKEN
    return len(text) / (_densities.get(hash(text)) or _characters_a_token(text))


def _characters_a_token(text: str) -> float:
    """How many characters of a long text are a token: four of prose, and fewer of numbers, codes and data; kept for the next time."""
    if len(_densities) >= _MOST_KNOWN:
        _densities.clear()
    middle, end = len(text) // 2, max(0, len(text) - _SAMPLE)
    sample = "\n".join(text[start : start + _SAMPLE] for start in (0, middle, end))
    pieces = len(_PIECES.findall(sample))
    found = min(CHARACTERS_A_TOKEN, max(_DENSEST, len(sample) / (pieces or 1)))
    _densities[hash(text)] = found
    return found


def _part(part: Part) -> float:
    match part:
        case Text():
            return words(part.text)
        case Thinking():
            return 0.0  # see `Counted.thoughts`
        case ToolResult():
            return MESSAGE_TOKENS + words(part.text) + MEDIA_TOKENS * len(part.media)
        case ToolCall():
            return MESSAGE_TOKENS + words(part.name) + words(str(part.arguments))
        case _:
            return MEDIA_TOKENS
