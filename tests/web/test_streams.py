"""Event streams of sessions: no event is lost or repeated, and no reader affects others."""

import json
import random
import socket
import time
from datetime import datetime

import httpx2
import pytest
import trio

from actgent import LLM, BareAgent, GatewayLimits, ModelResponse, ProviderUnavailable, ScriptedLLM, Text
from actgent.errors import Fenced
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import (
    AgentMessageRecord,
    DeliveryRecord,
    MessageAcceptedRecord,
    MessageEndRecord,
    SessionClosedRecord,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import Message, Sender
from actgent.sessions.subscriptions import PartialText
from actgent.testing import assert_no_leaks
from actgent.web.server.http_request_framing import chunked
from actgent.web.streaming import event_broadcast
from actgent.web.streaming.session_events import EventEncoder
from actgent.web.streaming.sse import MAX_FRAMES, FrameBatch, FrameQueue, StreamWriter, frame


class Events:
    """A parser of server-sent events, as in the HTML standard."""

    def __init__(self, last=""):
        self.last = last
        self.found = []
        """Events with a record number."""
        self.grown = []
        """Events without a record number."""
        self._text, self._fields = "", {}

    def has(self, name):
        return name in [each[-2] for each in (*self.found, *self.grown)]

    def feed(self, data):
        *lines, self._text = (self._text + data).split("\n")
        for line in lines:
            name, _, value = line.partition(":")
            if not line:
                self._dispatch()
            elif name:
                self._fields[name] = value.removeprefix(" ")

    def _dispatch(self):
        fields, self._fields = self._fields, {}
        self.last = fields.get("id", self.last)
        if "data" in fields and "id" in fields:
            self.found.append((fields["id"], fields["event"], json.loads(fields["data"])))
        elif "data" in fields:
            self.grown.append((fields["event"], json.loads(fields["data"])))


async def read(client, path, events, until, drops=None):
    """Read a stream until an event of this name arrives. After each disconnection, resume after the last number."""
    while not events.has(until):
        headers = {"last-event-id": events.last} if events.last else {}
        async with client.stream("GET", path, headers=headers) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            left = drops.randrange(1, 4000) if drops else 1e9
            async for piece in stream.aiter_text():
                events.feed(piece[: int(left)])
                left -= len(piece)
                if left <= 0 or events.has(until):
                    break
        events._text, events._fields = "", {}


async def pages(client, path):
    """All events of a session, read page by page."""
    found, after = [], 0
    while after is not None:
        page = await client.get(
            path, params={"after": after, "limit": 7}, headers={"accept": "application/json"}
        )
        found += [(each["id"], each["event"], each["data"]) for each in page.json()["items"]]
        after = page.json()["next"]
    return found


async def test_stream_has_the_events_of_a_turn(ada):
    """Message, turn, answer, reply and end arrive in order, each with number, turn and time."""
    events = Events()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, ada, "/v1/sessions/s1/events", events, "ended")
        await ada.post("/v1/sessions/s1/messages", json={"input": "hello", "message_id": "m1"})
    assert [name for _, name, _ in events.found] == ["message", "turn", "answer", "reply", "ended"]
    assert [int(number) for number, _, _ in events.found] == [2, 3, 4, 5, 6]
    assert {data["turn"] for _, _, data in events.found[1:]} == {"m1"}
    assert events.found[3][2]["text"] == "you said: hello"
    assert all(data["at"].endswith("Z") for _, _, data in events.found)


@pytest.mark.parametrize("fails", [False, True])
async def test_the_start_of_a_turn_is_emitted_before_the_model_answers(serving, fails):
    """A reader gets the event while the model still works, with the time at which the turn began."""
    requested, answers = trio.Event(), trio.Event()

    async def think(_):
        requested.set()
        await answers.wait()
        if fails:
            raise ProviderUnavailable("503")
        return "done"

    agent = BareAgent(name="slow", llm=ScriptedLLM(think))
    async with serving(agents=[agent]) as served, served.client() as client:
        await client.put("/v1/sessions/s1", json={"agent": "slow"})
        events = Events()
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read, client, "/v1/sessions/s1/events", events, "turn")
                await client.post("/v1/sessions/s1/messages", json={"input": "hello", "message_id": "m1"})
        await requested.wait()
        assert events.found[-1][2]["phase"] == "started"
        assert not answers.is_set()
        answers.set()
        await read(client, "/v1/sessions/s1/events", events, "ended")
        names = [name for _, name, _ in events.found]
        assert names.count("turn") == 1
        assert names[:2] == ["message", "turn"]
        assert names[2:] == (["ended"] if fails else ["answer", "reply", "ended"])
        assert [int(number) for number, _, _ in events.found][:2] == [2, 3]


