"""The common behaviour of all memory stores."""

import sqlite3

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actgent import (
    ConfigurationError,
    LongTermMemory,
    MemoriesFull,
    MemoryFilter,
    MemoryNotFound,
    MemoryReplaced,
    Sender,
    UsageError,
)

DAY_SECONDS = 86_400


async def texts(memories, query, owner="ada", **options):
    return [each.memory.text for each in await memories.recall(query, owner=owner, **options)]


async def test_recall_finds_memories_by_words(memories, clock):
    """Recall returns the memories that share words with the query, best first, with all their fields."""
    await memories.remember("Ada's sister Lisa lives in Oslo", owner="ada")
    tea = await memories.remember(
        "Ada drinks green tea in the morning",
        owner="ada",
        kind="habit",
        importance=0.9,
        agent="clerk",
        session_id="s1",
        message_id="m1",
        metadata={"topic": "food", "cups": 2},
        valid_from=clock.time - DAY_SECONDS,
        valid_until=clock.time + DAY_SECONDS,
    )
    found = await memories.recall("Which tea does she drink in the mornings?", owner="ada")
    assert found[0].memory == tea
    assert found[0].found_by == ("words",)
    assert tea == await memories.get(tea.id, owner="ada")
    assert (tea.kind, tea.created_at, tea.metadata) == ("habit", clock.time, {"topic": "food", "cups": 2})


async def test_query_without_words_returns_the_most_important_first(memories):
    """A query without words returns the memories with the highest worth."""
    await memories.remember("small", owner="ada", importance=0.1)
    await memories.remember("great", owner="ada", importance=0.9)
    for question in ("", "?!\"'*"):
        assert await texts(memories, question) == ["great", "small"]


async def test_update_keeps_the_old_memory_as_history(memories, clock):
    """The new memory takes over the links. The old one is not recalled and stays in the history."""
    old = await memories.remember("Ada lives in London", owner="ada", importance=0.7)
    friend = await memories.remember("Bob visits often", owner="ada")
    await memories.associate(friend.id, old.id, "concerns", owner="ada")
    clock.time += DAY_SECONDS
    new = await memories.update(old.id, "Ada lives in Paris", owner="ada")
    assert (new.replaces, new.importance, new.created_at) == (old.id, 0.7, clock.time)
    assert await texts(memories, "where does Ada live") == ["Ada lives in Paris"]
    for each in (old, new):
        assert [one.text for one in await memories.history(each.id, owner="ada")] == [
            "Ada lives in London",
            "Ada lives in Paris",
        ]
    assert [each.id for each in await memories.associations(new.id, owner="ada")] == [friend.id]
    with pytest.raises(MemoryReplaced, match=new.id):
        await memories.update(old.id, "Ada lives in Rome", owner="ada")


async def test_forgetting_removes_the_history(memories):
    """No version of a forgotten memory can be read by any id. Unknown ids count 0."""
    old = await memories.remember("Ada lives in London", owner="ada")
    new = await memories.update(old.id, "Ada lives in Paris", owner="ada")
    assert await memories.forget(new.id, "m-none", owner="ada") == 1
    assert await memories.forget(new.id, owner="ada") == 0
    for each in (old, new):
        with pytest.raises(MemoryNotFound):
            await memories.get(each.id, owner="ada")
    assert await memories.export("ada") == []


async def test_filters_apply_to_recalling_listing_and_forgetting(memories, clock):
    """Filters by kind, agent, session, time, metadata and `is_kept` work alone and combined."""
    for number in range(6):
        await memories.remember(
            f"note number {number}",
            owner="ada",
            kind="fact" if number % 2 else "episode",
            agent="clerk" if number < 3 else "cook",
            session_id=f"s{number}",
            is_kept=number == 5,
            metadata={"even": number % 2 == 0, "number": number},
        )
        clock.time += DAY_SECONDS
    begin = clock.time - 6 * DAY_SECONDS

    async def numbers(filters):
        listed = [each.text[-1] for each in await memories.page(owner="ada", filters=filters)]
        assert sorted(listed) == sorted(each[-1] for each in await texts(memories, "note", filters=filters))
        return "".join(listed)

    assert await numbers(MemoryFilter(kinds=["fact"])) == "135"
    assert await numbers(MemoryFilter(kinds=["fact", "episode"], agents=["cook"])) == "345"
    assert await numbers(MemoryFilter(sessions=["s1", "s4", "none"])) == "14"
    assert await numbers(MemoryFilter(since=begin + DAY_SECONDS, until=begin + 3 * DAY_SECONDS)) == "12"
    assert await numbers(MemoryFilter(metadata={"even": True})) == "024"
    assert await numbers(MemoryFilter(metadata={"even": True, "number": 4.0})) == "4"
    assert await numbers(MemoryFilter(is_kept=True)) == "5"
    assert await memories.forget(owner="ada", filters=MemoryFilter(kinds=["fact"])) == 3
    assert len(await texts(memories, "note")) == len(await memories.page(owner="ada")) == 3
    with pytest.raises(ConfigurationError, match="erase"):
        await memories.forget(owner="ada", filters=MemoryFilter())
    with pytest.raises(ConfigurationError, match="kinds="):
        MemoryFilter(kinds="fact")


