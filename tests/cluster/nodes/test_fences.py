"""Another owner acquires the partitions of a node, and the node is not notified."""

import pytest
import trio

from actgent.journal.journal_interface import Entry
from actgent.journal.postgres.partitioned_journal import PartitionedJournal
from actgent.journal.record_types import StateChangeRecord

from .pairs import PATIENCE, Echo, make_clerk


async def take_all(cluster, count):
    """Own all partitions for a moment."""
    other = PartitionedJournal(cluster.journal, node="other", pool=cluster.pool, partitions=count)
    async with other.running():
        await other.acquire()
        assert len(await other.acquire_partitions(range(count))) == count


async def until(is_so):
    while not is_so():  # noqa: ASYNC110 - no event signals this state
        await trio.sleep(0.02)


@pytest.mark.parametrize("by", ["a look", "a write"])
async def test_node_detects_that_others_own_its_sessions(open_cluster, monkeypatch, by):
    """The node notices it by its poll each second, or by its next write, which is rejected.

    The turn is run again.
    """
    model = Echo()
    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(make_clerk(model)) as runtime,
            cluster.connect(retry_timeout=PATIENCE) as client,
        ):
            session = await client.agent("clerk").create_session("ada")
            await session.chat("hold on")
            await until(lambda: model.asked)
            if by == "a write":
                monkeypatch.setattr(runtime.journal, "drop_lost", lambda _: None)
            await take_all(cluster, runtime.journal.count)
            if by == "a write":
                model.may_go.set()
                await until(lambda: runtime.cluster().fenced)
            await until(lambda: len(model.asked) == 2)
            assert by == "a write" or runtime.cluster().evicted == 1
            model.may_go.set()
            await session.wait_idle()
            assert [each.text for each in await session.history()] == ["hold on", "you said: hold on"]


async def test_closing_node_is_fenced_if_others_own_its_sessions(open_cluster, monkeypatch):
    """The last write of its journal is rejected. The block raises the error of the program."""
    async with open_cluster() as cluster:
        leave = PartitionedJournal._write_and_release

        async def leave_late(journal):
            if journal.node != "other" and journal.owned:
                await take_all(cluster, journal.count)
                entry = Entry(
                    session_id=session.id, agent="clerk", records=(StateChangeRecord(changes={"n": 1}),)
                )
                journal.enqueue_write(entry, epoch=journal.epoch_of(session.id))
            await leave(journal)

        monkeypatch.setattr(PartitionedJournal, "_write_and_release", leave_late)
        with trio.fail_after(PATIENCE), pytest.raises(KeyError, match="the program's"):  # noqa: PT012 - the block fails
            clerk = make_clerk(Echo())
            async with cluster.node(clerk) as runtime:
                session = await clerk.create_session("ada")
                raise KeyError("the program's")
        assert runtime.cluster().fenced == 1
