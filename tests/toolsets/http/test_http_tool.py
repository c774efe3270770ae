"""HTTP tools: requests, responses and rejected calls."""

import gzip
import json
import time
import tracemalloc
import zlib
from pathlib import Path
from urllib.parse import quote, quote_plus

import orjson
import pytest
import trio

from actgent import (
    BareAgent,
    ConfigurationError,
    File,
    Image,
    MCPServer,
    OpenAPI,
    ScriptedLLM,
    ToolCall,
    ToolContext,
)
from actgent.errors import AddressBlocked, HTTPToolError, ToolError
from actgent.tools.tool_execution import Batch
from actgent.tools.tool_registry import ToolRegistry
from actgent.toolsets.builtin import page_tool
from actgent.toolsets.http.api_credentials import APIKey, Basic, Bearer, Credentials
from actgent.toolsets.http.http_tool import HTTPTool, api_tool
from actgent.toolsets.http.internal_address_blocking import Guard

HERE = ["127.0.0.1"]
SHARED = Path(__file__).parents[4] / "shared" / "data" / "security_cases.jsonl"


async def call(tool, **arguments):
    batch = Batch(
        [ToolCall(tool.name, arguments, "c1")], ToolRegistry([tool]), context=ToolContext(session_id="s")
    )
    await batch.run()
    return batch.results()[0]


async def asked(tool, **arguments):
    """Call the tool. Return the request that the server received."""
    result = await call(tool, **arguments)
    assert result.error is None, result.error
    return orjson.loads(result.content)


