"""The order in which found memories are returned.

A score is the sum of a word score and a vector score: BM25 as a share of the best in the search, and the cosine of the
vectors, weighted. Scores, unlike ranks, keep the distance between a hit and a guess. A part of the score of the best
memories goes to those before and after them in the same session, since a question and its answer are often two turns.
The best memory itself keeps its place. docs/benchmarks.md has the figures.

Importance and age decide only between memories with the same score.
"""

from collections.abc import Iterable, Mapping

from actgent.errors import ConfigurationError
from actgent.errors.printable import counted

VECTOR_WEIGHT = 0.6
"""Weight of a cosine of 1; the best memory by words has 1."""
SHARES = (0.4, 0.2)
"""Part of a score that goes to each neighbour in the session, at a distance of 1, 2, ..."""
UNITS = 1_000_000
"""Units of a score of 1. Scores are whole numbers, so that those that databases add in different orders are equal."""
LEAST_IMPORTANCE = 0.01
"""Importance of a memory that has 0, so that its age counts, too."""
DAY = 86_400.0


def own_scores(words: Mapping[int, float], cosines: Mapping[int, float]) -> dict[int, int]:
    """Return the score of each memory that words or vectors found, in `UNITS`.

    Args:
        words: Scores by BM25.
        cosines: Cosines of the vectors of memories with that of the question.
    """
    by_word = UNITS / (max(words.values(), default=1.0) or 1.0)
    scores = {number: int(score * by_word + 0.5) for number, score in words.items()}
    for number, cosine in cosines.items():
        if cosine > 0:
            scores[number] = scores.get(number, 0) + int(VECTOR_WEIGHT * cosine * UNITS + 0.5)
    return scores


def spread(scores: Mapping[int, int], neighbours: Iterable[tuple[int, int, int]]) -> dict[int, int]:
    """Return the scores plus shares of the neighbours in the same session. The memories with the best score stay first.

    Args:
        scores: Score of each memory by words and vectors.
        neighbours: A memory that gives, one that receives, and their distance.
    """
    total = dict(scores)
    for giver, receiver, distance in neighbours:
        total[receiver] = total.get(receiver, 0) + int(SHARES[distance - 1] * scores[giver])
    best = max(scores.values(), default=0)
    top = max(total.values(), default=0)
    total.update({number: top for number, score in scores.items() if score == best})
    return total


def in_order(scores: Mapping[int, int]) -> list[int]:
    """Return the numbers of memories by their scores, best first, of equal ones the newest first."""
    return sorted(sorted(scores, reverse=True), key=scores.__getitem__, reverse=True)


def worth(importance: float, last_used: float, *, newest: float, half_life: float | None) -> float:
    """Return the importance of a memory, halved for each half-life that it was used earlier than `newest`.

    Times are Unix times in seconds, `half_life` is in days; with None nothing fades.
    """
    weight = max(importance, LEAST_IMPORTANCE)
    if half_life is None:
        return weight
    faded: float = 0.5 ** (max(0.0, newest - last_used) / (half_life * DAY))
    return weight * faded


def check_dimensions(stored: int, asked: int) -> None:
    """Compare the length of a question's vector with that of the memories.

    Raises:
        ConfigurationError: The lengths differ.
    """
    if stored != asked:
        raise ConfigurationError(
            f"the vectors of these memories have {counted(stored, 'dimension')}, and embed= gives {asked}: give the function that they were "
            "made with, or have all made anew by reindex(anew=True)"
        )
