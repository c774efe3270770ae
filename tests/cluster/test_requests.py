"""What a node does with a request whose answer nobody hears any more, and with more of one session than may wait."""

import logging
import random

import orjson
import pytest
import trio
import trio.testing

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.actors.timer import Timer
from actgent.cluster.amqp import ChannelClosed, NotConfirmed, Unroutable
from actgent.cluster.operations.figures import NodeFigures
from actgent.cluster.quarantine import Quarantine as RealQuarantine
from actgent.cluster.requests import MOST, TAKEN, TRIED, Requests, workers_of
from actgent.cluster.wire import WireRequest, decode_message, properties
from actgent.errors import BrokerLost, JournalFailed
from actgent.journal.base import Entry
from actgent.journal.postgres import PartitionedJournal, PartitionsLost, read_dead, read_request
from actgent.journal.records import Accepted, Ended, Opened
from actgent.messages import Message, Sender
from actgent.web.gateway import open_inside
from actgent.web.server.wired import LIMITS, WiredApplication, wired_application
from actgent.web.tokens import Logins, TokenStore


class Link:
    """A broker that does not take what is sent."""

    def __init__(self, error=None):
        self.error = error or Unroutable("no queue")
        self.tried = 0

    async def publish(self, *args, **options):
        self.tried += 1
        await trio.lowlevel.checkpoint()
        raise self.error

    def publish_now(self, *args):
        return False


class Tasks:
    """Workers of which each request has its own, so that a nursery ends with the last of them."""

    def __init__(self, nursery):
        self.nursery = nursery

    def start_soon(self, requests, work):
        self.nursery.start_soon(self._work, requests, work)

    async def _work(self, requests, work):
        with trio.CancelScope() as scope:
            await requests.run(work, scope)
        await requests.finish(work)


class Quarantine:
    def __init__(self, *, can_bury=True, accepted=()):
        self.node, self.alone, self.can_bury, self.buried = "web-1", trio.Lock(), can_bury, []
        self.accepted = list(accepted)
        """Whether sessions have accepted what the next requests say, or an error."""
        self.released = trio.Event()
        """What the session `withheld` waits for."""

    async def wait(self, session_id):
        if session_id == "withheld":
            await self.released.wait()
        await trio.lowlevel.checkpoint()

    def is_blamed(self, session_id):
        return session_id == "suspect"

    async def has_accepted(self, asked):
        await trio.lowlevel.checkpoint()
        found = self.accepted.pop(0) if self.accepted else False
        if isinstance(found, Exception):
            raise found
        return found

    async def bury_request(self, asked, words):
        await trio.lowlevel.checkpoint()
        self.buried += [asked.id] * self.can_bury
        return self.can_bury


class Delivery:
    """A request as the broker gave it; notes what becomes of it, which is settled once."""

    def __init__(self, about=None, *, redelivered=False):
        self.properties = about or properties(reply_to="gone", message_id="m")
        self.body = b"as it was"
        self.redelivered = redelivered
        self.became = []

    def acknowledge(self):
        self.became = self.became or ["acknowledged"]

    def requeue(self):
        self.became = self.became or ["given back"]


def requests_of(nursery, application, link, *, quarantine=None, workers=None, judge=None):
    """Requests out of the queue `queue`, each of which a task of its own answers, unless there are workers."""
    return Requests(
        link,
        application,
        quarantine or Quarantine(),
        nursery.start_soon,
        NodeFigures(),
        workers=workers or Tasks(nursery),
        queue="queue",
        judge=judge,
    )


class Application:
    """Answers from a nursery of its own, or not; or fails there."""

    def __init__(self, *, is_grouped, error=None):
        self.is_grouped, self.error = is_grouped, error

    async def answer(self, request, tell, gone):
        if not self.is_grouped:
            await self.say(tell)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.say, tell)

    async def say(self, tell):
        if self.error is not None:
            raise self.error
        await tell(200, b"{}", True)


@pytest.mark.parametrize("is_grouped", [False, True])
@pytest.mark.parametrize(
    ("error", "becomes"), [(None, ["acknowledged"]), (ValueError("broken"), ["given back"])]
)
async def test_a_request_whose_asker_is_gone_is_not_given_back(
    is_grouped, error, becomes, caplog, autojump_clock
):
    """Or it would go round for ever; one that fails goes to the next node, also out of a nursery."""
    delivery = Delivery()
    async with trio.open_nursery() as nursery:
        application = Application(is_grouped=is_grouped, error=error)
        requests = requests_of(nursery, application, Link())
        requests.open()
        requests.take(delivery, WireRequest(id="1", verb="POST", path="/sessions/s/messages", owner="ada"))
    assert delivery.became == becomes
    assert ("request 1 failed" in caplog.text) == (error is not None)
    assert len(requests) == 0


@pytest.mark.parametrize("error", [Unroutable("no queue"), BrokerLost("amqp://a", "it went down")])
@pytest.mark.parametrize(("verb", "path"), [("GET", "/sessions/s/events"), ("GET", "/agents")])
async def test_an_answer_that_cannot_be_sent_leaves_no_traceback(error, verb, path, caplog):
    """That a client goes, or the broker, is expected: a stream ends, nothing more is sent, and the log says nothing of it."""
    link, delivery = Link(error), Delivery()
    store = TokenStore([])
    async with (
        open_runtime(journal="memory:") as runtime,
        open_inside(runtime, LIMITS, store, Logins(store), ()) as inside,
        trio.open_nursery() as nursery,
    ):
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM([])))
        await agent.create_session("ada", session_id="s")
        application = wired_application(runtime, inside, kind=WiredApplication)
        requests = requests_of(nursery, application, link)
        requests.open()
        requests.take(delivery, WireRequest(id="1", verb=verb, path=path, owner="ada"))
        with trio.fail_after(20):
            while len(requests):
                await trio.testing.wait_all_tasks_blocked()
    assert link.tried == 1
    assert not [each for each in caplog.records if each.exc_info or each.levelno > logging.INFO]