async def test_turn_start_without_followers_has_the_right_time(serving):
    """It is written with the first answer, but has the time at which the turn began."""
    called = []

    async def think(_):
        called.append(time.time())
        await trio.sleep(0.02)  # duration of the model call
        return "done"

    agents = [BareAgent(name="slow", llm=ScriptedLLM(think))]
    async with serving(agents=agents) as served, served.client() as client:
        await client.put("/v1/sessions/s1", json={"agent": "slow"})
        await client.post("/v1/sessions/s1/messages", json={"input": "hello"}, headers={"prefer": "wait=10"})
        found = {name: data for _, name, data in await pages(client, "/v1/sessions/s1/events")}
    started, answered = (datetime.fromisoformat(found[name]["at"]).timestamp() for name in ("turn", "answer"))
    assert started <= called[0] + 0.001
    assert answered - started >= 0.019


async def test_pages_have_the_events_of_streams(ada):
    """The events of pages of any length are those of a stream."""
    for number in range(3):
        await ada.post("/v1/sessions/s1/messages", json={"input": f"{number}"}, headers={"prefer": "wait=10"})
    await ada.post("/v1/sessions/s1/close", json={})
    events = Events()
    await read(ada, "/v1/sessions/s1/events", events, "closed")
    assert await pages(ada, "/v1/sessions/s1/events") == [
        (int(number), name, data) for number, name, data in events.found
    ]


@pytest.mark.parametrize("seed", range(3))
async def test_reconnecting_readers_miss_no_event(serving, seed):
    """Readers are cut at any byte and reconnect with their last number. Each event arrives once, in order."""
    drops = random.Random(seed)
    limits = GatewayLimits(rate=10_000, burst=10_000, requests=1000, grace=1)
    readers = [(f"s{number % 2}", Events()) for number in range(8)]
    async with serving(limits=limits) as served, served.client() as ada:
        for name in ("s0", "s1"):
            await ada.put(f"/v1/sessions/{name}", json={"agent": "clerk"})
        async with trio.open_nursery() as nursery:
            for name, events in readers:
                nursery.start_soon(read, ada, f"/v1/sessions/{name}/events", events, "closed", drops)
            for number in range(40):
                body = {"input": f"message {number}"}
                await ada.post(
                    f"/v1/sessions/s{number % 2}/messages", json=body, headers={"prefer": "wait=10"}
                )
            for name in ("s0", "s1"):
                await ada.post(f"/v1/sessions/{name}/close", json={})
        for name, events in readers:
            expected = await pages(ada, f"/v1/sessions/{name}/events")
            assert [(int(number), *rest) for number, *rest in events.found] == expected


async def test_event_source_of_node_reconnects(served, tmp_path):
    """The connection of Node's EventSource is cut after every few events. It sees each number once."""
    async with served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        for number in range(6):
            await ada.post(
                "/v1/sessions/s1/messages", json={"input": f"{number}"}, headers={"prefer": "wait=10"}
            )
        await ada.post("/v1/sessions/s1/close", json={})
        expected = [number for number, _, _ in await pages(ada, "/v1/sessions/s1/events")]
    script = tmp_path / "source.mjs"
    script.write_text(SOURCE)
    command = ["node", "--no-warnings", "--experimental-eventsource", str(script)]
    with trio.fail_after(60):
        done = await trio.run_process(
            [*command, served.gateway.url, served.tokens["ada"]], capture_stdout=True, check=False
        )
    if done.returncode == 9:
        pytest.skip("this Node has no EventSource")
    output = json.loads(done.stdout)
    assert output["numbers"] == expected
    assert output["breaks"] >= 2


