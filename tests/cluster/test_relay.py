"""Requests between nodes: rejected requests, and responses for sessions of other owners."""

from contextlib import asynccontextmanager
from functools import partial
from itertools import islice

import attrs
import pytest
import trio

from actgent.client.http.http_request import HTTPRequest
from actgent.client.transport_interface import ConnectionLost
from actgent.cluster.node_and_partition_cache import PoolDirectory
from actgent.cluster.relay_client import NodeTransport
from actgent.cluster.relay_http_encoding import (
    EPOCH_HEADER,
    MAX_HEAD_BYTES,
    VALID_SECONDS,
    MalformedMessage,
    MessageReader,
    decode_answer,
    decode_request,
    encode_answer,
    encode_chunk,
    encode_request,
)
from actgent.cluster.relay_server import MISDIRECTED
from actgent.journal.postgres.node_table import NodeRow, PartitionOwner
from actgent.web.server.request_relay import RelayedRequest
from tests.cluster.nodes.pairs import PATIENCE, Echo, make_clerk, open_pair

KEY, NOW = b"k" * 32, 1000.0
FORM = HTTPRequest(
    verb="POST", path="/sessions/s/messages", query="agent=a", headers={"prefer": "wait=1"}, body=b'{"a":1}'
)


def request(form=FORM, **given):
    relayed = RelayedRequest(http_request=form, session_id="s", owner="ada ö\r\n", scopes=("chat", "read"))
    return encode_request(relayed, **{"epoch": 3, "key": KEY, "now": NOW, **given})


def head_of(data):
    return data.partition(b"\r\n\r\n")[0]


def test_a_request_is_read_as_it_was_signed():
    """Cases: verb, path, query, headers, caller and scopes, also for an owner with line breaks in its name."""
    read = decode_request(head_of(request()), key=KEY, now=NOW)
    relayed = read.add_body(FORM.body)
    form = relayed.http_request
    assert (form.verb, form.path, form.query) == ("POST", "/sessions/s/messages", "agent=a")
    assert (relayed.session_id, relayed.owner, relayed.scopes) == ("s", "ada ö\r\n", ("chat", "read"))
    assert (form.headers["prefer"], form.headers[EPOCH_HEADER], read.length) == ("wait=1", "3", 7)
    assert form.body == FORM.body
    with pytest.raises(MalformedMessage, match="differs from the body that was signed"):
        read.add_body(b'{"a":2}')


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"POST", b"GET"),
        (b"/sessions/s/", b"/sessions/t/"),
        (b"agent=a", b"agent=b"),
        (b"chat,read", b"admin"),
        (b"ada".hex().encode(), b"bob".hex().encode()),
        (b"actgent-at: 1000", b"actgent-at: 1001"),
        (b"wait=1", b"wait=9"),
    ],
    ids=["verb", "path", "query", "scopes", "owner", "time", "header"],
)
def test_changed_request_is_rejected(old, new):
    """Each changed part of the head is detected."""
    head = head_of(request())
    assert old in head
    with pytest.raises(MalformedMessage, match="not made with the key of this cluster"):
        decode_request(head.replace(old, new), key=KEY, now=NOW)


@pytest.mark.parametrize("late", [VALID_SECONDS + 1, -VALID_SECONDS - 1])
def test_request_with_an_old_time_is_rejected(late):
    """A recorded request cannot be replayed later."""
    with pytest.raises(MalformedMessage, match="compare the clocks"):
        decode_request(head_of(request()), key=KEY, now=NOW + late)


def test_request_of_another_cluster_is_rejected():
    """The other cluster has a different key."""
    with pytest.raises(MalformedMessage, match="not made with the key of this cluster"):
        decode_request(head_of(request(key=b"x" * 32)), key=KEY, now=NOW)


@pytest.mark.parametrize(
    "head", [b"", b"GET / HTTP/1.1\r\nhost: x", b"\xff\xfe", b"a: b\r\nactgent-signature: "]
)
def test_head_without_a_signature_is_rejected(head):
    """Cases: a request of a browser, of a port scanner, and data that is not HTTP."""
    with pytest.raises(MalformedMessage):
        decode_request(head, key=KEY, now=NOW)


def test_a_header_cannot_add_another_one():
    """A line break in a header raises before anything is sent."""
    with pytest.raises(MalformedMessage, match="line break"):
        request(attrs.evolve(FORM, headers={"prefer": "x\r\nactgent-owner: admin"}))


