"""The order in which found memories are returned.

The score of a memory is the sum of a word score and a weighted vector score. The word score is BM25 as a share of the best BM25
in the search. The vector score is the cosine of the vectors. Scores, unlike ranks, keep the distance between a hit and a guess.

The scores are changed in three steps. First, the scores of memories from a month that the question names are multiplied. Second,
the memories before and after a best memory in its session get a part of its score, since a question and its answer are often two
turns. Third, all memories of a session with several of the best memories get another part, because the session is probably
about the question. The best memory stays first. docs/benchmarks.md has the figures.

Importance and age decide only between memories with the same score.
"""

from collections.abc import Container, Hashable, Iterable, Mapping

from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import counted

VECTOR_WEIGHT = 0.6
"""Score of a cosine of 1, relative to the score 1 of the best memory by words."""
PERIOD_FACTOR = 3
"""Factor of the score of a memory that was created in a month that the question names."""
SHARES = (0.4, 0.2)
"""Fractions of a score that each neighbour in the session receives, at distances of 1 and 2."""
SESSION_SHARE = 0.5
"""Fraction of the best score of a session that is added to the scores of all its memories."""
SESSION_DECAY = 1.5
"""Exponent of the weights in a session: its n-th best memory has the weight n ** -1.5."""
UNITS = 1_000_000
"""Number of integer units of a score of 1. Scores are integers, since a sum of floats depends on the database's
order of addition.
"""
MIN_IMPORTANCE = 0.01
"""Minimum importance in the computation of worth, so that age matters even if the importance is 0."""
DAY_SECONDS = 86_400.0


def combine_scores(words: Mapping[int, float], cosines: Mapping[int, float]) -> dict[int, int]:
    """Combine the word score and the vector score of each memory to one score, in `UNITS`.

    Args:
        words: Scores of words by BM25, by memory number.
        cosines: Cosines of the memories' vectors with the vector of the question, by memory number.
    """
    by_word = UNITS / (max(words.values(), default=1.0) or 1.0)
    scores = {number: int(score * by_word + 0.5) for number, score in words.items()}
    of_words, weight = scores.get, VECTOR_WEIGHT * UNITS
    scores.update(
        [
            (number, of_words(number, 0) + int(weight * cosine + 0.5))
            for number, cosine in cosines.items()
            if cosine > 0
        ]
    )
    return scores


def raise_dated_scores(scores: Mapping[int, int], created_then: Container[int]) -> dict[int, int]:
    """Multiply by `PERIOD_FACTOR` the scores of the memories in `created_then`, and return all scores.

    These memories were created in a period that the question names.
    """
    return {
        number: score * PERIOD_FACTOR if number in created_then else score for number, score in scores.items()
    }


def add_neighbour_scores(
    scores: Mapping[int, int], neighbours: Iterable[tuple[int, int, int]], sessions: Mapping[int, Hashable]
) -> dict[int, int]:
    """Raise the scores of memories next to good memories of the same session, and of memories of the best sessions.

    Return all scores.

    The best memory before the additions stays the best memory.

    Args:
        scores: Score of each memory by words and vectors.
        neighbours: Number of a found memory, number of a memory near it in its session, and their distance.
        sessions: Session of each of the best memories.
    """
    total, session_of = dict(scores), dict(sessions)
    for giver, receiver, distance in neighbours:
        total[receiver] = total.get(receiver, 0) + int(SHARES[distance - 1] * scores[giver])
        if giver in sessions:
            session_of[receiver] = sessions[giver]
    shares = _session_scores(scores, sessions)
    for number, session in session_of.items():
        total[number] += shares[session]
    best = max(scores.values(), default=0)
    top = max(total.values(), default=0)
    total.update({number: top + 1 for number, score in scores.items() if score == best})
    return total


def _session_scores(scores: Mapping[int, int], sessions: Mapping[int, Hashable]) -> dict[Hashable, int]:
    """Return, by session, the amount to be added to the scores of the session's memories."""
    found: dict[Hashable, int] = {}
    counts: dict[Hashable, int] = {}
    for score, number in sorted(((scores[number], number) for number in sessions), reverse=True):
        session = sessions[number]
        counts[session] = count = counts.get(session, 0) + 1
        share = int(SESSION_SHARE * score / count**SESSION_DECAY)
        found[session] = found.get(session, 0) + share
    return found


def sort_by_score(scores: Mapping[int, float]) -> list[int]:
    """Return the memory numbers ordered by score, best first. Of equal scores, the newest memory comes first."""
    return sorted(sorted(scores, reverse=True), key=scores.__getitem__, reverse=True)


def decayed_importance(
    importance: float, last_used: float, *, newest: float, half_life: float | None
) -> float:
    """Return the importance of a memory, halved for each half-life between its last use and `newest`.

    Times are Unix times in seconds, `half_life` is in days. None disables the decay.
    """
    weight = max(importance, MIN_IMPORTANCE)
    if half_life is None:
        return weight
    faded: float = 0.5 ** (max(0.0, newest - last_used) / (half_life * DAY_SECONDS))
    return weight * faded


def check_dimensions(stored: int, query_dimensions: int) -> None:
    """Raise if the numbers of dimensions of the stored vectors and of the query's vector differ.

    Raises:
        ConfigurationError: The lengths differ.
    """
    if stored != query_dimensions:
        raise ConfigurationError(
            f"the stored vectors have {counted(stored, 'dimension')}, and embed= returns {query_dimensions}: pass the embed= function that the memories "
            "were stored with, or recompute all vectors with reindex(recompute=True)"
        )
