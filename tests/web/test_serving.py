"""Slow, broken and too many connections, and TLS."""

import ssl
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
import trio

from actgent import ConfigurationError, GatewayLimits
from actgent.web.server.hypercorn_server import tls_context
from actgent.web.server.listen_addresses import split_address

HEAD = "GET /v1/health/live HTTP/1.1\r\nHost: HOST\r\n"
POST = "POST /v1/sessions HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer TOKEN\r\nContent-Type: application/json\r\n"
QUICK = GatewayLimits(header_seconds=0.3, body_seconds=0.3, grace=1)


async def connect(served):
    host, _, port = served.gateway.url.removeprefix("http://").rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


def filled(served, text):
    host = served.gateway.url.removeprefix("http://")
    return text.replace("HOST", host).replace("TOKEN", served.tokens["ada"]).encode()


async def answers(served, text):
    """Return the response up to the end of the connection. Return None if the connection is open after 10 seconds."""
    stream = await connect(served)
    async with stream:
        content = b""
        with trio.move_on_after(10):
            try:
                await stream.send_all(filled(served, text))
                async for data in stream:
                    content += data
            except trio.BrokenResourceError:
                return content.decode()
            return content.decode()
    return None


@pytest.mark.parametrize(
    "text",
    [
        HEAD.replace("\r\n", "\n") + "\n",
        HEAD + "A: b\nC: d\r\n\r\n",
        HEAD + " folded\r\n\r\n",
        POST + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        POST + "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        POST + "Transfer-Encoding: chunked\r\n\r\n" + "1\r\n \r\n" * 20_001,
        HEAD + "A: b\r\n" * 7000 + "\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=lambda each: repr(each)[-60:],
)
async def test_ambiguous_request_is_400(served, text):
    """The connection ends after the response, and the following bytes are not read as a request."""
    response = await answers(served, text + HEAD + "\r\n")
    assert (
        response is not None
    )  # the connection ended; later bytes of the client can break it before the client reads the response
    assert response.startswith("HTTP/1.1 4") or not response
    assert response.count("HTTP/1.1") <= 1
    assert "live" not in response


async def test_pipelined_requests_are_answered_in_order(served):
    """Two requests in one packet get two responses."""
    close = HEAD + "Connection: close\r\n\r\n"
    response = await answers(served, HEAD + "\r\n" + close)
    assert response.count("HTTP/1.1 200") == response.count('{"status":"live"}') == 2


async def test_protocol_upgrade_is_ignored(served):
    """A request for WebSocket or HTTP/2 is answered in HTTP/1.1."""
    for protocol in ("websocket", "h2c"):
        upgrade = f"Upgrade: {protocol}\r\nConnection: Upgrade, close\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        response = await answers(served, HEAD + upgrade + "Connection: close\r\n\r\n")
        assert response.startswith("HTTP/1.1 200")


async def test_slow_head_is_disconnected(serving):
    """A head has a time limit, even if its bytes arrive steadily. An idle connection has a time limit."""
    async with serving(limits=QUICK) as served:
        for piece in (b"", b"A: b\r\n"):
            stream = await connect(served)
            start = trio.current_time()
            with trio.fail_after(60):
                if piece:
                    await stream.send_all(filled(served, HEAD))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(drip, stream, piece)
                    assert await stream.receive_some() == b""
                    nursery.cancel_scope.cancel()
            assert trio.current_time() - start >= 0.29
            await stream.aclose()


async def drip(stream, piece):
    while piece:
        await trio.sleep(0.05)
        try:
            await stream.send_all(piece)
        except trio.BrokenResourceError:
            return


async def test_slow_body_is_408(serving):
    """A body that is not received in time is answered with 408, and the connection ends."""
    async with serving(limits=QUICK) as served:
        response = await answers(served, POST + "Content-Length: 20\r\n\r\n{")
        assert response.startswith("HTTP/1.1 408")
        assert "/errors/timeout" in response


async def test_connections_above_the_limit_get_503(serving):
    """The response is sent at once. When a connection ends, there is room again."""
    async with serving(limits=GatewayLimits(connections=2, grace=1)) as served:
        first, second = await connect(served), await connect(served)
        while served.gateway.connections < 2:
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert (await answers(served, "")).startswith("HTTP/1.1 503")
        await first.aclose()
        while served.gateway.connections > 1:
            await trio.testing.wait_all_tasks_blocked(0.01)
        close = HEAD + "Connection: close\r\n\r\n"
        assert (await answers(served, close)).startswith("HTTP/1.1 200")
        await second.aclose()


async def test_closed_connection_is_released_at_once(served):
    """A disconnected client releases its slot before the time limit of idle connections."""
    async with served.client() as ada:
        await ada.get("/v1/sessions")
        assert served.gateway.connections == 1
    with trio.fail_after(20):
        while served.gateway.connections:
            await trio.testing.wait_all_tasks_blocked(0.01)


async def test_certificate_enables_tls(serving, tmp_path):
    """Requests are answered over TLS, and plain requests are not."""
    cert, key = certificate(tmp_path)
    async with serving(tls=tls_context(str(cert), str(key))) as served:
        assert served.gateway.url.startswith("https://")
        trusted = ssl.create_default_context(cafile=str(cert))
        token = {"authorization": f"Bearer {served.tokens['ada']}"}
        async with httpx2.AsyncClient(base_url=served.gateway.url, headers=token, verify=trusted) as ada:
            assert (await ada.put("/v1/sessions/s1", json={"agent": "clerk"})).status_code == 201
        async with httpx2.AsyncClient(base_url=served.gateway.url.replace("https", "http")) as plain:
            with pytest.raises(httpx2.TransportError):
                await plain.get("/v1/health/live")


def certificate(folder):
    """Create a self-signed certificate of 127.0.0.1, and its key."""
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    form, nobody = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(pem, form, nobody))
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.parametrize("port", ["", "x", "-1", "65536", "9" * 5_000, "\u0663"])
def test_invalid_port_is_rejected(port):
    """The error names the expected form."""
    with pytest.raises(ConfigurationError, match=r"bind= \(--bind\) must be HOST:PORT") as caught:
        split_address(f"127.0.0.1:{port}")
    assert len(str(caught.value)) < 300