@pytest.mark.parametrize("error", [PartitionsLost([3]), JournalFailed("away")], ids=["moved", "failed"])
async def test_a_request_that_is_led_on_is_no_error_in_the_log(error, caplog, autojump_clock):
    """That a partition moves while a request reads from it is ordinary, unlike a database that is away: the next owner answers."""
    delivery, store = Delivery(), TokenStore([])

    def find(_):
        raise error

    async with (
        open_runtime(journal="memory:") as runtime,
        open_inside(runtime, LIMITS, store, Logins(store), ()) as inside,
        trio.open_nursery() as nursery,
    ):
        application = WiredApplication(inside=inside, find=find)
        requests = requests_of(nursery, application, Outbox())
        requests.open()
        requests.take(delivery, WireRequest(id="1", verb="POST", path="/sessions/s/messages", owner="ada"))
    has_moved = isinstance(error, PartitionsLost)
    assert delivery.became == ["given back" if has_moved else "acknowledged"]
    assert bool([each for each in caplog.records if each.levelno > logging.INFO]) is not has_moved


class Outbox:
    """A broker that notes what is sent."""

    def __init__(self):
        self.sent = []

    async def publish(self, key, body, properties):
        await trio.lowlevel.checkpoint()
        self.sent.append(decode_message(body, properties))

    def publish_now(self, *args):
        return False


class Holding:
    """Answers when it is let go."""

    def __init__(self):
        self.may_go = trio.Event()

    async def answer(self, request, tell, gone):
        await self.may_go.wait()
        await tell(204, b"", True)


async def test_more_requests_of_a_session_than_may_wait_are_answered_busy(autojump_clock):
    """What ends something, what reads, and what is another session's is taken all the same; later there is room again."""
    link, application, deliveries = Outbox(), Holding(), []

    def take(path, verb="POST"):
        deliveries.append(Delivery())
        requests.take(deliveries[-1], WireRequest(id=str(len(deliveries)), verb=verb, path=path, owner="ada"))

    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, application, link)
        requests.open()
        for _ in range(MOST + 2):
            take("/sessions/s/messages")
        for path in ("/sessions/s/interrupt", "/sessions/s/close", "/approvals/a.s/decision"):
            take(path)
        take("/sessions/other/messages")
        take("/sessions/s/events", "GET")
        await trio.testing.wait_all_tasks_blocked()
        refused = {piece.id: (piece.status, piece.is_last) for piece in link.sent}
        assert refused == {str(MOST + 1): (429, True), str(MOST + 2): (429, True)}
        assert b'"/errors/busy"' in link.sent[0].data
        assert [each.became for each in deliveries[MOST : MOST + 2]] == [["acknowledged"]] * 2
        application.may_go.set()
        await trio.testing.wait_all_tasks_blocked()
        link.sent.clear()
        take("/sessions/s/messages")
        await trio.testing.wait_all_tasks_blocked()
        assert [piece.status for piece in link.sent] == [204]
    assert len(requests) == 0


async def test_what_stops_turns_is_begun_while_they_may_end(autojump_clock):
    """Or lets one go on that waits, and nothing else; what is left goes to the next owner in its order, behind the end of the queue."""
    link, deliveries = Outbox(), {}

    class Moving(Holding):
        async def answer(self, request, tell, gone):
            async def moved(*_):
                await tell(503, b'{"moved":true}', True)

            is_ours = request.path.endswith(("close", "decision"))
            await super().answer(request, tell if is_ours else moved, gone)

    def take(name, of="/sessions/s"):
        deliveries[name] = Delivery()
        requests.take(deliveries[name], WireRequest(id=name, verb="POST", path=f"{of}/{name}", owner="ada"))

    async with trio.open_nursery() as nursery:
        application = Moving()
        requests = requests_of(nursery, application, link)
        requests.open()
        take("messages")
        requests.hold()
        for name in ("schedules", "interrupt", "close"):
            take(name)
        take("decision", "/approvals/a.s")
        application.may_go.set()
        await trio.sleep(10)
        assert sorted((each.id, each.status) for each in link.sent) == [("close", 204), ("decision", 204)]
        assert {name: each.became for name, each in deliveries.items() if each.became} == {
            "close": ["acknowledged"],
            "decision": ["acknowledged"],
        }
        requests.close()
    assert len(requests) == 0


async def test_a_request_that_was_dropped_before_it_came_is_not_begun():
    """Drops overtake what waits in a queue: a stream that nobody reads would go on for ever. What has an effect is done."""
    answered = []

    class Noting(Application):
        async def answer(self, request, tell, gone):
            answered.append(request.verb)
            await super().answer(request, tell, gone)

    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, Noting(is_grouped=False), Link())
        requests.open()
        for number, verb in enumerate(["GET", "POST"]):
            delivery = Delivery()
            requests.drop(("gone", str(number)))
            requests.take(
                delivery, WireRequest(id=str(number), verb=verb, path="/sessions/s/events", owner="ada")
            )
            await trio.testing.wait_all_tasks_blocked()
            assert delivery.became == ["acknowledged"]
        assert not requests._dropped
        requests.drop(("gone", "of a request that has ended"))
        requests.close()
    assert answered == ["POST"]
    assert len(requests) == 0
    assert not requests._dropped