SOURCE = """
import http from "node:http";
const [url, token] = process.argv.slice(2);
if (typeof EventSource === "undefined") process.exit(9);
let breaks = 0;
const proxy = http.createServer((request, response) => {
  const headers = { ...request.headers, authorization: `Bearer ${token}`, host: new URL(url).host };
  delete headers["sec-fetch-site"]; delete headers["origin"];
  http.get(url + request.url, { headers }, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    let left = 3000;
    answer.on("data", (data) => {
      if (left <= 0) return;
      response.write(data.subarray(0, left));
      left -= data.length;
      if (left <= 0) { breaks++; answer.destroy(); setTimeout(() => response.destroy(), 50); }
    });
    answer.on("end", () => response.end());
  });
}).listen(0, "127.0.0.1", () => {
  const source = new EventSource(`http://127.0.0.1:${proxy.address().port}/v1/sessions/s1/events`);
  const numbers = [];
  for (const name of ["message", "turn", "answer", "reply", "ended", "closed"])
    source.addEventListener(name, (event) => {
      numbers.push(Number(event.lastEventId));
      if (name === "closed") { console.log(JSON.stringify({ numbers, breaks })); process.exit(0); }
    });
});
"""


async def test_curl_reads_a_stream(served, ada):
    """The client curl receives the events of a closed session and the end. A request after the end is a 204."""
    await ada.post("/v1/sessions/s1/messages", json={"input": "hello"}, headers={"prefer": "wait=10"})
    await ada.post("/v1/sessions/s1/close", json={})
    command = ["curl", "-sSN", "-H", f"authorization: Bearer {served.tokens['ada']}"]
    url = f"{served.gateway.url}/v1/sessions/s1/events"
    done = await trio.run_process([*command, f"{url}?after=5"], capture_stdout=True)
    events = Events()
    events.feed(done.stdout.decode())
    assert [name for _, name, _ in events.found] == ["ended", "closed"]
    over = await trio.run_process([*command, "-w", "%{http_code}", f"{url}?after=7"], capture_stdout=True)
    assert over.stdout == b"204"


async def test_cursor_above_the_end_gets_resync(ada):
    """After a restore of an older copy, a cursor above the last record gets `resync`, and then the new events."""
    events = Events("99")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, ada, "/v1/sessions/s1/events", events, "ended")
        while not events.found:
            await trio.testing.wait_all_tasks_blocked(0.01)
        await ada.post("/v1/sessions/s1/messages", json={"input": "hello"})
    assert events.found[0] == ("1", "resync", {"records": 1})
    assert [number for number, _, _ in events.found] == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 20, "1\n2"])
async def test_invalid_last_event_id_is_rejected(ada, last):
    """`Last-Event-ID` must be the id of an event."""
    try:
        answer = await ada.get("/v1/sessions/s1/events", headers={"last-event-id": last})
    except (ValueError, httpx2.LocalProtocolError):
        return  # no client sends a line end
    assert answer.status_code == 422


async def test_closing_gateway_sends_bye(serving):
    """Each stream gets `bye` with a reconnection delay, and no task remains."""
    events = [Events() for _ in range(5)]
    with assert_no_leaks():
        async with trio.open_nursery() as nursery:
            async with serving() as served, served.client() as ada:
                await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
                client = await nursery.start(_open_client, served)
                for each in events:
                    nursery.start_soon(read, client, "/v1/sessions/s1/events", each, "bye")
                while len(served.gateway.app.context.broadcasts) < 1 or served.gateway.connections < 6:
                    await trio.testing.wait_all_tasks_blocked(0.01)
                await trio.testing.wait_all_tasks_blocked(0.05)
            nursery.cancel_scope.cancel()
    assert [each.grown[-1][0] for each in events] == ["bye"] * 5


async def _open_client(served, task_status):
    async with served.client() as client:
        task_status.started(client)
        await trio.sleep_forever()


