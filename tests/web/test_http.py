"""HTTP as in RFC 9110 and 9112: HEAD, absolute targets, errors with a body, and limits of tokens and addresses."""

import json

import httpx2
import pytest
import trio

from actgent import GatewayLimits

HEAD = "GET /v1/health/live HTTP/1.1\r\nHost: HOST\r\n"


async def exchange(served, text):
    """Send raw text, and return all data up to the end of the connection."""
    host = served.gateway.url.removeprefix("http://")
    filled = text.replace("HOST", host).replace("TOKEN", served.tokens["ada"])
    name, _, port = host.rpartition(":")
    content = b""
    with trio.fail_after(20):
        async with await trio.open_tcp_stream(name, int(port)) as stream:
            await stream.send_all(filled.encode())
            async for data in stream:
                content += data
    head, _, body = content.partition(b"\r\n\r\n")
    return head.decode(), body


@pytest.mark.parametrize(
    "path",
    [
        "/v1/health/live",
        "/v1/sessions",
        "/v1/sessions/s1",
        "/v1/sessions/s1/messages",
        "/v1/sessions/none",
        "/v1/metrics",
        "/v1/openapi.json",
        "/",
    ],
)
async def test_head_is_answered_as_get_without_a_body(served, path):
    """HEAD has the status and the headers of GET, with the length of its body and without the body."""
    async with served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        head, get = await ada.head(path), await ada.get(path)
    assert head.status_code == get.status_code
    assert head.content == b""
    left_out = {"date", "x-request-id", "ratelimit"}
    if get.status_code < 400 and path != "/v1/metrics":
        assert {n: v for n, v in head.headers.items() if n not in left_out} == {
            n: v for n, v in get.headers.items() if n not in left_out
        }


async def test_head_of_a_stream_ends(served):
    """HEAD starts no stream: the headers arrive, and the next request on the connection is answered."""
    async with served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        with trio.fail_after(10):
            for path in ("/v1/sessions/s1/events", "/v1/events", "/v1/sessions/s1/observations"):
                answer = await ada.head(path)
                assert answer.status_code == 200
                assert answer.headers["content-type"].startswith("text/event-stream")
        assert (await ada.get("/v1/sessions/s1")).status_code == 200
    assert served.gateway.app.context.streams.open == 0


@pytest.mark.parametrize("verb", ["PUT", "DELETE"])
async def test_head_requires_a_path_with_get(served, verb):
    """A path without GET does not support HEAD either."""
    async with served.client() as ada:
        assert (await ada.head("/v1/sessions/s1/interrupt")).status_code == 405
        assert (await ada.request(verb, "/v1/agents", json={})).status_code == 405


async def test_request_target_may_be_a_url(served):
    """The absolute form is accepted (RFC 9112, 3.2.2) if its host equals the Host header."""
    end = "Connection: close\r\n\r\n"
    head, body = await exchange(served, HEAD.replace("/v1", "http://HOST/v1") + end)
    assert head.startswith("HTTP/1.1 200")
    assert json.loads(body) == {"status": "live"}
    token = "Authorization: Bearer TOKEN\r\n"
    listed = "GET http://HOST/v1/sessions?limit=1 HTTP/1.1\r\nHost: HOST\r\n"
    assert (await exchange(served, listed + token + end))[0].startswith("HTTP/1.1 200")
    other, body = await exchange(served, HEAD.replace("/v1", "http://evil.example/v1") + end)
    assert other.startswith("HTTP/1.1 400")
    assert json.loads(body)["type"] == "/errors/malformed-request"
    wrong = HEAD.replace("/v1", "http://evil.example/v1").replace("Host: HOST", "Host: evil.example")
    assert (await exchange(served, wrong + end))[0].startswith("HTTP/1.1 421")


@pytest.mark.parametrize(
    "text",
    [
        HEAD.replace("\r\n", "\n") + "\n",
        HEAD + " folded\r\n\r\n",
        HEAD + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n",
        HEAD + "A: b\r\n" * 7000 + "\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET /a b HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "no request\r\n\r\n",
    ],
    ids=lambda each: repr(each)[-40:],
)
async def test_server_errors_are_problem_documents(served, text):
    """A malformed request is answered with a problem document that has the status of the response."""
    try:
        head, body = await exchange(served, text)
    except trio.BrokenResourceError:  # the server did not read all bytes
        return
    assert head.startswith("HTTP/1.1 4")
    assert "content-type: application/problem+json" in head.lower()
    assert json.loads(body)["status"] == int(head.split(" ")[1])
    assert json.loads(body)["instance"]