async def test_arguments_are_encoded_at_their_position(server):
    """Path, query, headers and body are filled in. Values are escaped in their position."""
    tool = HTTPTool(
        "order",
        f"{server.url}/shops/{{shop}}/items/{{item-id}}?v=2",
        "POST",
        path={"item-id": {"type": "integer"}},
        query={"tag": {"type": "array", "items": {"type": "string"}}, "dry": {"type": "boolean"}},
        headers={"X-Trace": {"type": "string"}},
        body={"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]},
        fixed_headers={"X-Client": "actgent"},
        allow=HERE,
    )
    assert tool.parameters["required"] == ["shop", "item-id", "body"]
    received = await asked(
        tool,
        **{"item-id": 7, "X-Trace": "t1"},
        shop="a/b?c&../d",
        tag=["x", "y&z=1"],
        dry=True,
        body={"count": 2},
    )
    assert received["method"] == "POST"
    assert received["path"] == "/shops/a%2Fb%3Fc%26..%2Fd/items/7"
    assert received["query"] == "v=2&tag=x&tag=y%26z%3D1&dry=true"
    assert received["headers"]["x-client"] == "actgent"
    assert received["headers"]["x-trace"] == "t1"
    assert received["headers"]["idempotency-key"] == "s/c1"
    assert json.loads(received["body"]) == {"count": 2}


@pytest.mark.parametrize("value", ["..", ".", "", None])
async def test_value_cannot_name_another_request_path(server, value):
    """Such a value is an error of the arguments and no request is sent."""
    tool = HTTPTool("get", f"{server.url}/users/{{name}}/key", path={"name": {}}, allow=HERE)
    result = await call(tool, name=value)
    assert "a path segment must not be empty" in result.error
    assert server.requests == []


async def test_line_end_in_a_value_adds_no_header(server):
    """A value with a line end cannot add a header."""
    tool = HTTPTool("get", server.url, headers={"X-A": {"type": "string"}}, allow=HERE)
    result = await call(tool, **{"X-A": "1\r\nX-Admin: yes"})
    assert result.error
    assert server.requests == []


@pytest.mark.parametrize(
    ("method", "effect", "retries"),
    [
        ("GET", "pure", 2),
        ("HEAD", "pure", 2),
        ("PUT", "idempotent", 2),
        ("DELETE", "idempotent", 2),
        ("POST", "once", 0),
        ("PATCH", "once", 0),
    ],
)
def test_effects_follow_from_methods(method, effect, retries):
    """Idempotent methods of RFC 9110 are retried. Other methods run once."""
    tool = HTTPTool("x", "https://api.example/x", method)
    assert (tool.effect, tool.retries) == (effect, retries)


@pytest.mark.parametrize(
    ("auth", "header", "query"),
    [
        (Bearer("token-123"), ("authorization", "Bearer token-123"), ""),
        (Basic("ada", "secret"), ("authorization", "Basic YWRhOnNlY3JldA=="), ""),
        (APIKey("key-123"), ("x-api-key", "key-123"), ""),
        (APIKey("key-123", query="api_key"), None, "api_key=key-123"),
        (lambda: Credentials(headers={"X-Mine": "value"}), ("x-mine", "value"), ""),
    ],
)
async def test_credentials_are_sent_and_not_shown(server, auth, header, query):
    """Credentials are sent with the request and no `repr` shows them."""
    tool = HTTPTool("x", f"{server.url}/x", auth=auth, allow=HERE)
    await asked(tool)
    told = server.requests[-1]
    assert header is None or told["headers"][header[0]] == header[1]
    assert told["query"] == query
    assert all(text not in repr((tool, auth)) for text in ("token-123", "secret", "key-123"))


async def test_credentials_may_come_from_an_async_function(server):
    """The function is called for each call, so that tokens can be renewed."""
    tokens = iter(["one", "two"])

    async def renew():
        await trio.lowlevel.checkpoint()
        return Credentials(headers={"Authorization": next(tokens)})

    tool = HTTPTool("x", server.url, auth=renew, allow=HERE)
    assert [(await asked(tool))["headers"]["authorization"] for _ in range(2)] == ["one", "two"]


async def test_error_has_status_and_body_without_secrets(server):
    """The model gets the API's error text. An echoed key is redacted."""
    server.answer = lambda _: (403, {}, b"key-123-long is not allowed here")
    result = await call(HTTPTool("x", server.url, auth=APIKey("key-123-long"), allow=HERE))
    assert result.error == "the API answered 403 Forbidden: [secret] is not allowed here"


async def test_token_with_a_line_end_is_not_in_an_error(server):
    """A token from a file may have a line end. The request is not sent and the error omits the token."""
    result = await call(HTTPTool("a", server.url, auth=Bearer("s3cret-token\n"), allow=HERE))
    assert "cannot be sent" in result.error
    assert "s3cret-token" not in result.error


async def test_query_key_is_redacted_in_every_encoding(server):
    """An API that repeats the request URL also repeats the URL-encoded key. That form is redacted."""
    server.answer = lambda request: (400, {}, request["query"].encode())
    result = await call(HTTPTool("a", server.url, auth=APIKey("a+b/c d", query="key"), allow=HERE))
    assert result.error.endswith("key=[secret]")


async def test_model_cannot_replace_credentials(server):
    """A model's argument cannot replace the credentials in a header or the query."""
    text = {"type": "string"}
    tool = HTTPTool("a", server.url, headers={"x-api-key": text}, auth=APIKey("ours"), allow=HERE)
    assert (await asked(tool, **{"x-api-key": "theirs"}))["headers"]["x-api-key"] == "ours"
    tool = HTTPTool("b", server.url, query={"key": text}, auth=APIKey("ours", query="key"), allow=HERE)
    assert (await asked(tool, key="theirs"))["query"] == "key=ours"


def test_password_in_a_url_is_rejected():
    """The password would appear in logs and representations. The error omits the password as well."""
    with pytest.raises(ConfigurationError, match="auth=Basic") as refused:
        HTTPTool("a", "https://ada:s3cret@api.example/x")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "location",
    ["http://[::1", "http://a..b/", f"http://{'a' * 70}.example/", "file:///x", "http://x:99999999/"],
)
async def test_malformed_redirect_is_an_error_result(server, location):
    """A redirect to any malformed address is an error result."""
    server.answer = lambda _: (302, {"Location": location}, b"")
    assert (await call(HTTPTool("a", server.url, retries=0, allow=HERE))).error


