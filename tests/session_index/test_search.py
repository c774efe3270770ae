"""Full-text search over the messages of a journal, in every storage."""

import pytest

from actgent import BareAgent, ConfigurationError, ScriptedLLM, SearchFilter, ToolCall, open_runtime
from actgent.session_index.session_index import open_index


def agent_of(*answers, name="clerk"):
    return BareAgent(name, llm=ScriptedLLM(list(answers) or ["yes"], repeat=True))


async def say(agent, owner, text, session_id):
    session = await agent.create_session(owner, text, session_id=session_id)
    await session.wait_idle()
    return session


async def found(runtime, query, **expected):
    await runtime.index.wait_filled()
    page = await runtime.search(query, SearchFilter(**expected))
    return [(hit.session_id, hit.role) for hit in page.hits]


async def test_messages_and_answers_are_found_newest_first(url):
    async with open_runtime(journal=url, index=True) as runtime:
        agent = await runtime.start(agent_of("The invoice is paid."))
        await say(agent, "ada", "Where is my invoice?", "s1")
        await say(agent, "bob", "Thanks for the invoice", "s2")
        assert await found(runtime, "invoice") == [
            ("s2", "assistant"),
            ("s2", "user"),
            ("s1", "assistant"),
            ("s1", "user"),
        ]
        assert await found(runtime, "parcel") == []


@pytest.mark.parametrize(
    ("query", "is_found"),
    [
        ("CREME", True),
        ("crème brûlée", True),
        ('"brulee now"', True),
        ('"now brulee"', False),
        ("brul*", True),
        ("brul", False),
        ("brulee -now", False),
        ("brulee -never", True),
        ("費用", True),
        ("用費", False),
        ("snake_case", True),
        ("it's", True),
        ('x" OR scope : "', False),
    ],
)
async def test_queries_support_phrases_prefixes_and_exclusions(query, is_found, url):
    async with open_runtime(journal=url, index=True) as runtime:
        agent = await runtime.start(agent_of("no"))
        await say(agent, "ada", "Crème brûlée now, it's 旅行費用 in snake_case", "s1")
        assert await found(runtime, query) == ([("s1", "user")] if is_found else [])


@pytest.mark.parametrize("query", ['"..."', "a " * 40, "x" * 501, "x*"])
async def test_invalid_queries_are_rejected(query):
    async with open_runtime(journal="memory:", index=True) as runtime:
        with pytest.raises(ConfigurationError, match=r"query|prefix"):
            await runtime.search(query)


async def test_owner_finds_only_texts_of_its_own_sessions(url):
    """The owner of a child session is the owner of its root."""
    async with open_runtime(journal=url, index=True) as runtime:
        helper = agent_of("The treasure is hidden", name="helper")
        llm = ScriptedLLM([ToolCall("helper", {"task": "find it"}), "I have it"], repeat=True)
        agent = await runtime.start(BareAgent("clerk", llm=llm, tools=[helper.as_tool()]))
        await say(agent, "ada", "find it", "s1")
        await say(agent, "bob", "find it", "s2")
        assert len(await found(runtime, "treasure")) == 2
        hits = (await runtime.search("treasure", SearchFilter(owner="ada"))).hits
        assert [(hit.agent, hit.owner) for hit in hits] == [("helper", "ada")]
        assert await found(runtime, "treasure", owner="eve") == []
        assert await found(runtime, "treasure", owner="a\0b") == []


async def test_search_applies_filters(url):
    async with open_runtime(journal=url, index=True) as runtime:
        agent = await runtime.start(agent_of("fine"))
        other = await runtime.start(agent_of("fine", name="other"))
        await say(agent, "ada", "fine day", "s1")
        closed = await say(other, "ada", "fine night", "s2")
        await closed.aclose()
        await runtime.index.wait_filled()
        middle = (await runtime.search("night")).hits[0].at
        assert await found(runtime, "fine", agent="other", role="user") == [("s2", "user")]
        assert await found(runtime, "fine", state="closed", role="user") == [("s2", "user")]
        assert await found(runtime, "fine", state="idle", role="user") == [("s1", "user")]
        assert await found(runtime, "day", until=middle) == [("s1", "user")]
        assert await found(runtime, "day", since=middle) == []
        assert await found(runtime, "night", since=middle) == [("s2", "user")]
        assert await found(runtime, "fine", min_cost=0.01) == []
        assert await found(runtime, "fine", max_cost=0.01, role="user") == [("s2", "user"), ("s1", "user")]
        assert await found(runtime, "fine", has_errors=True) == []
        assert await found(
            runtime, "fine", max_seconds=100, min_seconds=0, role="assistant", agent="clerk"
        ) == [("s1", "assistant")]


@pytest.mark.parametrize("query", ["", "  ", "-rain"])
@pytest.mark.parametrize("most", [200, 1])
async def test_a_query_without_words_finds_all_messages_that_match_the_filter(query, most, url, monkeypatch):
    """An empty query, and a query that only excludes words, need no word. `most` selects how sessions are filtered."""
    monkeypatch.setattr("actgent.session_index.index_store.MAX_NAMED_SESSIONS", most)
    async with open_runtime(journal=url, index=True) as runtime:
        agent = await runtime.start(agent_of("fine"))
        await say(agent, "ada", "sun", "s1")
        await say(agent, "bob", "wind", "s2")
        closed = await say(agent, "ada", "snow", "s3")
        await closed.aclose()
        assert await found(runtime, query, role="user") == [("s3", "user"), ("s2", "user"), ("s1", "user")]
        assert len(await found(runtime, query)) == 6
        assert await found(runtime, query, owner="ada", role="user") == [("s3", "user"), ("s1", "user")]
        assert await found(runtime, query, state="idle", role="user") == [("s2", "user"), ("s1", "user")]
        page = await runtime.search(query, SearchFilter(state="idle"), limit=3)
        (hit,) = (await runtime.search(query, SearchFilter(state="idle"), after=page.following)).hits
        assert (hit.session_id, hit.role, hit.snippet, hit.marks) == ("s1", "user", "sun", ())


