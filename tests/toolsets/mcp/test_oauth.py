"""OAuth for MCP servers, with a loopback authorization server that accepts each refresh token once."""

import base64
import hashlib
import json
import stat
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
import trio

from actgent import ConfigurationError, MCPServer, ToolContext, open_toolset
from actgent.errors import ToolsetUnavailable
from actgent.support.user_code_calls import leaves
from actgent.toolsets.mcp import mcp_servers

pytest.importorskip("mcp", reason="pip install 'actgent[mcp]'")

ACTGENT = str(Path(sys.executable).with_name("actgent"))
JSON = {"Content-Type": "application/json"}


class Authority:
    """An MCP server with one tool and its authorization server at the same address."""

    def __init__(self, server):
        self.url = server.url
        self.access, self.refreshing, self.codes, self.clients = set(), set(), {}, {}
        self.grants, self.events = [], []
        self.expires_in = 3600
        self.token_status = 200
        self.deny = False
        self.more = {}
        self.credentials = []
        server.answer = self.answer

    def answer(self, request):
        """Answer a request by its path."""
        ways = {
            "/.well-known/oauth-protected-resource/mcp": self.resource,
            "/.well-known/oauth-authorization-server": self.metadata,
            "/register": self.register,
            "/authorize": self.authorize,
            "/token": self.token,
            "/mcp": self.mcp,
        }
        way = ways.get(request["path"])
        return (404, {}, b"") if way is None else way(request)

    def resource(self, _):
        return told({"resource": f"{self.url}/mcp", "authorization_servers": [f"{self.url}/"]})

    def metadata(self, _):
        return told(
            {
                "issuer": f"{self.url}/",
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "registration_endpoint": f"{self.url}/register",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
                **self.more,
                "authorization_response_iss_parameter_supported": True,
            }
        )

    def register(self, request):
        wanted = json.loads(request["body"])
        name = f"client{len(self.clients)}"
        self.clients[name] = wanted
        self.events.append("register")
        return told({**wanted, "client_id": name}, 201)

    def authorize(self, request):
        request_body = {key: values[0] for key, values in parse_qs(request["query"]).items()}
        if request_body["redirect_uri"] not in self.clients[request_body["client_id"]]["redirect_uris"]:
            return told({"error": "invalid_redirect_uri"}, 400)
        if self.deny:
            answer = {
                "error": "access_denied",
                "error_description": "not you",
                "state": request_body["state"],
            }
        else:
            code = f"code{len(self.codes)}"
            self.codes[code] = request_body["code_challenge"]
            answer = {"code": code, "state": request_body["state"], "iss": f"{self.url}/"}
        return 302, {"Location": f"{request_body['redirect_uri']}?{urlencode(answer)}"}, b""

    def token(self, request):
        value = {key: values[0] for key, values in parse_qs(request["body"]).items()}
        self.grants.append(value["grant_type"])
        self.credentials.append((request["headers"].get("authorization"), value.get("client_secret")))
        if self.token_status != 200:
            return told({"error": "temporarily_unavailable"}, self.token_status)
        if value["grant_type"] == "authorization_code":
            proof = hashlib.sha256(value["code_verifier"].encode()).digest()
            if self.codes.pop(value["code"], "") != base64.urlsafe_b64encode(proof).decode().rstrip("="):
                return told({"error": "invalid_grant"}, 400)
        elif value["refresh_token"] not in self.refreshing:
            return told({"error": "invalid_grant"}, 400)
        else:
            self.refreshing.remove(value["refresh_token"])
        number = len(self.grants)
        self.access, self.refreshing = {f"access{number}"}, self.refreshing | {f"refresh{number}"}
        tokens = {
            "access_token": f"access{number}",
            "refresh_token": f"refresh{number}",
            "token_type": "Bearer",
        }
        return told({**tokens, "expires_in": self.expires_in})

    def mcp(self, request):
        if request["headers"].get("authorization", "").removeprefix("Bearer ") not in self.access:
            return 401, {"WWW-Authenticate": "Bearer"}, b""
        if request["method"] != "POST":
            return 405, {}, b""
        message = json.loads(request["body"])
        if "id" not in message:
            return 202, {}, b""
        results = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "authority", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "echoed"}]},
        }
        if message["method"] not in results:
            return told(
                {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "unknown"}}
            )
        return told({"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]})


def told(value, status=200):
    return status, JSON, json.dumps(value).encode()


@pytest.fixture
def authority(server):
    return Authority(server)


@pytest.fixture
def tokens(tmp_path):
    return tmp_path / "tokens.json"


def server_of(authority, tokens, **options):
    return MCPServer(
        url=f"{authority.url}/mcp", name="web", oauth={"tokens": tokens, **options}, connect_timeout=20
    )


async def browse(url):
    """Follow the login URL like a user's browser."""
    async with httpx2.AsyncClient(follow_redirects=True) as client:
        return await client.get(url)


async def log_in(server, browser=browse, **options):
    """Authorize a server with a browser. Return the shown URLs and the names of the tools."""
    from actgent.toolsets.mcp.oauth_login import open_login

    shown = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def show(url):
                shown.append(url)
                nursery.start_soon(browser, url)

            async with open_login(server, show=show, **options) as asked, server.connected(asked) as link:
                tools = [each.name for each in await link.tools()]
    return shown, tools


async def echo(server):
    """Call the tool over a new connection."""
    with trio.fail_after(60):
        async with open_toolset(server) as tools:
            return await next(tool for tool in tools() if tool.name == "echo").execute({}, ToolContext())


async def failure_of(call, *arguments, **options):
    with pytest.raises(Exception) as caught:
        await call(*arguments, **options)
    return next(iter(leaves(caught.value)))


async def test_user_authorizes_once(authority, tokens):
    """The user opens the shown URL and is redirected to this machine. Later calls and runs need no login."""
    shown, tools = await log_in(server_of(authority, tokens))
    assert tools == ["echo"]
    asked = parse_qs(urlsplit(shown[0]).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["resource"] == [f"{authority.url}/mcp"]
    assert asked["redirect_uri"][0].startswith("http://127.0.0.1:")
    assert await echo(server_of(authority, tokens)) == "echoed"
    shown, _ = await log_in(server_of(authority, tokens))
    assert shown == []
    assert authority.grants == ["authorization_code"]


async def test_token_file_is_readable_only_by_its_user(authority, tokens):
    """The file is complete JSON with mode 0600. Its only neighbour is a lock file."""
    await log_in(server_of(authority, tokens))
    assert stat.S_IMODE(tokens.stat().st_mode) == 0o600
    known = json.loads(tokens.read_text(encoding="utf-8"))["servers"][f"{authority.url}/mcp"]
    assert known["tokens"]["access_token"] == "access1"
    assert known["expires_at"] > time.time() + 3000
    assert sorted(path.name for path in tokens.parent.iterdir()) == ["tokens.json", "tokens.json.lock"]


async def test_missing_login_is_an_error_with_the_command(authority, tokens):
    """An agent never waits for a browser. The error has the login command."""
    error = await failure_of(echo, server_of(authority, tokens))
    assert isinstance(error, ToolsetUnavailable)
    assert "actgent mcp login" in str(error)
    assert authority.grants == []


async def test_an_expired_token_is_refreshed_by_another_run(authority, tokens):
    """The token is refreshed at the stored endpoint before a request fails, and the new token is saved."""
    await log_in(server_of(authority, tokens))
    expire(tokens)
    assert await echo(server_of(authority, tokens)) == "echoed"
    assert authority.grants == ["authorization_code", "refresh_token"]
    assert "refresh2" in tokens.read_text(encoding="utf-8")
    assert await echo(server_of(authority, tokens)) == "echoed"
    assert len(authority.grants) == 2


async def test_rejected_token_is_refreshed(authority, tokens):
    """A token that a restarted server rejects early is refreshed without a user."""
    await log_in(server_of(authority, tokens))
    authority.access.clear()
    assert await echo(server_of(authority, tokens)) == "echoed"
    assert authority.grants == ["authorization_code", "refresh_token"]


async def test_concurrent_connections_share_one_refresh(authority, tokens):
    """Of ten concurrent connections one refreshes the token, because a refresh token is valid once.

    The others reuse it.
    """
    await log_in(server_of(authority, tokens))
    expire(tokens)
    texts = []

    async def one():
        texts.append(await echo(server_of(authority, tokens)))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(one)
    assert texts == ["echoed"] * 10
    assert authority.grants == ["authorization_code", "refresh_token"]


async def test_outage_of_the_authorization_server_keeps_the_refresh_token(authority, tokens):
    """An outage keeps the refresh token. A refresh token that is rejected needs a new login."""
    await log_in(server_of(authority, tokens))
    expire(tokens)
    authority.token_status = 503
    error = await failure_of(echo, server_of(authority, tokens))
    assert "answered 503" in str(error)
    authority.token_status = 200
    assert await echo(server_of(authority, tokens)) == "echoed"
    expire(tokens)
    authority.refreshing.clear()
    assert "actgent mcp login" in str(await failure_of(echo, server_of(authority, tokens)))


async def test_rejection_by_the_authorization_server_is_raised(authority, tokens):
    """The authorization server's error message is raised at once."""
    authority.deny = True
    error = await failure_of(log_in, server_of(authority, tokens))
    assert "not you" in str(error)


async def test_only_the_redirect_of_the_request_is_accepted(authority, tokens):
    """A local page that calls the redirect with its own code has no effect."""
    answers = []

    async def other(url):
        redirect = parse_qs(urlsplit(url).query)["redirect_uri"][0]
        answers.extend(
            [await browse(redirect + query) for query in ("?code=evil&state=guessed", "?code=evil", "")]
        )
        answers.append(await browse(url))

    _, tools = await log_in(server_of(authority, tokens), other)
    assert [answer.status_code for answer in answers] == [404, 404, 404, 200]
    assert tools == ["echo"]


async def test_redirect_url_can_be_pasted(authority, tokens):
    """The redirect URL can be pasted if the browser is on a different machine."""
    typing, typed = trio.open_memory_channel[str](5)

    async def elsewhere(url):
        async with httpx2.AsyncClient() as client:
            answer = await client.get(url)
        await typing.send("hello?")
        await typing.send(answer.headers["location"])

    _, tools = await log_in(server_of(authority, tokens), elsewhere, lines=typed.receive)
    assert tools == ["echo"]


async def test_a_port_in_use_causes_a_new_registration(authority, tokens):
    """The client's registration contains its port.

    If that port is in use, the login registers a new client.
    """
    await log_in(server_of(authority, tokens))
    authority.access.clear()
    authority.refreshing.clear()
    port = urlsplit(authority.clients["client0"]["redirect_uris"][0]).port
    listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
    _, tools = await log_in(server_of(authority, tokens))
    await trio.aclose_forcefully(listeners[0])
    assert tools == ["echo"]
    assert authority.events == ["register", "register"]
    authority.access.clear()
    authority.refreshing.clear()
    await log_in(server_of(authority, tokens))
    assert authority.events == ["register", "register"]


async def test_login_url_without_tls_is_rejected(authority, tokens):
    """The server chooses the login page, on which the user types a password."""
    metadata = authority.metadata
    authority.metadata = lambda request: told(
        {**json.loads(metadata(request)[2]), "authorization_endpoint": "http://login.example/authorize"}
    )
    shown = []

    async def look(url):
        shown.append(url)

    error = await failure_of(log_in, server_of(authority, tokens), look)
    assert shown == []
    assert "'http://login.example/authorize?" in str(error)
    assert "must be an https URL" in str(error)


async def test_login_command_prints_the_url_and_result(authority, tmp_path):
    """`actgent mcp login` prints the URL, waits, and reports the result. Then `list` works."""
    oauth = {"url": f"{authority.url}/mcp", "oauth": "tokens.json"}
    (tmp_path / "mcp_config.json").write_text(json.dumps({"mcpServers": {"web": oauth}}), encoding="utf-8")
    process = await trio.lowlevel.open_process(
        [ACTGENT, "mcp", "login", ".", "web"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    text = b""
    with trio.fail_after(60):
        async for piece in process.stdout:
            text += piece
            if text.count(b"\n") == 1:
                await browse(text.decode().strip())
        assert await process.wait() == 0
    assert b"web is authorized, and has 1 tool" in text
    assert (tmp_path / "tokens.json").is_file()


def expire(tokens):
    """Set the expiry of a file's tokens to one minute ago."""
    data = json.loads(tokens.read_text(encoding="utf-8"))
    for known in data["servers"].values():
        known["expires_at"] = time.time() - 60
    tokens.write_text(json.dumps(data), encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"oauth": {"tokens": "t", "secret": "x"}, "url": "https://x.example"}, "no option 'secret'"),
        ({"oauth": {}, "url": "https://x.example"}, "token file"),
        ({"oauth": {"tokens": "t", "redirect_port": "80"}, "url": "https://x.example"}, "must be a port"),
        ({"oauth": {"tokens": "t", "scope": 1}, "url": "https://x.example"}, "scope must be a string"),
        ({"oauth": "t", "command": "x"}, "requires url="),
    ],
)
def test_invalid_oauth_settings_are_reported(options, expected):
    """The error names each invalid setting."""
    with pytest.raises(ConfigurationError, match=expected):
        MCPServer(**options)


def test_servers_file_accepts_oauth_settings(tmp_path):
    """The token file is next to the servers file. A secret is read from the environment and not shown."""
    path = tmp_path / "mcp_config.json"
    oauth = {"tokens": "tokens.json", "client_id": "me", "client_secret": "${SECRET}"}
    path.write_text(
        json.dumps({"mcpServers": {"web": {"url": "https://mcp.example", "oauth": oauth}}}), encoding="utf-8"
    )
    (server,) = mcp_servers(path, environment={"SECRET": "hunter2"})
    assert server.oauth.tokens == tmp_path / "tokens.json"
    assert server.oauth.client_secret == "hunter2"
    assert "hunter2" not in repr(server.oauth)


async def test_damaged_token_file_is_reported(authority, tokens):
    """The error has the path of the damaged file and a remedy."""
    tokens.write_text('{"version": 1, "servers": 5}', encoding="utf-8")
    assert "is not a token file" in str(await failure_of(echo, server_of(authority, tokens)))


@pytest.mark.parametrize(
    ("methods", "credentials"),
    [
        (None, ("Basic bWU6aHVudGVyMg==", None)),
        (["client_secret_post", "client_secret_basic"], ("Basic bWU6aHVudGVyMg==", None)),
        (["none", "client_secret_post"], (None, "hunter2")),
    ],
)
async def test_a_secret_is_sent_by_the_method_of_the_server(authority, tokens, methods, credentials):
    """Login and refresh over a different connection both use the server's method."""
    authority.more = {} if methods is None else {"token_endpoint_auth_methods_supported": methods}
    authority.expires_in = 1
    authority.clients["me"] = {"redirect_uris": ["http://127.0.0.1:8791/callback"]}
    known = {"client_id": "me", "client_secret": "hunter2", "redirect_port": 8791}
    await log_in(server_of(authority, tokens, **known))
    assert await echo(server_of(authority, tokens, **known)) == "echoed"
    assert authority.grants[:2] == ["authorization_code", "refresh_token"]
    assert set(authority.credentials) == {credentials}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"client_metadata_url": "http://me.example/client.json"}, "an https URL with a path"),
        ({"client_metadata_url": "https://me.example"}, "an https URL with a path"),
        ({"client_metadata_url": "https://me.example/c.json", "client_id": "me"}, "either client_id or"),
    ],
)
def test_the_url_of_a_client_is_checked(tokens, options, expected):
    with pytest.raises(ConfigurationError, match=expected):
        MCPServer(url="https://web.example/mcp", oauth={"tokens": tokens, **options})