class Pieces:
    """A stream that yields its bytes one by one."""

    def __init__(self, data):
        self._data = iter(data)

    async def receive_some(self, maximum):
        await trio.lowlevel.checkpoint()
        return bytes(islice(self._data, 1))


async def test_responses_are_parsed_byte_by_byte():
    """Two responses arrive on one connection: one with a length, one in chunks."""
    whole = encode_answer(202, {"location": "/v1/x"}, b"abc")
    chunked = encode_answer(200, {}, None) + encode_chunk(b"de") + encode_chunk(b"")
    reader = MessageReader(Pieces(whole + chunked))
    status, headers = decode_answer(await reader.read_head())
    assert (status, headers) == (202, {"location": "/v1/x", "content-length": "3"})
    assert await reader.read_body(3) == b"abc"
    status, headers = decode_answer(await reader.read_head())
    assert (status, headers) == (200, {"transfer-encoding": "chunked"})
    assert [await reader.read_chunk(), await reader.read_chunk()] == [b"de", b""]
    assert await reader.read_head() is None


@pytest.mark.parametrize("data", [b"HTTP/1.1 200 -\r\n", b"x" * (MAX_HEAD_BYTES + 1)], ids=["cut", "long"])
async def test_endless_head_is_rejected(data):
    """The connection ends within the head, or the head is too long."""
    with pytest.raises(MalformedMessage):
        await MessageReader(Pieces(data)).read_head()


# --- idle connections --------------------------------------------------------------------


@attrs.define
class CountingListener:
    """Answers each request of a node, and counts the open connections."""

    open_connections: int = 0
    connections: int = 0
    answer: bytes = encode_answer(200, {}, b"{}")

    async def serve(self, stream):
        self.open_connections, self.connections = self.open_connections + 1, self.connections + 1
        reader = MessageReader(stream)
        async with stream:
            while await reader.read_head() is not None:
                await stream.send_all(self.answer)
        self.open_connections -= 1


@asynccontextmanager
async def open_transport():
    """Yield a transport to one node, the row of that node, and its listener."""
    listener = CountingListener()
    async with trio.open_nursery() as nursery:
        (socket,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, listener.serve, [socket])
        address = f"http://127.0.0.1:{socket.socket.getsockname()[1]}"
        row = NodeRow(name="b", address=address, agents=("clerk",), release="1", reads=1)
        directory = PoolDirectory("", 1, trio.lowlevel.checkpoint)
        directory.update([row], {0: PartitionOwner(owner="b", epoch=1, is_given_back=False)})
        transport = NodeTransport(directory, key=KEY, now=lambda: NOW)
        nursery.start_soon(transport.run)
        yield transport, row, listener
        nursery.cancel_scope.cancel()


READ = RelayedRequest(
    http_request=attrs.evolve(FORM, verb="GET", body=None), session_id="s", owner="ada", scopes=("read",)
)


async def ask_at_once(transport, count):
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(partial(transport.exchange, READ, seconds=1.0))


async def wait_closed(listener, count):
    """Wait until the given number of connections is open."""
    with trio.fail_after(PATIENCE):
        while listener.open_connections != count:  # noqa: ASYNC110 - only a counter of the listener changes
            await trio.sleep(0.01)


async def test_idle_connections_are_reused_until_their_node_ends():
    """Otherwise each ended node would leave up to 64 open sockets, because no later request uses its address."""
    async with open_transport() as (transport, row, listener):
        await ask_at_once(transport, 3)
        await ask_at_once(transport, 2)
        assert (listener.connections, listener.open_connections) == (3, 3)
        transport.directory.update([attrs.evolve(row, name="c", address="http://127.0.0.1:9")], {})
        await wait_closed(listener, 0)


async def test_a_connection_is_not_kept_if_its_node_ended_during_the_request():
    """The answer still arrives."""
    async with open_transport() as (transport, _, listener):
        async with transport.relay(READ, seconds=1.0) as answer:
            transport.directory.update([], {0: PartitionOwner(owner="b", epoch=1, is_given_back=False)})
            assert [each async for each in answer.pieces] == [b"{}"]
        await wait_closed(listener, 0)


