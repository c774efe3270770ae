"""In which order memories come, and what of a question is looked for."""

import pytest
from hypothesis import given, strategies as st

from actgent import ConfigurationError
from actgent.memory.longterm.ranking import check_dimensions, fuse, telling, weighed, worth
from actgent.memory.longterm.words import MAX_WORDS, searched_words, spaced


def test_what_two_ways_find_comes_before_what_one_finds():
    """Places count 1 / (60 + place), from each list; where each finds another one first, the one with the words comes first."""
    scores = fuse({"words": [1, 2, 3], "vectors": [3, 4]})
    assert scores[3] == (1 / 63 + 0.9 / 61, ("words", "vectors"))
    assert scores[1] == (1 / 61, ("words",))
    alone = fuse({"words": [1], "vectors": [2]})
    assert alone[1] > alone[2]
    assert max(scores, key=lambda number: scores[number][0]) == 3


def test_worth_halves_with_each_half_life():
    """Importance counts, and how much earlier than the newest a memory was used; a later one is not worth more."""
    day = 86_400
    assert worth(0.8, 0, newest=10 * day, half_life=10) == pytest.approx(0.4)
    assert worth(0.8, 20 * day, newest=10 * day, half_life=10) == 0.8
    assert worth(0.8, 0, newest=10 * day, half_life=None) == 0.8
    assert worth(0, 0, newest=0, half_life=10) > 0
    assert weighed(1.0, 0.2) < weighed(1.0, 0.9) <= 1.0


def test_common_words_are_left_out_and_rare_ones_never():
    """The rarest words are looked for, as long as the owner has not too many memories with them."""
    counts = {"the": 90_000, "oslo": 10, "house": 5_000}
    assert telling(counts, share=1.0) == ["oslo", "house"]
    assert telling(counts, share=0.01) == ["oslo", "house", "the"]
    assert telling({"the": 5_000_000}, share=1.0) == ["the"]
    assert telling({}, share=1.0) == []


def test_vectors_of_another_length_are_refused():
    """The text says what to do."""
    check_dimensions(3, 3)
    with pytest.raises(ConfigurationError, match="3 dimensions, and embed= gives 4"):
        check_dimensions(3, 4)


def test_words_that_are_in_all_questions_are_left_out():
    """But where there are no others."""
    assert searched_words("Where does Ada's sister live?") == ["ada", "s", "sister", "live"]
    assert searched_words("Who is it?") == ["who", "is", "it"]
    assert searched_words("tea TEA Tea") == ["tea"]
    assert spaced("喜欢tea").split() == ["喜", "欢", "tea"]


@given(st.text(max_size=2000))
def test_nothing_of_a_query_language_is_left(question):
    """Words hold letters and digits alone, and there are not too many."""
    words = searched_words(question)
    assert len(words) <= MAX_WORDS
    assert all(set(word) & set(" \"'*:^(){}+-%;\\\0&|!<>") == set() for word in words)
