"""Requests whose connections break: which breaks count, when a request is given up, and the text of its error."""

import gzip
import math
from contextlib import asynccontextmanager, nullcontext

import pytest
import trio

from actgent import InboxFull, RemoteError, ServerUnreachable, connect
from actgent.client import ConnectionLost, Refused, RemoteRequest, Transport, open_client
from actgent.client.event_stream import ReconnectingStream
from actgent.client.http.http_transport import HTTPTransport
from actgent.client.request_sender import CALM_SECONDS, MAX_BROKEN_CONNECTIONS
from actgent.errors import MessageTooLarge, PermissionDenied

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
EMPTY = HEAD + b'content-length: 12\r\n\r\n{"items":[]}'
ALIVE = HEAD + b"content-length: 2\r\n\r\n{}"
PROBE = "/v1/health/live"


class Failing(Transport):
    """A transport that raises the result of `fail` for each request, and counts the requests."""

    def __init__(self, fail, *, is_up=True):
        self.fail, self.is_server_up, self.asked = fail, is_up, []

    async def call(self, request):
        await trio.lowlevel.checkpoint()
        self.asked.append(request.operation)
        raise self.fail()

    @asynccontextmanager
    async def events(self, request):
        self.asked.append(request.operation)
        raise self.fail()
        yield

    @asynccontextmanager
    async def download(self, request):
        self.asked.append(request.operation)
        raise self.fail()
        yield

    async def is_up(self):
        await trio.lowlevel.checkpoint()
        return self.is_server_up

    crashed_at = -math.inf
    """Time at which a node of the cluster crashed."""

    async def calm_seconds(self):
        await trio.lowlevel.checkpoint()
        return trio.current_time() - self.crashed_at

    async def aclose(self):
        await trio.lowlevel.checkpoint()


def broken():
    return ConnectionLost("the connection ended", was_sent=True, is_broken=True)


def broken_behind_the_gateway():
    fields = {"broken": True, "may_be_done": True}
    return Refused("unavailable", "the connection to the node broke", status=503, fields=fields)


async def read_history(client):
    await client.agent("clerk")._session_for_requests("s1").history()


async def send_message(client):
    await client.agent("clerk")._session_for_requests("s1").chat("hello", message_id="m1")


async def list_sessions(client):
    await client.sessions()


async def compare(client):
    await client.compare("s1", agent="clerk")


async def read_observations(client):
    async with client.agent("clerk")._session_for_requests("s1").observe(after=0) as reader:
        async for _ in reader:
            pass


async def export(client, folder):
    await client.export_session("s1", folder / "s1.jsonl")


@pytest.mark.parametrize(
    ("ask", "operation"),
    [
        (read_history, "get_messages"),
        (send_message, "say"),
        (list_sessions, "list_sessions"),
        (read_observations, "get_observations"),
    ],
)
@pytest.mark.parametrize("fail", [broken, broken_behind_the_gateway])
async def test_three_broken_connections_end_a_request(autojump_clock, ask, operation, fail):
    """The error names the request and says that it may have had its effect. The retry timeout is not used up."""
    transport = Failing(fail)
    async with open_client(transport, retry_timeout=1000) as client:
        with pytest.raises(
            ServerUnreachable, match=f"3 connections broke during the request '{operation}'"
        ) as error:
            await ask(client)
    assert error.value.was_sent
    assert transport.asked == [operation] * MAX_BROKEN_CONNECTIONS
    assert trio.current_time() < 100


@pytest.mark.parametrize("ask", [read_history, send_message, list_sessions, read_observations])
async def test_breaks_by_the_network_do_not_end_a_request(autojump_clock, ask):
    """No node has died since the last try was sent, so the request has killed none.

    It is retried until it is answered.
    """

    def fail_often():
        return broken() if len(transport.asked) <= 10 else Refused("gone", "", status=410, fields={})

    transport = Failing(fail_often)
    transport.crashed_at = trio.current_time() - 1000
    async with open_client(transport, retry_timeout=1000) as client:
        with pytest.raises(RemoteError) as error:
            await ask(client)
    assert "connections broke" not in str(error.value)
    assert len(transport.asked) == 11