async def test_recall_respects_validity(memories, clock):
    """A memory is recalled from `valid_from` until `valid_until`, or at the time `at=`."""
    await memories.remember("the shop is closed", owner="ada", valid_until=clock.time + DAY_SECONDS)
    await memories.remember("the shop is open", owner="ada", valid_from=clock.time + DAY_SECONDS)
    assert await texts(memories, "shop") == ["the shop is closed"]
    assert await texts(memories, "shop", at=clock.time + 2 * DAY_SECONDS) == ["the shop is open"]
    clock.time += DAY_SECONDS
    assert await texts(memories, "shop") == ["the shop is open"]


async def test_links_are_found_from_both_ends(memories):
    """Both memories list the link once, until it is removed or one memory is forgotten."""
    rain, flood = [await memories.remember(text, owner="ada") for text in ("it rained", "a flood")]
    assert await memories.associate(rain.id, flood.id, "causes", owner="ada")
    assert not await memories.associate(rain.id, flood.id, "causes", owner="ada")
    (there,) = await memories.associations(rain.id, owner="ada")
    (back,) = await memories.associations(flood.id, owner="ada")
    assert (there.id, there.relation, there.is_from_here) == (flood.id, "causes", True)
    assert (back.id, back.relation, back.is_from_here) == (rain.id, "causes", False)
    assert await memories.dissociate(rain.id, flood.id, "causes", owner="ada")
    assert not await memories.dissociate(rain.id, flood.id, "causes", owner="ada")
    await memories.associate(rain.id, flood.id, owner="ada")
    await memories.forget(rain.id, owner="ada")
    assert await memories.associations(flood.id, owner="ada") == []


async def test_operation_with_a_key_runs_once(memories):
    """A key remembers or updates once, also concurrently, and does not restore a forgotten memory."""
    made = []

    async def remember():
        made.append(await memories.remember("tea", owner="ada", key="call-1"))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(remember)
    assert len({each.id for each in made}) == 1
    assert (await memories.remember("tea", owner="bob", key="call-1")).id != made[0].id
    updates = [await memories.update(made[0].id, "coffee", owner="ada", key="call-2") for _ in range(2)]
    assert updates[0] == updates[1]
    await memories.forget(updates[0].id, owner="ada")
    again = await memories.remember("tea", owner="ada", key="call-1")
    assert again.id == made[0].id
    assert await memories.page(owner="ada") == []


async def test_unique_memories_are_stored_once(memories):
    """With `is_unique`, texts that differ only in case and spaces are one memory per kind and owner."""
    first = await memories.remember("Ada likes tea.", owner="ada", is_unique=True)
    assert await memories.remember("ada  likes TEA", owner="ada", is_unique=True, key="k") == first
    assert await memories.remember("ada likes tea", owner="ada", kind="habit", is_unique=True) != first
    assert (await memories.remember("ada likes tea", owner="bob", is_unique=True)).owner == Sender("bob")
    assert len(await memories.page(owner="ada")) == 2


async def test_owners_see_own_and_shared_memories(memories):
    """Other owners' memories cannot be recalled, read, linked, replaced or deleted.

    Shared ones can be read.
    """
    secret = await memories.remember("the secret word is swordfish", owner="ada")
    rule = await memories.remember("the secret rule of the house", owner="ada", is_shared=True)
    own = await memories.remember("my own secret", owner="bob")
    assert set(await texts(memories, "secret", owner="bob")) == {rule.text, own.text}
    assert await texts(memories, "secret", owner="bob", with_shared=False) == [own.text]
    assert await texts(memories, "secret", owner=Sender("ada", "agent"), with_shared=False) == []
    for attempt in (
        lambda: memories.get(secret.id, owner="bob"),
        lambda: memories.history(secret.id, owner="bob"),
        lambda: memories.update(secret.id, "changed", owner="bob"),
        lambda: memories.update(rule.id, "changed", owner="bob"),
        lambda: memories.associate(own.id, secret.id, owner="bob"),
        lambda: memories.associations(secret.id, owner="bob"),
    ):
        with pytest.raises(MemoryNotFound):
            await attempt()
    assert await memories.forget(secret.id, rule.id, owner="bob") == 0
    assert (await memories.get(rule.id, owner="bob")).text == rule.text
    assert dict(await memories.owners()) == {Sender("ada"): 2, Sender("bob"): 1}


