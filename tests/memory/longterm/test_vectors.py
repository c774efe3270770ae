"""Search by meaning: vectors in addition to words, if an embedding function is set."""

import logging
from array import array

import pytest
import trio

from actgent import ConfigurationError, LongTermMemory, MemoryFilter


@pytest.fixture(params=["sqlite", "postgres"])
def vector_url(request, tmp_path):
    """Return the URL of a database with vectors. Skip PostgreSQL without pgvector."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/memories.db"
    return request.getfixturevalue("vector_postgres_url")


async def test_meaning_is_found_without_a_common_word(vector_url, embed_words):
    """A paraphrased query finds the memory by its vector. A match by words and vector is first."""
    async with LongTermMemory(vector_url, embed=embed_words) as memories:
        car = await memories.remember("ada drives an old vehicle", owner="ada")
        await memories.remember("ada has two cats", owner="ada")
        await memories.remember("bob has an automobile", owner="bob")
        found = await memories.recall("automobile", owner="ada")
        assert (found[0].memory, found[0].found_by) == (car, ("vectors",))
        both = await memories.recall("old car", owner="ada")
        assert (both[0].memory.id, both[0].found_by) == (car.id, ("words", "vectors"))
        assert {each.memory.owner.name for each in found} == {"ada"}


async def test_vectors_follow_the_memory(vector_url, embed_words):
    """Replaced, forgotten, filtered and erased memories are not found by vector."""
    async with LongTermMemory(vector_url, embed=embed_words) as memories:
        old = await memories.remember("the vehicle is red", owner="ada", kind="fact")
        new = await memories.update(old.id, "the auto is blue", owner="ada")
        assert await _ids(memories, "car") == [new.id]
        kept = await memories.update(new.id, owner="ada", importance=0.9)
        assert await _ids(memories, "car") == [kept.id]
        assert await _ids(memories, "car", filters=MemoryFilter(kinds=["episode"])) == []
        assert await _ids(memories, "car", owner="bob") == []
        await memories.update(kept.id, owner="ada", is_shared=True)
        assert len(await _ids(memories, "car", owner="bob")) == 1
        await memories.erase("ada")
        assert await _ids(memories, "car") == []


async def _ids(memories, query, owner="ada", **options):
    return [each.memory.id for each in await memories.recall(query, owner=owner, **options)]


async def test_words_are_used_without_vectors(tmp_path, caplog, embed_words):
    """If the embedding function fails, a warning is logged and words are used.

    `reindex` adds the vectors later.
    """
    fails = True

    async def embed(texts):
        await trio.lowlevel.checkpoint()
        if fails:
            raise ConnectionError("no model")
        return embed_words(texts)

    async with LongTermMemory(f"sqlite:///{tmp_path}/m.db", embed=embed) as memories:
        with caplog.at_level(logging.WARNING):
            made = await memories.remember("the vehicle is red", owner="ada")
            assert await _ids(memories, "red") == [made.id]
        assert "no model" in caplog.text
        fails = False
        assert await _ids(memories, "automobile") == []
        assert await memories.reindex() == 1
        assert await memories.reindex() == 0
        assert await _ids(memories, "automobile") == [made.id]


async def test_silent_embedding_function_times_out(tmp_path, autojump_clock, caplog, embed_words):
    """After ten seconds the search continues without vectors."""

    async def embed(texts):
        await trio.sleep(3600)
        return embed_words(texts)

    async with LongTermMemory(f"sqlite:///{tmp_path}/m.db", embed=embed) as memories:
        started = trio.current_time()
        await memories.remember("tea", owner="ada")
        assert trio.current_time() - started == pytest.approx(10, abs=1)
    assert "no vectors within 10 s" in caplog.text


async def test_vectors_of_another_model_are_detected(tmp_path, embed_words):
    """Vectors of a different length raise an error with a remedy. `reindex(recompute=True)` replaces them."""
    url = f"sqlite:///{tmp_path}/m.db"
    async with LongTermMemory(url, embed=embed_words) as memories:
        made = await memories.remember("the vehicle is red", owner="ada")
    async with LongTermMemory(
        url, embed=lambda texts: [vector[:32] for vector in embed_words(texts)]
    ) as memories:
        with pytest.raises(ConfigurationError, match=r"64 dimensions, and embed= returns 32.*reindex"):
            await memories.recall("car", owner="ada")
        assert await memories.reindex(recompute=True) == 1
        assert await _ids(memories, "automobile") == [made.id]


async def test_small_difference_of_vector_length_is_detected(tmp_path):
    """The sign bits of 62 and 64 dimensions have equal sizes, but the vectors do not."""
    url = f"sqlite:///{tmp_path}/m.db"
    async with LongTermMemory(url, embed=lambda texts: [[1.0] * 64 for _ in texts]) as memories:
        await memories.remember("tea", owner="ada")
    async with LongTermMemory(url, embed=lambda texts: [[1.0] * 62 for _ in texts]) as memories:
        with pytest.raises(ConfigurationError, match=r"64 dimensions, and embed= returns 62.*reindex"):
            await memories.recall("green tea", owner="ada")
        with pytest.raises(ConfigurationError, match=r"64 dimensions, and embed= returns 62.*reindex"):
            await memories.recall("coffee", owner="ada", with_shared=False)


async def test_vectors_of_an_owner_and_shared_ones_are_compared_once_each(vector_url):
    """The nearest 100 are the owner's and shared memories, without private memories of others."""

    def embed(texts):
        return [[1.0, float(text.rpartition(" ")[2]) / 10, -1.0] for text in texts]

    async with LongTermMemory(vector_url, embed=embed) as memories:
        for number in range(1, 31):
            await memories.remember(f"ada {number}", owner="ada", is_shared=number % 3 == 0)
            await memories.remember(f"bob {number}", owner="bob", is_shared=number % 2 == 0)
        found = await memories.recall("where 0", owner="ada", limit=100)
        assert sorted(each.memory.text for each in found) == sorted(
            [f"ada {number}" for number in range(1, 31)] + [f"bob {number}" for number in range(2, 31, 2)]
        )
        own = await memories.recall("where 0", owner="ada", limit=100, with_shared=False)
        assert [each.memory.text for each in own] == [f"ada {number}" for number in range(1, 31)]
        assert [each.found_by for each in own] == [("vectors",)] * 30


