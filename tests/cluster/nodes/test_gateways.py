"""Requests to the gateway of one node for sessions that live at the other node."""

from contextlib import asynccontextmanager

import attrs
import httpx2
import pytest
import trio

from actgent import (
    ApprovalAlreadyDecided,
    Approve,
    GatewayLimits,
    Reject,
    SessionClosed,
    SessionExists,
    Suspended,
    connect,
    open_gateway,
)
from actgent.client.transport_interface import ConnectionLost
from actgent.cluster.relay_client import NodeTransport
from actgent.web.access_tokens import new_token
from actgent.web.server.request_relay import NodeConnectionBroken

from .pairs import PATIENCE, drain

RUN_EVENTS = ["message", "turn", "answer", "reply", "ended"]
LIMITS = GatewayLimits(rate=100_000, burst=100_000, requests=1000, messages=10_000, grace=1)


@asynccontextmanager
async def open_client(runtime, scopes=("chat", "approve"), owner="ada"):
    """Yield an HTTP client of the gateway of a node."""
    token, known = new_token("t", owner=owner, scopes=scopes)
    async with (
        open_gateway(runtime, bind="127.0.0.1:0", tokens=[known], limits=LIMITS) as gateway,
        connect(gateway.url, token=token, retry_timeout=PATIENCE) as client,
    ):
        yield client


async def test_sessions_of_both_nodes_are_served_by_each_gateway(pair):
    """Messages, streams, approvals, interrupts and outcomes work for sessions of both nodes."""
    with trio.fail_after(PATIENCE):
        async with open_client(pair.one) as client:
            clerk = client.agent("clerk")
            for runtime in (pair.one, pair.two):
                session = await clerk.create_session(session_id=pair.id_at(runtime))
                received, tokens = [], []
                session.on_conversation(lambda reply, received=received: received.append(reply.text))
                session.on_token(lambda token, tokens=tokens: tokens.append(token.text))
                await session.chat("one two", message_id="m1")
                await session.wait_idle()
                assert received == ["you said: one two"]
                assert "".join(tokens) == "you said: one two"
                assert (await clerk.run("again", session=session)).text == "you said: again"
                async with clerk.stream("and", session=session) as deliveries:
                    assert [each.text async for each in deliveries][-1] == "you said: and"
                with pytest.raises(Suspended) as waits:
                    await clerk.run("deploy mars", session=session)
                assert [each.session_id for each in await client.approvals()] == [session.id]
                assert len(await session.approvals()) == 1
                reply = await clerk.resume({waits.value.ids[0]: Approve()})
                assert reply.text == "done: deployed to mars"
                assert (await session.messages()).total == 10
                await session.schedule("later", after=3600, key="k")
                assert await session.unschedule((await session.schedules())[0].id)
                await session.interrupt(drop_queued=True)
                copy = await client.fork(session.id, agent="clerk")
                assert (await clerk.run("copied", session=await clerk.open_session(copy.session_id))).text
                await session.aclose()
                assert await session.status() == "closed"
            assert {each.session_id for each in await client.sessions()} >= {session.id}


async def test_stream_resumes_after_its_cursor_when_a_session_moves(pair, monkeypatch):
    """The node of the gateway hands over all partitions. No event is lost or repeated."""
    monkeypatch.setattr("actgent.cluster.cluster_node.LEAVE_GRACE_SECONDS", 0.2)
    with trio.fail_after(PATIENCE):
        async with open_client(pair.one) as client:
            session = await client.agent("clerk").create_session(session_id=pair.id_at(pair.one))
            received = []
            session.on_conversation(lambda reply: received.append(reply.text))
            for number in range(3):
                await session.chat(f"m{number}")
            await session.chat("hold on")
            await drain(pair.cluster, pair.one)
            pair.models[1].may_go.set()
            for number in range(3, 6):
                await session.chat(f"m{number}")
            await session.wait_idle()
            texts = ["m0", "m1", "m2", "hold on", "m3", "m4", "m5"]
            assert received == [f"you said: {each}" for each in texts]


async def test_observations_resume_after_a_move_without_an_error(pair, monkeypatch, caplog):
    """The previous owner ends the stream, and the reader reconnects without an error."""
    monkeypatch.setattr("actgent.cluster.cluster_node.LEAVE_GRACE_SECONDS", 0.2)
    caplog.set_level("ERROR", "actgent")
    with trio.fail_after(PATIENCE):
        async with pair.cluster.connect(retry_timeout=PATIENCE) as client:
            session = await client.agent("clerk").create_session("ada", session_id=pair.id_at(pair.one))
            async with session.observe(types=["FINAL_RESPONSE"], after=1) as observed:
                for number in (1, 2):
                    await session.chat(f"m{number}")
                    assert f"you said: m{number}" in str(await observed.receive())
                    if number == 1:
                        await drain(pair.cluster, pair.one)
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == []


async def test_repeated_creation_returns_the_created_session(pair, monkeypatch):
    """The gateway repeats the creation, finds the session and returns it as created.

    A different creation of that id is rejected.
    """
    relay, lost = NodeTransport.relay, []

    @asynccontextmanager
    async def lose_the_first(way, request, **asked):
        async with relay(way, request, **asked) as answer:
            if not lost:
                lost.append(answer.status)
                raise ConnectionLost("lost", was_sent=True)
            yield answer

    with trio.fail_after(PATIENCE):
        async with open_client(pair.one) as client:
            monkeypatch.setattr(NodeTransport, "relay", lose_the_first)
            clerk, session_id = client.agent("clerk"), pair.id_at(pair.two)
            session = await clerk.create_session(session_id=session_id)
            assert (session.id, session.cursor, lost) == (session_id, 1, [201])
            with pytest.raises(SessionExists):
                await clerk.create_session(session_id=session_id)


@pytest.mark.parametrize("is_local", [False, True])
async def test_request_is_relayed_again_after_broken_connections(pair, monkeypatch, is_local):
    """The broken connections killed no node, so only the first break counts.

    With `is_local`, a program of a node sends the request.
    """
    monkeypatch.setattr("actgent.cluster.relay_client.DEATH_SECONDS", 0.2)
    monkeypatch.setattr("actgent.client.request_sender.LAST_RETRY_PAUSE_SECONDS", 0.2)
    exchange, broken = NodeTransport._exchange, []

    @asynccontextmanager
    async def break_five(way, request, seconds):
        if request.http_request.path.endswith("/messages") and len(broken) < 5:
            broken.append(request.session_id)
            node = way.directory.owner_of(request.session_id).node.name
            raise NodeConnectionBroken("the network has broken it", node=node)
        async with exchange(way, request, seconds) as answer:
            yield answer

    with trio.fail_after(PATIENCE):
        async with open_client(pair.one) as client:
            clerk = pair.agents[0] if is_local else client.agent("clerk")
            made = {"owner": "user"} if is_local else {}
            session = await clerk.create_session(**made, session_id=pair.id_at(pair.two))
            monkeypatch.setattr(NodeTransport, "_exchange", break_five)
            await session.chat("hello", message_id="m1")
            await session.wait_idle()
            assert broken == [session.id] * 5
            assert pair.models[1].asked == ["hello"]


async def test_repeated_interrupt_stops_no_later_turn(pair, monkeypatch):
    """The gateway adds the id of the running turn to the interrupt, because its client does not know it.

    If no turn runs, the gateway sends nothing.
    """
    relay, requests = NodeTransport.relay, []

    @asynccontextmanager
    async def keep_stops(way, request, **asked):
        if request.http_request.path.endswith("/interrupt"):
            requests.append((way, request, asked))
        async with relay(way, request, **asked) as answer:
            yield answer

    with trio.fail_after(PATIENCE):
        async with open_client(pair.one) as client:
            monkeypatch.setattr(NodeTransport, "relay", keep_stops)
            clerk, model = client.agent("clerk"), pair.models[1]
            session = await clerk.create_session(session_id=pair.id_at(pair.two))
            failures = []
            session.on_exception(failures.append)
            for message_id in ("m1", "m2"):
                await session.chat("hold", message_id=message_id)
                while len(model.asked) < int(message_id[1]):  # noqa: ASYNC110 - only a counter of the model changes
                    await trio.sleep(0.01)
                if message_id == "m1":
                    await session.interrupt()
            (way, request, asked) = requests[0]
            async with relay(way, request, **asked) as again:
                assert again.status == 204
            model.may_go.set()
            await session.wait_idle()
            assert [(each.kind, each.message_id) for each in failures] == [("interrupted", "m1")]
            assert [each.text for each in await session.history()][-1] == "you said: hold"
            await session.interrupt()
            assert b"message_id" in request.http_request.body
            assert len(requests) == 1
            await session.aclose()
            with pytest.raises(SessionClosed):
                await session.interrupt()


async def test_second_of_two_approvers_gets_a_conflict(pair, monkeypatch):
    """The second approver gets a conflict also if the gateway lost the first response and repeats the request."""
    relay, lost = NodeTransport.relay, []

    @asynccontextmanager
    async def lose_all(way, request, **asked):
        if not lost:
            lost.append(request.http_request.path)
            await there.answer(approval_id, Approve())
            raise ConnectionLost("lost", was_sent=True)
        async with relay(way, request, **asked) as answer:
            yield answer

    with trio.fail_after(PATIENCE):
        async with open_client(pair.one) as client:
            clerk = client.agent("clerk")
            session = await clerk.create_session(session_id=pair.id_at(pair.two))
            with pytest.raises(Suspended) as waits:
                await clerk.run("deploy mars", session=session)
            (approval_id,) = waits.value.ids
            there = await pair.agents[1].open_session(session.id)
            monkeypatch.setattr(NodeTransport, "relay", lose_all)
            with pytest.raises(ApprovalAlreadyDecided):
                await session.answer(approval_id, Reject("no"))
            assert (
                await clerk.outcome(session, (await session.history())[0].id)
            ).text == "done: deployed to mars"


