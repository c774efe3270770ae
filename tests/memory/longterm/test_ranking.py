"""The ranking of recalled memories and the search words of a query."""

import itertools
import random

import pytest
from hypothesis import example, given, settings, strategies as st

from actgent import ConfigurationError, LongTermMemory
from actgent.memory.longterm import word_index
from actgent.memory.longterm.long_term_memory import MAX_WORDS, searched_words, separate_words
from actgent.memory.longterm.recall_ranking import (
    SHARES,
    UNITS,
    add_neighbour_scores,
    check_dimensions,
    combine_scores,
    decayed_importance,
)

DAY_SECONDS = 86_400
WORDS = "amber birch cedar delta ember fjord grove heath inlet jetty kiosk lemon".split()
SCORES = st.dictionaries(st.integers(1, 50), st.floats(0.001, 20), min_size=1)


@given(SCORES, st.dictionaries(st.integers(1, 50), st.floats(-1, 1)))
def test_scores_add_up(words, cosines):
    """The best match by words has the full word score. A vector never lowers a score."""
    scores = combine_scores(words, cosines)
    alone = combine_scores(words, {})
    assert max(alone.values()) == UNITS
    assert scores.keys() == words.keys() | {number for number, cosine in cosines.items() if cosine > 0}
    assert all(scores[number] >= score for number, score in alone.items())


@given(
    st.dictionaries(st.integers(1, 50), st.integers(0, UNITS), min_size=1),
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 60), st.integers(1, len(SHARES)))),
    st.dictionaries(st.integers(1, 50), st.integers(1, 3)),
)
@example(
    scores={1: 90, 2: 70, 3: 80}, links=[(1, 2, 1), (3, 2, 1)], sessions={}
)  # two neighbours would raise 2 above the best
@example(scores={1: 90, 2: 70, 3: 80}, links=[], sessions={2: 1, 3: 1})  # and so would their session
def test_best_memory_stays_first(scores, links, sessions):
    """Neighbours and memories of the same session receive a part of a score.

    None passes the memory with the best score.
    """
    neighbours = [link for link in links if link[0] in scores]
    totals = add_neighbour_scores(
        scores, neighbours, {each: sessions[each] for each in sessions if each in scores}
    )
    best = {number for number, score in scores.items() if score == max(scores.values())}
    assert {number for number, total in totals.items() if total == max(totals.values())} == best
    assert all(totals[number] >= score for number, score in scores.items())
    assert totals.keys() == scores.keys() | {receiver for _, receiver, _ in neighbours}


def test_importance_halves_with_each_half_life():
    """The decayed importance depends on importance and on the time since the last use, relative to the newest memory."""
    assert decayed_importance(0.8, 0, newest=10 * DAY_SECONDS, half_life=10) == pytest.approx(0.4)
    assert decayed_importance(0.8, 20 * DAY_SECONDS, newest=10 * DAY_SECONDS, half_life=10) == 0.8
    assert decayed_importance(0.8, 0, newest=10 * DAY_SECONDS, half_life=None) == 0.8
    assert decayed_importance(0, 0, newest=0, half_life=10) > 0


async def recalled(memories, query, **options):
    return [each.memory.text for each in await memories.recall(query, owner="ada", **options)]


async def test_a_rare_word_comes_before_common_ones(memories):
    """Of memories with one word of the query, the memory with the rarest word is first."""
    for number in range(30):
        await memories.remember(f"the harbour at noon, day {number}", owner="ada")
    await memories.remember("the lighthouse at noon", owner="ada")
    assert (await recalled(memories, "lighthouse or harbour?"))[0] == "the lighthouse at noon"


async def test_a_short_memory_comes_before_a_long_one_with_the_same_word(memories):
    """A word has a higher weight in a shorter text."""
    await memories.remember("tea " + "and many other things that she likes " * 5, owner="ada")
    await memories.remember("green tea", owner="ada")
    assert (await recalled(memories, "tea"))[0] == "green tea"


async def test_an_answer_is_found_next_to_its_question(memories):
    """Neighbours of a match in its session are ranked after the match.

    Neighbours in other sessions are not found.
    """
    for session, texts in (
        ("s1", ("good morning", "which bicycle did you buy?", "the red one from Utrecht", "lovely")),
        ("s2", ("hello again", "it rains", "so it does")),
        ("", ("a note", "another note")),
    ):
        for text in texts:
            await memories.remember(text, owner="ada", session_id=session)
    found = await memories.recall("Which bicycle?", owner="ada")
    assert found[0].memory.text == "which bicycle did you buy?"
    assert {each.memory.text for each in found[1:]} == {"good morning", "the red one from Utrecht", "lovely"}
    assert [each.found_by for each in found] == [("words",), *[("session",)] * 3]
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    assert len(await memories.recall("note", owner="ada")) == 2