@pytest.mark.parametrize("path", ["/events", "/sessions/s/events"])
async def test_a_stream_holds_no_place_at_the_broker(path, autojump_clock):
    """A broker ends the channel of who keeps a message for long; a list may still be answered by another node."""

    class Streaming:
        async def answer(self, request, tell, gone):
            if request.path == "/sessions":
                await trio.sleep_forever()
            await tell(200, b"piece", False)
            await gone.wait()

    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, Streaming(), Outbox())
        requests.open()
        stream, listed = Delivery(), Delivery()
        requests.take(stream, WireRequest(id="1", verb="GET", path=path, owner="ada"))
        requests.take(listed, WireRequest(id="2", verb="GET", path="/sessions", owner="ada"))
        await trio.testing.wait_all_tasks_blocked()
        assert (stream.became, listed.became) == (["acknowledged"], [])
        requests.drop(("gone", "1"))
        requests.close()
    assert len(requests) == 0


async def test_a_read_of_which_a_node_may_have_died_is_acknowledged_with_its_answer(autojump_clock):
    """So that the broker has it where the next one dies, too: it is begun alone then, and refused. Nobody can send it again for another one."""
    link, quarantine, application = Returning(), Quarantine(), Holding()

    async def comes(about, *, redelivered=False, number="2"):
        delivery = Delivery(about, redelivered=redelivered)
        asked = WireRequest(id=number, verb="GET", path="/sessions/s/messages", owner="ada")
        requests.take(delivery, asked)
        await trio.testing.wait_all_tasks_blocked()
        return delivery.became

    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, application, link, quarantine=quarantine)
        requests.open()
        assert await comes(properties(reply_to="gone"), number="1") == ["acknowledged"]
        suspected = properties(reply_to="gone", headers={"deaths": 1})
        assert await comes(suspected) == []
        for _ in range(5):  # owners that gave it back
            requests.close()
            await trio.testing.wait_all_tasks_blocked()
            requests.open()
            assert await comes(suspected, redelivered=True) == []
        requests.close()
        await trio.testing.wait_all_tasks_blocked()
        assert link.returned == []

        requests.open(has_died=True)
        assert await comes(suspected, redelivered=True) == ["acknowledged"]
        (alone,) = link.returned
        assert await comes(alone) == []
        requests.close()
        await trio.testing.wait_all_tasks_blocked()
        requests.note_before("web-1")
        requests.open(has_died=True)
        link.sent.clear()
        assert await comes(alone, redelivered=True) == ["acknowledged"]
        assert [(each.status, b"3 nodes have gone" in each.data) for each in link.sent] == [(500, True)]
    assert quarantine.buried == []


@pytest.mark.parametrize("is_dropped", [False, True])
async def test_a_read_whose_node_has_died_is_asked_for_again(is_dropped):
    """Its client has heard that it is to do so, and says then that a node has gone: else it would be counted by two. Nobody's is dropped."""
    link, headers = Returning(), {"deaths": 1} if is_dropped else None
    delivery = Delivery(properties(reply_to="gone", headers=headers), redelivered=True)
    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, Holding(), link)
        requests.open(has_died=True)
        requests.take(delivery, WireRequest(id="1", verb="GET", path="/sessions/s/messages", owner="ada"))
        if is_dropped:
            requests.drop(("gone", "1"))
    assert (delivery.became, link.returned) == (["acknowledged"], [])
    assert [(each.status, each.is_last) for each in link.sent] == ([] if is_dropped else [(0, True)])


async def test_what_was_stopped_is_acknowledged_before_its_answer_goes():
    """The queue may be closed while the broker takes the answer: the next node would stop what comes behind it."""
    application, delivery = Holding(), Delivery()

    class Watched(Outbox):
        async def publish(self, *args):
            assert delivery.became == ["acknowledged"]
            await super().publish(*args)

    async with trio.open_nursery() as nursery:
        link = Watched()
        requests = requests_of(nursery, application, link)
        requests.open()
        requests.hold()
        requests.take(delivery, WireRequest(id="1", verb="POST", path="/sessions/s/interrupt", owner="ada"))
        application.may_go.set()
    assert [each.status for each in link.sent] == [204]


async def test_a_stream_ends_when_the_queue_of_its_reader_is_gone():
    """At the next piece, with all that it holds."""
    ended = []

    class Streaming:
        async def answer(self, request, tell, gone):
            try:
                while True:
                    await tell(200, b"piece", False)
            finally:
                ended.append(gone.is_set())

    class Gone(Link):
        pieces = 3

        async def publish(self, *args, **options):
            self.pieces -= 1
            if not self.pieces:
                await super().publish()
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        link = Gone()
        requests = requests_of(nursery, Streaming(), link)
        requests.open()
        requests.take(Delivery(), WireRequest(id="1", verb="GET", path="/sessions/s/events", owner="ada"))
    assert (ended, link.pieces, len(requests)) == ([True], 0, 0)