async def test_late_reader_gets_the_whole_partial_answer(serving):
    """A partial answer is sent piece by piece. A late reader first gets the text so far, and the final record replaces it."""
    go = trio.Event()

    class Slow(LLM):
        async def complete(self, chat, *, on_text=None):
            for piece in ("Good ", "day, "):
                await on_text(piece, 0)
            await go.wait()
            await on_text("Ada.", 0)
            return ModelResponse((Text("Good day, Ada."),))

    early, late = Events(), Events()
    path = "/v1/sessions/s1/events"
    async with serving(agents=[BareAgent(name="clerk", llm=Slow())]) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, ada, path, early, "ended")
            while not len(served.gateway.app.context.broadcasts):
                await trio.testing.wait_all_tasks_blocked(0.05)
            await ada.post("/v1/sessions/s1/messages", json={"input": "hello", "message_id": "m1"})
            with trio.fail_after(60):
                while not early.grown:
                    await trio.testing.wait_all_tasks_blocked(0.01)
                await read(ada, path, late, "growing")
            go.set()
    (grown,) = [data for name, data in late.grown if name == "growing"]
    assert (grown["text"], grown["begin"], grown["turn"]) == ("Good day, ", 0, "m1")
    shown = ""
    for name, data in early.grown:
        assert name == "token"
        shown = shown[: data["begin"]] + data["text"]
    assert shown in ("Good day, ", "Good day, Ada.")
    assert early.found[-2][2]["text"] == "Good day, Ada."


async def test_mass_disconnect_leaves_nothing(serving):
    """Readers that disconnect at once leave no task, no connection and no feed reader."""
    limits = GatewayLimits(rate=10_000, burst=10_000, requests=1000, grace=1)
    async with serving(limits=limits) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(read, ada, "/v1/sessions/s1/events", Events(), "never")
                while served.gateway.connections < 50:
                    await trio.testing.wait_all_tasks_blocked(0.01)
                nursery.cancel_scope.cancel()
            with trio.fail_after(60):
                while served.gateway.connections > 1 or len(served.gateway.app.context.broadcasts):
                    await trio.testing.wait_all_tasks_blocked(0.01)


async def test_reader_that_never_reads_is_disconnected(serving):
    """The connection ends after its time limit. Other readers receive everything, and turns do not wait."""
    limits = GatewayLimits(send_seconds=0.3, grace=1)
    long = BareAgent(name="clerk", llm=ScriptedLLM(["x" * 200_000] * 30), grace=0)
    async with serving(limits=limits, agents=[long]) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        mute = await mute_reader(served)
        for _ in range(30):
            response = await ada.post(
                "/v1/sessions/s1/messages", json={"input": "x"}, headers={"prefer": "wait=10"}
            )
            assert response.status_code == 200
        with trio.fail_after(25):
            while served.gateway.connections > 1:
                await trio.testing.wait_all_tasks_blocked(0.05)
        mute.close()


async def test_reader_that_is_slow_but_steady_gets_the_whole_response(serving):
    """The time limit for sending applies to parts of a response: a slow client may need longer for all of it."""
    limits = GatewayLimits(send_seconds=1, grace=1)
    long = BareAgent(name="clerk", llm=ScriptedLLM(["x" * 900_000] * 7), grace=0)
    async with serving(limits=limits, agents=[long]) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        for _ in range(7):
            await ada.post("/v1/sessions/s1/messages", json={"input": "x"}, headers={"prefer": "wait=20"})
        with trio.socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            host, port = served.gateway.url.removeprefix("http://").split(":")
            await slow.connect((host, int(port)))
            head = f"GET /v1/sessions/s1/messages HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {served.tokens['ada']}\r\nConnection: close\r\n\r\n"
            await slow.send(head.encode())
            received = bytearray()
            while part := await slow.recv(200_000):
                received += part
                await trio.sleep(0.02)
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if b"content-length:" in line]
    assert [len(body)] == [int(each) for each in lengths]
    assert len(body) > 6_000_000


async def mute_reader(served, session_id="s1"):
    """Open a connection that requests a stream and never reads it."""
    mute = trio.socket.socket()
    mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = served.gateway.url.removeprefix("http://").split(":")
    await mute.connect((host, int(port)))
    head = f"GET /v1/sessions/{session_id}/events HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {served.tokens['ada']}\r\n\r\n"
    await mute.send(head.encode())
    return mute