async def test_search_results_are_paged(url):
    async with open_runtime(journal=url, index=True) as runtime:
        agent = await runtime.start(agent_of("no"))
        session = await agent.create_session("ada", session_id="s1")
        for number in range(7):
            await session.chat(f"word number {number}")
        await session.wait_idle()
        await runtime.index.wait_filled()
        texts, after = [], None
        while True:
            page = await runtime.search("word", after=after, limit=3)
            texts += [hit.snippet for hit in page.hits]
            if (after := page.following) is None:
                break
        assert texts == [f"word number {number}" for number in reversed(range(7))]


async def test_a_snippet_shows_the_first_match(url):
    async with open_runtime(journal=url, index=True) as runtime:
        agent = await runtime.start(agent_of("no"))
        await say(agent, "ada", "so " * 300 + "the Needle is here " + "so " * 300, "s1")
        await runtime.index.wait_filled()
        (hit,) = (await runtime.search("needle")).hits
        assert [hit.snippet[start:stop] for start, stop in hit.marks] == ["Needle"]
        assert len(hit.snippet) <= 160


async def test_erased_sessions_are_not_found(url):
    async with open_runtime(journal=url, index=True) as runtime:
        agent = await runtime.start(agent_of("no"))
        await say(agent, "ada", "a secret word", "s1")
        await say(agent, "ada", "another secret", "s2")
        assert len(await found(runtime, "secret")) == 2
        await runtime.delete_session("s1")
        page = await runtime.search("secret")
        assert [hit.session_id for hit in page.hits] == ["s2"]
        await say(agent, "ada", "a public word", "s1")
        assert await found(runtime, "secret") == [("s2", "user")]
        assert await found(runtime, "public") == [("s1", "user")]


def index_bytes(folder):
    return b"".join(each.read_bytes() for each in folder.iterdir() if "index" in each.name)


async def test_no_file_contains_text_of_an_erased_session(tmp_path):
    async with open_runtime(journal=f"sqlite:///{tmp_path}/journal.db", index=True) as runtime:
        agent = await runtime.start(agent_of("no"))
        await say(agent, "ada", "the xylophonist plays", "s1")
        await say(agent, "ada", "the orchestra plays", "s2")
        await runtime.index.wait_filled()
        await runtime.delete_session("s1")
        content = index_bytes(tmp_path)
        assert b"orchestra" in content
        assert b"xylophonist" not in content


async def test_sessions_from_before_the_index_are_added(lasting_url):
    async with open_runtime(journal=lasting_url) as runtime:
        agent = await runtime.start(agent_of("no"))
        await say(agent, "ada", "an old word", "s1")
        await say(agent, "ada", "an erased word", "s2")
    async with open_runtime(journal=lasting_url, index=True) as runtime:
        assert len(await found(runtime, "word")) == 2
    async with open_runtime(journal=lasting_url) as runtime:  # the index does not see these changes
        agent = await runtime.start(agent_of("no"))
        await runtime.delete_session("s2", agent="clerk")
        session = await agent.open_session("s1")
        await session.chat("a new word")
        await session.wait_idle()
    async with open_runtime(journal=lasting_url, index=True) as runtime:
        assert await found(runtime, "word") == [("s1", "user"), ("s1", "user")]


async def test_a_reader_searches_while_another_process_writes(lasting_url):
    async with open_runtime(journal=lasting_url, index=True) as runtime:
        agent = await runtime.start(agent_of("no"))
        await say(agent, "ada", "a word", "s1")
        await runtime.index.wait_filled()
        async with open_index(runtime.journal, read_only=True) as index:
            page = await index.search("word", SearchFilter())
            assert [hit.session_id for hit in page.hits] == ["s1"]


async def test_reader_without_an_index_is_rejected(tmp_path):
    async with open_runtime(journal=f"sqlite:///{tmp_path}/journal.db") as runtime:
        with pytest.raises(ConfigurationError, match="index=True"):
            async with open_index(runtime.journal, read_only=True):
                pass


async def test_error_of_a_search_without_an_index_has_the_remedy():
    async with open_runtime(journal="memory:") as runtime:
        with pytest.raises(ConfigurationError, match="index=True"):
            await runtime.search("word")


async def test_index_of_an_encrypted_journal_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setenv("ACTGENT_JOURNAL_KEYS", "k1:" + "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=")
    with pytest.raises(ConfigurationError, match="index="):
        async with open_runtime(journal=f"sqlite:///{tmp_path}/journal.db", index=True):
            pass


async def test_index_without_a_journal_is_rejected():
    with pytest.raises(ConfigurationError, match="journal="):
        async with open_runtime(index=True):
            pass


async def test_error_of_a_damaged_index_has_the_remedy(tmp_path):
    (tmp_path / "journal.index.data.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(Exception, match="delete it"):
        async with open_runtime(journal=f"sqlite:///{tmp_path}/journal.db", index=True):
            pass