@pytest.mark.parametrize("ask", [read_history, send_message, list_sessions, read_observations])
@pytest.mark.parametrize("fail", [broken, broken_behind_the_gateway])
async def test_slowly_ending_process_does_not_use_all_tries(autojump_clock, ask, fail):
    """A killed process breaks each new connection for 1 s, until the kernel has closed its sockets."""
    began = trio.current_time()

    def fail_then_refuse():
        return fail() if trio.current_time() < began + 1 else Refused("gone", "", status=410, fields={})

    transport = Failing(fail_then_refuse)
    async with open_client(transport, retry_timeout=1000) as client:
        with pytest.raises(RemoteError) as error:
            await ask(client)
    assert "connections broke" not in str(error.value)
    assert len(transport.asked) == MAX_BROKEN_CONNECTIONS


@pytest.mark.parametrize("ask", [read_history, send_message, list_sessions, read_observations])
async def test_the_last_try_waits_until_no_node_has_crashed_for_a_while(autojump_clock, ask):
    """A node that crashes because of another request breaks the connections of all of its requests."""
    began = trio.current_time()

    def fail():
        if trio.current_time() > began + 20:
            return Refused("gone", "", status=410, fields={})
        transport.crashed_at = began + 20
        return broken()

    transport = Failing(fail)
    async with open_client(transport, retry_timeout=1000) as client:
        with pytest.raises(RemoteError) as error:
            await ask(client)
    assert "connections broke" not in str(error.value)
    assert len(transport.asked) == MAX_BROKEN_CONNECTIONS
    assert trio.current_time() - began >= 20 + CALM_SECONDS


@pytest.mark.parametrize("ask", [read_history, send_message, list_sessions, read_observations, "download"])
async def test_each_try_reports_the_breaks_of_earlier_tries(autojump_clock, tmp_path, ask):
    """The number tells a gateway whether it must first detect the death of the node.

    Otherwise another break would count.
    """

    class Recording(Failing):
        async def call(self, request):
            breaks.append(request.broken_connections)
            return await super().call(request)

        def events(self, request):
            breaks.append(request.broken_connections)
            return super().events(request)

        def download(self, request):
            breaks.append(request.broken_connections)
            return super().download(request)

    breaks: list[int] = []
    async with open_client(Recording(broken), retry_timeout=1000) as client:
        with pytest.raises(ServerUnreachable, match="3 connections broke"):
            await (export(client, tmp_path) if ask == "download" else ask(client))
    assert breaks == list(range(MAX_BROKEN_CONNECTIONS))


@pytest.mark.parametrize("ask", [list_sessions, read_observations, "download"])
async def test_the_wait_for_calm_ends_with_the_retry_timeout(autojump_clock, tmp_path, ask):
    """In a cluster whose nodes crash all the time, no request waits longer than its retry timeout."""

    class NeverCalm(Failing):
        async def calm_seconds(self):
            await trio.lowlevel.checkpoint()
            return 0.0

    transport, began = NeverCalm(broken), trio.current_time()
    async with open_client(transport, retry_timeout=100) as client:
        with trio.fail_after(1000), pytest.raises(ServerUnreachable):
            await (export(client, tmp_path) if ask == "download" else ask(client))
    assert 80 <= trio.current_time() - began <= 110
    assert len(transport.asked) == MAX_BROKEN_CONNECTIONS - 1


async def test_a_comparison_that_crashes_its_server_ends_after_three_breaks(autojump_clock):
    """The comparison may take long, because the server runs the agent's code. So a late break counts."""

    class Working(Failing):
        async def call(self, request):
            self.asked.append(request.operation)
            await trio.sleep(5)
            raise self.fail()

    transport = Working(broken)
    async with open_client(transport, retry_timeout=1000) as client:
        with pytest.raises(ServerUnreachable, match="3 connections broke during the request 'post_compare'"):
            await compare(client)
    assert transport.asked == ["post_compare"] * MAX_BROKEN_CONNECTIONS


async def test_a_long_poll_that_waited_when_its_connection_broke_is_sent_again(autojump_clock):
    """The long poll only waits for an outcome, so it did not crash the process."""

    class Polling(Failing):
        async def call(self, request):
            self.asked.append(request.operation)
            await trio.sleep(request.wait / 2)
            is_over = len(self.asked) > 2 * MAX_BROKEN_CONNECTIONS
            raise Refused("gone", "", status=410, fields={}) if is_over else self.fail()

    transport = Polling(broken)
    async with open_client(transport, retry_timeout=1000) as client:
        agent = client.agent("clerk")
        with pytest.raises(RemoteError) as error:
            await agent.run("hello", session=agent._session_for_requests("s1"))
    assert "connections broke" not in str(error.value)


