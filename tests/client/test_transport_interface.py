"""A custom transport.

Sessions need one request method, one stream method and `ConnectionLost` errors from it.
"""

import re
from contextlib import asynccontextmanager

import pytest
import trio

from actgent import (
    ApprovalAlreadyDecided,
    ConfigurationError,
    InvalidCursor,
    NotRunning,
    PermissionDenied,
    Reject,
    RemoteError,
    SessionExists,
    connect,
)
from actgent.client import ConnectionLost, Refused, StreamEvent, Transport, open_client
from actgent.client.http.http_request import OPERATIONS_WITHOUT_ANSWER, PATHS
from actgent.client.json_conversion import DeliveryDecoder

MOMENT = "2026-11-26T12:00:00Z"


class Wire(Transport):
    """A transport with scripted responses and streams. Each stream ends with a lost connection."""

    def __init__(self, streams=(), answers=()):
        self.streams, self.answers, self.asked = list(streams), list(answers), []

    async def call(self, request):
        self.asked.append(request)
        answer = self.answers.pop(0) if self.answers else {"records": 0, "status": "idle", "owner": "ada"}
        if isinstance(answer, Exception):
            raise answer
        return {"id": request.session_id, **answer}

    @asynccontextmanager
    async def events(self, request):
        self.asked.append(request)
        yield self._tell(self.streams.pop(0)) if self.streams else None

    async def _tell(self, events):
        for event in events:
            yield event
        raise ConnectionLost("cut", was_sent=True)

    async def aclose(self):
        self.streams.clear()


def reply(text, number=None):
    data = {"id": text, "text": text, "data": None, "message_type": None, "turn": "m", "at": None}
    return StreamEvent(name="reply", data=data, number=number)


def server(name, number=None):
    return StreamEvent(name=name, data={}, number=number)


async def heard(*streams):
    """Return the replies, the failures and the requested cursors of a session with these streams."""
    wire, replies, failures = Wire(streams), [], []
    async with open_client(wire) as client:
        session = await client.agent("clerk").open_session("s1", after=0)
        session.on_conversation(lambda each: replies.append(each.text))
        session.on_exception(failures.append)
        await trio.sleep(
            1000
        )  # seconds of the virtual clock: all pauses are over, and all events are delivered
    after = [each.query["after"] for each in wire.asked if each.operation == "get_events"]
    return replies, failures, after


async def test_record_cut_in_the_middle_is_delivered_once(autojump_clock):
    """The events of one record are delivered together after the last event, which carries the record number, has arrived."""
    first = [reply("a", 1), reply("b")]
    second = [reply("b"), reply("c", 2), server("closed", 3)]
    assert await heard(first, second) == (["a", "b", "c"], [], [0, 1])


async def test_repeated_record_is_delivered_once(autojump_clock):
    """A record number that was delivered is dropped, although the server sends it again."""
    assert await heard(
        [reply("a", 1), reply("b", 2)], [reply("b", 2), reply("c", 3), server("closed", 4)]
    ) == (["a", "b", "c"], [], [0, 2])


async def test_server_events_are_not_delivered(autojump_clock):
    """`bye`, `lagged` and keep-alives cause a reconnect, and call no handler."""
    assert await heard([None, reply("a", 1), server("bye")], [server("lagged")], [server("closed", 2)]) == (
        ["a"],
        [],
        [0, 1, 1],
    )


async def test_older_journal_is_reported_to_exception_handlers(autojump_clock):
    """A server with fewer records than the cursor has another session. None of its events are delivered as this session's."""
    replies, failures, _ = await heard([reply("a", 7)], [server("resync", 3), reply("b", 4)])
    assert replies == ["a"]
    assert [(each.kind, type(each.error)) for each in failures] == [("journal", InvalidCursor)]


def grown(text, *, begin=0, attempt=0, name="token"):
    data = {"reply_id": "r", "attempt": attempt, "begin": begin, "text": text, "turn": "m"}
    return StreamEvent(name=name, data=data)


