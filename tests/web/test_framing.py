"""What of a connection reaches the server."""

import pytest
from hypothesis import given, strategies as st

from actgent.web.server.framing import MAX_CHUNKS, REFUSED, Framing

GET = b"GET /v1/sessions HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhe\r\nl"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab\n\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n"


def test_requests_pass_as_they_are():
    """Requests behind each other reach the server byte by byte."""
    stream = GET + POST + CHUNKED + GET
    framing = Framing(32_768)
    assert framing.take(stream) == stream
    assert framing.is_between


@given(st.lists(st.sampled_from([GET, POST, CHUNKED]), max_size=4), st.data())
def test_pieces_make_no_difference(requests, data):
    """However a stream is cut, the same reaches the server, heads in one piece."""
    stream, passed = b"".join(requests), []
    framing = Framing(32_768)
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        passed.append(framing.take(stream[:size]))
        stream = stream[size:]
    assert b"".join(passed) == b"".join(requests)
    assert framing.is_between


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\nHost: x\n\n",
        b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\n: x\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /a b HTTP/1.1\r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"\r\nGET / HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 0x5\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length:\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 100_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"b" * 40_000,
    ],
    ids=lambda each: repr(each)[:60],
)
def test_what_can_be_read_in_two_ways_is_refused(head):
    """The server gets what it answers with 400, and nothing of what stands behind it."""
    framing = Framing(32_768)
    assert framing.take(GET + head + GET) == GET + REFUSED
    assert framing.take(GET) == b""


@pytest.mark.parametrize(
    "body", [b"x\r\n", b"-1\r\n", b"1\nab", b"3\r\nabcd\r\n", b"0\r\nTrailer: x\r\n\r\n", b"fffffffff\r\n", b"1" * 200, b"\r\n", b"3\r\nabc\n0\r\n\r\n", b"1;\x00\r\na\r\n"]
)  # fmt: skip
def test_broken_chunks_are_refused(body):
    """A chunk of another form ends the body, and the connection with it."""
    framing = Framing(32_768)
    head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    passed = framing.take(head + body + GET)
    assert passed.startswith(head)
    assert passed.endswith(REFUSED)
    assert GET not in passed


def test_a_body_of_single_bytes_ends():
    """Who sends each byte as a chunk of its own is refused long before a body's limit."""
    framing = Framing(32_768)
    framing.take(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert framing.take(b"1\r\na\r\n" * (MAX_CHUNKS + 1)).endswith(REFUSED)


def test_no_other_protocol_is_agreed_on():
    """A request to go on with WebSocket or HTTP/2 reaches the server without that."""
    head = b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\nConnection: Upgrade\r\n\r\n"
    assert Framing(32_768).take(head) == b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n\r\n"
