"""`SemanticCompression`: a `memory=` function that keeps the relevant sentences of older messages."""

import collections
import math
import re
from collections.abc import Sequence

import attrs

from actgent.memory.context_size_estimate import CHARACTERS_PER_TOKEN
from actgent.messages import Message, Text, count_characters
from actgent.support.number_field_validators import bounded_number, whole_number
from actgent.support.unknown_name_hints import lists_arguments

_SENTENCE = re.compile(r"[^.!?\n]+[.!?]*\s*")
LEFT_OUT = "[...]"
"""Text at the end of a message that marks omitted sentences."""


@lists_arguments
@attrs.frozen(kw_only=True)
class SemanticCompression:
    """History processor that keeps the last messages, and the sentences of older messages that are relevant to the newest.

    It takes effect above `trigger` tokens. The score of a sentence is the rarity of its words in the conversation, divided by the
    square root of its length. Words of the newest message count three times. The best sentences are kept in order until
    `max_tokens` are used. The processor compares words, not meanings, and calls no model. `SummarizingMemory` lets a model write a
    summary. `long_term_memory=` with `recall_before_answer=` searches by vectors if an embedding is set. The journal keeps all
    messages.
    """

    trigger: int = attrs.field(default=8_000, validator=whole_number(1))
    """Size of the conversation in tokens above which older messages are compressed."""
    max_tokens: int = attrs.field(default=2_000, validator=whole_number(1))
    """Maximum tokens of all sentences of older messages together."""
    recent: int = attrs.field(default=6, validator=whole_number(1))
    """Number of newest messages that are shown verbatim."""

    def __call__(self, history: Sequence[Message]) -> list[Message]:
        size = sum(count_characters(message.parts) for message in history)
        if size <= self.trigger * CHARACTERS_PER_TOKEN or len(history) <= self.recent:
            return list(history)
        older, recent = history[: -self.recent], history[-self.recent :]
        sentences = [
            (place, each) for place, older_message in enumerate(older) for each in _sentences(older_message)
        ]
        kept = self._select_sentences(sentences, asked=_words(recent[-1].text))
        return [
            *filter(
                None,
                (
                    _keep_sentences(older_message, kept.get(place, []))
                    for place, older_message in enumerate(older)
                ),
            ),
            *recent,
        ]

    def _select_sentences(
        self, sentences: Sequence[tuple[int, str]], *, asked: frozenset[str]
    ) -> dict[int, list[str]]:
        """Select the sentences that are related most closely to the words `asked`, within the token limit.

        Each of `sentences` is the index of its message and its text. The result has the selected texts in their
        order, by message index.
        """
        words = [_words(sentence) for _, sentence in sentences]
        weights = word_weights([*words, asked])
        worth = [
            _sentence_score(own, asked, weights) / (1 + len(sentences[n][1])) ** 0.5
            for n, own in enumerate(words)
        ]
        left, chosen = self.max_tokens * CHARACTERS_PER_TOKEN, set[int]()
        for number in sorted(range(len(sentences)), key=lambda number: (-worth[number], -number)):
            if worth[number] and len(sentences[number][1]) <= left:
                left -= len(sentences[number][1]) + len(LEFT_OUT)
                chosen.add(number)
        kept: dict[int, list[str]] = {}
        for number in sorted(chosen):
            kept.setdefault(sentences[number][0], []).append(sentences[number][1])
        return kept


def _words(text: str) -> frozenset[str]:
    return frozenset(WORD.findall(text.casefold()))


def _sentence_score(own: frozenset[str], asked: frozenset[str], weights: dict[str, float]) -> float:
    return sum(weights[word] * (3 if word in asked else 1) for word in own)


def _sentences(message: Message) -> list[str]:
    """Return the sentences of a message; none if it has tool calls or results, which are kept or omitted as a whole."""
    return [] if message.tool_calls or message.tool_results else _SENTENCE.findall(message.text)


def _keep_sentences(message: Message, sentences: Sequence[str]) -> Message | None:
    """Return a copy of a message that has only `sentences` as its text; None if `sentences` is empty.

    Notices, calls and results are returned unchanged.
    """
    if message.is_note or message.tool_calls or message.tool_results:
        return message
    if not sentences:
        return None
    kept = "".join(sentences).strip()
    text = kept if kept == message.text.strip() else f"{kept} {LEFT_OUT}"
    return attrs.evolve(message, parts=(Text(text),))


# --- relevance filters -----------------------------------------------------------------------

WORD = re.compile(r"\w{2,}")


def _recent(history: Sequence[Message], count: int) -> set[str]:
    return {message.id for message in history[max(0, len(history) - count) :]}


@lists_arguments
@attrs.frozen(kw_only=True)
class TimeDecay:
    """History processor that keeps the messages whose weight is at least `keep`. The weight is 1 for the newest message and halves every `half_life` seconds.

    The age is computed from the messages' timestamps, so the result is the same after a restart or a change of the clock.
    """

    half_life: float = attrs.field(validator=bounded_number(above=0))
    """Seconds in which the weight of a message halves."""
    keep: float = attrs.field(default=0.1, validator=bounded_number(above=0, most=1))
    """Minimum weight of a kept message, above 0 and at most 1."""

    def __call__(self, history: Sequence[Message]) -> list[Message]:
        newest = max((message.created_at for message in history), default=0.0)
        oldest = newest - self.half_life * math.log2(1 / self.keep)
        return [message for message in history if message.created_at >= oldest]


@lists_arguments
@attrs.frozen(kw_only=True)
class RelevanceFilter:
    """History processor that keeps the newest messages, and older messages that share enough words with the newest.

    The relevance of a message, from 0 to 1, is the weighted share of the newest message's words that it contains. The weight of a
    word is its inverse document frequency in the conversation. A question and its answer are kept together.
    """

    keep: float = attrs.field(default=0.5, validator=bounded_number(above=0, most=1))
    """Minimum relevance of a kept message, above 0 and at most 1."""
    recent: int = attrs.field(default=5, validator=whole_number(1))
    """Number of newest messages that are always kept."""

    def __call__(self, history: Sequence[Message]) -> list[Message]:
        if not history:
            return []
        words = [frozenset(WORD.findall(message.text.casefold())) for message in history]
        weights = word_weights(words)
        asked = words[-1]
        whole = sum(weights[word] for word in asked)
        kept = _recent(history, self.recent)
        turns = [message.correlation_id or message.id for message in history]
        relevant = {
            turns[place]
            for place, own in enumerate(words)
            if whole and sum(weights[word] for word in own & asked) >= self.keep * whole
        }
        return [
            message for place, message in enumerate(history) if turns[place] in relevant or message.id in kept
        ]


def word_weights(words: Sequence[frozenset[str]]) -> dict[str, float]:
    """Return a weight for each word. Words that occur in few texts have high weights. `words` has the words of each text."""
    counts = collections.Counter(word for each in words for word in each)
    return {word: math.log(1 + len(words) / count) for word, count in counts.items()}