def test_partial_answer_is_delivered_once_over_reconnects():
    """After a reconnect the whole text arrives again, and only new text is delivered.

    A different text replaces the former one.
    """
    reader = DeliveryDecoder()
    events = [
        grown("one "),
        grown("two ", begin=4),
        grown("one two three", name="growing"),
        grown("four", begin=99),
        grown("another ", name="growing"),
        grown("answer", begin=8),
        grown("third", attempt=5),
    ]
    texts = [(each.text, each.attempt) for event in events for each in reader.decode(event)]
    assert texts == [("one ", 0), ("two ", 0), ("three", 0), ("another ", 1), ("answer", 1), ("third", 5)]


def test_complete_answer_gets_no_more_tokens():
    """Partial answers that arrive after the reply are dropped."""
    reader, usage = DeliveryDecoder(), {}
    answer = StreamEvent(name="answer", data={"message_id": "r", "usage": usage}, number=1)
    whole = StreamEvent(
        name="reply", data={"id": "r", "text": "one two", "data": None, "message_type": None}, number=2
    )
    other = StreamEvent(name="token", data={**grown("x").data, "reply_id": "s"})
    events = [grown("one "), answer, grown("two", begin=4), whole, other, grown("one two", name="growing")]
    texts = [each.text for event in events for each in reader.decode(event)]
    assert texts == ["one ", "two", "one two", "x"]


async def test_requests_are_retried_if_safe(autojump_clock):
    """Lost connections and full servers are retried. Rejections are not."""
    full = Refused("too-many-requests", "", status=429, fields={"retry_after": 0.01})
    wire = Wire(answers=[ConnectionLost("cut", was_sent=True), full, {"message_id": "m1"}])
    async with open_client(wire) as client:
        session = client.agent("clerk")._session_for_requests("s1")
        assert await session.chat("hello", message_id="m1") == "m1"
        assert [each.body["message_id"] for each in wire.asked] == ["m1"] * 3
        wire.answers = [Refused("unheard-of", "new words", status=418, fields={})]
        with pytest.raises(RemoteError, match="new words") as error:
            await session.chat("hello")
    assert (error.value.kind, error.value.status) == ("unheard-of", 418)


async def test_an_interrupt_is_retried_with_the_id_of_the_turn_that_ran(autojump_clock):
    """A turn that begins after a lost connection is not stopped; if no turn runs, nothing is sent."""
    lost = ConnectionLost("cut", was_sent=True)
    wire = Wire(answers=[{"turn": {"message_id": "m1"}}, lost, lost, {}, {"turn": None}])
    async with open_client(wire) as client:
        session = client.agent("clerk")._session_for_requests("s1")
        await session.interrupt()
        await session.interrupt()
    assert [each.operation for each in wire.asked] == ["get_session", *["interrupt"] * 3, "get_session"]
    assert [each.body["message_id"] for each in wire.asked[1:4]] == ["m1"] * 3


async def test_repeated_decision_reports_the_effective_one(autojump_clock):
    """If the first try may have had its effect, `already-decided` means success, unless another decision was made."""
    lost, own, other = ConnectionLost("cut", was_sent=True), {"as_asked": True}, {"as_asked": False}
    wire = Wire()
    async with open_client(wire) as client:
        session = client.agent("clerk")._session_for_requests("s1")
        wire.answers = [lost, Refused("already-decided", "", status=409, fields=own)]
        await session.answer("1.s1", Reject("no"))
        for tries in ([lost], []):
            wire.answers = [*tries, Refused("already-decided", "it was approved", status=409, fields=other)]
            with pytest.raises(ApprovalAlreadyDecided, match="it was approved"):
                await session.answer("1.s1", Reject("no"))


async def test_repeated_lift_succeeds(autojump_clock):
    """If the first try may have had its effect, `source-unknown` means success. Otherwise it is an error."""
    lost, unknown = (
        ConnectionLost("cut", was_sent=True),
        Refused("source-unknown", "it has no sources", status=409, fields={}),
    )
    wire = Wire()
    async with open_client(wire) as client:
        session = client.agent("clerk")._session_for_requests("s1")
        wire.answers = [lost, unknown]
        await session.lift("mail:bob")
        wire.answers = [unknown]
        with pytest.raises(ConfigurationError, match="it has no sources"):
            await session.lift("mail:bob")