async def test_a_memory_that_was_shared_later_keeps_its_private_past(memories):
    """Other owners read only the shared versions of a memory's history."""
    private = await memories.remember("the price was 10", owner="ada")
    shared = await memories.update(private.id, "the price is public", owner="ada", is_shared=True)
    assert [each.text for each in await memories.history(shared.id, owner="bob")] == ["the price is public"]
    assert len(await memories.history(shared.id, owner="ada")) == 2


async def test_erasing_an_owner_removes_all_its_data(memories):
    """Memories, history, links and call keys of the owner are deleted. Other owners keep theirs."""
    first = await memories.remember("Ada lives in London", owner="ada", key="k", metadata={"a": 1})
    await memories.update(first.id, "Ada lives in Paris", owner="ada")
    other = await memories.remember("Bob lives in Rome", owner="bob")
    await memories.mark(Sender("ada"), "read", "10")
    assert await memories.erase("ada") == 2
    assert await memories.export("ada") == []
    assert await memories.marks(Sender("ada")) == {}
    assert await memories.export("bob") == [other]
    assert (await memories.remember("Ada is back", owner="ada", key="k")).text == "Ada is back"
    assert [each.text for each in await memories.page(owner="ada")] == ["Ada is back"]


async def test_pages_continue_after_the_last_memory(memories):
    """The pages together contain all memories, oldest first; the export also contains the history."""
    made = [await memories.remember(f"note {number}", owner="ada") for number in range(7)]
    newer = await memories.update(made[2].id, "another note", owner="ada")
    found, after = [], None
    while page := await memories.page(owner="ada", after=after, limit=3):
        assert len(page) <= 3
        found += page
        after = page[-1]
    assert [each.id for each in found] == [each.id for each in made if each != made[2]] + [newer.id]
    assert len(await memories.export("ada")) == 8


async def test_browsing_has_all_memories_newest_first_and_counts_no_use(memories):
    """A page continues after a memory that was forgotten since. A search also finds memories that are not valid now."""
    made = [await memories.remember(f"note {number}", owner="ada") for number in range(5)]
    await memories.remember("note of Bob", owner="bob", is_shared=True)
    first = await memories.browse(owner="ada", limit=2)
    await memories.forget(first.memories[-1].id, owner="ada")
    second = await memories.browse(owner="ada", limit=2, after=first.following)
    third = await memories.browse(owner="ada", limit=2, after=second.following)
    found = [each.id for page in (first, second, third) for each in page.memories]
    assert (found, third.following) == ([each.id for each in reversed(made)], None)
    expired = await memories.remember("a late train", owner="ada", valid_until=1.0)
    assert await memories.recall("train", owner="ada") == []
    assert [each.id for each in (await memories.browse("train", owner="ada")).memories] == [expired.id]
    assert {each.uses for each in await memories.page(owner="ada")} == {0}
    for wrong in ({"limit": 0}, {"after": "x"}, {"after": "1" * 30}):
        with pytest.raises(ConfigurationError):
            await memories.browse(owner="ada", **wrong)


async def test_owners_are_listed_in_pages(memories):
    """The pages have each owner once, with the number of the current memories."""
    for number in range(5):
        made = await memories.remember("one", owner=f"owner {number}")
        await memories.update(made.id, "two", owner=f"owner {number}")
    await memories.remember("three", owner=Sender("owner 0", "agent"))
    found, after = [], None
    while True:
        page = await memories.owner_page(after=after, limit=2)
        found += page.owners
        if (after := page.following) is None:
            break
    assert sorted(found, key=str) == sorted(await memories.owners(), key=str)
    assert len(found) == 6
    assert {count for _, count in found} == {1}