@pytest.mark.parametrize(
    ("fail", "is_up"),
    [
        (broken, False),
        (lambda: ConnectionLost("refused", was_sent=False), True),
        (lambda: ConnectionLost("no answer in time", was_sent=True), True),
        (lambda: Refused("unavailable", "no node has answered", status=503, fields={}), True),
    ],
    ids=["no server is up", "refused connection", "timeout", "unavailable"],
)
async def test_other_failures_do_not_count_as_broken_connections(autojump_clock, fail, is_up):
    """The request is retried until the retry timeout ends."""
    transport = Failing(fail, is_up=is_up)
    async with open_client(transport, retry_timeout=100) as client:
        with pytest.raises(RemoteError) as error:
            await client.sessions()
    assert "connections broke" not in str(error.value)
    assert len(transport.asked) > 2 * MAX_BROKEN_CONNECTIONS


# --- over HTTP ---------------------------------------------------------------------------


class Server:
    """Records the path of each request, and sends the result of `answer`; None closes the connection."""

    def __init__(self, answer):
        self._answer, self.paths, self.heads, self.url = answer, [], [], ""
        self.alive = ALIVE
        self.broken_probes = 0
        """Number of further probes whose connection is closed without an answer."""

    async def serve(self, stream):
        async with stream:
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    received = await stream.receive_some()
                    if not received:
                        return
                    data += received
                head, _, data = data.partition(b"\r\n\r\n")
                path = head.split(b" ")[1].decode().partition("?")[0]
                self.heads.append(head.decode().lower())
                if path == PROBE and self.broken_probes:
                    self.broken_probes -= 1
                    return
                if path == PROBE:
                    await stream.send_all(self.alive)
                    continue
                self.paths.append(path)
                answer = self._answer()
                if answer is None:
                    return
                await stream.send_all(answer)
                if not answer.endswith(b"}"):
                    return


@asynccontextmanager
async def open_server(answer):
    server = Server(answer)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, server.serve, [listener])
        yield server
        nursery.cancel_scope.cancel()