async def test_idempotent_requests_are_retried(server, autojump_clock):
    """A GET is retried while the server is busy. A POST is sent once."""
    busy = [(503, {}, b""), (429, {}, b""), (200, {"Content-Type": "text/plain"}, b"at last")]
    server.answer = lambda _: busy.pop(0)
    assert (await call(HTTPTool("x", server.url, allow=HERE))).content == "at last"
    busy = [(503, {}, b"busy")]
    result = await call(HTTPTool("x", server.url, "POST", allow=HERE))
    assert result.error.startswith("the API answered 503")
    assert busy == []


async def test_unreachable_host_is_an_error_with_the_reason(autojump_clock):
    """The error has the reason why no response arrived."""
    result = await call(HTTPTool("x", "http://127.0.0.1:9", retries=0, allow=HERE))
    assert "the API sent no response" in result.error
    assert "Connection refused" in result.error


async def test_long_answers_are_cut(server):
    """The caller gets the beginning of a response of any length, compressed or not."""
    packed = gzip.compress(b"x" * 50_000_000)
    server.answer = lambda _: (200, {"Content-Type": "text/plain", "Content-Encoding": "gzip"}, packed)
    tool = HTTPTool("x", server.url, max_bytes=1000, allow=HERE)
    result = await call(tool)
    assert result.content == "x" * 1000 + "\n[truncated after 1,000 bytes]"


async def test_an_answer_that_trickles_ends_by_the_timeout(server, autojump_clock):
    """The timeout covers the complete call, also at one byte a second."""

    async def trickle(stream):
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1000):
            await trio.sleep(1)
            await stream.send_all(b"x")

    server.answer = lambda _: trickle
    started = trio.current_time()
    result = await call(HTTPTool("x", server.url, timeout=5, allow=HERE))
    assert "timed out" in result.error or "5" in result.error
    assert trio.current_time() - started == pytest.approx(5, abs=1)


async def test_binary_and_empty_responses_are_described(server):
    """The result names the type and size of such a response."""
    server.answer = lambda _: (200, {"Content-Type": "image/png"}, bytes(range(200)))
    assert "image/png, 200 bytes" in (await call(HTTPTool("x", server.url, allow=HERE))).content
    server.answer = lambda _: (204, {}, b"")
    assert (
        await call(HTTPTool("x", server.url, "HEAD", allow=HERE))
    ).content == "(empty response, status 204)"
    server.answer = lambda _: (200, {"Content-Type": "text/plain; charset=nonsense"}, "ü\x00".encode())
    assert "ü" in (await call(HTTPTool("x", server.url, allow=HERE))).content


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("application/octet-stream", "a,ü\n".encode(), "a,ü"),
        ("", b"\xef\xbb\xbf{}", "{}"),
        ("", b"\xff\x00", "(binary response: unknown type, 2 bytes"),
    ],
)
async def test_text_without_a_text_type_is_text(server, kind, body, expected):
    """A body of valid UTF-8 is text. The byte order mark is removed."""
    server.answer = lambda _: (200, {"Content-Type": kind} if kind else {}, body)
    content = (await call(HTTPTool("x", server.url, allow=HERE))).content
    assert content.startswith(expected)


async def test_created_resource_is_named(server):
    """An empty response has the `Location`, without its query, which may contain a key."""
    server.answer = lambda _: (201, {"Location": "/items/5?key=secret"}, b"")
    result = await call(HTTPTool("x", server.url, "POST", allow=HERE))
    assert result.content == "(empty response, status 201, location /items/5)"


@pytest.mark.parametrize(("wait", "requests"), [("1", 3), ("60", 1), ("Wed, 21 Oct 2099 07:28:00 GMT", 1)])
async def test_retry_waits_no_longer_than_its_server_asks(server, autojump_clock, wait, requests):
    """A long `Retry-After` is left to the model, which reads it."""
    server.answer = lambda _: (429, {"Retry-After": wait}, b"slow down")
    result = await call(HTTPTool("x", server.url, allow=HERE))
    assert f"retry after {wait}" in result.error
    assert len(server.requests) == requests