async def test_a_session_with_several_hits_comes_before_a_single_hit(memories):
    """Of two memories with equal scores, the memory with a second match in its session is first."""
    for session, text in (
        ("s1", "the harbour has a lighthouse and a crane"),
        ("s2", "my boat is in a harbour"),
        ("s2", "it rains a lot there"),
        ("s2", "so nobody comes by"),
        ("s2", "her ship left a harbour"),
        ("s3", "her shop is by a harbour"),
    ):
        await memories.remember(text, owner="ada", session_id=session)
    found = await recalled(memories, "lighthouse crane harbour")
    assert found[0] == "the harbour has a lighthouse and a crane"
    assert set(found[1:3]) == {"my boat is in a harbour", "her ship left a harbour"}


async def test_neighbours_of_other_owners_are_not_found(memories):
    """A session that two owners share does not connect their memories."""
    await memories.remember("the bicycle is red", owner="ada", session_id="s1")
    await memories.remember("a secret of his", owner="bob", session_id="s1")
    await memories.remember("it was cheap", owner="ada", session_id="s1")
    assert await recalled(memories, "bicycle") == ["the bicycle is red", "it was cheap"]


async def test_update_keeps_its_session_neighbours(memories):
    """The new memory has the neighbours of the replaced one. A forgotten memory is no neighbour."""
    made = [
        await memories.remember(text, owner="ada", session_id="s1")
        for text in ("a bicycle?", "the red one", "fine", "bye", "see you")
    ]
    await memories.update(made[1].id, "the blue one", owner="ada")
    await memories.forget(made[2].id, owner="ada")
    assert await recalled(memories, "bicycle") == ["a bicycle?", "the blue one"]


async def test_importance_and_age_decide_between_equal_scores_only(url, clock):
    """Importance orders memories with equal scores. A higher score precedes both."""
    async with LongTermMemory(url, half_life=1, now=clock) as memories:
        await memories.remember("the green door", owner="ada", importance=0.2)
        await memories.remember("the green gate", owner="ada", importance=0.9)
        await memories.remember("the green wall", owner="ada", importance=0.1)
        assert await recalled(memories, "green") == ["the green gate", "the green door", "the green wall"]
        await memories.remember("the green barn, green all over", owner="ada", importance=0.01)
        clock.time += 365 * DAY_SECONDS
        await memories.remember("the green shed", owner="ada", importance=0.2)
        found = await recalled(memories, "green")
    assert found[:3] == ["the green barn, green all over", "the green shed", "the green gate"]


async def test_equal_texts_are_returned_once(memories):
    """Texts that differ only in case and a full stop are returned once."""
    for number in range(150):
        await memories.remember("Ada likes tea" + "." * (number % 2), owner="ada", session_id="s1")
    await memories.remember("Ada likes tea, and milk in it", owner="ada")
    await memories.remember("Bob likes tea", owner="bob", is_shared=True)
    assert len(await recalled(memories, "likes tea", limit=5)) == 3
    assert len(await recalled(memories, "", limit=5)) == 3


async def test_filtered_candidates_do_not_hide_other_results(memories, clock):
    """Hundreds of better but expired or filtered memories take no result places."""
    for number in range(250):
        await memories.remember(f"tea {number}", owner="ada", valid_until=clock.time - 1)
    await memories.remember("tea with a long explanation of how it is made", owner="ada")
    assert len(await recalled(memories, "tea")) == 1


@pytest.mark.parametrize("seed", range(4))
async def test_both_stores_rank_alike(tmp_path, postgres_url, seed):
    """SQLite and PostgreSQL recall the same random memories in the same order with the same scores."""
    rng = random.Random(seed)

    def sentence():
        return " ".join(rng.choices(WORDS, weights=range(1, len(WORDS) + 1), k=rng.randrange(1, 9)))

    texts = [
        (sentence(), f"s{rng.randrange(4)}", rng.choice((0.1, 0.5)), rng.random() < 0.1) for _ in range(60)
    ]
    questions = [sentence() for _ in range(15)]
    found = []
    for url in (f"sqlite:///{tmp_path}/m.db", postgres_url):
        async with LongTermMemory(url, now=itertools.count(1_700_000_000.0).__next__) as memories:
            for text, session, importance, is_shared in texts:
                owner = "bob" if is_shared else "ada"
                await memories.remember(
                    text, owner=owner, session_id=session, importance=importance, is_shared=is_shared
                )
            answers = [await memories.recall(each, owner="ada", limit=20) for each in questions]
        found.append(
            [[(each.memory.text, each.score, each.found_by) for each in answer] for answer in answers]
        )
    assert found[0] == found[1]
    assert all(len(answer) > 5 for answer in found[0])


