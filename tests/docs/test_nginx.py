"""The nginx files of the deployment guide in a real nginx: it accepts them, and proxies requests, streams and bodies."""

import importlib.util
import os
import re
import shutil
import socket
import ssl
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
import trio

from actgent import BareAgent, ScriptedLLM, connect, open_gateway, open_runtime
from actgent.web.access_tokens import new_token

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "deployment.md"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
MISSING = "nginx is not installed: apt-get install nginx-light"
pytestmark = pytest.mark.skipif(NGINX is None, reason=MISSING)
AROUND = """
USER
pid PLACE/nginx.pid;
error_log PLACE/error.log info;
worker_processes 1;
daemon off;
events {}
http {
    access_log off;
    client_body_temp_path PLACE/body;
    proxy_temp_path PLACE/proxy;
    fastcgi_temp_path PLACE/fastcgi;
    uwsgi_temp_path PLACE/uwsgi;
    scgi_temp_path PLACE/scgi;
SERVER
}
"""


def certificate(folder):
    """Create a self-signed certificate of 127.0.0.1 and its key, as the TLS tests do."""
    spec = importlib.util.spec_from_file_location("test_serving", ROOT / "tests" / "web" / "test_serving.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.certificate(folder)


def blocks():
    """Return the nginx files of the guide: the server, and the locations below a path prefix."""
    found = re.findall(r"```text\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (server,) = [each for each in found if each.startswith("server {")]
    (below,) = [each for each in found if "location /desk/" in each]
    return server, below


def configured(place, port, upstream, *, is_below, is_plain=False):
    """Write the file of the guide with the addresses and files of a test into a minimal nginx.conf. Return its path and certificate.

    `is_plain` removes TLS, for clients that do not know the certificate.
    """
    server, below = blocks()
    if is_below:
        location = re.search(r"    location / \{.*?\n    \}\n", server, re.DOTALL)
        server = server.replace(location[0], below)
    cert, key = certificate(place)
    server = server.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
    server = server.replace("127.0.0.1:8300", upstream)
    server = re.sub(r"ssl_certificate \S+;", f"ssl_certificate {cert};", server)
    server = re.sub(r"ssl_certificate_key \S+;", f"ssl_certificate_key {key};", server)
    if is_plain:
        server = re.sub(
            r" ssl http2;|\n    ssl_\S+ \S+;", lambda found: ";" if "http2" in found[0] else "", server
        )
    user = (
        "user root;" if os.geteuid() == 0 else ""
    )  # other users, such as that of its workers, may not read this folder
    file = place / "nginx.conf"
    file.write_text(AROUND.replace("SERVER", server).replace("PLACE", str(place)).replace("USER", user))
    return file, cert


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@asynccontextmanager
async def proxied(place, *, is_below=False, is_plain=False):
    """Yield the URL of a gateway behind nginx, the certificate of nginx, and a token."""
    secret, token = new_token("ada", owner="ada", scopes=("chat", "journal"))
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(BareAgent("clerk", llm=ScriptedLLM(lambda _: "Good day. " * 20, chunk=10)))
        async with open_gateway(
            runtime, bind="127.0.0.1:0", tokens=[token], hosts=["agents.example.com", "127.0.0.1"]
        ) as gateway:
            port = free_port()
            file, cert = configured(
                place, port, gateway.url.removeprefix("http://"), is_below=is_below, is_plain=is_plain
            )
            process = subprocess.Popen(  # noqa: ASYNC220 - it is started at once
                [NGINX, "-p", str(place), "-c", str(file)]
            )
            try:
                await answering(port)
                yield (
                    f"http{'' if is_plain else 's'}://127.0.0.1:{port}{'/desk' if is_below else ''}",
                    cert,
                    secret,
                )
            finally:
                process.terminate()
                process.wait(20)


async def answering(port):
    with trio.fail_after(20):
        while True:
            try:
                await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
            except OSError:
                await trio.sleep(0.02)
            else:
                return


def test_nginx_accepts_the_file(tmp_path):
    """`nginx -t` accepts the file of the guide, at the root and below a path."""
    for is_below in (False, True):
        place = tmp_path / str(is_below)
        place.mkdir()
        file, _ = configured(place, 4430, "127.0.0.1:8300", is_below=is_below)
        done = subprocess.run(
            [NGINX, "-t", "-p", str(place), "-c", str(file)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_file_has_no_newer_directives():
    """`http2 on;` needs nginx 1.25.1. Debian 12 and Ubuntu 24.04 have 1.22 and 1.24."""
    for each in blocks():
        assert not re.search(r"^\s*http2\s", each, re.MULTILINE)


@pytest.mark.parametrize("is_below", [False, True], ids=["root", "below a path"])
async def test_gateway_works_through_nginx(tmp_path, is_below):
    """Pages, requests, long bodies, cursors, ids with slashes and streams pass the proxy unchanged."""
    async with proxied(tmp_path, is_below=is_below) as (url, cert, secret):
        trusted = ssl.create_default_context(cafile=str(cert))
        token = {"authorization": f"Bearer {secret}"}
        async with httpx2.AsyncClient(base_url=url, headers=token, verify=trusted, timeout=60) as ada:
            page = (await ada.get("/")).text
            assert "actgent" in page
            for file in re.findall(r'(?:src|href)="([^"]+)"', page):
                assert (await ada.get(f"/{file}")).status_code == 200, file
            made = await ada.post("/v1/sessions", json={"agent": "clerk"})
            assert made.status_code == 201
            place = httpx2.URL(url).join(made.headers["location"])
            assert (await ada.get(place)).json()["id"] == made.json()["id"]
            await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
            said = await ada.post(
                "/v1/sessions/s1/messages", json={"input": "x" * 3_000_000}, headers={"prefer": "wait=30"}
            )
            assert said.status_code == 200, said.text
            missing = await ada.get("/v1/sessions/a%2Fb%2Fc")
            assert (missing.status_code, missing.json()["type"]) == (404, "/errors/not-found")
            assert missing.json()["detail"] == "this id does not exist"
            assert (await ada.head("/v1/sessions/s1")).status_code == 200
            await first_events(ada)


async def first_events(ada):
    """Return the first events of a stream, which must arrive during the turn and not at the end of the stream."""
    async with ada.stream("GET", "/v1/sessions/s1/events?after=1") as stream:
        with trio.fail_after(20):
            names = []
            async for line in stream.aiter_lines():
                if line.startswith("event: "):
                    names.append(line.removeprefix("event: "))
                if "ended" in names:
                    break
    assert names[:2] == ["message", "turn"]


async def test_client_with_a_path_prefix(tmp_path):
    """A Python client accepts an address with a path."""
    async with (
        proxied(tmp_path, is_below=True, is_plain=True) as (url, _, secret),
        connect(url, token=secret) as client,
    ):
        reply = await client.agent("clerk").run("hello")
        assert reply.text.startswith("Good day.")