class Confirming(Outbox):
    """A broker that takes pieces, and says so when it is asked to."""

    def __init__(self):
        super().__init__()
        self.hearers, self.is_up = [], True

    def publish_now(self, key, body, properties, hearer):
        if self.is_up:
            self.sent.append(decode_message(body, properties))
            self.hearers.append(hearer)
        return self.is_up


async def test_a_piece_that_is_not_waited_for_is_one_of_the_stream():
    """They are numbered as they go, one at a time; one that did not go has no number, and one that is lost ends the stream."""
    tellings, link = [], Confirming()

    class Streaming:
        async def answer(self, request, tell, gone):
            await tell(200, b"first", False)
            tellings.append(tell)
            await gone.wait()

    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, Streaming(), link)
        requests.open()
        requests.take(Delivery(), WireRequest(id="1", verb="GET", path="/sessions/s/events", owner="ada"))
        await trio.testing.wait_all_tasks_blocked()
        (tell,) = tellings
        assert tell.now(b"second")
        assert not tell.now(b"too soon")
        link.hearers[0].fulfil(None)
        link.is_up = False
        assert not tell.now(b"no way")
        link.is_up = True
        assert tell.now(b"third")
        assert [(each.number, each.data, each.status, each.is_last) for each in link.sent] == [
            (0, b"first", 200, False),
            (1, b"second", 200, False),
            (2, b"third", 200, False),
        ]
        assert len(requests) == 1
        link.hearers[1].fail(lambda: Unroutable("no queue"))
    assert len(requests) == 0


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (None, ["acknowledged"]),
        (Unroutable("no queue"), ["acknowledged"]),
        (NotConfirmed("not now"), ["acknowledged"]),
        (ChannelClosed("it was closed"), []),
        (BrokerLost("amqp://a", "it went down"), []),
    ],
)
async def test_an_answer_that_goes_at_once_is_acknowledged_by_the_word_of_the_broker(error, becomes):
    """Its request is at work no more by then, and comes again where that word never comes, as the broker is lost."""
    link, delivery = Confirming(), Delivery()
    async with trio.open_nursery() as nursery:
        application = Application(is_grouped=False)
        requests = requests_of(nursery, application, link)
        requests.open()
        requests.take(delivery, WireRequest(id="1", verb="POST", path="/sessions/s/messages", owner="ada"))
    assert ([each.is_last for each in link.sent], len(requests), delivery.became) == ([True], 0, [])
    (hearer,) = link.hearers
    hearer.fulfil(None) if error is None else hearer.fail(lambda: error)
    assert delivery.became == becomes


async def test_an_answer_is_waited_for_that_does_not_go_at_once():
    """As the broker takes nothing now, or a piece before it is not confirmed: then it is acknowledged behind that wait."""
    link, delivery = Confirming(), Delivery()

    class Streaming:
        async def answer(self, request, tell, gone):
            await tell(200, b"first", False)
            assert tell.now(b"second")
            await tell(200, b"", True)

    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, Streaming(), link)
        requests.open()
        requests.take(delivery, WireRequest(id="1", verb="POST", path="/sessions/s/messages", owner="ada"))
    assert [(each.number, each.is_last) for each in link.sent] == [(0, False), (1, False), (2, True)]
    assert (len(link.hearers), delivery.became) == (1, ["acknowledged"])


async def test_a_request_ends_that_was_given_to_a_worker_and_not_begun():
    """Its partition is another node's by then: nothing of it is done here."""
    answered, delivery = [], Delivery()

    class Noting(Application):
        async def answer(self, request, tell, gone):
            answered.append(request)

    async with trio.open_nursery() as nursery:
        timers = Timer()
        nursery.start_soon(timers.run)
        workers = workers_of(nursery, timers)
        requests = requests_of(nursery, Noting(is_grouped=False), Link(), workers=workers)
        requests.open()
        asked = WireRequest(id="1", verb="POST", path="/sessions/s/messages", owner="ada")
        requests.take(delivery, asked)
        requests.close()
        await trio.testing.wait_all_tasks_blocked()
        assert (answered, len(requests)) == ([], 0)
        requests.open()
        requests.take(Delivery(), asked)
        await trio.testing.wait_all_tasks_blocked()
        assert (len(answered), len(requests)) == (1, 0)
        nursery.cancel_scope.cancel()


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("asked", "status", "kind"),
    [
        ({"path": "/nothing"}, 404, "not-found"),
        ({"path": "/sessions/s/nothing"}, 404, "not-found"),
        ({"path": "/sessions/%00/messages"}, 404, "not-found"),
        ({"path": "/sessions/other/messages", "owner": "eve", "scopes": ("chat",)}, 404, "not-found"),
        ({"verb": "PUT"}, 405, "method-not-allowed"),
        ({"scopes": ("read",)}, 403, "forbidden"),
        ({"owner": "eve", "scopes": ("chat",)}, 404, "not-found"),
        ({"owner": ""}, 422, "invalid"),
        ({"query": "agent=clerk&agent=clerk"}, 422, "invalid"),
        ({"query": "token=secret"}, 400, "malformed-request"),
        ({"headers": {}}, 415, "unsupported-media-type"),
        ({"headers": {**JSON, "content-encoding": "gzip"}}, 415, "unsupported-media-type"),
        ({"body": b"{"}, 400, "malformed-request"),
        ({"body": b'{"content": "a", "content": "b"}'}, 400, "malformed-request"),
        ({"body": b'{"content": %s}' % (b"[" * 65 + b"]" * 65)}, 400, "malformed-request"),
        ({"body": b'{"content": 5}'}, 422, "invalid"),
        ({"body": b"[]"}, 422, "invalid"),
        ({"body": b'{"content": "%s"}' % (b"x" * 10_000_000)}, 413, "body-too-large"),
        ({}, 202, None),
    ],
)
async def test_requests_are_checked_as_those_over_http(asked, status, kind):
    """Their address and verb, who asks, the query, and the body; also when the same was asked before."""
    request = {
        "verb": "POST",
        "path": "/sessions/s/messages",
        "query": "agent=clerk",
        "headers": JSON,
        "body": b'{"content": "hello"}',
        "owner": "ada",
    } | asked
    link, store = Outbox(), TokenStore([])
    async with (
        open_runtime(journal="memory:") as runtime,
        open_inside(runtime, LIMITS, store, Logins(store), ()) as inside,
        trio.open_nursery() as nursery,
    ):
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["hello"] * 2)))
        for name in ("s", "other"):
            await agent.create_session("ada", session_id=name)
        application = wired_application(runtime, inside, kind=WiredApplication)
        requests = requests_of(nursery, application, link)
        requests.open()
        for number in range(2):
            requests.take(Delivery(), WireRequest(id=str(number), **request))
        with trio.fail_after(20):
            while len(requests):
                await trio.testing.wait_all_tasks_blocked()
        assert [each.status for each in link.sent] == [status] * 2
        documents = [orjson.loads(each.data) for each in link.sent]
        assert [each.get("type") for each in documents] == [kind and f"/errors/{kind}"] * 2
        counted = sum(count for (_, code), count in inside.metrics.requests.items() if code == status)
        assert counted == 2


