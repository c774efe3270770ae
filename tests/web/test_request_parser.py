"""The bytes of a connection that reach the server."""

import pytest
from hypothesis import given, strategies as st

from actgent.web.server.http_request_framing import INVALID_REQUEST, MAX_CHUNKS, RequestParser

GET = b"GET /v1/sessions HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhe\r\nl"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab\n\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n"


def test_requests_pass_unchanged():
    """Pipelined requests reach the server byte by byte."""
    stream = GET + POST + CHUNKED + GET
    framing = RequestParser(32_768)
    assert framing.feed(stream) == stream
    assert framing.is_between


@given(st.lists(st.sampled_from([GET, POST, CHUNKED]), max_size=4), st.data())
def test_chunking_of_input_has_no_effect(requests, data):
    """For each split of a stream, the server gets the same bytes, and each head in one piece."""
    stream, passed = b"".join(requests), []
    framing = RequestParser(32_768)
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        passed.append(framing.feed(stream[:size]))
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
def test_ambiguous_requests_are_rejected(head):
    """The server gets bytes that it rejects with 400, and nothing after them."""
    framing = RequestParser(32_768)
    assert framing.feed(GET + head + GET) == GET + INVALID_REQUEST
    assert framing.feed(GET) == b""


@pytest.mark.parametrize(
    "body", [b"x\r\n", b"-1\r\n", b"1\nab", b"3\r\nabcd\r\n", b"0\r\nTrailer: x\r\n\r\n", b"fffffffff\r\n", b"1" * 200, b"\r\n", b"3\r\nabc\n0\r\n\r\n", b"1;\x00\r\na\r\n"]
)  # fmt: skip
def test_malformed_chunks_are_rejected(body):
    """A malformed chunk ends the body and the connection."""
    framing = RequestParser(32_768)
    head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    passed = framing.feed(head + body + GET)
    assert passed.startswith(head)
    assert passed.endswith(INVALID_REQUEST)
    assert GET not in passed


def test_body_of_one_byte_chunks_is_rejected():
    """A client that sends each byte as a chunk is rejected long before the limit of the body."""
    framing = RequestParser(32_768)
    framing.feed(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert framing.feed(b"1\r\na\r\n" * (MAX_CHUNKS + 1)).endswith(INVALID_REQUEST)


def test_protocol_upgrades_are_removed():
    """A request for an upgrade to WebSocket or HTTP/2 reaches the server without the upgrade headers."""
    head = b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\nConnection: Upgrade\r\n\r\n"
    assert RequestParser(32_768).feed(head) == b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n\r\n"