async def test_other_owner_cannot_reach_a_session_by_another_node(pair):
    """The token has the same rights at the other node.

    A session of another owner is answered like a missing session.
    """
    with trio.fail_after(PATIENCE):
        async with open_client(pair.one) as ada, open_client(pair.one, ("chat",), "bo") as bo:
            session_id = pair.id_at(pair.two)
            await ada.agent("clerk").create_session(session_id=session_id)
            with pytest.raises(LookupError):
                await bo.agent("clerk").open_session(session_id)


async def test_relayed_messages_count_toward_the_limit_of_unfinished_messages(pair):
    """The node that gets the requests counts the messages of its token, and reads from the journal which have ended."""
    limits, (token, known) = attrs.evolve(LIMITS, messages=2), new_token("t", owner="ada", scopes=("chat",))
    with trio.fail_after(PATIENCE):
        async with (
            open_gateway(pair.one, bind="127.0.0.1:0", tokens=[known], limits=limits) as gateway,
            httpx2.AsyncClient(
                base_url=gateway.url, headers={"authorization": f"Bearer {token}"}, timeout=PATIENCE
            ) as client,
        ):

            async def say(session_id, text):
                return await client.post(f"/v1/sessions/{session_id}/messages", json={"input": text})

            ids = [pair.id_at(pair.two) for _ in range(3)]
            for session_id in ids:
                await client.put(f"/v1/sessions/{session_id}", json={"agent": "clerk"})
            assert [(await say(each, "hold on")).status_code for each in ids[:2]] == [202, 202]
            rejected = await say(ids[2], "hello")
            assert (rejected.status_code, rejected.json()["limit"]) == (429, "messages")
            pair.models[1].may_go.set()
            while (await say(ids[2], "hello")).status_code == 429:  # noqa: ASYNC110 - no event signals this state
                await trio.sleep(0.05)


async def test_draining_node_is_not_ready(pair):
    """The readiness check fails, so that a load balancer sends requests to other nodes.

    The node still answers requests.
    """
    with trio.fail_after(PATIENCE):
        async with (
            httpx2.AsyncClient(base_url=pair.cluster.url) as http,
            open_gateway(pair.one, bind="127.0.0.1:0", limits=LIMITS) as gateway,
        ):
            ready = f"{gateway.url}/v1/health/ready"
            assert (await http.get(ready)).status_code == 200
            await drain(pair.cluster, pair.one)
            answer = await http.get(ready)
            assert answer.status_code == 503
            assert "the node hands over its sessions" in answer.text


async def test_one_of_two_concurrent_decisions_at_two_nodes_applies(pair):
    """One decision counts, and the other approver gets an error, at whichever node the session lives."""
    counted, refused = [], []

    async def decide(session, approval_id, decision):
        try:
            await session.answer(approval_id, decision)
        except ApprovalAlreadyDecided:
            refused.append(decision)
        else:
            counted.append(decision)

    with trio.fail_after(PATIENCE):
        async with open_client(pair.one) as first, open_client(pair.two) as second:
            for runtime in (pair.one, pair.two):
                counted.clear(), refused.clear()
                made = await first.agent("clerk").create_session(session_id=pair.id_at(runtime))
                with pytest.raises(Suspended) as waits:
                    await first.agent("clerk").run("deploy mars", session=made)
                known = await second.agent("clerk").open_session(made.id)
                async with trio.open_nursery() as nursery:
                    for session, decision in ((made, Approve()), (known, Reject("no"))):
                        nursery.start_soon(decide, session, waits.value.ids[0], decision)
                await known.wait_idle()
                assert len(counted) == len(refused) == 1
                results = [each for each in await known.history() if each.sender.kind == "tool"]
                assert ("deployed to mars" in results[-1].parts[0].content) == (counted == [Approve()])


async def test_each_gateway_streams_a_run_of_the_other_node(pair):
    """The response contains the events of the run, and ends with the run."""
    token, known = new_token("t", owner="ada", scopes=("chat",))
    with trio.fail_after(PATIENCE):
        async with (
            open_gateway(pair.one, bind="127.0.0.1:0", tokens=[known], limits=LIMITS) as gateway,
            httpx2.AsyncClient(
                base_url=gateway.url, headers={"authorization": f"Bearer {token}"}, timeout=PATIENCE
            ) as client,
        ):
            for runtime in (pair.one, pair.two):
                path = f"/v1/sessions/{pair.id_at(runtime)}"
                assert (await client.put(path, json={"agent": "clerk"})).is_success
                body = {"input": "hello", "message_id": "m1", "stream": True}
                for _ in range(2):  # the second request has the same message
                    answer = await client.post(f"{path}/messages", json=body)
                    assert answer.headers["content-type"].startswith("text/event-stream")
                    names = [each[7:] for each in answer.text.splitlines() if each.startswith("event: ")]
                    assert [each for each in names if each != "token"] == RUN_EVENTS
                found = (await client.get(f"{path}/runs")).json()["items"]
                assert [(each["message_id"], each["status"]) for each in found] == [("m1", "answered")]
                assert (await client.post(f"{path}/runs/m1/cancel", json={})).status_code == 204
                assert (await client.post(f"{path}/runs/m2/cancel", json={})).status_code == 404