async def test_full_server_answers_with_a_problem(serving):
    """Above the maximum number of connections, the response is a problem document."""
    async with serving(limits=GatewayLimits(connections=1, grace=1)) as served, served.client() as ada:
        await ada.get("/v1/health/live")
        head, body = await exchange(served, "")
    assert head.startswith("HTTP/1.1 503")
    assert json.loads(body)["type"] == "/errors/unavailable"


async def test_responses_forbid_embedding_by_other_sites(served):
    """Each response, also of the dashboard, has the header that forbids embedding."""
    async with served.client() as ada:
        for path in ("/v1/sessions", "/v1/none", "/", "/static/app.js", "/v1/health/live"):
            answer = await ada.get(path)
            assert answer.headers["cross-origin-resource-policy"] == "same-origin", path


async def test_unknown_tokens_of_an_address_are_limited(serving):
    """Above the limit per minute an unknown token is a 429. A known token of the same address is not affected."""
    limits = GatewayLimits(grace=1, wrong_tokens=20)
    async with serving(limits=limits) as served, httpx2.AsyncClient(base_url=served.gateway.url) as nobody:
        statuses = [
            (await nobody.get("/v1/sessions", headers={"authorization": f"Bearer act_{n}"})).status_code
            for n in range(40)
        ]
        assert statuses[:20] == [401] * 20
        assert statuses.count(429) >= 19
        limited = await nobody.post("/v1/login", json={"key": "once_wrong"})
        assert limited.status_code == 429
        assert int(limited.headers["retry-after"]) >= 1
        assert (await nobody.get("/v1/sessions")).status_code == 401
        async with served.client() as ada:
            assert (await ada.get("/v1/sessions")).status_code == 200


async def test_streams_have_a_separate_limit(serving):
    """More streams than requests can be open. A stream above the stream limit is a 429, and requests are accepted."""
    limits = GatewayLimits(grace=1, requests=2, streams=4)
    async with serving(limits=limits) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        async with (
            httpx2.AsyncClient(base_url=served.gateway.url, headers=ada.headers, timeout=30) as other,
            trio.open_nursery() as nursery,
        ):
            opened = [trio.Event() for _ in range(4)]

            async def follow(event):
                async with other.stream("GET", "/v1/sessions/s1/events") as stream:
                    assert stream.status_code == 200
                    event.set()
                    await trio.sleep_forever()

            for event in opened:
                nursery.start_soon(follow, event)
            for event in opened:
                await event.wait()
            refused = await ada.get("/v1/sessions/s1/events")
            assert (refused.status_code, refused.json()["limit"]) == (429, "streams")
            page = await ada.get("/v1/sessions/s1/events", headers={"accept": "application/json"})
            assert page.status_code == 200
            nursery.cancel_scope.cancel()


async def test_statistics_cover_the_callers_sessions(served):
    """In statistics, agents and the stream of agents, an owner sees its own sessions. The scopes metrics and admin see all."""
    async with served.client() as ada, served.client("bob") as bob, served.client("root") as root:
        for number in range(3):
            await ada.put(f"/v1/sessions/a{number}", json={"agent": "clerk", "mode": "act"})
            await ada.post(
                f"/v1/sessions/a{number}/messages", json={"input": "deploy"}, headers={"prefer": "wait=20"}
            )
        await bob.put("/v1/sessions/b1", json={"agent": "clerk"})

        async def seen(client):
            agents = (await client.get("/v1/statistics")).json()["agents"]["clerk"]
            listed = (await client.get("/v1/agents")).json()["items"]
            one = (await client.get("/v1/agents/clerk")).json()
            assert next(each for each in listed if each["name"] == "clerk")["sessions"] == one["sessions"]
            assert one["sessions"] == agents["sessions"]
            return agents["sessions"], agents["suspended"]

        assert [await seen(each) for each in (ada, bob, root)] == [(3, 3), (1, 0), (4, 3)]


async def test_head_and_body_of_a_response_are_sent_together(served):
    """One read of a client returns the whole response, also for an empty body. The connection serves all requests."""
    name, _, port = served.gateway.url.removeprefix("http://").rpartition(":")
    lines = [f"Host: {name}:{port}", f"Authorization: Bearer {served.tokens['ada']}"]
    async with await trio.open_tcp_stream(name, int(port)) as stream:
        for verb, path in 8 * [
            ("GET", "/v1/health/live"),
            ("HEAD", "/v1/sessions"),
            ("GET", "/v1/sessions/none"),
        ]:
            await stream.send_all("\r\n".join([f"{verb} {path} HTTP/1.1", *lines, "", ""]).encode())
            with trio.fail_after(20):
                head, _, body = (await stream.receive_some()).partition(b"\r\n\r\n")
            (length,) = [
                int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"content-length: ")
            ]
            assert len(body) == (0 if verb == "HEAD" else length)
