"""Hostile requests: cross-origin pages, wrong host names, tokens, bodies and paths."""

import gzip
import json
import logging

import httpx2
import pytest
import trio

from actgent.web.gateway_limits import GatewayLimits
from actgent.web.routes.endpoint_table import ENDPOINTS

JSON = {"content-type": "application/json"}


async def test_each_endpoint_requires_a_token(serving):
    """Without a token, or with an unknown one, each endpoint except health and OpenAPI is a 401."""
    limits = GatewayLimits(wrong_tokens=1000, grace=1)
    async with serving(limits=limits) as served, httpx2.AsyncClient(base_url=served.gateway.url) as nobody:
        for endpoint in ENDPOINTS:
            path = "/v1" + endpoint.path.replace("{", "").replace("}", "")
            for headers in ({}, {"authorization": "Bearer act_wrong"}, {"authorization": "Basic YTpi"}):
                answer = await nobody.request(endpoint.verb, path, headers={**JSON, **headers})
                assert (answer.status_code == 401) == (endpoint.scope is not None), path
                if answer.status_code == 401:
                    assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_each_endpoint_requires_its_scope(served):
    """A token with only `read` can read, and gets 403 for changes."""
    async with served.client("reader") as reader:
        for endpoint in ENDPOINTS:
            path = "/v1" + endpoint.path.replace("{", "").replace("}", "")
            async with reader.stream(endpoint.verb, path, headers=JSON) as answer:
                pass
            assert (answer.status_code == 403) == (endpoint.scope not in (None, "read")), path


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8300", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example", "", "[::1]"],
)
async def test_other_host_is_rejected(served, host):
    """A host name that resolves to this machine by DNS rebinding is rejected, also for health."""
    async with served.client() as ada:
        for path in ("/v1/sessions", "/v1/health/live"):
            answer = await ada.get(path, headers={"host": host})
            assert (answer.status_code, answer.json()["type"]) == (421, "/errors/wrong-host")
        forwarded = await ada.get(
            "/v1/sessions", headers={"host": host, "x-forwarded-host": "127.0.0.1:8300"}
        )
        assert forwarded.status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://app.example.evil.example"},
    ],
)
async def test_cross_origin_requests_are_rejected(serving, headers):
    """Each sign of a cross-origin request is a 403 without CORS headers. The gateway uses no cookies."""
    async with serving(origins=["https://app.example"]) as served, served.client(**headers) as ada:
        for answer in (
            await ada.get("/v1/sessions"),
            await ada.post("/v1/sessions", json={"agent": "clerk"}),
            await ada.options("/v1/sessions"),
        ):
            assert (answer.status_code, answer.json()["type"]) == (403, "/errors/wrong-origin")
            assert "access-control-allow-origin" not in answer.headers
            assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "origin",
    [
        "https://app.example",
        "https://app.example:8443",
        "http://[::1]:3000",
        "tauri://localhost",
        "null",
        "file://",
    ],
)
async def test_configured_origin_may_read(serving, origin):
    """A configured origin gets exactly its CORS header, and its preflight is answered. Local files have `null` or `file://`."""
    request = {"origin": origin, "sec-fetch-site": "cross-site"}
    async with serving(origins=[origin]) as served, served.client(**request) as ada:
        before = await ada.options("/v1/sessions", headers={"access-control-request-method": "POST"})
        answer = await ada.get("/v1/sessions")
        assert (before.status_code, answer.status_code) == (204, 200)
        assert {each.headers["access-control-allow-origin"] for each in (before, answer)} == {origin}
        assert "access-control-allow-credentials" not in answer.headers
    own = {"origin": served.gateway.url, "sec-fetch-site": "same-origin"}
    async with serving() as served, served.client(**own) as ada:
        assert (await ada.get("/v1/sessions", headers={"origin": served.gateway.url})).status_code == 200


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "",
        "application/json; charset=latin-1",
    ],
)
async def test_form_content_types_are_rejected(served, kind):
    """Methods that change something accept only JSON, also without a body."""
    async with served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        for path in ("/v1/sessions", "/v1/sessions/s1/close"):
            answer = await ada.post(path, content=b'{"agent": "clerk"}', headers={"content-type": kind})
            assert answer.status_code == 415
        assert (await ada.get("/v1/sessions/s1")).json()["status"] == "idle"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"\xff\xfe{}", 400),
        (b'{"agent": "\xc3"}', 400),
        (b'{"agent": "clerk", "agent": "helper"}', 400),
        (b'{"agent": "\\ud800"}', 400),
        (b'{"agent": NaN}', 400),
        (b"[" * 100_000, 400),
        (b'{"a":' * 70 + b"1" + b"}" * 70, 400),
        (b"[]", 422),
        (b"null", 422),
        (b"{}", 422),
        (b'{"agent": "clerk", "more": 1}', 422),
        (b'{"agent": 5}', 422),
        (b'{"agent": "clerk", "limits": {"tokens": -1}}', 422),
        (b'{"agent": "clerk", "limits": {"depth": 1}}', 422),
        (b'{"agent": "nobody"}', 404),
        (b'{"agent": "clerk"} {}', 400),
    ],
    ids=lambda each: repr(each)[:40],
)
async def test_malformed_bodies_are_problems(served, body, status):
    """A body that is not JSON or does not match the schema has no effect. The response is a problem document."""
    async with served.client() as ada:
        answer = await ada.post("/v1/sessions", content=body, headers=JSON)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
        assert answer.json()["instance"] == answer.headers["x-request-id"]
        assert (await ada.get("/v1/sessions")).json()["items"] == []