class Returning:
    """A broker that keeps what a node puts into its own queue again, and what it answers."""

    def __init__(self):
        self.returned, self.sent = [], []

    async def publish(self, key, body, about):
        await trio.lowlevel.checkpoint()
        if key == "queue":
            self.returned.append(about)
        else:
            self.sent.append(decode_message(body, about))

    def publish_now(self, *args):
        return False


def asks(number):
    return WireRequest(id=str(number), verb="POST", path=f"/sessions/{number}/messages", owner="ada")


async def test_a_request_whose_nodes_die_is_begun_alone_and_then_given_up(autojump_clock):
    """Beside others after a first death, alone after a second one, and then by nobody; it is acknowledged each time."""
    link, quarantine, application = Returning(), Quarantine(), Holding()

    async def comes(about=None, *, redelivered):
        delivery = Delivery(about, redelivered=redelivered)
        requests.take(delivery, asks(1))
        await trio.testing.wait_all_tasks_blocked()
        return delivery

    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, application, link, quarantine=quarantine)
        requests.open(has_died=True)
        assert (await comes(redelivered=True)).became == ["acknowledged"]
        (once,) = link.returned
        begun = await comes(once, redelivered=False)
        assert (begun.became, len(requests)) == ([], 1)
        requests.close()
        await trio.testing.wait_all_tasks_blocked()

        requests.open(has_died=True)
        assert (await comes(once, redelivered=True)).became == ["acknowledged"]
        (_, alone) = link.returned
        assert quarantine.alone.locked()
        begun = await comes(alone, redelivered=False)
        assert (begun.became, quarantine.alone.locked()) == ([], True)
        requests.close()
        await trio.testing.wait_all_tasks_blocked()
        assert not quarantine.alone.locked()

        requests.note_before("web-1")
        requests.open(has_died=True)
        assert (await comes(alone, redelivered=True)).became == ["acknowledged"]
        assert (quarantine.buried, len(link.returned)) == (["1"], 2)
        assert [(each.id, each.status, b"/errors/poison" in each.data) for each in link.sent] == [
            ("1", 500, True)
        ]
    assert len(requests) == 0


async def test_requests_of_which_nodes_may_have_died_are_begun_one_after_the_other(autojump_clock):
    """The next one when the one before has ended, or takes long; others are begun at once beside them."""
    link, quarantine, application = Returning(), Quarantine(), Holding()
    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, application, link, quarantine=quarantine)
        requests.open(has_died=True)
        for number in range(3):
            died = properties(reply_to="gone", message_id=str(number), headers={"deaths": 1})
            requests.take(Delivery(died, redelivered=True), asks(number))
        requests.take(Delivery(), asks(9))
        await trio.testing.wait_all_tasks_blocked()
        assert len(link.returned) == 1
        first = link.returned[0].message_id
        requests.take(Delivery(link.returned[0]), asks(first))
        application.may_go.set()
        await trio.testing.wait_all_tasks_blocked()
        assert [each.id for each in link.sent] == ["9", first]
        assert len(link.returned) == 2
        await trio.sleep(TRIED + 1)
        assert len(link.returned) == 3
        requests.close()
    assert len(requests) == 0


class Streaming:
    """Begins to answer, and goes on for ever."""

    async def answer(self, request, tell, gone):
        await tell(200, b"it begins", False)
        await trio.sleep_forever()