async def closed_address():
    """Return the address of a port that nothing listens at."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    return f"http://127.0.0.1:{port}"


async def test_server_that_closes_connections_gets_three_tries():
    """The server answers probes, so the request counts as the cause of the broken connections."""
    async with (
        open_server(lambda: None) as server,
        connect(server.url, token="act_x", retry_timeout=60) as client,
    ):
        with trio.fail_after(50), pytest.raises(ServerUnreachable, match="3 connections broke") as error:
            await client.agents()
    assert error.value.was_sent
    assert server.paths == ["/v1/agents"] * MAX_BROKEN_CONNECTIONS


@pytest.mark.parametrize("cut", [1, 20, len(EMPTY) - 3], ids=["status line", "head", "body"])
async def test_cut_answer_is_not_a_broken_connection(cut):
    """A process that has begun to answer was not ended by the request. The request is retried until the answer is complete."""
    answers = [EMPTY[:cut]] * 5 + [EMPTY]
    async with (
        open_server(lambda: answers.pop(0)) as server,
        connect(server.url, token="act_x", retry_timeout=60) as client,
    ):
        with trio.fail_after(50):
            assert await client.agents() == ()
    assert len(server.paths) == 6


PACKED = gzip.compress(b'{"items": []}')
JSON = {"Content_Type": "application/json", "Content_Encoding": "gzip"}


def http(status, body, **headers):
    """Return an HTTP response, by default an HTML page."""
    body = body.encode() if isinstance(body, str) else body
    heads = {"Content-Type": "text/html", "Content-Length": str(len(body)), "Connection": "close", **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in heads.items())
    return f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body


@pytest.mark.parametrize("status", [200, 408, 429, 502, 503, 504, 524])
async def test_page_of_a_proxy_is_retried(status):
    """A page without a problem document is from a proxy whose server restarts or is busy."""
    answers = [http(status, "<h1>wait</h1>", Retry_After="0"), EMPTY]
    async with open_server(lambda: answers.pop(0)) as server, connect(server.url, token="act_x") as client:
        assert await client.agents() == ()
    assert len(server.paths) == 2


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (http(301, "", Location="https://b.example/"), RemoteError, "redirects to https://b.example/: pass the address"),
        (http(401, "<h1>no</h1>"), PermissionDenied, "401"),
        (http(413, "<h1>big</h1>"), MessageTooLarge, "413"),
        (http(500, "<h1>oops</h1>"), RemoteError, "status 500 without a problem document, as from a proxy"),
        (http(200, "[]"), ServerUnreachable, "not a JSON object: check that the address"),
        (http(200, ""), ServerUnreachable, "not a JSON object"),
        (http(204, ""), ServerUnreachable, "not a JSON object: check that the address"),
        (http(200, PACKED[:-12], **JSON), ServerUnreachable, "not a JSON object"),
        (http(200, "{}", **JSON), ServerUnreachable, "DecodingError"),
        (http(200, "{}"), RemoteError, "has no member 'items': check that the address"),
    ],
)  # fmt: skip
async def test_answer_of_another_server_names_the_cause(answer, error, words):
    """The error is one of this package, and tells that the answer is not from a gateway."""
    async with (
        open_server(lambda: answer) as server,
        connect(server.url, token="act_x", retry_timeout=0.3) as client,
    ):
        with pytest.raises(error, match=words):
            await client.agents()


async def run_agent(client):
    await client.agent("clerk").run("hello")


async def remember(client):
    await client.agent("clerk").long_term_memory.browse(owner="ada")


@pytest.mark.parametrize("ask", [read_history, send_message, list_sessions, run_agent, compare, remember])
@pytest.mark.parametrize("status", [200, 204])
async def test_empty_answer_is_retried(ask, status):
    """An answer without a body is from another server, for example from a proxy. Each request reports that."""
    async with (
        open_server(lambda: http(status, "")) as server,
        connect(server.url, token="act_x", retry_timeout=0.3) as client,
    ):
        with pytest.raises(ServerUnreachable, match="not a JSON object: check that the address"):
            await ask(client)
    assert len(server.paths) > 1


async def test_truncated_compressed_download_leaves_no_file(tmp_path):
    """The end of a compressed body cannot be checked, so the client asks for a plain body, and refuses other ones."""
    answers = [http(200, PACKED[:-12], **JSON), http(200, "{}\n")]
    async with open_server(lambda: answers.pop(0)) as server, connect(server.url, token="act_x") as client:
        assert await client.export_session("s1", tmp_path / "s1.jsonl") == 3
    assert (tmp_path / "s1.jsonl").read_bytes() == b"{}\n"
    assert all("accept-encoding: identity" in head for head in server.heads)
    assert len(server.paths) == 2


@pytest.mark.parametrize(("status", "times"), [(503, 2), (504, 1)])
async def test_request_that_a_proxy_lost_is_not_repeated_if_that_is_unsafe(status, times):
    """After 504 the server may have processed the request. An interrupt without a message could stop another turn."""
    answers = [http(status, "<h1>wait</h1>"), http(204, "")]
    async with open_server(lambda: answers.pop(0)) as server, connect(server.url, token="act_x") as client:
        request = RemoteRequest(operation="interrupt", session_id="s")
        with nullcontext() if times > 1 else pytest.raises(ServerUnreachable) as lost:
            await client._link.requests.send(request, is_repeatable=False)
    assert len(server.paths) == times
    assert times > 1 or lost.value.was_sent


STREAM = {"Content_Type": "text/event-stream"}


@pytest.mark.parametrize(
    "answer",
    [
        http(200, "<h1>login</h1>"),
        http(200, "id: 1\nevent: reply\ndata: [\n\n", **STREAM),
        http(200, "id: 1\nevent: reply\ndata: []\n\n", **STREAM),
    ],
    ids=["page", "not JSON", "no object"],
)
async def test_invalid_stream_is_opened_again_after_a_growing_pause(answer):
    """Such a connection is a failed one. A stream of a proxy's page was opened again ten times per second."""
    async with open_server(lambda: answer) as server, connect(server.url, token="act_x") as client:
        request = RemoteRequest(operation="get_events", session_id="s")
        stream = ReconnectingStream(
            transport=client._link.requests.transport, request=request, cursor=0, retry_timeout=1
        )
        with pytest.raises(ServerUnreachable):
            await stream.run(trio.sleep)  # never called
    assert len(server.paths) <= 6