def json_of_php(text):
    return json.dumps(text).replace("/", "\\/")


# --- redirects ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "status", "expected"),
    [("DELETE", 301, "DELETE"), ("PUT", 302, "PUT"), ("POST", 302, "GET"), ("DELETE", 303, "GET"), ("POST", 301, None)],
)  # fmt: skip
async def test_a_redirect_keeps_methods_other_than_post(server, method, status, expected):
    """A DELETE that becomes a GET would look like a success. A moved POST is an error with the new URL."""
    server.answer = lambda request: (
        (status, {"Location": "/there?k=1"}, b"") if request["path"] == "/" else (200, {}, request["method"].encode())
    )  # fmt: skip
    result = await call(HTTPTool("x", server.url, method, allow=HERE))
    if expected is None:
        assert f"the API moved to {server.url}/there," in result.error
    else:
        assert result.content == expected


async def test_redirects_within_the_origin_keep_everything(server):
    """A 307 keeps method, body and credentials; a 303 becomes a GET."""

    def answer(request):
        return told_(request) if request["path"] == "/there" else (status, {"Location": "/there"}, b"")

    def told_(request):
        return 200, {"Content-Type": "application/json"}, orjson.dumps(request)

    server.answer = answer
    tool = HTTPTool(
        "x", f"{server.url}/here", "POST", body={"type": "object"}, auth=Bearer("token"), allow=HERE
    )
    status = 307
    await asked(tool, body={"a": 1})
    received = server.requests[-1]
    assert (received["method"], received["body"], received["headers"]["authorization"]) == (
        "POST",
        '{"a":1}',
        "Bearer token",
    )
    status = 303
    received = await asked(tool, body={"a": 1})
    assert (received["method"], received["body"]) == ("GET", "")


async def test_credentials_stay_with_their_origin(server, elsewhere):
    """A redirect to another origin is followed without credentials and fixed headers."""
    server.answer = lambda _: (302, {"Location": f"{elsewhere.url}/there"}, b"")
    for auth in (Bearer("token"), APIKey("token"), APIKey("token", query="key")):
        tool = HTTPTool("x", server.url, auth=auth, fixed_headers={"X-Own": "token"}, allow=HERE)
        received = await asked(tool)
        assert received["path"] == "/there"
        assert "token" not in json.dumps(received)


async def test_a_body_is_not_sent_to_another_origin(server, elsewhere):
    """A 307 of a POST to another origin is not followed."""
    server.answer = lambda _: (307, {"Location": elsewhere.url}, b"")
    tool = HTTPTool("x", server.url, "POST", body={"type": "object"}, auth=Bearer("token"), allow=HERE)
    result = await call(tool, body={"secret": "x"})
    assert "which is not followed" in result.error
    assert elsewhere.requests == []


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/",
        "http://localhost.:1/",
        "file:///etc/passwd",
        "http://[::1]:1/",
        "gopher://x/",
    ],
)
async def test_redirects_to_internal_addresses_are_rejected(server, location):
    """Each redirect address is checked like the first one. Schemes other than HTTP are rejected."""
    server.answer = lambda _: (302, {"Location": location}, b"")
    result = await call(HTTPTool("x", server.url, retries=0, allow=["127.0.0.1/32"]))
    assert result.error
    assert len(server.requests) == 1


async def test_endless_redirects_end_at_the_limit(server):
    """An endless redirect chain ends at the allowed number."""
    server.answer = lambda _: (302, {"Location": "/"}, b"")
    assert "more than 2 times" in (await call(HTTPTool("x", server.url, redirects=2, allow=HERE))).error
    assert len(server.requests) == 3


# --- the guard ---------------------------------------------------------------------------------


