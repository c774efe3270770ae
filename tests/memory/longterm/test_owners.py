"""No query of an owner returns another owner's memories."""

import os
import random

import pytest

from actgent import ConfigurationError, LongTermMemory, MemoryFilter, MemoryNotFound, Sender

OWNERS = 200
RECALLS = 10_000 if os.environ.get("ACTGENT_SOAK") else 2_000
HOSTILE = (
    '" OR owner : * OR "',
    "scope : o1 OR shared",
    '{scope} : ("shared") OR {text} : "secret"',
    "secret* NEAR(word, 10)",
    "' OR '1'='1",
    "'; DELETE FROM memories; --",
    ") OR 1=1) --",
    "%' OR m.owner LIKE '%",
    "'@shared' | '@1'",
    "secret:* & !word",
    "\0\ud800 secret",
    "SECRET <-> word || secret",
    "rowid:1 OR secret",
    "",
    "*",
    '"',
    "^secret",
    "- secret",
    "AND OR NOT",
    "secret " * 300,
)


async def test_10_000_hostile_queries_find_no_memory_of_other_owners(url):
    """200 owners, some with similar names, search with words, query operators and ids of others."""
    rng = random.Random(20)
    owners = [Sender(f"user{number}") for number in range(OWNERS - 6)]
    owners += [Sender("user1", "agent"), Sender('user1"'), Sender('["user", "user1"]')]
    owners += [Sender("user1\nuser2"), Sender("%"), Sender("USER1")]
    async with LongTermMemory(url) as memories:
        ids = {}
        for owner in owners:
            for number in range(5):
                text = f"the secret word {number} of {owner.name} {owner.kind} is x{rng.randrange(10**9)}"
                made = await memories.remember(text, owner=owner, session_id="s", metadata={"n": number})
                ids[made.id] = owner
        await memories.remember("a rule for everybody", owner=owners[0], is_shared=True)
        foreign = 0
        for _ in range(RECALLS):
            owner = rng.choice(owners)
            seen = await _deed(memories, rng, owner, rng.choice(list(ids)))
            foreign += sum(each.owner != owner and not each.is_shared for each in seen)
        assert foreign == 0
        assert sum(count for _, count in await memories.owners()) == len(ids) + 1


async def _deed(memories, rng, owner, memory_id):
    """Run a random read of an owner or its model. Return the resulting memories."""
    query = rng.choice((*HOSTILE, f"secret word {rng.randrange(5)}", f"of user{rng.randrange(OWNERS)}"))
    query_filter = rng.choice((MemoryFilter(), MemoryFilter(sessions=["s"]), MemoryFilter(kinds=[query])))
    try:
        match rng.randrange(6):
            case 0:
                return [await memories.get(memory_id, owner=owner)]
            case 1:
                return await memories.history(query, owner=owner)
            case 2:
                return await memories.page(owner=owner, filters=query_filter, with_shared=True)
            case _:
                limit = rng.choice((1, 10, 500))
                found = await memories.recall(query, owner=owner, filters=query_filter, limit=limit)
                return [each.memory for each in found]
    except MemoryNotFound:
        return []


async def test_keys_and_names_have_the_same_bounds_in_all_databases(memories):
    """Too long keys, session ids, metadata names and mark names are rejected. The longest ones work."""
    rng = random.Random(8)
    longest = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=1_600))
    owner, long, wide = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=980)), longest + "x", "ü" * 801
    made = await memories.remember(
        "likes tea", owner=owner, session_id=longest, key=longest, metadata={longest: 1}
    )
    await memories.mark(Sender(owner), longest, "1")
    for name in (long, wide):
        for writing in (
            memories.remember("likes milk", owner=owner, key=name),
            memories.remember("likes milk", owner=owner, session_id=name),
            memories.remember("likes milk", owner=owner, metadata={name: 1}),
            memories.update(made.id, "likes milk", owner=owner, key=name),
            memories.mark(Sender(owner), name, "1"),
            memories.change_together(Sender(owner), new=[{"text": "likes milk"}], marks={name: "1"}),
            memories.change_together(Sender(owner), new=[{"text": "likes milk"}], key=name),
        ):
            with pytest.raises(ConfigurationError, match="bytes in UTF-8, and at most 1,600 are allowed"):
                await writing
    assert await memories.remember("likes tea", owner=owner, key=longest) == made
    assert [each.text for each in await memories.export(owner)] == ["likes tea"]
    query = MemoryFilter(sessions=[longest])
    assert [each.id for each in await memories.page(owner=owner, filters=query)] == [made.id]


async def test_too_long_owner_is_rejected_by_each_database(memories):
    """Writes raise and reads return an empty result. The longest valid owner works."""
    rng = random.Random(7)
    long = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=4_000))
    for owner in (
        long,
        Sender(long, "agent"),
        "".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(170)),
    ):
        with pytest.raises(ConfigurationError, match="use a shorter id as owner"):
            await memories.remember("likes tea", owner=owner)
        assert await memories.recall("tea", owner=owner) == []
        assert await memories.export(owner) == []
        assert await memories.erase(owner) == 0
    sender = Sender(long)
    for writing in (
        memories.mark(sender, "seen", "1"),
        memories.change_together(sender, marks={"seen": "1"}),
        memories.change_together(sender, new=[{"text": "likes tea"}]),
    ):
        with pytest.raises(ConfigurationError, match="use a shorter id as owner"):
            await writing
    assert await memories.owners() == []
    longest = long[:980]
    await memories.remember("likes tea", owner=longest, session_id="s" * 200, key="once")
    assert [each.text for each in await memories.export(longest)] == ["likes tea"]