async def test_streams_of_which_nodes_may_have_died_are_begun_as_soon_as_those_before_them_have_begun(
    autojump_clock,
):
    """A stream has no end that one could wait for: ten of them had the last one begin after 45 s, when nobody read it any more."""
    link, quarantine = Returning(), Quarantine()
    died = [properties(reply_to="gone", message_id=str(each), headers={"deaths": 1}) for each in range(10)]
    asked = {
        each.message_id: WireRequest(id=each.message_id, verb="GET", path="/sessions/s/events", owner="ada")
        for each in died
    }
    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, Streaming(), link, quarantine=quarantine)
        requests.open(has_died=True)
        begun = trio.current_time()
        for each in died:
            requests.take(Delivery(each, redelivered=True), asked[each.message_id])
        for number in range(10):
            await trio.testing.wait_all_tasks_blocked()
            about = link.returned[number]
            assert about.headers == {"deaths": 2, "repeated": True, "alone": "web-1"}
            requests.take(Delivery(about), asked[about.message_id])
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(each.id for each in link.sent) == sorted(asked)
        assert (trio.current_time(), quarantine.alone.locked()) == (begun, False)
        nursery.cancel_scope.cancel()


async def test_a_read_that_was_asked_for_again_is_not_begun_alone(autojump_clock):
    """Whoever reads it has given it up while it was in the line of those that are begun alone."""
    link, quarantine = Returning(), Quarantine()
    about = properties(reply_to="gone", message_id="1", headers={"deaths": 1})
    delivery = Delivery(about, redelivered=True)
    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, Streaming(), link, quarantine=quarantine)
        requests.open(has_died=True)
        await quarantine.alone.acquire()
        requests.take(delivery, WireRequest(id="1", verb="GET", path="/sessions/s/events", owner="ada"))
        await trio.testing.wait_all_tasks_blocked()
        requests.drop(("gone", "1"))
        quarantine.alone.release()
        await trio.testing.wait_all_tasks_blocked()
        assert (delivery.became, link.returned, quarantine.alone.locked()) == (["acknowledged"], [], False)
    assert len(requests) == 0


async def test_a_broker_that_takes_nothing_holds_up_no_request_that_is_begun_alone(autojump_clock):
    """As while it is short of memory: what could not be put into its queue goes back there, and lets the next one be looked at."""
    link, quarantine, deliveries = Returning(), Quarantine(), []
    blocked = trio.Event()

    class Blocked(Returning):
        async def publish(self, *args):
            await blocked.wait()

    async with trio.open_nursery() as nursery:
        stuck, other = (
            requests_of(nursery, Holding(), each, quarantine=quarantine) for each in (Blocked(), link)
        )
        for number, requests in enumerate((stuck, other)):
            requests.open(has_died=True)
            about = properties(reply_to="gone", message_id=str(number), headers={"deaths": 1})
            deliveries.append(Delivery(about, redelivered=True))
            requests.take(deliveries[-1], asks(number))
            await trio.testing.wait_all_tasks_blocked()
        assert ([each.became for each in deliveries], link.returned) == ([[], []], [])
        await trio.sleep(TAKEN + 1)
        assert [each.became for each in deliveries] == [["given back"], ["acknowledged"]]
        assert [each.headers["deaths"] for each in link.returned] == [2]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("redelivered", [False, True])
async def test_a_request_that_is_there_twice_is_begun_once(redelivered, autojump_clock):
    """As its node died when it had put it into its queue again, and the acknowledgement had not gone: the one with more deaths counts."""
    link, quarantine, application = Returning(), Quarantine(), Holding()
    before = Delivery(properties(reply_to="gone", headers={"deaths": 1}), redelivered=True)
    after = Delivery(
        properties(reply_to="gone", headers={"deaths": 2, "alone": True}), redelivered=redelivered
    )
    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, application, link, quarantine=quarantine)
        for each in (before, after):
            requests.take(each, asks(1))
        requests.open(has_died=True)
        await trio.testing.wait_all_tasks_blocked()
        assert before.became == ["acknowledged"]
        application.may_go.set()
        await trio.testing.wait_all_tasks_blocked()
        assert after.became == ["acknowledged"]
        requests.close()
    assert link.returned == []
    assert [each.status for each in link.sent] == [500 if redelivered else 204]
    assert quarantine.buried == ["1"] * redelivered


async def test_a_request_to_a_suspect_is_not_counted(autojump_clock):
    """Its nodes have died of what the session had accepted, which is counted there: it is begun, and waits for the trial."""
    link, quarantine, delivery = (
        Returning(),
        Quarantine(),
        Delivery(
            properties(reply_to="gone", message_id="m", headers={"deaths": 2, "alone": True}),
            redelivered=True,
        ),
    )
    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, Application(is_grouped=False), link, quarantine=quarantine)
        requests.open(has_died=True)
        requests.take(
            delivery, WireRequest(id="m", verb="POST", path="/sessions/suspect/messages", owner="ada")
        )
    assert (delivery.became, quarantine.buried, link.returned) == (["acknowledged"], [], [])
    assert [piece.status for piece in link.sent] == [200]


async def test_a_death_is_counted_once_with_what_was_accepted(autojump_clock):
    """A request whose node died before its session had accepted it, and whose next one died after, has had one death so far."""
    link, quarantine, application = Returning(), Quarantine(accepted=[False, True, True]), Holding()
    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, application, link, quarantine=quarantine)
        requests.open(has_died=True)
        requests.take(Delivery(redelivered=True), asks(1))
        await trio.testing.wait_all_tasks_blocked()
        for is_again in (False, True, True):
            delivery = Delivery(link.returned[0], redelivered=is_again)
            requests.take(delivery, asks(1))
            await trio.testing.wait_all_tasks_blocked()
            assert (delivery.became, len(requests)) == ([], 1)
            requests.close()
            await trio.testing.wait_all_tasks_blocked()
            requests.open(has_died=True)
        requests.take(Delivery(link.returned[0], redelivered=True), asks(1))
        await trio.testing.wait_all_tasks_blocked()
        assert [each.headers for each in link.returned] == [
            {"deaths": 1, "repeated": True},
            {"deaths": 2, "repeated": True, "alone": "web-1"},
        ]
        nursery.cancel_scope.cancel()