async def test_a_request_whose_signature_was_rejected_may_be_sent_again():
    """The clock of its sender may be wrong until it is corrected. The client does not get the answer of the node."""
    async with open_transport() as (transport, _, listener):
        listener.answer = encode_answer(400, {"connection": "close"}, b"")
        with pytest.raises(ConnectionLost, match="rejected the signature") as lost:
            await transport.exchange(READ, seconds=1.0)
        assert not lost.value.was_sent
        await wait_closed(listener, 0)


async def test_an_old_idle_connection_is_closed_although_newer_ones_are_used(monkeypatch):
    """After a burst of requests most connections are never used again."""
    monkeypatch.setattr("actgent.cluster.relay_client.MAX_IDLE_SECONDS", 0.2)
    async with open_transport() as (transport, _, listener):
        await ask_at_once(transport, 3)
        for _ in range(6):
            await trio.sleep(0.1)
            await ask_at_once(transport, 1)
        await wait_closed(listener, 1)


# --- a node ------------------------------------------------------------------------------


async def ask(node, data):
    """Send bytes to the relay listener of a node, and return the status and the headers of its answer."""
    port = int(node.address.rpartition(":")[2])
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(data)
        return decode_answer(await MessageReader(stream).read_head())


async def test_a_node_answers_only_signed_requests_and_only_for_its_sessions(open_cluster):
    """An unsigned request is rejected.

    A request for a session of the other node gets status 421 and the epoch.
    """
    with trio.fail_after(PATIENCE):
        async with open_pair(open_cluster) as pair:
            node, key = pair.one.membership.node, await pair.one.journal.nodes.cluster_key()
            assert (await ask(node, b"GET /agents HTTP/1.1\r\nhost: x\r\n\r\n"))[0] == 400
            form = HTTPRequest(verb="GET", path="/agents", query="", headers={}, body=None)
            sent = RelayedRequest(http_request=form, session_id="", owner="ada", scopes=("read",))
            signed = {"epoch": 0, "now": node.now()}
            assert (await ask(node, encode_request(sent, key=b"x" * 32, **signed)))[0] == 400
            assert (await ask(node, encode_request(sent, key=key, **signed)))[0] == 200
            there = pair.two.journal.new_session_id()
            form = attrs.evolve(form, path=f"/sessions/{there}")
            moved = attrs.evolve(sent, http_request=form, session_id=there)
            status, headers = await ask(node, encode_request(moved, key=key, **signed))
            epoch = pair.two.journal.epoch_of(there)
            assert (status, headers[EPOCH_HEADER]) == (MISDIRECTED, str(epoch))


async def deliver_nothing(_):
    """Return as if the next owner had not started yet."""
    await trio.lowlevel.checkpoint()


# --- no owner ----------------------------------------------------------------------------


async def test_message_without_an_owner_is_answered_once_by_the_next_one(open_cluster, monkeypatch):
    """The next owner answers the message before later messages, also if the message was stored twice."""
    models = Echo(), Echo()
    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(make_clerk(models[0]), node="one") as one,
            cluster.connect(retry_timeout=PATIENCE) as client,
        ):
            while len(one.journal.owned) < one.journal.count:  # noqa: ASYNC110 - no event signals this state
                await trio.sleep(0.02)
            session = await client.agent("clerk").create_session("ada")
            await session.chat("first", message_id="m1")
            await session.wait_idle()
            directory, member = one.membership.node.directory, one.membership
            with monkeypatch.context() as patched:
                patched.setattr(directory, "update", lambda *_: None)
                patched.setattr(directory, "set_serving", lambda *_: None)
                patched.setattr(directory, "_serving", frozenset())
                patched.setattr(directory, "nodes", {})
                patched.setattr(member.node, "_deliver", deliver_nothing)
                for _ in range(2):
                    assert await session.chat("second", message_id="m2") == "m2"
                stored = await one.journal.pending_messages.select(
                    [directory.partition_of(session.id)], one.journal.count
                )
                assert [(each.session_id, each.message_id) for each in stored] == [(session.id, "m2")]
            await member.node._deliver_pending([directory.partition_of(session.id)])
            await session.chat("third", message_id="m3")
            await session.wait_idle()
            history = await session.history()
            assert [each.text for each in history if each.sender.kind == "user"] == [
                "first",
                "second",
                "third",
            ]
            assert models[0].asked == ["first", "second", "third"]
            left = await one.journal.pending_messages.select(
                [directory.partition_of(session.id)], one.journal.count
            )
            assert left == []
