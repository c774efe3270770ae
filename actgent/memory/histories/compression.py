"""A function for `memory=` that says older messages in fewer words: those sentences of them that matter to the question."""

import re
from collections.abc import Sequence

import attrs

from actgent.memory.room import CHARACTERS_A_TOKEN, count_characters
from actgent.messages import Message, Text

from .decay import WORD, word_weights

_SENTENCE = re.compile(r"[^.!?\n]+[.!?]*\s*")
LEFT_OUT = "[...]"
"""What stands where sentences are left out."""


@attrs.frozen(kw_only=True)
class SemanticCompression:
    """Shows the last messages as they were said, and of older ones the sentences that carry most for what is asked now.

    It takes effect above `trigger` tokens. A sentence counts by its words that are rare in the conversation, three times those that
    the newest message has, too, for its length; the best ones are kept in their places until `max_tokens` are full. No model
    is asked. Words are compared, not meanings: `Summarizing` has a model write a summary, and `memories=` with
    `recall_before_answer=` finds by vectors, where an embedding is given. The record stays whole.
    """

    trigger: int = attrs.field(default=8_000, validator=attrs.validators.ge(1))
    """The tokens of a conversation from which on it is compressed."""
    max_tokens: int = attrs.field(default=2_000, validator=attrs.validators.ge(1))
    """What the sentences of older messages may take together."""
    recent: int = attrs.field(default=6, validator=attrs.validators.ge(1))
    """How many of the last messages stay as they are."""

    def __call__(self, history: Sequence[Message]) -> list[Message]:
        size = sum(count_characters(message.parts) for message in history)
        if size <= self.trigger * CHARACTERS_A_TOKEN or len(history) <= self.recent:
            return list(history)
        older, recent = history[: -self.recent], history[-self.recent :]
        sentences = [(place, each) for place, said in enumerate(older) for each in _sentences(said)]
        kept = self._best(sentences, asked=_words(recent[-1].text))
        return [
            *filter(None, (_with(said, kept.get(place, [])) for place, said in enumerate(older))),
            *recent,
        ]

    def _best(self, sentences: Sequence[tuple[int, str]], *, asked: frozenset[str]) -> dict[int, list[str]]:
        """The sentences that matter most, by their messages and in their order."""
        words = [_words(sentence) for _, sentence in sentences]
        weights = word_weights([*words, asked])
        worth = [
            _worth(own, asked, weights) / (1 + len(sentences[n][1])) ** 0.5 for n, own in enumerate(words)
        ]
        left, chosen = self.max_tokens * CHARACTERS_A_TOKEN, set[int]()
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


def _worth(own: frozenset[str], asked: frozenset[str], weights: dict[str, float]) -> float:
    return sum(weights[word] * (3 if word in asked else 1) for word in own)


def _sentences(message: Message) -> list[str]:
    """What a message says; nothing of calls and results, which stay or go as they are."""
    return [] if message.tool_calls or message.tool_results else _SENTENCE.findall(message.text)


def _with(message: Message, sentences: Sequence[str]) -> Message | None:
    """The message with these sentences alone; None where none of it is left, but for notices and calls."""
    if message.is_note or message.tool_calls or message.tool_results:
        return message
    if not sentences:
        return None
    told = "".join(sentences).strip()
    text = told if told == message.text.strip() else f"{told} {LEFT_OUT}"
    return attrs.evolve(message, parts=(Text(text),))