async def test_long_and_encoded_bodies_are_rejected(served):
    """A body above the limit is a 413 before it has arrived, or while its chunks arrive. gzip is never unpacked."""

    async def chunks():
        for _ in range(40):
            yield b" " * 50_000

    async with served.client() as ada:
        bomb = gzip.compress(b" " * 10_000_000)
        encoded = await ada.post("/v1/sessions", content=bomb, headers={**JSON, "content-encoding": "gzip"})
        assert encoded.status_code == 415
        response = await ada.post("/v1/sessions", content=b" " * 1_000_001, headers=JSON)
        assert response.status_code == 413
        streamed = await ada.post("/v1/sessions", content=chunks(), headers=JSON)
        assert streamed.status_code == 413


@pytest.mark.parametrize(
    "path",
    [
        "/v1/%2e%2e/v1/sessions",
        "//v1/sessions",
        "/v1/sessions/",
        "/v1//sessions",
        "/V1/sessions",
        "/v1/sessions/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/v1/sessions/%252e%252e%252f",
        "/v1/sessions/%00",
        "/v1/sessions/%ff",
        "/v1/sessions/..;/",
        "/v1/sessions/a%0d%0aset-cookie:%20x=1",
    ],
)
async def test_encoded_paths_stay_in_their_segment(served, path):
    """Encoded characters stay in their segment, and each path is matched by the route table."""
    async with served.client() as ada:
        answer = await ada.send(
            ada.build_request("GET", httpx2.URL(served.gateway.url).copy_with(raw_path=path.encode()))
        )
        assert (answer.status_code, answer.json()["type"]) == (404, "/errors/not-found")
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("path", ["/v1/../v1/sessions", "/v1/./sessions", "/v1/sessions/../../etc/passwd"])
async def test_dot_segments_are_not_resolved(served, path):
    """The client curl sends dot segments unchanged, and they match no path."""
    command = ["curl", "-sS", "--path-as-is", "-H", f"authorization: Bearer {served.tokens['ada']}"]
    done = await trio.run_process([*command, served.gateway.url + path], capture_stdout=True)
    assert json.loads(done.stdout)["type"] == "/errors/not-found"


@pytest.mark.parametrize(
    ("query", "status"),
    [("?token=TOKEN", 400), ("?access_token=TOKEN", 400), ("?nothing=1", 422), ("?limit=1&limit=2", 422), ("?limit=x", 422), ("?limit=0", 422), ("?state=odd", 422), ("?limit=%ff", 400), ("?limit=" + "9" * 5000, 422), ("?limit=-1", 422)],
)  # fmt: skip
async def test_queries_are_validated(served, query, status):
    """Unknown, repeated and invalid parameters are rejected. A token in the query is not read."""
    async with served.client() as ada:
        answer = await ada.get(f"/v1/sessions{query}")
        assert answer.status_code == status
        if query in {"?limit=x", "?limit=-1"}:
            assert answer.json()["detail"].startswith("limit= must be a whole number, at least 1, not '")
    async with httpx2.AsyncClient(base_url=served.gateway.url) as nobody:
        token = served.tokens["ada"]
        assert (await nobody.get(f"/v1/sessions{query.replace('TOKEN', token)}")).status_code == 401


