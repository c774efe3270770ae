"""Another transport than HTTP: sessions need of it no more than one request, one stream, and where they break."""

from contextlib import asynccontextmanager

import pytest
import trio

from actgent import (
    AccessRefused,
    AlreadyDecided,
    ConfigurationError,
    CursorUnknown,
    NotRunning,
    Reject,
    RemoteError,
    connect,
)
from actgent.client import ConnectionLost, Refused, StreamEvent, Transport, open_client
from actgent.client.http.forms import PATHS
from actgent.client.reading import Deliveries


class Wire(Transport):
    """Answers and streams that were written down; each stream ends as a lost connection."""

    def __init__(self, streams=(), answers=()):
        self.streams, self.answers, self.asked = list(streams), list(answers), []

    async def call(self, request):
        self.asked.append(request)
        answer = self.answers.pop(0) if self.answers else {"records": 0, "state": "idle", "owner": "ada"}
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
    """What handlers hear of streams, and behind which numbers these were asked for."""
    wire, replies, failures = Wire(streams), [], []
    async with open_client(wire) as client:
        session = await client.agent("clerk").open_session("s1", after=0)
        session.on_conversation(lambda each: replies.append(each.text))
        session.on_exception(failures.append)
        await trio.sleep(1000)  # of the clock that jumps: all pauses are over, and nothing is left to hear
    after = [each.query["after"] for each in wire.asked if each.operation == "get_events"]
    return replies, failures, after


async def test_a_record_that_is_cut_in_its_middle_is_told_once(autojump_clock):
    """Events of one record come together: the first of two is not told where the second, with the number, is missing."""
    first = [reply("a", 1), reply("b")]
    second = [reply("b"), reply("c", 2), server("closed", 3)]
    assert await heard(first, second) == (["a", "b", "c"], [], [0, 1])


async def test_what_comes_twice_is_told_once(autojump_clock):
    """A number that was heard is left out, whatever the server sends."""
    assert await heard(
        [reply("a", 1), reply("b", 2)], [reply("b", 2), reply("c", 3), server("closed", 4)]
    ) == (
        ["a", "b", "c"],
        [],
        [0, 2],
    )


async def test_words_of_the_server_are_not_told(autojump_clock):
    """`bye`, `lagged` and signs of life lead to a new connection, and to no handler."""
    assert await heard([None, reply("a", 1), server("bye")], [server("lagged")], [server("closed", 2)]) == (
        ["a"],
        [],
        [0, 1, 1],
    )


async def test_an_older_copy_is_told_to_handlers_of_exceptions(autojump_clock):
    """A server with fewer records than were heard has another session: nothing of it is told as if it were this one."""
    replies, failures, _ = await heard([reply("a", 7)], [server("resync", 3), reply("b", 4)])
    assert replies == ["a"]
    assert [(each.kind, type(each.error)) for each in failures] == [("journal", CursorUnknown)]


def grown(text, *, begin=0, attempt=0, name="token"):
    data = {"reply_id": "r", "attempt": attempt, "begin": begin, "text": text, "turn": "m"}
    return StreamEvent(name=name, data=data)


def test_what_grows_is_told_once_over_breaks():
    """Behind a break all of it comes again, and only what is new is told; other words void the former ones."""
    reader = Deliveries()
    events = [
        grown("one "),
        grown("two ", begin=4),
        grown("one two three", name="growing"),
        grown("four", begin=99),
        grown("another ", name="growing"),
        grown("answer", begin=8),
        grown("third", attempt=5),
    ]
    told = [(each.text, each.attempt) for event in events for each in reader.read(event)]
    assert told == [
        ("one ", 0),
        ("two ", 0),
        ("three", 0),
        ("another ", 1),
        ("answer", 1),
        ("third", 5),
    ]


def test_what_is_whole_does_not_grow_again():
    """A server that is behind its journal tells how an answer grew when its reply was told: that is left out."""
    reader, usage = Deliveries(), {}
    answer = StreamEvent(name="answer", data={"message_id": "r", "usage": usage}, number=1)
    whole = StreamEvent(
        name="reply", data={"id": "r", "text": "one two", "data": None, "message_type": None}, number=2
    )
    other = StreamEvent(name="token", data={**grown("x").data, "reply_id": "s"})
    events = [grown("one "), answer, grown("two", begin=4), whole, other, grown("one two", name="growing")]
    told = [each.text for event in events for each in reader.read(event)]
    assert told == ["one ", "two", "one two", "x"]


