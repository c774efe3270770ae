"""`TimeDecay` and `RelevanceFilter`: `memory=` functions that keep recent messages, or messages related to the newest one."""

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
    """History processor that keeps the messages whose weight is at least `keep`. The weight is 1 for the newest message and halves every `half_life` seconds.

    The age is computed from the messages' timestamps, so the result is the same after a restart or a change of the clock.
    """

    half_life: float = attrs.field(validator=attrs.validators.gt(0))
    """Seconds in which the weight of a message halves."""
    keep: float = attrs.field(
        default=0.1, validator=attrs.validators.and_(attrs.validators.gt(0), attrs.validators.le(1))
    )
    """Minimum weight of a kept message, above 0 and at most 1."""

    def __call__(self, history: Sequence[Message]) -> list[Message]:
        newest = max((message.created_at for message in history), default=0.0)
        oldest = newest - self.half_life * math.log2(1 / self.keep)
        return [message for message in history if message.created_at >= oldest]


@attrs.frozen(kw_only=True)
class RelevanceFilter:
    """History processor that keeps the newest messages, and older messages that share enough words with the newest.

    The relevance of a message, from 0 to 1, is the weighted share of the newest message's words that it contains. The weight of a
    word is its inverse document frequency in the conversation. A question and its answer are kept together.
    """

    keep: float = attrs.field(
        default=0.5, validator=attrs.validators.and_(attrs.validators.gt(0), attrs.validators.le(1))
    )
    """Minimum relevance of a kept message, above 0 and at most 1."""
    recent: int = attrs.field(default=5, validator=attrs.validators.ge(1))
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
    """Return a weight for each word: a word that occurs in fewer of the given texts has a higher weight."""
    counts = collections.Counter(word for each in words for word in each)
    return {word: math.log(1 + len(words) / count) for word, count in counts.items()}