async def test_tokens_appear_in_no_log_and_no_response(served, caplog):
    """Requests have valid and invalid tokens in each possible position."""
    caplog.set_level(logging.DEBUG)
    token = served.tokens["ada"]
    async with served.client() as ada:
        answers = [
            await ada.get("/v1/sessions"),
            await ada.get(f"/v1/sessions?token={token}"),
            await ada.get("/v1/sessions", headers={"authorization": f"Bearer {token}x"}),
            await ada.post("/v1/sessions", content=b"{", headers=JSON),
        ]
    ours = [record for record in caplog.records if record.name.startswith(("actgent", "hypercorn"))]
    assert token not in json.dumps([record.getMessage() for record in ours])
    assert all(token not in answer.text and token not in str(answer.headers) for answer in answers)


async def test_unexpected_exception_shows_only_the_request_id(served, monkeypatch, caplog):
    """An unexpected exception is a 500 with the request id. The log has the message under that id, and the response does not."""

    async def broken(*args, **options):
        raise RuntimeError("secret words")

    monkeypatch.setattr(served.gateway.app.context.access.journal, "page", broken)
    async with served.client() as ada:
        answer = await ada.get("/v1/sessions")
    assert (answer.status_code, answer.json()["type"]) == (500, "/errors/internal")
    assert "secret" not in answer.text
    assert answer.json()["instance"] in caplog.text


async def test_responses_have_security_headers(served):
    """Responses are not stored, not sniffed, not framed, and do not identify the server."""
    async with served.client() as ada:
        headers = (await ada.get("/v1/sessions")).headers
    assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "server" not in headers


async def test_token_has_a_request_rate(serving):
    """Above the burst a token gets 429 with the time to wait. Another token is not affected."""
    limits = GatewayLimits(rate=0.01, burst=3, grace=1)
    async with serving(limits=limits) as served, served.client() as ada, served.client("bob") as bob:
        answers = [await ada.get("/v1/sessions") for _ in range(4)]
        assert [each.status_code for each in answers] == [200, 200, 200, 429]
        left = [each.headers["ratelimit"] for each in answers]
        assert left[:2] == ['"requests";r=2', '"requests";r=1']
        assert {each.partition(";t=")[0] for each in left[2:]} == {'"requests";r=0'}
        assert left[3].partition(";t=")[2] == answers[3].headers["retry-after"]
        assert {each.headers["ratelimit-policy"] for each in answers} == {'"requests";q=3;w=300'}
        assert int(answers[3].headers["retry-after"]) > 10
        assert (await bob.get("/v1/sessions")).status_code == 200


async def test_messages_sent_during_a_recount_are_counted():
    """The recount removes only messages that were sent before it. A token without a limit is not counted."""
    from actgent.errors import ConfigurationError
    from actgent.journal.session_list_queries import SessionKey
    from actgent.web.gateway_limits import OpenMessages
    from actgent.web.problem_documents import Problem
    from actgent.web.server.relayed_request_handler import LIMITS

    key, messages = SessionKey("clerk", "s1"), OpenMessages(2)

    class Asked:
        def cached_head(self, agent, session_id):
            return None

        async def head(self, agent, session_id):
            messages.count("ada", key)
            messages.count("ada", key)
            await trio.lowlevel.checkpoint()

    messages.count("ada", key)
    messages.count("ada", key)
    with pytest.raises(Problem, match="2 messages"):
        await messages.check("ada", Asked())
    unbounded = OpenMessages(LIMITS.messages)
    unbounded.count("ada", key)
    assert not unbounded._sent
    with pytest.raises(ConfigurationError):
        GatewayLimits(messages=0)


async def test_token_has_a_limit_of_open_messages(serving):
    """Unfinished messages are counted per token. Ended messages free their slots."""
    from actgent import BareAgent, ScriptedLLM

    go = trio.Event()

    async def slow(chat):
        await go.wait()
        return "ok"

    agent = BareAgent(name="clerk", llm=ScriptedLLM(slow), grace=0)
    async with (
        serving(agents=[agent], limits=GatewayLimits(messages=2, grace=1)) as served,
        served.client() as ada,
    ):
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        answers = [await ada.post("/v1/sessions/s1/messages", json={"input": "x"}) for _ in range(3)]
        assert [each.status_code for each in answers] == [202, 202, 429]
        assert answers[2].json()["limit"] == "messages"
        go.set()
        for _ in range(9):
            texts = [
                f"/v1/sessions/s1/runs/{each.json()['message_id']}"
                for each in answers
                if each.status_code == 202
            ]
            for each in texts:
                assert (await ada.get(each, headers={"prefer": "wait=10"})).json()["status"] == "answered"
            answers = [await ada.post("/v1/sessions/s1/messages", json={"input": "x"})]
            assert [each.status_code for each in answers] == [202]