def cases():
    if not SHARED.exists():
        return []
    found = [json.loads(line) for line in SHARED.read_text(encoding="utf-8").splitlines()]
    return [each for each in found if each["area"] == "ssrf" and each["payload"] is not None]


class Connected(Exception):
    """Raised instead of making a connection."""


@pytest.fixture
def no_connections(monkeypatch):
    """Record the addresses of all connections below the guard, and make none."""
    reached = []

    async def connect(self, host, port, *args, **kwargs):
        reached.append(host)
        raise Connected(host)

    monkeypatch.setattr("httpcore2.TrioBackend.connect_tcp", connect)
    return reached


@pytest.mark.parametrize(
    "case",
    cases() or [pytest.param(None, marks=pytest.mark.skip("the shared data are not there"))],
    ids=lambda c: c and c["id"],
)
async def test_recorded_attacks_reach_no_internal_address(case, no_connections):
    """No connection goes to an internal address. Public addresses stay reachable."""
    async with Guard().client() as client:
        with pytest.raises(Exception) as refused:
            await client.get(case["payload"])
    assert refused.type is Connected or case["expect"] == "no_connection"
    if case["expect"] == "no_connection":
        assert no_connections == []
    else:
        assert no_connections == [case["address"]]


FORMS = """127.0.0.1 2130706433 0x7f000001 0x7f.1 017700000001 127.1 0 [::] [::1] [::ffff:127.0.0.1] [::ffff:7f00:1] [::127.0.0.1]
[64:ff9b::7f00:1] [64:ff9b::a9fe:a9fe] [64:ff9b:1::7f00:1] [64:ff9b:1:fffe::10.0.0.1] [2002:7f00:1::] [2002:a9fe:a9fe::1]
[2001:0:7f00:1::] [2600::200:5efe:7f00:1] [2600::5efe:a00:1] [::ffff:0:127.0.0.1] [fe80::1] [fe80::1%25lo] [::1%251] [fc00::1]
[fec0::1] [ff02::1] [100::1] [5f00::1] [fd00:ec2::254] localhost LOCALHOST 127\u30020\u30020\u30021 169.254.169.254 2852039166
0xa9fea9fe 192.0.0.192 100.100.100.200 168.63.129.16 100.64.0.1 198.18.0.1 224.0.0.1 255.255.255.255 user@127.0.0.1
1.1.1.1@10.0.0.1 1.1.1.1:80@10.0.0.1 [::ffff:127.0.0.1%25lo] 0177.0.0.1 127.0.0.256 \uff11\uff12\uff17.0.0.1""".split()


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("host", FORMS)
async def test_other_notations_of_internal_addresses_are_rejected(host, scheme, no_connections, monkeypatch):
    """No connection is made to an internal address in any notation, and none by a proxy."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://1.1.1.1:3128")
    with pytest.raises(ToolError):
        await page_tool().execute({"url": f"{scheme}://{host}:8080/latest/meta-data"}, ToolContext())
    assert no_connections == []


async def test_name_with_an_internal_address_is_rejected(no_connections):
    """A name with one internal address is rejected. The connection uses the checked address."""

    class Names(trio.abc.HostnameResolver):
        def __init__(self, *answers):
            self.answers = list(answers)

        async def getaddrinfo(self, host, port, *args, **kwargs):
            found = self.answers.pop(0)
            return [(2, 1, 6, "", (address, port)) for address in found]

        async def getnameinfo(self, sockaddr, flags):
            raise NotImplementedError

    names = Names(["93.184.216.34", "10.0.0.1"], ["93.184.216.34"], ["127.0.0.1"])
    trio.socket.set_custom_hostname_resolver(names)
    async with Guard().client() as client:
        with pytest.raises(AddressBlocked, match="not public"):
            await client.get("http://mixed.example/")
        with pytest.raises(Connected):
            await client.get("http://rebinding.example/")
        assert no_connections == ["93.184.216.34"], "the address that was judged, and not the name again"
        assert len(names.answers) == 1
        with pytest.raises(AddressBlocked):
            await client.get("http://rebinding.example/")


async def test_private_hosts_can_be_allowed_by_name(server):
    """A name, an address or a network can be allowed. All others stay blocked."""
    port = server.port
    for allow, host in (
        (["localhost"], "localhost"),
        (["127.0.0.0/8"], "127.0.0.1"),
        (["127.0.0.1"], "localhost"),
    ):
        tool = HTTPTool("x", f"http://{host}:{port}/", retries=0, allow=[*allow, "::1"])
        assert (await call(tool)).error is None
    shut = HTTPTool("x", f"http://127.0.0.1:{port}/", retries=0, allow=["localhost"])
    assert "its address is not public (loopback)" in (await call(shut)).error


@pytest.mark.parametrize(
    "entry", ["http://x", "a b", "*.example.com", "", 7, "user@host", "!!", "a,b", "300.1.1.1", "10.0.0"]
)
def test_invalid_allow_entries_are_rejected(entry):
    """The error lists the accepted forms."""
    with pytest.raises(ConfigurationError, match="host names, addresses and networks"):
        Guard([entry])


async def test_environment_proxies_are_not_used(server, elsewhere, monkeypatch):
    """An environment proxy is not used, because it would see the request and connect for the tool."""
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, elsewhere.url)
    await asked(HTTPTool("x", server.url, allow=HERE))
    assert elsewhere.requests == []


# --- with an agent -----------------------------------------------------------------------------


async def test_an_agent_keeps_its_connections(server):
    """Ten calls of an agent use one connection, closed with the agent's block. Configuration stays hidden."""
    tool = HTTPTool("weather", f"{server.url}/{{city}}", query={"units": {"type": "string"}}, allow=HERE)
    llm = ScriptedLLM([[ToolCall("weather", {"city": f"c{n}"})] for n in range(10)] + ["done"])
    async with BareAgent("clerk", llm=llm, tools=[tool.configured(units="metric")]) as agent:
        session = await agent.create_session("ada")
        results = []
        session.on_tool_result(results.append)
        await session.chat("go")
        await session.wait_idle()
        assert server.connections == 1
    assert [json.loads(r.content)["path"] for r in results] == [f"/c{n}" for n in range(10)]
    assert {json.loads(r.content)["query"] for r in results} == {"units=metric"}
    assert list(llm.chats[0].tools[0].parameters["properties"]) == ["city"]