async def test_lagging_reader_costs_nothing(serving):
    """A lagging reader gets no further events, long before its connection ends. The session's broadcast ends with its last reader."""
    limits = GatewayLimits(send_seconds=300, grace=0.2)
    long = BareAgent(name="clerk", llm=ScriptedLLM(["x" * 200_000] * 30), grace=0)
    async with serving(limits=limits, agents=[long]) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        mute, context = await mute_reader(served), served.gateway.app.context
        with trio.fail_after(150):
            while not len(context.broadcasts):
                await trio.testing.wait_all_tasks_blocked(0.01)
            for _ in range(30):
                body = {"input": "x"}
                response = await ada.post(
                    "/v1/sessions/s1/messages", json=body, headers={"prefer": "wait=20"}
                )
                assert response.status_code == 200
            while len(context.broadcasts):
                await trio.testing.wait_all_tasks_blocked(0.01)
        assert served.gateway.connections == 2
    mute.close()


async def test_blocked_reader_does_not_delay_the_shutdown(serving):
    """A closing gateway waits for its grace period, and then breaks connections in the middle of a send."""
    limits = GatewayLimits(send_seconds=3000, grace=0.2)
    long = BareAgent(name="clerk", llm=ScriptedLLM(["x" * 200_000] * 30), grace=0)
    with trio.fail_after(150):
        async with serving(limits=limits, agents=[long]) as served, served.client() as ada:
            await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
            mute = await mute_reader(served)
            for _ in range(30):
                body = {"input": "x"}
                await ada.post("/v1/sessions/s1/messages", json=body, headers={"prefer": "wait=20"})
    mute.close()


async def test_events_are_sent_in_batches(serving):
    """The first event of a turn is sent at once. Events within a short time are sent together."""
    text = ScriptedLLM(["word " * 400], chunk=5, chunk_delay=0)
    agents = [BareAgent(name="clerk", llm=text)]
    async with serving(agents=agents) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        context, pieces = served.gateway.app.context, []
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(read, ada, "/v1/sessions/s1/events", Events(), "ended")
            while sum(len(tail.readers) for tail in context.broadcasts._broadcasts.values()) < 2:
                await trio.testing.wait_all_tasks_blocked(0.01)
            put = FrameQueue.put

            def noted(self, piece, now):
                pieces.append(piece)
                return put(self, piece, now)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(FrameQueue, "put", noted)
                await ada.post("/v1/sessions/s1/messages", json={"input": "x"})
                with trio.fail_after(30):
                    while not any(b"event: ended" in piece.data for piece in pieces):
                        await trio.testing.wait_all_tasks_blocked(0.01)
    received = list(dict.fromkeys(pieces))
    assert len(pieces) == 2 * len(received)
    assert len(received) < 20
    assert b"".join(piece.data for piece in received).count(b"event: ended") == 1


async def test_watch_reports_changes_of_own_sessions(serving):
    """A watcher receives the changes of its owner's sessions once per second, and none of other owners."""
    mine, theirs, every = Events(), Events(), Events()
    limits = GatewayLimits(rate=10_000, burst=10_000, grace=1)
    async with serving(limits=limits) as served, served.client() as ada:  # noqa: SIM117 - two lines read better
        async with served.client("bob") as bob, served.client("root") as root, trio.open_nursery() as nursery:
            for client, events in ((ada, mine), (bob, theirs), (root, every)):
                nursery.start_soon(read, client, "/v1/events?watch=heads", events, "never")
            while served.gateway.connections < 3:
                await trio.testing.wait_all_tasks_blocked(0.05)
            await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
            await ada.post("/v1/sessions/s1/messages", json={"input": "x"}, headers={"prefer": "wait=20"})
            with trio.fail_after(60):
                while not (mine.grown and every.grown):
                    await trio.testing.wait_all_tasks_blocked(0.05)
            nursery.cancel_scope.cancel()
    assert (
        {(name, data["id"]) for name, data in mine.grown}
        == {("head", "s1")}
        == {(name, data["id"]) for name, data in every.grown}
    )
    assert len(mine.grown) <= 2
    assert mine.grown[-1][1]["records"] >= 1
    assert theirs.grown == []


class Held:
    """A connection that accepts `room` bytes at once, and stores all accepted bytes."""

    def __init__(self, room=0):
        self.room, self.got, self.is_cut = room, b"", False

    def send_now(self, data):
        taken = data[: self.room]
        self.room -= len(taken)
        self.got += taken
        return len(taken)

    async def send_all(self, data):
        await trio.lowlevel.checkpoint()
        self.got += data