@pytest.mark.parametrize("typecode", ["f", "d"])
async def test_arrays_and_sequences_are_accepted_as_vectors(tmp_path, typecode):
    """An array of 32-bit floats is copied, and any other sequence is converted."""

    def embed(texts):
        return [array(typecode, [1.0, 0.5] if "tea" in text else [-1.0, 0.5]) for text in texts]

    async with LongTermMemory(f"sqlite:///{tmp_path}/m.db", embed=embed) as memories:
        made = await memories.remember("tea", owner="ada")
        await memories.remember("a bicycle", owner="ada")
        assert (await _ids(memories, "some green tea leaves"))[0] == made.id


async def test_embedding_function_with_too_few_vectors_is_logged(tmp_path, caplog):
    """The log names the function's error, and the search uses words."""
    async with LongTermMemory(f"sqlite:///{tmp_path}/m.db", embed=lambda _: []) as memories:
        made = await memories.remember("tea", owner="ada")
        assert await _ids(memories, "tea") == [made.id]
    assert "0 vectors for 1 text, " in caplog.text


async def test_postgres_without_pgvector_is_rejected(postgres_url, embed_words):
    """Vectors on a server without the extension are rejected when the store is opened."""
    import psycopg

    with psycopg.connect(postgres_url.partition("?")[0]) as db:
        if db.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone():
            pytest.skip("this PostgreSQL has pgvector")
    with pytest.raises(ConfigurationError, match="pgvector"):
        async with LongTermMemory(postgres_url, embed=embed_words):
            pass


async def test_vectors_may_have_any_number_of_dimensions(vector_url):
    """sqlite-vec needs a multiple of 8 dimensions. Other lengths also work, with the same distances."""

    def embed(texts):
        return [[1.0, 0.1, -1.0] if "tea" in text else [-1.0, 0.2, 1.0] for text in texts]

    async with LongTermMemory(vector_url, embed=embed) as memories:
        await memories.remember("Ada likes tea.", owner="ada")
        await memories.remember("Ada has a bicycle.", owner="ada")
        found = await memories.recall("green tea?", owner="ada", limit=1)
        assert [each.memory.text for each in found] == ["Ada likes tea."]
