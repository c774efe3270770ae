"""Functions for `memory=` that keep of a record what is fresh, or what has to do with the question."""

import collections
import math
import re
from collections.abc import Sequence

import attrs

from actgent.messages import Message

WORD = re.compile(r"\w{2,}")


def _recent(history: Sequence[Message], count: int) -> set[str]:
    return {message.id for message in history[max(0, len(history) - count) :]}


@attrs.frozen(kw_only=True)
class TimeDecay:
    """Keeps messages whose weight is still `keep`; it halves with each `half_life` that a message is older than the newest.

    Time is that of the messages themselves, so it is the same after a restart, and a clock that jumps back makes none older.
    """

    half_life: float = attrs.field(validator=attrs.validators.gt(0))
    """Seconds."""
    keep: float = attrs.field(
        default=0.1, validator=attrs.validators.and_(attrs.validators.gt(0), attrs.validators.le(1))
    )
    """The weight down to which a message is kept, where the newest has 1."""

    def __call__(self, history: Sequence[Message]) -> list[Message]:
        newest = max((message.created_at for message in history), default=0.0)
        oldest = newest - self.half_life * math.log2(1 / self.keep)
        return [message for message in history if message.created_at >= oldest]


@attrs.frozen(kw_only=True)
class Relevance:
    """Keeps the last messages, and those of the others that share enough words with the newest.

    The relevance of a message is the share of the newest one's words that it has, between 0 and 1, where a word counts by
    how rare it is in the conversation (its inverse document frequency). An answer is kept with the question before it, and
    a question with its answer.
    """

    keep: float = attrs.field(
        default=0.5, validator=attrs.validators.and_(attrs.validators.gt(0), attrs.validators.le(1))
    )
    """The relevance from which on a message is kept."""
    recent: int = attrs.field(default=5, validator=attrs.validators.ge(1))
    """How many of the last messages are kept whatever they say."""

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
    """Return how much each word counts."""
    counts = collections.Counter(word for each in words for word in each)
    return {word: math.log(1 + len(words) / count) for word, count in counts.items()}