async def test_capacity_evicts_the_memory_of_least_worth(url, clock):
    """A new memory evicts the owner's least important and longest unused one, never one with `is_kept`."""
    async with LongTermMemory(url, capacity=3, half_life=10, now=clock) as memories:
        kept = await memories.remember("kept", owner="ada", importance=0, is_kept=True)
        await memories.remember("old and small", owner="ada", importance=0.3)
        clock.time += 30 * DAY_SECONDS
        await memories.remember("new and small", owner="ada", importance=0.3)
        await memories.remember("of Bob", owner="bob", importance=0)
        await memories.remember("the fourth", owner="ada")
        assert [each.text for each in await memories.page(owner="ada")] == [
            "kept",
            "new and small",
            "the fourth",
        ]
        assert [each.text for each in await memories.page(owner="bob")] == ["of Bob"]
        await memories.forget(*[each.id for each in await memories.page(owner="ada")][1:], owner="ada")
        for number in (1, 2):
            await memories.remember(f"kept too {number}", owner="ada", is_kept=True)
        with pytest.raises(MemoriesFull, match=r"3 memories.*capacity="):
            await memories.remember("one too many", owner="ada", importance=1)
        assert (await memories.page(owner="ada"))[0] == kept


async def test_recalled_memories_are_evicted_later(url, clock):
    """Of two equal memories, the one that was never recalled is evicted first."""
    async with LongTermMemory(url, capacity=2, half_life=10, now=clock) as memories:
        await memories.remember("apples are red", owner="ada")
        await memories.remember("pears are green", owner="ada")
        clock.time += DAY_SECONDS
        assert await texts(memories, "apples") == ["apples are red"]
        clock.time += DAY_SECONDS
        await memories.remember("plums are blue", owner="ada")
        left = await memories.page(owner="ada")
        assert [each.text for each in left] == ["apples are red", "plums are blue"]
        assert (left[0].uses, left[0].last_used) == (1, clock.time - DAY_SECONDS)


async def test_a_clock_that_jumps_loses_nothing(url, clock):
    """After a clock jump of years and back, no memory is evicted and the order of worth is unchanged."""
    async with LongTermMemory(url, capacity=3, half_life=1, now=clock) as memories:
        await memories.remember("weighty matter", owner="ada", importance=0.9)
        await memories.remember("light matter", owner="ada", importance=0.1)
        before = await texts(memories, "matter")
        clock.time += 3650 * DAY_SECONDS
        assert await texts(memories, "matter") == before
        clock.time -= 7300 * DAY_SECONDS
        assert await texts(memories, "matter") == before
        await memories.remember("dark matter", owner="ada", importance=0.5)
        assert len(await memories.page(owner="ada")) == 3


async def test_operations_of_one_transaction_fail_separately(memories):
    """An invalid operation does not affect the operations that are written with it."""
    results = {}

    async def attempt(name, fn):
        try:
            results[name] = await fn()
        except (MemoryNotFound, ConfigurationError) as error:
            results[name] = error

    async with trio.open_nursery() as nursery:
        nursery.start_soon(attempt, "good", lambda: memories.remember("good", owner="ada"))
        nursery.start_soon(attempt, "missing", lambda: memories.update("m0", "x", owner="ada"))
        nursery.start_soon(attempt, "fine", lambda: memories.remember("fine", owner="bob"))
    assert isinstance(results["missing"], MemoryNotFound)
    assert results["good"].text == "good"
    assert [each.text for each in await memories.page(owner="bob")] == ["fine"]


async def test_change_of_several_memories_is_atomic(memories):
    """If one operation is invalid, no operation takes effect. With a key the change happens once."""
    ada = Sender("ada")
    old = await memories.remember("Ada lives in London", owner="ada")
    with pytest.raises(MemoryNotFound):
        await memories.change_together(
            ada, new=[{"text": "new"}], replaced=[("m0", {"text": "x"})], marks={"read": "5"}
        )
    assert [each.text for each in await memories.page(owner="ada")] == [old.text]
    assert await memories.marks(ada) == {}
    for _ in range(2):
        made = await memories.change_together(
            ada,
            new=[{"text": "Ada has a dog", "kind": "fact"}],
            replaced=[(old.id, {"text": "Ada lives in Paris"})],
            marks={"read": "5"},
            key="c1",
        )
        assert [each.text for each in made] == ["Ada has a dog", "Ada lives in Paris"]
    assert len(await memories.page(owner="ada")) == 2
    assert await memories.marks(ada, "re") == {"read": "5"}