async def test_a_request_of_which_nobody_knows_whether_it_was_accepted_comes_again(autojump_clock):
    """As the database is away: it is neither counted nor begun."""
    link, quarantine, delivery = (
        Returning(),
        Quarantine(accepted=[JournalFailed("away")]),
        Delivery(redelivered=True),
    )
    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, Holding(), link, quarantine=quarantine)
        requests.open(has_died=True)
        requests.take(delivery, asks(1))
    assert (delivery.became, link.returned, link.sent) == (["given back"], [], [])


async def test_what_a_session_is_in_the_middle_of_was_accepted(postgres_url):
    """The message itself: what waits behind it, and was not accepted, is counted by itself; a task of another pool has a session of its own."""
    messages = [Message(id=f"m{each}", session_id="s", sender=Sender("ada"), parts="hi") for each in range(2)]
    records = (Opened(owner=Sender("ada"), created_at=1.0), *(Accepted(message=each) for each in messages))
    async with PartitionedJournal(postgres_url, node="a", partitions=1).running() as journal:
        await journal.acquire()
        (taken,) = await journal.take([0])
        quarantine = RealQuarantine(journal, Returning())

        async def commit(*records):
            await journal.commit(Entry(session_id="s", agent="clerk", records=records), epoch=taken.epoch)

        async def accepted():
            says = [{"body": orjson.dumps({"message_id": each})} for each in ("m0", "m1", "m2")]
            asked = [
                WireRequest(**{"id": "1", "verb": "POST", "path": "/sessions/s/task", "owner": "ada"} | each)
                for each in (
                    *says,
                    {"verb": "ASK", "body": b"\xff"},
                    {"verb": "CANCEL"},
                    {"path": "/sessions/t/task"},
                )
            ]
            return [await quarantine.has_accepted(each) for each in asked]

        await commit(*records)
        assert await accepted() == [False] * 6
        await quarantine.count([0], ["clerk"], have_died=True)
        assert await accepted() == [True, True, False, True, False, False]
        await commit(Ended(message_id="m0"))
        assert await accepted() == [False, True, False, True, False, False]
        await commit(Ended(message_id="m1"))
        await quarantine.count([0], ["clerk"], have_died=False)
        assert await accepted() == [False] * 6


async def test_a_request_that_comes_again_without_a_death_is_begun(autojump_clock):
    """Its partition was given back, or this node has put it back, or the node that had it has only lost its broker."""
    link, judged = Returning(), []

    async def judge(at):
        await trio.lowlevel.checkpoint()
        judged.append(at)
        return False

    async with trio.open_nursery() as nursery:
        owned = requests_of(nursery, Application(is_grouped=False), link)
        owned.open()
        shared = requests_of(nursery, Application(is_grouped=False), link, judge=judge)
        shared.open()
        for number, requests in enumerate([owned, shared]):
            about = properties(reply_to="gone", headers={"deaths": 1})
            requests.take(Delivery(about, redelivered=True), asks(number))
            await trio.testing.wait_all_tasks_blocked()
        failing = Application(is_grouped=False, error=ValueError("broken"))
        broken = requests_of(nursery, failing, link)
        broken.open(has_died=True)
        for is_again in (False, True, True):
            delivery = Delivery(redelivered=is_again)
            broken.take(delivery, asks(2))
            await trio.sleep(1)
            assert delivery.became == ["given back"]
    assert ([(each.id, each.status) for each in link.sent], link.returned) == ([("0", 200), ("1", 200)], [])
    assert len(judged) == 1


async def test_a_request_that_cannot_be_kept_for_a_person_is_not_refused(autojump_clock):
    """It goes back into its queue until the database answers."""
    link = Returning()
    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, Holding(), link, quarantine=Quarantine(can_bury=False))
        requests.open(has_died=True)
        delivery = Delivery(properties(reply_to="gone", headers={"alone": True}), redelivered=True)
        requests.take(delivery, asks(1))
    assert (delivery.became, link.sent) == (["given back"], [])


@pytest.mark.parametrize(
    "headers",
    [
        {"deaths": 2**63 - 1},
        {"deaths": -5},
        {"deaths": "many"},
        {"blob": b"\xff"},
        {"much": 1e300},
        {"CC": ["another"]},
    ],
)
async def test_what_a_sender_writes_round_a_request_does_not_end_its_nodes(headers, autojump_clock):
    """It goes into its queue again with what nodes read, which can be sent and which the broker takes of any of them."""
    link = Returning()
    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, Holding(), link)
        requests.open(has_died=True)
        about = properties(reply_to="gone", user_id="other", headers=dict(headers), priority=1)
        requests.take(Delivery(about, redelivered=True), asks(1))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    (again,) = link.returned
    assert again.marshal()
    assert (again.reply_to, again.priority, again.user_id) == ("gone", 1, None)
    assert set(again.headers) <= {"deaths", "alone", "repeated"}
    assert 1 <= again.headers["deaths"] <= 1001