async def test_proxy_without_a_server_is_retried():
    """The proxy closes all connections, also of probes. These do not count as broken connections of the request."""
    closed = []

    async def close(stream):
        closed.append(1)
        await stream.aclose()

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, close, [listener])
        async with connect(f"http://127.0.0.1:{port}", token="act_x", retry_timeout=2) as client:
            with pytest.raises(ServerUnreachable) as error:
                await client.agents()
        nursery.cancel_scope.cancel()
    assert "connections broke" not in str(error.value)
    assert len(closed) > 2 * MAX_BROKEN_CONNECTIONS


async def test_addresses_are_tried_in_turn():
    """After a refused or broken connection the client switches to the next address.

    The next request goes to the address that answered.
    """
    async with open_server(lambda: None) as breaking, open_server(lambda: EMPTY) as answering:
        addresses = [await closed_address(), breaking.url, answering.url]
        async with connect(addresses, token="act_x", retry_timeout=60) as client:
            with trio.fail_after(50):
                assert await client.agents() == ()
                assert (len(breaking.paths), len(answering.paths)) == (1, 1)
                assert await client.agents() == ()
        assert (len(breaking.paths), len(answering.paths)) == (1, 2)


async def test_gateway_receives_the_remaining_retry_timeout():
    """The request has the remaining retry timeout, and states that the client counts broken connections."""
    async with (
        open_server(lambda: EMPTY) as server,
        connect(server.url, token="act_x", retry_timeout=20) as client,
    ):
        await client.agents()
    lines = dict(line.split(": ", 1) for line in server.heads[0].split("\r\n")[1:])
    assert 17 < float(lines["actgent-retry-timeout"]) <= 18
    assert lines["actgent-counts-breaks"] == "0"


async def test_error_states_whether_the_request_was_sent():
    """`was_sent` is False if each address refuses the connection, and True if an answer did not arrive in time."""
    async with connect([await closed_address()] * 2, token="act_x", retry_timeout=0.3) as client:
        with pytest.raises(ServerUnreachable) as error:
            await client.agents()
        assert not error.value.was_sent
    silent = EMPTY[:20]
    async with (
        open_server(lambda: silent) as server,
        connect(server.url, token="act_x", retry_timeout=0.5) as client,
    ):
        with pytest.raises(ServerUnreachable) as error:
            await client.agents()
        assert error.value.was_sent


# --- retry timeout ----------------------------------------------------------------------------


class Hanging(Failing):
    """A transport that never answers."""

    async def call(self, request):
        self.asked.append(request.operation)
        await trio.sleep_forever()


FAILURES = {
    "hangs": Hanging(broken),
    "refuses": Failing(lambda: ConnectionLost("refused", was_sent=False)),
    "is unavailable": Failing(lambda: Refused("unavailable", "", status=503, fields={"retry_after": 1})),
    "asks to wait long": Failing(lambda: Refused("busy", "", status=503, fields={"retry_after": 60})),
}


@pytest.mark.parametrize("retry_timeout", [1, 5, 30, 300])
@pytest.mark.parametrize("failure", FAILURES)
async def test_request_ends_within_a_tenth_of_its_retry_timeout(autojump_clock, failure, retry_timeout):
    """The virtual clock measures the duration for each kind of server failure."""
    transport = FAILURES[failure]
    began = trio.current_time()
    async with open_client(transport, retry_timeout=retry_timeout) as client:
        with pytest.raises((RemoteError, InboxFull)):
            await client.sessions()
    assert 0.8 * retry_timeout <= trio.current_time() - began <= 1.1 * retry_timeout


async def test_a_node_reports_for_how_long_no_node_has_crashed():
    """A server outside a cluster does not report it.

    A server that answers none of three probes may just have crashed.
    """
    async with open_server(lambda: EMPTY) as server:
        transport = HTTPTransport(server.url, token="act_x")
        assert await transport.calm_seconds() == math.inf
        server.alive = HEAD + b'content-length: 20\r\n\r\n{"calm_seconds":1.5}'
        assert await transport.calm_seconds() == 1.5
        server.broken_probes = 2
        assert await transport.calm_seconds() == 1.5
        server.broken_probes = 3
        assert await transport.calm_seconds() == 0
        await transport.aclose()
    gone = HTTPTransport(await closed_address(), token="act_x")
    assert await gone.calm_seconds() == 0
    await gone.aclose()