async def test_cancelled_calls_are_atomic(memories):
    """After cancelled reads and writes the store works, and idempotency keys are respected."""
    for number in range(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_remember, memories, f"note {number}", f"k{number}")
            nursery.start_soon(_recall, memories)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await memories.remember(f"note {number}", owner="ada", key=f"k{number}")
    assert len(await memories.page(owner="ada")) == 20
    assert len(await texts(memories, "note", limit=50)) == 20


async def _recall(memories):
    await memories.recall("note", owner="ada")


async def _remember(memories, text, key):
    await memories.remember(text, owner="ada", key=key)


async def test_invalid_memory_arguments_are_rejected(memories):
    """Each error names its argument, and no memory is written."""
    for wrong, expected in (
        ({"text": " "}, "not be blank|not blank|must be a string"),
        ({"text": "x" * 8001}, "8,000"),
        ({"text": "x", "importance": 2}, "importance="),
        ({"text": "x", "kind": ""}, "kind"),
        ({"text": "x", "valid_from": float("nan")}, "valid_from="),
        ({"text": "x", "metadata": {"a": [1]}}, "metadata"),
    ):
        with pytest.raises(ConfigurationError, match=expected):
            await memories.remember(owner="ada", **wrong)
    with pytest.raises(ConfigurationError, match="limit="):
        await memories.recall("x", owner="ada", limit=0)
    assert await memories.owners() == []


async def test_texts_are_stored_unchanged(memories):
    """Scripts without spaces, query operators and characters that databases reject are stored unchanged."""
    for text in (
        "我喜欢绿茶",
        "naïve café",
        "'; DROP TABLE memories; --",
        'a "quoted" *',
        "\U0001f600 smile",
    ):
        await memories.remember(text, owner="ada")
    assert await texts(memories, "绿") == ["我喜欢绿茶"]
    assert await texts(memories, "DROP TABLE") == ["'; DROP TABLE memories; --"]
    assert await texts(memories, "quoted") == ['a "quoted" *']
    odd = await memories.remember("nul \0 and half \ud800 of one", owner="ada")
    assert odd == await memories.get(odd.id, owner="ada")


async def test_memories_close_with_the_last_user(url):
    """The last exit closes the store. Later use raises an error."""
    memories = LongTermMemory(url)
    async with memories:
        async with memories:
            await memories.remember("one", owner="ada")
        await memories.remember("two", owner="ada")
    with pytest.raises(UsageError, match="not open"):
        await memories.recall("one", owner="ada")


async def test_memories_survive_reopening(url):
    """A second block finds the memories that an earlier block confirmed."""
    if url == "memory:":
        pytest.skip("what is in memory ends with its block")
    async with LongTermMemory(url) as memories:
        made = await memories.remember("Ada likes tea", owner="ada")
    async with LongTermMemory(url) as memories, LongTermMemory(url) as beside:
        assert await texts(memories, "tea") == ["Ada likes tea"]
        await beside.forget(made.id, owner="ada")
        assert await texts(memories, "tea") == []


def test_invalid_addresses_are_rejected(tmp_path):
    """The error names the invalid URL or option."""
    for url in ("agents.db", "sqlite://x", "mysql://host/x"):
        with pytest.raises(ConfigurationError, match="URL of a memory store"):
            LongTermMemory(url)
    for options in ({"capacity": 0}, {"half_life": 0}, {"embed": "model"}):
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            LongTermMemory(**options)


async def test_file_of_another_program_is_rejected(tmp_path):
    """A foreign database and a folder are rejected and not written to."""
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE things (x)")
    before = path.read_bytes()
    for wrong in (path, tmp_path, tmp_path / "none" / "x.db"):
        with pytest.raises(ConfigurationError):
            async with LongTermMemory(f"sqlite:///{wrong}"):
                pass
    with sqlite3.connect(path) as db:
        assert [name for (name,) in db.execute("SELECT name FROM sqlite_schema")] == ["things"]
    assert len(path.read_bytes()) == len(before)


async def test_erased_text_is_removed_from_the_file(tmp_path):
    """No byte of the file or its log contains words of an erased owner."""
    path = tmp_path / "memories.db"
    async with LongTermMemory(f"sqlite:///{path}") as memories:
        for number in range(50):
            await memories.remember(f"zanzibar secret {number}", owner="ada", key=f"zanzibar{number}")
            await memories.remember(f"harmless {number}", owner="bob")
        await memories.erase("ada")
    left = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert b"harmless" in left
    assert b"zanzibar" not in left.lower()