@pytest.mark.parametrize(
    "asked",
    [
        {"body": b'{"message_id": "a\\u0000"}'},
        {"query": "agent=%00"},
        {"path": "/sessions/%00/messages"},
        {"path": "/sessions/\ud800/messages"},
        {"id": "\ud800", "body": b"["},
        {"body": orjson.dumps({"message_id": random.Random(1).randbytes(5000).hex()})},
    ],
)
async def test_a_request_whose_names_no_database_takes_is_given_up_like_others(asked, postgres_url):
    """It is kept with those of its names that can be, instead of coming again for ever, or ending its node."""
    asked = WireRequest(**{"id": "1", "verb": "POST", "path": "/sessions/s/messages", "owner": "ada"} | asked)
    link = Returning()
    async with PartitionedJournal(postgres_url, node="a", partitions=1).running() as journal:
        await journal.acquire()
        quarantine = RealQuarantine(journal, link)
        assert await quarantine.bury_request(asked, "why")
        (dead,) = await read_dead(postgres_url)
        assert dead.is_request
        kept = await read_request(postgres_url, dead)
    assert decode_message(kept, properties()) == asked


async def test_a_request_is_refused_whatever_its_id_is():
    """What is told of it is JSON, which not every text can be."""
    link = Returning()
    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, Holding(), link)
        requests.open()
        for number in range(MOST + 1):
            asked = WireRequest(id=f"\ud800{number}", verb="POST", path="/sessions/s/messages", owner="ada")
            requests.take(Delivery(), asked)
        await trio.testing.wait_all_tasks_blocked()
        assert [(each.id, each.status) for each in link.sent] == [(f"\ud800{MOST}", 429)]
        nursery.cancel_scope.cancel()


async def test_what_was_stopped_with_its_partition_may_be_what_its_next_owner_died_of(autojump_clock):
    """When it comes back from there, it is counted like others: this node has not put it into the queue again."""
    link = Returning()
    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, Holding(), link)
        requests.open()
        requests.take(Delivery(), asks(1))
        await trio.testing.wait_all_tasks_blocked()
        requests.close()
        await trio.sleep(1)
        requests.open(has_died=True)
        delivery = Delivery(redelivered=True)
        requests.take(delivery, asks(1))
        await trio.testing.wait_all_tasks_blocked()
        assert (delivery.became, [each.headers["deaths"] for each in link.returned]) == (
            ["acknowledged"],
            [1],
        )
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("deaths", [0, 1])
async def test_the_death_of_an_owner_is_noted_before_its_partition_moves_on(deaths, autojump_clock):
    """Its next owner knows of none before: what is just looked at is waited for, and what is to be begun alone is so there."""
    link, quarantine = Returning(), Quarantine()
    about = properties(reply_to="gone", message_id="m", headers={"deaths": deaths} if deaths else None)
    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, Holding(), link, quarantine=quarantine)
        await quarantine.alone.acquire()
        requests.open(has_died=True)
        delivery = Delivery(about, redelivered=True)
        requests.take(delivery, asks(1))
        requests.hold()
        with trio.fail_after(60):
            await requests.wait_looked_at()
        requests.close()
        assert delivery.became == ["acknowledged"]
        assert [each.headers for each in link.returned] == [{"repeated": True, "deaths": deaths + 1}]
        quarantine.alone.release()
        requests.open()
        again = Delivery(link.returned[0], redelivered=True)
        requests.take(again, asks(1))
        await trio.testing.wait_all_tasks_blocked()
        assert (again.became, len(requests)) == ([], 1)
        nursery.cancel_scope.cancel()


async def test_a_request_to_a_suspect_is_begun_alone_when_that_has_had_its_trial(autojump_clock):
    """Not before, as it would only wait: its node may die meanwhile of anything else, also of the suspect, and the request would be refused."""
    link, quarantine = Returning(), Quarantine()
    asked = WireRequest(id="1", verb="GET", path="/sessions/withheld", owner="ada")
    about = properties(reply_to="gone", message_id="m", headers={"deaths": 1})
    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, Holding(), link, quarantine=quarantine)
        requests.open(has_died=True)
        requests.take(Delivery(about, redelivered=True), asked)
        await trio.sleep(TRIED + 1)
        assert (link.returned, quarantine.alone.locked()) == ([], False)
        quarantine.released.set()
        await trio.testing.wait_all_tasks_blocked()
        assert [each.headers["deaths"] for each in link.returned] == [2]
        assert quarantine.alone.locked()
        nursery.cancel_scope.cancel()


async def test_a_request_that_another_node_was_to_begin_alone_is_not_given_up(autojump_clock):
    """As that one has handed its partition over before, and the next one has begun it beside others; it is begun alone once more."""
    link, quarantine = Returning(), Quarantine()
    about = properties(reply_to="gone", message_id="m", headers={"deaths": 2, "alone": "web-7"})
    async with trio.open_nursery() as nursery:
        requests = requests_of(nursery, Holding(), link, quarantine=quarantine)
        requests.note_before("web-8")
        requests.open(has_died=True)
        requests.take(Delivery(about, redelivered=True), asks(1))
        await trio.testing.wait_all_tasks_blocked()
        assert [each.headers for each in link.returned] == [{"repeated": True, "deaths": 3, "alone": "web-1"}]
        nursery.cancel_scope.cancel()
    assert (quarantine.buried, link.sent) == ([], [])