async def test_requests_are_repeated_where_that_is_safe(autojump_clock):
    """A lost connection and a server that is full are tried again; a refusal is not."""
    full = Refused("too-many-requests", "", status=429, fields={"retry_after": 0.01})
    wire = Wire(answers=[ConnectionLost("cut", was_sent=True), full, {"message_id": "m1"}])
    async with open_client(wire) as client:
        session = client.agent("clerk")._known("s1")
        assert await session.chat("hello", message_id="m1") == "m1"
        assert [each.body["message_id"] for each in wire.asked] == ["m1"] * 3
        wire.answers = [ConnectionLost("cut", was_sent=True)]
        with pytest.raises(RemoteError, match="cut"):
            await session.interrupt()
        wire.answers = [Refused("unheard-of", "new words", status=418, fields={})]
        with pytest.raises(RemoteError, match="new words") as error:
            await session.chat("hello")
    assert (error.value.kind, error.value.status) == ("unheard-of", 418)


async def test_a_repeated_decision_is_told_whose_counts(autojump_clock):
    """Where the first try may have counted, `already-decided` is its own word, unless another decision was made."""
    lost, own, other = ConnectionLost("cut", was_sent=True), {"as_asked": True}, {"as_asked": False}
    wire = Wire()
    async with open_client(wire) as client:
        session = client.agent("clerk")._known("s1")
        wire.answers = [lost, Refused("already-decided", "", status=409, fields=own)]
        await session.answer("1.s1", Reject("no"))
        for tries in ([lost], []):
            wire.answers = [*tries, Refused("already-decided", "it was approved", status=409, fields=other)]
            with pytest.raises(AlreadyDecided, match="it was approved"):
                await session.answer("1.s1", Reject("no"))


@pytest.mark.parametrize("method", ["cancel_task", "unschedule"])
async def test_what_had_its_effect_was_not_removed_by_a_try_whose_answer_was_lost(autojump_clock, method):
    """The task has told its result, or the schedule has fired: the caller is told that nothing was stopped."""
    lost, wire = ConnectionLost("cut", was_sent=True), Wire()
    async with open_client(wire) as client:
        session = client.agent("clerk")._known("s1")
        for fields, is_removed in (({}, True), ({"as_asked": False}, False)):
            wire.answers = [lost, Refused("not-found", "", status=404, fields=fields)]
            assert await getattr(session, method)("t") is is_removed


async def test_the_table_of_http_is_that_of_the_gateway(served):
    """Each operation stands in the gateway's description under this name, verb and path."""
    document = served.gateway.app.inside.document()
    known = {
        each["operationId"]: (verb.upper(), path.removeprefix("/v1"))
        for path, verbs in document["paths"].items()
        for verb, each in verbs.items()
    }
    for operation, (verb, path) in PATHS.items():
        there, shape = known[operation]
        plain = path.replace("{session}", "{}").replace("{part}", "{}")
        assert (there, "/".join("{}" if each.startswith("{") else each for each in shape.split("/"))) == (
            verb,
            plain,
        ), operation


async def test_who_may_not_is_told_so(served):
    """A wrong token and a missing scope are `AccessRefused`; an agent that is not there is `NotRunning`."""
    async with served.connect(token="act_wrong") as client:
        with pytest.raises(AccessRefused):
            await client.agents()
    async with served.connect() as client:
        with pytest.raises(AccessRefused):
            await client.agent("clerk").create_session("bob")
        with pytest.raises(
            NotRunning, match=r"the server does not host it; hosted there: 'clerk', 'helper'. Else"
        ):
            await client.agent("nobody").create_session("ada")
        assert [each.name for each in await client.agents()] == ["clerk", "helper"]


@pytest.mark.parametrize("token", ["act_x", None])
@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8300", "ftp://x", "http://u:p@h", "http://h/?token=x", "", 5, "http://a b", "http://a,b:80"],
)
async def test_an_address_that_is_none_is_refused(url, token):
    """Before anything is sent, with words that say what an address is, also where there is no token either."""
    with pytest.raises(ConfigurationError, match="address of a gateway"):
        connect(url, token=token)


@pytest.mark.parametrize(
    "url", ["http://localhost", "http://b\u00fccher.example:80/x", "http://[::1]:80", "https://a_b.c-d"]
)
@pytest.mark.parametrize(
    ("token", "words"), [(None, "token= is missing"), (5, "token= is the text"), (" ", "token= is the text")]
)
async def test_a_token_that_is_none_is_refused(url, token, words):
    """The address is fine there."""
    with pytest.raises(ConfigurationError, match=words):
        connect(url, token=token)
