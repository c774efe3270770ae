"""Tags and metadata of sessions: how they are set, changed, stored, found and erased."""

import pytest
import trio

from actgent import (
    BareAgent,
    ConfigurationError,
    JournalFull,
    ScriptedLLM,
    SearchFilter,
    SessionNotFound,
    ToolCall,
    ToolContext,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.runtime.sessions import session_table
from actgent.sessions import session_record_writer


def clerk(*answers, **options):
    return BareAgent("clerk", llm=ScriptedLLM(list(answers) or ["Noted."], repeat=True), **options)


async def ids_of(runtime, **wanted):
    return sorted(each.session_id for each in await runtime.sessions(**wanted))


def of(annotated):
    """Tags and metadata of a session or a summary."""
    return annotated.tags, dict(annotated.metadata)


async def test_lists_select_by_tags_and_metadata(url):
    """All of the filter's tags and values must match, together with the other filters."""
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(clerk())
        await agent.create_session("ada", session_id="a", tags=["b", "a", "b"], metadata={"ticket": "1"})
        await agent.create_session(
            "ada", session_id="b", tags=["b"], metadata={"ticket": "2", "x.y-z_": "é\n'\"\\"}
        )
        await agent.ensure_session("bob", "c", tags={"a", 'say "hi" 100%'})
        await agent.create_session("bob", session_id="d")
        assert of(await agent.open_session("a")) == (("a", "b"), {"ticket": "1"})
        assert await ids_of(runtime, tags=["b"]) == ["a", "b"]
        assert await ids_of(runtime, tags=["a", "b"]) == ["a"]
        assert await ids_of(runtime, tags=["a"], owner="bob") == ["c"]
        assert await ids_of(runtime, tags=['say "hi" 100%']) == ["c"]
        assert await ids_of(runtime, metadata={"ticket": "2"}) == ["b"]
        assert await ids_of(runtime, metadata={"ticket": "2", "x.y-z_": "é\n'\"\\"}) == ["b"]
        assert await ids_of(runtime, tags=["a"], metadata={"ticket": "2"}) == []
        assert await ids_of(runtime, metadata={"b": "b"}) == []
        assert await ids_of(runtime) == ["a", "b", "c", "d"]
        (found,) = await runtime.sessions(tags=["a", "b"])
        assert of(found) == (("a", "b"), {"ticket": "1"})
        first = await runtime.sessions(tags=["b"], limit=1)
        assert len(await runtime.sessions(tags=["b"], after=first[0])) == 1


async def test_lists_without_a_journal_select_by_tags():
    async with open_runtime() as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada", session_id="a", tags=["b"])
        await agent.create_session("ada", session_id="b")
        assert await ids_of(runtime, tags=["b"]) == ["a"]
        await session.annotate(remove_tags=["b"])
        assert await ids_of(runtime, tags=["b"]) == []
        await runtime.annotate("a", metadata={"k": "v"})
        assert await ids_of(runtime, metadata={"k": "v"}) == ["a"]
        with pytest.raises(SessionNotFound):
            await runtime.annotate("nothing", add_tags=["a"])


async def test_change_keeps_other_tags_and_metadata(url):
    """A removal precedes an addition, None removes a key, and a change of nothing writes no record."""
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada", session_id="s", tags=["a"], metadata={"k": "1", "l": "1"})
        await session.annotate(add_tags=["b", "c"], remove_tags=["c", "d"], metadata={"k": None, "m": "2"})
        assert of(session) == (("a", "b"), {"l": "1", "m": "2"})
        (before,) = await runtime.sessions()
        await session.annotate(add_tags=["a"], remove_tags=["d"], metadata={"k": None, "m": "2"})
        assert (await runtime.sessions())[0].records == before.records
        await session.annotate(remove_tags=["a", "b"], metadata={"l": None, "m": None})
        assert of(session) == ((), {})
        assert of((await runtime.sessions())[0]) == ((), {})
        with pytest.raises(TypeError):
            session.metadata["k"] = "v"


async def test_concurrent_changes_are_both_kept(url):
    """The session is in memory or closed."""
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada", session_id="s")
        for prefix in ("open", "closed"):
            async with trio.open_nursery() as nursery:
                for number in range(8):
                    change = {"add_tags": [f"{prefix}{number}"], "metadata": {f"{prefix}{number}": "v"}}
                    nursery.start_soon(lambda given=change: session.annotate(**given))
            if prefix == "open":
                await session.aclose()
        (found,) = await runtime.sessions()
        assert len(found.tags) == len(found.metadata) == 16
        assert of(session) == of(found)


async def test_changes_survive_a_restart(lasting_url, monkeypatch):
    """Changes are in the first record, in later ones, before a snapshot, or of a session that is not in memory."""
    monkeypatch.setattr(session_record_writer, "SNAPSHOT_RECORDS", 10)
    async with open_runtime(journal=lasting_url) as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada", session_id="s", tags=["first"], metadata={"k": "1"})
        await session.annotate(add_tags=["second"])
        for _ in range(8):
            await agent.run("go", session=session)
        await agent.create_session("ada", session_id="closed", tags=["first"])
        await runtime.annotate("closed", add_tags=["second"])
        await (await agent.open_session("closed")).aclose()
        assert await runtime.journal.find_snapshot("s", agent="clerk") is not None
    async with open_runtime(journal=lasting_url) as runtime:
        agent = await runtime.start(clerk())
        assert of(await agent.open_session("s")) == (("first", "second"), {"k": "1"})
    async with open_runtime(journal=lasting_url) as runtime:
        assert await ids_of(runtime, tags=["second"]) == ["closed", "s"]
        await runtime.annotate("closed", agent="clerk", add_tags=["third"])
        await runtime.annotate("s", add_tags=["third"], metadata={"k": "2"})
        agent = await runtime.start(clerk())
        session = await agent.open_session("s")
        assert of(session) == (("first", "second", "third"), {"k": "2"})
        await session.annotate(remove_tags=["first"])
    async with open_runtime(journal=lasting_url) as runtime:
        agent = await runtime.start(clerk())
        assert of(await agent.open_session("s")) == (("second", "third"), {"k": "2"})
        assert await ids_of(runtime, tags=["third"]) == ["closed", "s"]


async def test_an_unloaded_session_can_be_changed(url, monkeypatch):
    """The handle that the program holds has the change, and a session that loads during the change has it too."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 1)
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(clerk())
        held = await agent.create_session("ada", session_id="held")
        await agent.create_session("ada", session_id="unheld")
        for number in range(3):
            await agent.create_session("ada", session_id=f"other{number}")
        await runtime.annotate("held", add_tags=["a"])
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(lambda: runtime.annotate("unheld", add_tags=["a"]))
                nursery.start_soon(agent.open_session, "unheld")
        await held.annotate(add_tags=["b"])
        assert held.tags == ("a", "b")
        assert (await agent.open_session("unheld")).tags == ("a",)
        assert await ids_of(runtime, tags=["a"]) == ["held", "unheld"]


async def test_tools_and_session_hooks_change_their_session(url):
    """They change it during a turn and before the first message, also for the session of a single request."""

    @tool(effect="pure")
    async def label(context: ToolContext) -> str:
        """Label the session."""
        await context.session.annotate(add_tags=["tool"])
        return "done"

    label_call = ToolCall("label", {})
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(clerk(label_call, "ok", label_call, "ok", tools=[label]))

        @agent.on_session
        async def seen(session):
            await session.annotate(add_tags=["hook"])

        session = await agent.create_session("ada", "go", session_id="s")
        await session.wait_idle()
        assert session.tags == ("hook", "tool")
        assert (await agent.run("go")).text == "ok"
        assert (await runtime.sessions(tags=["hook", "tool"]))[-1].session_id == "s"


async def test_recreated_session_has_no_former_tags(url):
    """A change of an erased session fails, and a new session with the same id begins without the former tags."""
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada", session_id="s", tags=["a"])
        await runtime.delete_session("s")
        for change in (session.annotate, lambda **given: runtime.annotate("s", **given)):
            with pytest.raises(SessionNotFound):
                await change(add_tags=["b"])
        assert await ids_of(runtime) == []
        again = await agent.create_session("ada", session_id="s")
        assert of(again) == of((await runtime.sessions())[0]) == ((), {})


async def test_a_fork_has_the_tags_of_its_record(url):
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada", session_id="s", tags=["a"], metadata={"k": "v"})
        await session.annotate(add_tags=["b"])
        early = await runtime.fork("s", to=1, new_id="early")
        late = await runtime.fork("s", new_id="late")
        assert (of(early), of(late)) == ((("a",), {"k": "v"}), (("a", "b"), {"k": "v"}))
        assert of(await agent.open_session("late")) == of(late)
        await runtime.annotate("late", add_tags=["c"])
        assert session.tags == ("a", "b")


async def test_a_failed_write_changes_nothing():
    class Full(MemoryJournal):
        is_full = False

        async def commit(self, entry, *, epoch, durable=True):
            if self.is_full:
                raise JournalFull("the disk is full")
            await super().commit(entry, epoch=epoch, durable=durable)

    async with Full().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada", session_id="s", tags=["a"])
        journal.is_full = True
        with pytest.raises(JournalFull):
            await session.annotate(add_tags=["b"])
        journal.is_full = False
        assert session.tags == ("a",)
        await session.annotate(add_tags=["c"])
        assert (await runtime.sessions())[0].tags == ("a", "c")


async def test_tags_and_metadata_are_redacted_in_the_journal(url):
    """Keys of the metadata are not redacted."""

    def redact(text):
        return text.replace("secret", "(gone)")

    async with open_runtime(journal=url, redact=redact) as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session(
            "ada", session_id="s", tags=["secret a"], metadata={"secret": "secret"}
        )
        assert of((await runtime.sessions())[0]) == (("(gone) a",), {"secret": "(gone)"})
        await session.annotate(add_tags=["b secret"])
        assert (await runtime.sessions())[0].tags == ("(gone) a", "b (gone)")
        await session.aclose()
        await session.annotate(add_tags=["secret c"])
        assert (await runtime.sessions())[0].tags == ("(gone) a", "(gone) c", "b (gone)")


async def test_search_index_selects_by_tags_and_metadata(lasting_url):
    """This includes a change that follows the message."""
    async with open_runtime(journal=lasting_url, index=True) as runtime:
        agent = await runtime.start(clerk())
        for name, tags in (("s1", ["a"]), ("s2", [])):
            session = await agent.create_session(
                "ada", "a parcel", session_id=name, tags=tags, metadata={"k": name}
            )
            await session.wait_idle()

        async def found(**wanted):
            await runtime.index.wait_filled()
            page = await runtime.search("parcel", SearchFilter(**wanted))
            return sorted(each.session_id for each in page.hits)

        assert await found(tags=["a"]) == ["s1"]
        assert await found(metadata={"k": "s2"}) == ["s2"]
        assert await found(tags=["a"], metadata={"k": "s2"}) == []
        await session.annotate(add_tags=["a"])
        assert await found(tags=["a"]) == ["s1", "s2"]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"tags": "billing"}, "tags= must be a list of strings"),
        ({"tags": [""]}, "invalid tag ''"),
        ({"tags": [" a"]}, "invalid tag ' a'"),
        ({"tags": ["a,b"]}, "invalid tag 'a,b'"),
        ({"tags": ["a\x00"]}, "invalid tag"),
        ({"tags": ["x" * 65]}, "1 to 64 printable"),
        ({"tags": [7]}, "invalid tag 7"),
        ({"tags": map(str, range(33))}, "at most 32 tags"),
        ({"metadata": ["k"]}, "mapping of strings to strings"),
        ({"metadata": {"a b": "v"}}, "invalid key 'a b'"),
        ({"metadata": {"": "v"}}, "invalid key ''"),
        ({"metadata": {"é": "v"}}, "invalid key"),
        ({"metadata": {"k" * 65: "v"}}, "1 to 64 characters"),
        ({"metadata": {"k": 7}}, "invalid value .7. of k"),
        ({"metadata": {"k": None}}, "invalid value .None. of k"),
        ({"metadata": {"k": "v" * 513}}, "at most 512"),
        ({"metadata": {"k": "\ud800"}}, "invalid value"),
        ({"metadata": {str(number): "v" for number in range(17)}}, "at most 16 keys, not 17"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else None,
)
async def test_invalid_values_are_rejected(raw, expected):
    """The error is raised before a session is created or changed."""
    raw = {name: [*value] if isinstance(value, map) else value for name, value in raw.items()}
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(clerk())
        with pytest.raises(ConfigurationError, match=expected):
            await agent.create_session("ada", **raw)
        assert await ids_of(runtime) == []
        session = await agent.create_session("ada", session_id="s", tags=["a"])
        if raw != {"metadata": {"k": None}}:
            change = {"add_tags" if name == "tags" else name: value for name, value in raw.items()}
            with pytest.raises(ConfigurationError, match=expected.removeprefix("tags= ")):
                await session.annotate(**change)
        assert of(session) == (("a",), {})


async def test_largest_tags_and_metadata_are_accepted(url):
    """They are stored and found."""
    tags = [f"{number:064}" for number in range(32)]
    metadata = {f"{number:064}": "é" * 512 for number in range(16)}
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada", tags=tags, metadata=metadata)
        assert of((await runtime.sessions(tags=tags, metadata=metadata))[0]) == (tuple(tags), metadata)
        with pytest.raises(ConfigurationError, match="at most 32 tags, not 33"):
            await session.annotate(add_tags=["one more"])
        await session.annotate(add_tags=["one more"], remove_tags=tags[:1])
        assert len(session.tags) == 32


async def test_a_metadata_key_may_consist_of_punctuation():
    """Each character that the error of an invalid key names is valid alone."""
    async with BareAgent("clerk", llm=ScriptedLLM([])) as clerk:
        session = await clerk.create_session("ada", metadata=dict.fromkeys("._-a0Z", "v"))
        assert session.metadata == dict.fromkeys("._-a0Z", "v")