@pytest.mark.parametrize("method", ["cancel_task", "unschedule"])
async def test_removal_returns_false_after_completion(autojump_clock, method):
    """The task has reported its result, or the schedule has fired: the call returns False."""
    lost, wire = ConnectionLost("cut", was_sent=True), Wire()
    async with open_client(wire) as client:
        session = client.agent("clerk")._session_for_requests("s1")
        for fields, is_removed in (({}, True), ({"as_asked": False}, False)):
            wire.answers = [lost, Refused("not-found", "", status=404, fields=fields)]
            assert await getattr(session, method)("t") is is_removed


async def test_http_paths_match_the_gateway(served):
    """Each operation is in the gateway's OpenAPI document with this name, method and path.

    The document has no answer for the operations that the client expects to have none.
    """
    document = served.gateway.app.context.document()
    known = {
        each["operationId"]: (verb.upper(), path.removeprefix("/v1"))
        for path, verbs in document["paths"].items()
        for verb, each in verbs.items()
    }
    for operation, (verb, path) in PATHS.items():
        there, shape = known[operation]
        plain = re.sub(r"\{\w+\}", "{}", path)
        assert (there, "/".join("{}" if each.startswith("{") else each for each in shape.split("/"))) == (
            verb,
            plain,
        ), operation
    assert {
        each["operationId"]
        for verbs in document["paths"].values()
        for each in verbs.values()
        if each["operationId"] in PATHS and "200" not in each["responses"] and "204" in each["responses"]
    } == OPERATIONS_WITHOUT_ANSWER


async def test_missing_permission_raises(served):
    """An unknown token and a missing scope raise `PermissionDenied`. An agent that does not run raises `NotRunning`."""
    async with served.connect(token="act_wrong") as client:
        with pytest.raises(PermissionDenied):
            await client.agents()
    async with served.connect() as client:
        with pytest.raises(PermissionDenied):
            await client.agent("clerk").create_session("bob")
        with pytest.raises(
            NotRunning, match=r"the server does not host it; hosted there: 'clerk', 'helper'. Else"
        ):
            await client.agent("nobody").create_session("ada")
        assert [each.name for each in await client.agents()] == ["clerk", "helper"]


async def test_agent_cards_equal_those_of_the_runtime(served):
    """`client.agents()` returns the cards of `runtime.agents`, each with the names of the agent's models by role."""
    async with served.connect() as client:
        found = await client.agents()
    assert found == served.runtime.agents.find()
    assert [each.models for each in found] == [{"default": "counting"}, {"default": "scripted"}]


@pytest.mark.parametrize("token", ["act_x", None])
@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8300", "ftp://x", "http://u:p@h", "http://h/?token=x", "", 5, "http://a b", "http://a,b:80"],
)
async def test_invalid_address_raises(url, token):
    """The error is raised before a request is sent, and names the expected form of an address.

    A missing token does not change the error.
    """
    with pytest.raises(ConfigurationError, match="address of a gateway"):
        connect(url, token=token)


@pytest.mark.parametrize(
    "url", ["http://localhost", "http://b\u00fccher.example:80/x", "http://[::1]:80", "https://a_b.c-d"]
)
@pytest.mark.parametrize(
    ("token", "expected"), [(None, "token= is missing"), (5, "token= must be"), (" ", "token= must be")]
)
async def test_invalid_token_raises(url, token, expected):
    """The address is valid in this test."""
    with pytest.raises(ConfigurationError, match=expected):
        connect(url, token=token)


@pytest.mark.parametrize("is_repeated", [False, True])
async def test_fork_sent_twice_by_a_gateway_returns_the_copy(autojump_clock, is_repeated):
    """The gateway reports that it lost the first answer. Without that report, the id belongs to another session."""
    exists = Refused("session-exists", "", status=409, fields={})
    exists.is_repeated = is_repeated
    times = {"created_at": MOMENT, "updated_at": MOMENT}
    head = {"agent": "clerk", "parent": None, "unfinished": False, "tags": [], "metadata": {}, **times}
    wire = Wire(answers=[exists, {**head, "records": 2, "status": "idle", "owner": "ada"}])
    async with open_client(wire) as client:
        if is_repeated:
            copy = await client.fork("s1", agent="clerk", new_id="s2")
            assert (copy.session_id, copy.records) == ("s2", 2)
        else:
            with pytest.raises(SessionExists):
                await client.fork("s1", agent="clerk", new_id="s2")