async def test_a_cancelled_call_does_not_cancel_other_calls(server):
    """A cancelled call leaves the shared connections usable."""

    async def never(stream):
        await trio.sleep_forever()

    server.answer = lambda request: never if request["path"] == "/slow" else (200, {}, b"fine")
    tool = HTTPTool("x", f"{server.url}/{{what}}", allow=HERE, retries=0)
    async with tool._connections.keep_open():
        for _ in range(5):
            with trio.move_on_after(0.05):
                await tool.execute({"what": "slow"}, ToolContext())
            assert await tool.execute({"what": "fast"}, ToolContext()) == "fine"


# --- wrong input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"url": "ftp://x/y"}, "begin with http"),
        ({"url": "https://{host}/x"}, "a parameter must not be in the host"),
        ({"url": "https://x/{a b}"}, "must enclose parameter names"),
        ({"url": "https://x/", "method": "FETCH"}, "method= must be one of"),
        ({"url": "https://x/", "headers": {"Authorization": {}}}, "cannot be set by the model"),
        ({"url": "https://x/{a}", "query": {"a": {}}}, "two parameters are named 'a'"),
        ({"url": "https://x/", "auth": "token"}, "auth= must be"),
    ],
)
def test_invalid_options_are_rejected(options, expected):
    """Each error names the tool or option, and the accepted values."""
    with pytest.raises(ConfigurationError, match=expected):
        HTTPTool("x", **options)


def test_tool_name_is_derived_from_method_and_url():
    assert api_tool("https://api.example/v1/cities/{city}").name == "get_cities"
    assert api_tool("https://api.example/", "POST", name="make").name == "make"