async def test_stream_of_a_moved_session_ends_without_a_warning(serving, caplog):
    """The client reconnects to the session's new node, so operators get no warning."""
    async with (
        MemoryJournal().running() as journal,
        serving(journal=journal) as served,
        served.client() as ada,
    ):
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        events = Events()
        async with ada.stream("GET", "/v1/sessions/s1/events") as stream:
            pieces = stream.aiter_text()
            events.feed(await anext(pieces))
            await trio.testing.wait_all_tasks_blocked(0.01)
            journal._feed.fence_readers(lambda session_id: session_id == "s1", Fenced("moved"))
            async for piece in pieces:
                events.feed(piece)
        assert events.has("lagged")
        log_lines = [each for each in caplog.records if "s1" in each.getMessage()]
        assert [each.levelname for each in log_lines if each.levelname != "DEBUG"] == []


def piece_of(text, number=None):
    return FrameBatch([(number, text)])


@pytest.mark.parametrize("size", [10, 300_000])
async def test_reader_queue_is_bounded(size):
    """Above the maximum of frames or bytes, the stream gets `lagged` and ends, and nothing more is queued."""
    wire = StreamWriter(None, Held())
    frames = FrameQueue(wire)
    frames.is_live = True
    taken = [frames.put(piece_of(b"x" * size, number + 1), 0.0) for number in range(MAX_FRAMES * 3)]
    assert taken.index(False) == (MAX_FRAMES if size == 10 else 3)
    assert await frames.pop_all() == chunked(frame("lagged", {}))
    assert await frames.pop_all() is None
    assert wire.is_cut


