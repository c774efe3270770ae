"""An index whose disk fails, cancelled searches, and changes at the same time."""

import threading

import trio

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.errors import JournalFull
from actgent.session_index import session_index as index_module
from actgent.session_index.sqlite_index_store import SQLiteIndexStore


def agent_of():
    return BareAgent("clerk", llm=ScriptedLLM(["no"], repeat=True))


async def say(agent, text, session_id):
    session = await agent.create_session("ada", text, session_id=session_id)
    await session.wait_idle()
    return session


async def ids_of(runtime, query):
    await runtime.index.wait_filled()
    return {hit.session_id for hit in (await runtime.search(query)).hits}


async def test_turns_continue_while_the_index_cannot_be_written(tmp_path, monkeypatch, caplog):
    """The index logs the failure, and adds everything once it can be written again."""
    left = [2]
    add = SQLiteIndexStore.add

    def failing(store, batch):
        if batch and left[0]:
            left[0] -= 1
            raise JournalFull("the disk of the session index is full: free space")
        return add(store, batch)

    monkeypatch.setattr(SQLiteIndexStore, "add", failing)
    monkeypatch.setattr(index_module, "RETRY_SECONDS", 0.05)
    async with open_runtime(journal=f"sqlite:///{tmp_path}/journal.db", index=True) as runtime:
        agent = await runtime.start(agent_of())
        await say(agent, "a word", "s1")
        await say(agent, "another word", "s2")
        with trio.fail_after(20):
            assert await ids_of(runtime, "word") == {"s1", "s2"}
    assert left == [0]
    assert "the session index is not up to date" in caplog.text


async def test_a_cancelled_search_leaves_the_index_usable(tmp_path):
    async with open_runtime(journal=f"sqlite:///{tmp_path}/journal.db", index=True) as runtime:
        agent = await runtime.start(agent_of())
        await say(agent, "a word", "s1")
        await runtime.index.wait_filled()
        for _ in range(5):
            with trio.CancelScope() as scope:
                scope.cancel()
                await runtime.search("word")
        assert await ids_of(runtime, "word") == {"s1"}


async def test_a_cancelled_start_closes_the_index(tmp_path, monkeypatch):
    """The start is cancelled while the database does not answer. The connection is closed after the answer."""
    started, answered, closed = trio.Event(), threading.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()
    prepare, close = SQLiteIndexStore._prepare, SQLiteIndexStore.close

    def prepare_slowly(store):
        token.run_sync_soon(started.set)
        answered.wait(20)
        prepare(store)

    def note_close(store):
        close(store)
        closed.set()

    monkeypatch.setattr(SQLiteIndexStore, "_prepare", prepare_slowly)
    monkeypatch.setattr(SQLiteIndexStore, "close", note_close)

    async def start():
        async with open_runtime(journal=f"sqlite:///{tmp_path}/journal.db", index=True):
            raise AssertionError("the index is open")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        await started.wait()
        nursery.cancel_scope.cancel()
    assert not closed.is_set()
    answered.set()
    assert await trio.to_thread.run_sync(closed.wait, 20)


async def test_index_is_consistent_after_concurrent_changes(tmp_path):
    """After concurrent turns, searches and erasures exactly the sessions that are in the journal are found."""
    async with open_runtime(journal=f"sqlite:///{tmp_path}/journal.db", index=True) as runtime:
        agent = await runtime.start(agent_of())

        async def live(number):
            for turn in range(3):
                session_id = f"s{number}"
                await say(agent, f"word of turn {turn}", session_id)
                await runtime.search("word")
                if turn < 2 or number % 2:
                    await runtime.delete_session(session_id, agent="clerk")

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(6):
                    nursery.start_soon(live, number)
            assert await ids_of(runtime, "word") == {"s0", "s2", "s4"}
            page = await runtime.search("word", limit=100)
        assert {hit.snippet for hit in page.hits} == {"word of turn 2"}