async def test_non_http_response_is_an_error_result(server):
    async def noise(stream):
        await stream.send_all(b"\x00\xff garbage\r\n\r\n")

    server.answer = lambda _: noise
    result = await call(HTTPTool("x", server.url, retries=0, allow=HERE))
    assert "the API sent no response" in result.error
    with pytest.raises(HTTPToolError):
        await HTTPTool("x", server.url, retries=0, allow=HERE).execute({}, ToolContext())


@pytest.mark.parametrize(
    ("kind", "body", "shown"),
    [
        ("image/png", b"\x89PNG\r\n\x1a\n...", Image(media_type="image/png", data=b"\x89PNG\r\n\x1a\n...")),
        ("image/png", b"GIF89a...", Image(media_type="image/gif", data=b"GIF89a...")),
        ("application/pdf", b"%PDF-1", File(media_type="application/pdf", data=b"%PDF-1", name="a.pdf")),
        ("image/svg+xml", b"<svg/>", "<svg/>"),
    ],
)
async def test_pictures_and_documents_become_media(server, kind, body, shown):
    """The content decides the media type, not the API's header. A truncated file is only described."""
    server.answer = lambda _: (200, {"Content-Type": kind}, body)
    got = HTTPTool("get", f"{server.url}/files/a.pdf", allow=["127.0.0.1"])
    assert await got.execute({}, ToolContext()) == shown
    cut = HTTPTool("get", f"{server.url}/files/a.pdf", allow=["127.0.0.1"], max_bytes=4)
    assert isinstance(await cut.execute({}, ToolContext()), str)


@pytest.mark.parametrize(
    ("auth", "secret"),
    [
        (Bearer("token/with+signs=="), "token/with+signs=="),
        (Basic("ada", "pass word/1"), "pass word/1"),
        (Basic("ada", "pass word/1"), "YWRhOnBhc3Mgd29yZC8x"),
        (APIKey("key/with signs&", query="key"), "key/with signs&"),
    ],
)
@pytest.mark.parametrize(
    "form", [str, quote, lambda text: quote(text, safe=""), quote_plus, json.dumps, json_of_php]
)
async def test_echoed_credentials_are_redacted(server, elsewhere, auth, secret, form):
    """Echoed credentials are redacted, also after a redirect to another origin."""
    text = f"you sent {form(secret)}".encode()
    elsewhere.answer = lambda _: (200, {"Content-Type": "text/plain"}, text)
    for status, headers in ((200, {}), (302, {"Location": elsewhere.url})):
        server.answer = lambda _, s=status, h=headers: (s, {"Content-Type": "text/plain", **h}, text)
        result = await call(HTTPTool("x", server.url, auth=auth, allow=HERE))
        assert form(secret) not in result.content
        assert result.content.startswith("you sent ")
        assert "[secret]" in result.content


@pytest.mark.parametrize(
    "url", ["http://[host]/", "http://[::1", "http://x:80:80/", "http://x:99999/", "https://"]
)
def test_an_address_that_is_no_url_is_a_configuration_error(url):
    """Each option that takes a URL rejects an invalid one."""
    for make in (
        lambda: HTTPTool("t", url),
        lambda: OpenAPI(url, name="o"),
        lambda: MCPServer(url=url, name="m"),
    ):
        with pytest.raises(ConfigurationError):
            make()


# --- cookies -----------------------------------------------------------------------------------


def logs_in(request):
    """Answer `/login?user=NAME` with a cookie, and any other path with the received cookie."""
    cookie = request["headers"].get("cookie", "no cookie")
    user = request["query"].partition("user=")[2]
    value = {"Set-Cookie": f"sid={user}; Path=/"} if user else {}
    return 200, {"Content-Type": "text/plain", **value}, cookie.encode()


def one_http_tool(url):
    return HTTPTool("call", f"{url}/{{path}}", query={"user": {"type": "string"}}, allow=HERE)


