"""Messages that were stored while their session had no owner, and kill each node that delivers them."""

from contextlib import asynccontextmanager

import pytest
import trio

from actgent.client.http.http_request import to_http
from actgent.client.transport_interface import RemoteRequest
from actgent.cluster.unowned_partition_messages import PendingMessages, encode_pending
from actgent.journal.postgres.cluster_tables_reader import read_dead
from actgent.web.server.request_relay import RelayedRequest

from .nodes.pairs import PATIENCE, Echo, make_clerk


@asynccontextmanager
async def open_with_pending(open_cluster, model, *, deliveries):
    """Yield a cluster, its node, and a session with a pending message that has the given number of deliveries."""
    async with (
        open_cluster() as cluster,
        cluster.node(make_clerk(model), node="one") as one,
        cluster.connect(retry_timeout=PATIENCE) as client,
    ):
        while len(one.journal.owned) < one.journal.count:  # noqa: ASYNC110 - no event signals this state
            await trio.sleep(0.02)
        session = await client.agent("clerk").create_session("ada")
        table, directory = one.journal.pending_messages, one.membership.node.directory
        body = {"input": "hello", "message_id": "m1"}
        form = to_http(RemoteRequest(operation="say", agent="clerk", session_id=session.id, body=body))
        request = encode_pending(
            RelayedRequest(http_request=form, session_id=session.id, owner="user", scopes=("admin",))
        )
        owner = directory.owner_of(session.id)
        with pytest.MonkeyPatch.context() as patched:  # the notification comes before the deaths are recorded
            patched.setattr(one.membership.node, "_deliver", wait_forever)
            words = {"session_id": session.id, "message_id": "m1", "request": request}
            assert await table.store(owner.partition, owner.epoch, **words)
            (stored,) = await table.select([owner.partition], one.journal.count)
            await table.count_delivery(stored, deliveries)
            await trio.sleep(0.5)
        yield cluster, one, session, owner.partition


async def wait_forever(_):
    await trio.lowlevel.checkpoint()


async def test_message_that_killed_three_nodes_is_dead_lettered(open_cluster):
    """The message is dead-lettered without a model call, and the session answers other messages."""
    model = Echo()
    with trio.fail_after(PATIENCE):
        async with open_with_pending(open_cluster, model, deliveries=3) as (cluster, one, session, partition):
            await one.membership.node._deliver_pending([partition])
            await session.chat("later")
            await session.wait_idle()
            assert model.asked == ["later"]
            (dead,) = await read_dead(cluster.journal)
            assert (dead.session_id, dead.message_id) == (session.id, "m1")
            assert "3 nodes died" in dead.reason
            assert await one.journal.pending_messages.select([partition], one.journal.count) == []


async def test_a_delivery_that_does_not_end_is_counted(open_cluster, monkeypatch):
    """A delivery is recorded before it begins. A delivery that ends without acceptance is not a death."""
    model, seen, deliver = Echo(), [], PendingMessages._deliver

    async def refuse_once(self, message):
        (now,) = await self._table.select(
            [self._journal.partition_of(message.session_id)], self._journal.count
        )
        seen.append(now.deliveries)
        return len(seen) > 1 and await deliver(self, message)

    monkeypatch.setattr(PendingMessages, "_deliver", refuse_once)
    with trio.fail_after(PATIENCE):
        async with open_with_pending(open_cluster, model, deliveries=2) as (_, one, session, partition):
            await one.membership.node._deliver_pending([partition])
            await session.chat("later")
            await session.wait_idle()
            assert seen == [3, 3]
            assert model.asked == ["hello", "later"]