@given(
    st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8), min_size=2, max_size=25),
    st.integers(0, 1000),
)
@settings(max_examples=30)
async def test_a_vector_never_hides_the_only_memory_with_a_rare_word(texts, seed):
    """With uninformative vectors, the only memory with the query's word stays first."""
    rng = random.Random(seed)
    noise = {}

    async def embed(asked):
        return [noise.setdefault(text, [rng.uniform(0.9, 1.1) for _ in range(8)]) for text in asked]

    pytest.importorskip("sqlite_vec", reason="the extra `vector` is not installed")
    async with LongTermMemory("memory:", embed=embed) as memories:
        for index, expected in enumerate(texts):
            await memories.remember(" ".join(expected), owner="ada", session_id=f"s{index % 3}")
        await memories.remember(f"{' '.join(texts[0])} zirconium", owner="ada")
        assert "zirconium" in (await recalled(memories, "zirconium"))[0]


def test_vectors_of_another_length_are_rejected():
    """The error has a remedy."""
    check_dimensions(3, 3)
    with pytest.raises(ConfigurationError, match="3 dimensions, and embed= returns 4"):
        check_dimensions(3, 4)


def test_question_words_are_skipped():
    """Question words are skipped unless the query has no other words."""
    assert searched_words("Where does Ada's sister live?") == ["ada", "s", "sister", "live"]
    assert searched_words("Who is it?") == ["who", "is", "it"]
    assert searched_words("tea TEA Tea") == ["tea"]
    assert separate_words("喜欢tea").split() == ["喜", "欢", "tea"]


@given(st.text(max_size=2000))
def test_search_words_contain_no_query_operators(question):
    """Search words contain only letters and digits, and their number is limited."""
    words = searched_words(question)
    assert len(words) <= MAX_WORDS
    assert all(set(word) & set(" \"'*:^(){}+-%;\\\0&|!<>") == set() for word in words)


async def test_scores_follow_the_memories_of_another_connection(tmp_path):
    """The number of memories is read again after writes of another connection.

    A rare word counts more among many memories.
    """
    url = f"sqlite:///{tmp_path}/memories.db"
    async with LongTermMemory(url) as first, LongTermMemory(url) as second:
        for text in ("a lighthouse", "a harbour and a harbour bar"):
            await first.remember(text, owner="ada")
        before = await first.recall("lighthouse harbour", owner="ada")
        for number in range(50):
            await second.remember(f"harbour number {number}", owner="ada")
        after = await first.recall("lighthouse harbour", owner="ada", limit=60)
        fresh = await second.recall("lighthouse harbour", owner="ada", limit=60)
    assert len(before) == 2
    assert [each.score for each in after] == [each.score for each in fresh]


@pytest.mark.parametrize("seed", range(3))
async def test_sql_and_python_sums_rank_alike(tmp_path, monkeypatch, seed):
    """Few index rows are added in Python, many in SQL.

    Both give the same memories and scores, also with ties at the limit.
    """
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(WORDS, k=rng.randrange(1, 4))) for _ in range(400)]
    questions = [" ".join(rng.choices(WORDS, k=2)) for _ in range(8)]
    async with LongTermMemory(f"sqlite:///{tmp_path}/memories.db") as memories:
        for text in texts:
            await memories.remember(text, owner="ada")
        in_python = [await memories.recall(each, owner="ada", limit=100) for each in questions]
        monkeypatch.setattr(word_index, "MAX_SUMMED_ROWS", 0)
        in_sql = [await memories.recall(each, owner="ada", limit=100) for each in questions]
    assert [[(each.memory.text, each.score) for each in found] for found in in_python] == [
        [(each.memory.text, each.score) for each in found] for found in in_sql
    ]
    assert all(in_python)


async def test_a_common_word_is_read_only_if_rarer_words_are_not_enough(memories):
    """A word in 54 % of the memories is searched if the rarer words find few.

    If they find many, the word adds no score.
    """
    for number in range(120):
        await memories.remember(f"harbour {number}" if number % 5 else f"lighthouse {number}", owner="ada")
    await memories.remember("jetty harbour", owner="ada")
    assert len(await recalled(memories, "jetty harbour", limit=40)) == 40
    for number in range(60):
        await memories.remember(f"jetty {number}", owner="ada")
    found = await memories.recall("jetty harbour", owner="ada", limit=61)
    scores = {each.memory.text: each.score for each in found}
    assert scores["jetty harbour"] == scores["jetty 7"]