@pytest.mark.parametrize("room", [0, 1, 7, 12, 13, 40, 10_000])
async def test_partial_sends_are_completed(room):
    """Each frame is complete and in order, whether the socket accepts all, some or no bytes."""
    held = Held(room)
    frames = FrameQueue(StreamWriter(None, held))
    frames.is_live = True
    pieces = [piece_of(b"number %d" % number, number) for number in range(1, 6)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(frames.write_all)
        await trio.testing.wait_all_tasks_blocked()
        for piece in pieces:
            frames.put(piece, 0.0)
            if piece.last % 2:
                await trio.testing.wait_all_tasks_blocked()
        frames.put(pieces[2], 0.0)  # is sent twice
        frames.close(b"bye")
    assert held.got == b"".join(piece.chunk for piece in pieces) + chunked(b"bye")


async def test_idle_stream_sends_keep_alives(serving, monkeypatch):
    """Without events, the stream sends comments repeatedly."""
    monkeypatch.setattr(event_broadcast, "ALIVE_INTERVAL_SECONDS", 0.5)
    monkeypatch.setattr(event_broadcast, "IDLE_CHECK_SECONDS", 0.1)
    async with serving() as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        with trio.fail_after(30):
            async with ada.stream("GET", "/v1/sessions/s1/events") as stream:
                content = ""
                async for text in stream.aiter_text():
                    content += text
                    if content.count(": alive\n\n") == 3:
                        break


async def test_later_reader_gets_its_events_at_once(serving):
    """A reader gets its events even if an earlier reader still waits for a different event."""

    class Waiting(LLM):
        name = "waiting"
        may_go = trio.Event()

        async def complete(self, chat, on_text=None):
            await self.may_go.wait()
            return ModelResponse(parts=(Text("done"),))

    found = {}

    async def read(client, wanted, after):
        headers = {"actgent-events": wanted, "last-event-id": str(after)}
        events = found[wanted] = Events()
        async with client.stream("GET", "/v1/sessions/s1/events", headers=headers) as stream:
            async for piece in stream.aiter_text():
                events.feed(piece)
                if events.has(wanted):
                    return

    with trio.fail_after(30):
        async with (
            serving(agents=[BareAgent("clerk", llm=Waiting())]) as served,
            served.client() as ada,
            trio.open_nursery() as nursery,
        ):
            await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
            nursery.start_soon(read, ada, "reply", 0)
            await trio.sleep(0.2)
            await ada.post("/v1/sessions/s1/messages", json={"input": "hello"})
            known = (await ada.get("/v1/sessions/s1")).json()["records"]
            async with trio.open_nursery() as later:
                later.start_soon(read, ada, "message", known)
                await trio.sleep(0.2)
                await ada.post("/v1/sessions/s1/messages", json={"input": "hello again"})
            Waiting.may_go.set()
    names = [each[-2] for each in found["reply"].found if each[-2] in ("message", "reply")]
    assert names[:3] == ["message", "message", "reply"]


@pytest.mark.parametrize(
    ("along", "told"),
    [
        (None, {"message", "turn", "answer", "reply", "ended", "closed"}),
        ("turn, answer", {"turn", "answer", "reply", "closed"}),
        ("", {"reply", "closed"}),
    ],
)
async def test_along_header_limits_the_other_events(serving, along, told):
    """The reader also gets the close of the session. Without the header it gets all events, as clients of other releases do."""
    events = Events()
    headers = {"actgent-events": "reply"} | ({} if along is None else {"actgent-events-along": along})

    async def read_on(client, *, task_status):
        async with client.stream("GET", "/v1/sessions/s1/events", headers=headers) as stream:
            task_status.started()
            async for piece in stream.aiter_text():
                events.feed(piece)

    with trio.fail_after(30):
        async with (
            serving(agents=[BareAgent("clerk", llm=ScriptedLLM(["good morning", "good night"]))]) as served,
            served.client() as ada,
            trio.open_nursery() as nursery,
        ):
            await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
            await nursery.start(read_on, ada)
            for content in ("hello", "bye"):
                response = await ada.post("/v1/sessions/s1/messages", json={"input": content})
                place = response.headers["location"]
                await ada.get(place, headers={"prefer": "wait=30"})
            await ada.post("/v1/sessions/s1/close", json={})
    assert {name for _, name, _ in events.found} == told
    turns = [data["turn"] for _, name, data in events.found if name == "reply"]
    assert len(set(turns)) == 2
    assert turns[-1] == response.json()["message_id"]


def reader_of(*wanted):
    """Return a frame queue that is woken by the named events only. Without names, all events wake it."""
    return FrameQueue(StreamWriter(None), frozenset(wanted) or None, frozenset())


async def test_broadcast_uses_the_names_of_its_current_readers():
    """A new reader counts from the next record on. A reader that left no longer counts."""
    told = MessageAcceptedRecord(message=Message(session_id="s", sender=Sender("ada"), parts=(Text("hi"),)))
    tail, encoder = event_broadcast.SessionBroadcast(SessionKey("clerk", "s")), EventEncoder()
    tail.subscribe(reader_of("answer"))
    tail.add(encoder, 1, [told], 0.0)
    assert not tail.is_due
    assert not tail.is_woken_by([told])
    late = reader_of()
    tail.subscribe(late)
    assert tail.is_woken_by([told])
    tail.unsubscribe(late)
    tail.add(encoder, 2, [told], 0.0)
    assert not tail.is_due
    tail.subscribe(late)
    tail.add(encoder, 3, [told], 0.0)
    assert tail.is_due


async def test_broadcast_ends_with_its_session():
    tail = event_broadcast.SessionBroadcast(SessionKey("clerk", "s"))
    tail.subscribe(reader_of("answer"))
    assert tail.is_woken_by([SessionClosedRecord()])
    tail.add(EventEncoder(), 1, [SessionClosedRecord()], 0.0)
    assert tail.is_due
    assert tail.is_session_closed


@pytest.mark.parametrize("ends", ["answer", "turn"])
async def test_reader_after_an_answer_gets_no_partial_text(ends):
    """The same applies after a turn that ended without an answer."""
    message = Message(session_id="s", sender=Sender("clerk", "assistant"), parts=(Text("hi"),))
    record = (
        AgentMessageRecord(message=message, stop="end")
        if ends == "answer"
        else MessageEndRecord(message_id="m", failed="model")
    )
    tail = event_broadcast.SessionBroadcast(SessionKey("clerk", "s"))
    tail.subscribe(reader_of("reply"))
    tail.add_delta(PartialText(turn="m", reply_id=message.id, begin=0, text="h"))
    tail.add(EventEncoder(), 1, [DeliveryRecord(ids=("x",))], 0.0)
    assert tail.partial_answer.text == "h"
    tail.add(EventEncoder(), 2, [record], 0.0)
    assert tail.partial_answer is None