def one_openapi(url):
    parameters = [
        {"name": "path", "in": "path", "required": True, "schema": {"type": "string"}},
        {"name": "user", "in": "query", "schema": {"type": "string"}},
    ]
    paths = {"/{path}": {"get": {"operationId": "call", "parameters": parameters}}}
    document = {"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"}, "paths": paths}
    return OpenAPI({**document, "servers": [{"url": url}]}, allow=HERE)


@pytest.mark.parametrize("make", [one_http_tool, one_openapi])
async def test_a_login_of_one_session_is_not_used_in_another_session(server, make):
    """A cookie from Ada's session is not sent with requests of Bob's session."""
    server.answer = logs_in
    llm = ScriptedLLM(
        [
            [ToolCall("call", {"path": "login", "user": "ada"})],
            "logged in",
            [ToolCall("call", {"path": "me"})],
            "done",
        ]
    )
    async with BareAgent("clerk", llm=llm, tools=[make(server.url)]) as agent:
        await agent.run("Log in.", session=await agent.create_session("ada"))
        bobs = await agent.create_session("bob")
        await agent.run("Who am I?", session=bobs)
        (result,) = (each for message in bobs.history for each in message.tool_results)
    assert result.content == "no cookie"
    assert ["cookie" in each["headers"] for each in server.requests] == [False, False]


@pytest.mark.parametrize("make", [lambda url: HTTPTool("call", url, allow=HERE), None])
async def test_a_cookie_does_not_follow_a_redirect_to_another_origin(server, elsewhere, make):
    """Cookies ignore ports, so a cookie jar would send them to another server on the host."""
    server.answer = lambda _: (302, {"Location": f"{elsewhere.url}/there", "Set-Cookie": "sid=1"}, b"")
    elsewhere.answer = lambda _: (200, {"Content-Type": "text/plain"}, b"ok")
    if make is None:
        result = await call(page_tool(allow=HERE), url=server.url)
    else:
        result = await call(make(server.url))
    assert result.error is None
    assert "cookie" not in elsewhere.requests[0]["headers"]


# --- compressed responses ----------------------------------------------------------------------------


def fetch_tools(url):
    return [(HTTPTool("get", url, allow=HERE, retries=0), {}), (page_tool(allow=HERE), {"url": url})]


def packed(coding, data):
    compressor = zlib.compressobj(9, zlib.DEFLATED, {"gzip": 31, "deflate": 15}[coding])
    return compressor.compress(data) + compressor.flush()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_compressed_response_takes_little_memory(server, coding):
    """100 MB of NUL bytes in 100 KB: decoding and escaping stay within the size limit."""
    body = packed(coding, b"\0" * 100_000_000)
    server.answer = lambda _: (200, {"Content-Type": "text/plain", "Content-Encoding": coding}, body)
    for tool, arguments in fetch_tools(server.url):
        tracemalloc.start()
        try:
            result = await call(tool, **arguments)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert result.error is None
        assert result.content.startswith("\u2400" * 1000)
        assert peak < 40_000_000


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "compress"])
async def test_response_in_an_unrequested_coding_is_rejected(server, coding):
    """Requests accept gzip and deflate. Other codings may need 128 MB for one frame."""
    server.answer = lambda _: (200, {"Content-Type": "text/plain", "Content-Encoding": coding}, b"data")
    for tool, arguments in fetch_tools(server.url):
        result = await call(tool, **arguments)
        assert coding in result.error
        assert "deflate, gzip" in result.error
        assert server.requests[-1]["headers"]["accept-encoding"] == "deflate, gzip"


async def test_a_charset_that_takes_quadratic_time_is_not_used(server):
    """Python's `punycode` codec takes a minute for a megabyte."""
    server.answer = lambda _: (200, {"Content-Type": "text/plain; charset=punycode"}, b"a" * 900_000)
    for tool, arguments in fetch_tools(server.url):
        started = time.process_time()
        assert (await call(tool, **arguments)).content.startswith("aaa")
        assert time.process_time() - started < 5
