"""In which order memories come that were found in several ways, and which are worth keeping.

Lists are put together by reciprocal rank fusion (Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms
Condorcet and individual rank learning methods", SIGIR 2009): a place counts 1 / (60 + place), so that no list's scores have
to be comparable with another's. Places by vectors count a tenth less: of two memories that are each the first in one list alone
the one with the words comes first. With equal weights chance decides there, and with more for vectors a word that
stands in one memory only is outvoted by what is merely alike; docs/benchmarks.md has the figures.

Worth is importance, halved for each half-life by which a memory was used earlier than the newest of those beside it. What time
it is does not matter: a clock that jumps changes the order of no two memories that were there before.
"""

from collections.abc import Mapping, Sequence

from actgent.errors import ConfigurationError
from actgent.errors.printable import counted

RANK_OFFSET = 60
"""The constant of the paper."""
WEIGHTS = {"vectors": 0.9}
"""What a place in a list counts, where that is not 1."""
LEAST_IMPORTANCE = 0.01
"""That of a memory without any: it fades like the others, and does not vanish at once."""
WORTH_SHARE = 0.25
"""How much of a score worth decides, where half-lives or importances differ."""
DAY = 86_400.0
RANKED = 8_000
"""How many memories of an owner the words of one search may be found in together, before the commonest are left out."""
SCANNED = 100_000
"""The same of all owners."""


def fuse(lists: Mapping[str, Sequence[int]]) -> dict[int, tuple[float, tuple[str, ...]]]:
    """The scores of everything in some ranked lists, and the lists that each was in."""
    scores: dict[int, float] = {}
    found_by: dict[int, tuple[str, ...]] = {}
    for name, ranked in lists.items():
        weight = WEIGHTS.get(name, 1.0)
        for place, number in enumerate(ranked, 1):
            scores[number] = scores.get(number, 0.0) + weight / (RANK_OFFSET + place)
            found_by[number] = (*found_by.get(number, ()), name)
    return {number: (score, found_by[number]) for number, score in scores.items()}


def worth(importance: float, last_used: float, *, newest: float, half_life: float | None) -> float:
    """Return what a memory is worth beside others, of which the newest was used at `newest`: from 0 to 1.

    `half_life` is in days; with None nothing fades.
    """
    weight = max(importance, LEAST_IMPORTANCE)
    if half_life is None:
        return weight
    faded: float = 0.5 ** (max(0.0, newest - last_used) / (half_life * DAY))
    return weight * faded


def telling(counts: Mapping[str, float], *, share: float) -> list[str]:
    """The words to search for: the rarest, as long as not too many memories have them.

    To rank by a word that is everywhere costs the most and tells the least.

    Args:
        counts: In how many memories of all owners each word is.
        share: Which part of all memories is the asking owner's, from 0 to 1.
    """
    words: list[str] = []
    total = 0.0
    for word, count in sorted(counts.items(), key=lambda each: each[1]):
        total += count
        if words and (total * share > RANKED or total > SCANNED):
            break
        words.append(word)
    return words


def check_dimensions(there: int, given: int) -> None:
    """Compare the length of a question's vector with that of the memories.

    Raises:
        ConfigurationError: they differ.
    """
    if there != given:
        raise ConfigurationError(
            f"the vectors of these memories have {counted(there, 'dimension')}, and embed= gives {given}: give the function that they were "
            "made with, or have all made anew by reindex(anew=True)"
        )


def weighed(score: float, value: float) -> float:
    """A score of fusion, and what the memory is worth besides."""
    return score * (1 - WORTH_SHARE + WORTH_SHARE * value)
