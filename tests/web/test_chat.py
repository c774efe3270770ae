"""Messages over HTTP."""

import base64

import pytest
import trio

from actgent import BareAgent, File, Image, ScriptedLLM, ToolCall, tool


async def test_message_is_accepted_and_answered(ada):
    """The response is 202 with a cursor. With `Prefer: wait` it has the outcome."""
    taken = await ada.post("/v1/sessions/s1/messages", json={"input": "hello"})
    assert taken.status_code == 202
    waited = await ada.post(
        "/v1/sessions/s1/messages", json={"input": "again"}, headers={"prefer": "wait=10"}
    )
    assert waited.status_code == 200
    outcome = waited.json()["outcome"]
    assert (outcome.pop("id") != "", "total" in outcome.pop("usage")) == (True, True)
    assert outcome == {
        "text": "you said: again",
        "data": None,
        "message_type": None,
        "reasoning": None,
        "failed": None,
        "error": None,
    }
    assert (await ada.get(taken.headers["location"])).json()["outcome"]["text"] == "you said: hello"


async def test_key_sends_a_message_once(ada):
    """The same key returns the same message and outcome. The same key with another content is rejected."""
    request = {"json": {"input": "one"}, "headers": {"idempotency-key": "k1", "prefer": "wait=10"}}
    first, again = [await ada.post("/v1/sessions/s1/messages", **request) for _ in range(2)]
    assert first.json() == again.json()
    by_body = await ada.post("/v1/sessions/s1/messages", json={"input": "one", "message_id": "k1"})
    assert by_body.json() == first.json()
    other = await ada.post("/v1/sessions/s1/messages", json={"input": "two", "message_id": "k1"})
    assert other.json()["type"] == "/errors/key-reused"
    both = await ada.post(
        "/v1/sessions/s1/messages", json={"input": "x", "message_id": "a"}, headers={"idempotency-key": "b"}
    )
    assert both.status_code == 422
    assert (await ada.get("/v1/sessions/s1")).json()["records"] == 6  # of the creation and one turn


async def test_retry_of_a_message_changed_by_a_guard(serving):
    """The journal has the guard's text, and the client repeats its own text."""
    agent = BareAgent("clerk", llm=ScriptedLLM(["ok"], repeat=True))

    @agent.guard(on="input")
    def hide(message):
        return message.text.replace("secret", "***")

    async with serving(agents=[agent]) as served, served.client() as client:
        await client.put("/v1/sessions/s1", json={"agent": "clerk"})
        body = {"input": "my secret", "message_id": "m1"}
        answers = [
            await client.post("/v1/sessions/s1/messages", json=body, headers={"prefer": "wait=10"})
            for _ in range(2)
        ]
        assert [each.status_code for each in answers] == [200, 200]
        assert answers[0].json() == answers[1].json()
        other = await client.post("/v1/sessions/s1/messages", json={**body, "input": "your secret"})
        assert other.json()["type"] == "/errors/key-reused"
        items = (await client.get("/v1/sessions/s1/messages")).json()["items"]
        assert [each["parts"][0]["text"] for each in items] == ["my ***", "ok"]


async def test_guard_runs_once_for_a_repeated_message(serving):
    """The guard accepted the unchanged text, so it is not called for the repetition."""
    texts = []
    agent = BareAgent("clerk", llm=ScriptedLLM(["ok"], repeat=True))
    agent.guard(lambda message: texts.append(message.text), on="input")
    async with serving(agents=[agent]) as served, served.client() as client:
        await client.put("/v1/sessions/s1", json={"agent": "clerk"})
        body = {"input": "hello", "message_id": "m1"}
        for _ in range(3):
            answer = await client.post("/v1/sessions/s1/messages", json=body, headers={"prefer": "wait=10"})
            assert answer.status_code == 200
    assert texts == ["hello"]


async def test_hundred_requests_with_one_key_are_one_turn(serving):
    """Concurrent repetitions create one message and one answer."""
    calls = 0

    def count(chat):
        nonlocal calls
        calls += 1
        return "42"

    async with (
        serving(agents=[BareAgent(name="clerk", llm=ScriptedLLM(count))]) as served,
        served.client() as ada,
    ):
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        outcomes = []

        async def say():
            response = await ada.post(
                "/v1/sessions/s1/messages",
                json={"input": "x"},
                headers={"idempotency-key": "k", "prefer": "wait=20"},
            )
            outcomes.append((response.status_code, response.json()["outcome"]["text"]))

        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(say)
        assert (outcomes, calls) == ([(200, "42")] * 40, 1)


async def test_key_is_known_after_a_restart(serving, tmp_path):
    """A repetition in another process finds the message and its outcome."""
    journal = f"sqlite:///{tmp_path}/agents.db"
    request = {"json": {"input": "one"}, "headers": {"idempotency-key": "k1", "prefer": "wait=10"}}
    stories = []
    for _ in range(2):
        async with serving(journal=journal) as served, served.client() as ada:
            await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
            stories.append((await ada.post("/v1/sessions/s1/messages", **request)).json())
    assert stories[0] == stories[1]
    assert stories[0]["status"] == "answered"


async def test_short_wait_returns_the_unfinished_message(serving):
    """After the time of `Prefer: wait` the response is 202, and the turn continues."""
    go = trio.Event()

    async def slow(chat):
        await go.wait()
        return "at last"

    async with (
        serving(agents=[BareAgent(name="slow", llm=ScriptedLLM(slow), grace=0)]) as served,
        served.client() as ada,
    ):
        await ada.put("/v1/sessions/s1", json={"agent": "slow"})
        response = await ada.post(
            "/v1/sessions/s1/messages", json={"input": "x", "message_id": "m"}, headers={"prefer": "wait=1"}
        )
        assert (response.status_code, response.json()["status"]) == (202, "working")
        go.set()
        response = await ada.post(
            "/v1/sessions/s1/messages", json={"input": "x", "message_id": "m"}, headers={"prefer": "wait=10"}
        )
        assert response.json()["outcome"]["text"] == "at last"


async def test_full_inbox_is_429_at_once(serving):
    """The gateway rejects the request without waiting. `Retry-After` has the delay."""

    async def slow(chat):
        await trio.sleep_forever()

    agent = BareAgent(name="slow", llm=ScriptedLLM(slow), session_inbox_capacity=1, grace=0)
    async with serving(agents=[agent]) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "slow"})
        answers = [await ada.post("/v1/sessions/s1/messages", json={"input": "x"}) for _ in range(3)]
        assert [each.status_code for each in answers] == [202, 202, 429]
        assert answers[2].json()["type"] == "/errors/inbox-full"
        assert int(answers[2].headers["retry-after"]) >= 1


async def test_message_above_the_agents_limit_is_413(serving):
    """The text and the data of the pictures count together. The response names the limit, and the message is not accepted."""
    agent = BareAgent(name="small", llm=ScriptedLLM(["ok"], repeat=True), message_bytes=100)
    picture = {"type": "image", "media_type": "image/png", "data": base64.b64encode(bytes(90)).decode()}
    async with serving(agents=[agent]) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "small"})
        for content in ("x" * 101, [{"type": "text", "text": "x" * 11}, picture]):
            answer = await ada.post("/v1/sessions/s1/messages", json={"input": content})
            assert answer.status_code == 413
            assert answer.json()["type"] == "/errors/message-too-large"
            assert answer.json()["limit"] == 100
        answer = await ada.post(
            "/v1/sessions/s1/messages", json={"input": [{"type": "text", "text": "x" * 10}, picture]}
        )
        assert answer.status_code == 202


async def test_message_parts_are_accepted(serving):
    """Text, pictures and files arrive as they were sent."""
    seen = []

    def look(chat):
        seen.extend(chat.messages[-1].parts)
        return "seen"

    parts = [
        {"type": "text", "text": "look"},
        {"type": "image", "media_type": "image/png", "data": base64.b64encode(b"\x89PNG").decode()},
        {
            "type": "file",
            "media_type": "application/pdf",
            "url": "https://example.com/a.pdf",
            "name": "a.pdf",
        },
    ]
    async with (
        serving(agents=[BareAgent(name="eye", llm=ScriptedLLM(look))]) as served,
        served.client() as ada,
    ):
        await ada.put("/v1/sessions/s1", json={"agent": "eye"})
        response = await ada.post(
            "/v1/sessions/s1/messages", json={"input": parts}, headers={"prefer": "wait=10"}
        )
        assert response.status_code == 200
    assert (seen[0].text, seen[1].data, seen[2].url, seen[2].name) == (
        "look",
        b"\x89PNG",
        "https://example.com/a.pdf",
        "a.pdf",
    )


PNG = b"\x89PNG\r\n\x1a\n" + bytes(30)
PAGE = File(media_type="application/x-page", data=b"<script>alert(1)</script>", name="<b>.html")


@pytest.fixture
async def gallery(serving):
    """Yield a client of a session with a picture of the user and pictures of two concurrent tool calls."""

    @tool(thread=False)
    def show(name: str) -> list:
        """Show something."""
        return [name, Image(media_type="image/png", data=PNG + name.encode()), PAGE]

    calls = [ToolCall("show", {"name": name}, id=name) for name in ("one", "two")]
    agent = BareAgent(name="eye", llm=ScriptedLLM([calls, "seen"]), tools=[show])
    sent = {"type": "image", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}
    linked = {"type": "file", "media_type": "text/plain", "url": "https://example.com/a"}
    async with serving(agents=[agent]) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "eye"})
        response = await ada.post(
            "/v1/sessions/s1/messages", json={"input": [sent, linked]}, headers={"prefer": "wait=10"}
        )
        assert response.status_code == 200, response.text
        page = await ada.get("/v1/sessions/s1/events", headers={"accept": "application/json"})
        yield served, ada, page.json()["items"]


async def test_pictures_and_files_are_downloaded_by_media_id(gallery):
    """Events have the type and size of pictures from users and tools. A link returns the bytes."""
    _, ada, events = gallery
    (picture, linked) = next(each["data"]["parts"] for each in events if each["event"] == "message")
    assert (picture["type"], picture["media_type"], picture["bytes"]) == ("image", "image/png", len(PNG))
    assert (linked["url"], "media_id" in linked) == ("https://example.com/a", False)
    results = {each["data"]["call_id"]: each["data"] for each in events if each["event"] == "result"}
    found = {name: results[name]["media"] for name in ("one", "two")}
    expected = {picture["media_id"]: PNG}
    for name, (shown, page) in found.items():
        expected |= {shown["media_id"]: PNG + name.encode(), page["media_id"]: PAGE.data}
        assert page["name"] == PAGE.name
        assert "image/png" in results[name]["content"]
    assert len(expected) == 5
    for media_id, data in expected.items():
        got = await ada.get(f"/v1/sessions/s1/media/{media_id}")
        assert (got.status_code, got.content) == (200, data)
        is_picture = data != PAGE.data
        assert got.headers["content-type"] == ("image/png" if is_picture else "application/octet-stream")
        assert got.headers["content-disposition"] == "attachment"
        assert "sandbox" in got.headers["content-security-policy"]
        assert got.headers["x-content-type-options"] == "nosniff"


async def test_unknown_media_id_is_404(gallery):
    """Numbers of other records, unknown positions, other formats, and sessions of other owners are not found."""
    served, ada, events = gallery
    (picture, _) = next(each["data"]["parts"] for each in events if each["event"] == "message")
    known = picture["media_id"]
    number = int(known.partition("-")[0])
    for other in (
        f"{number}-1",
        f"{number}-2",
        f"{number + 1}-0",
        "0-0",
        "99-0",
        "1",
        "1-0",
        f"0{known}",
        f"{known}/",
        "9" * 40 + "-0",
    ):
        assert (await ada.get(f"/v1/sessions/s1/media/{other}")).status_code == 404, other
    async with served.client("bob") as bob:
        assert (await bob.get(f"/v1/sessions/s1/media/{known}")).status_code == 404
    description = (await ada.get("/v1/openapi.json")).json()
    operation = description["paths"]["/v1/sessions/{id}/media/{media_id}"]["get"]
    assert operation["x-scope"] == "read"
    assert operation["responses"]["200"]["content"] == {
        "application/octet-stream": {
            "schema": {"type": "string", "contentMediaType": "application/octet-stream"}
        }
    }


@pytest.mark.parametrize(
    "content",
    ["", "  ", [], [{"type": "text"}], [{"type": "image", "media_type": "image/png", "data": "!"}], [{"type": "image", "media_type": "image/png"}], 5, {"type": "text", "text": "x"}],
)  # fmt: skip
async def test_invalid_message_is_422(ada, content):
    """Empty and malformed content is a 422, and nothing is written."""
    before = (await ada.get("/v1/sessions/s1")).json()["records"]
    refused = await ada.post("/v1/sessions/s1/messages", json={"input": content})
    assert refused.status_code == 422
    assert (await ada.get("/v1/sessions/s1")).json()["records"] == before


async def test_unknown_message_is_404(ada):
    """Only an accepted message has a path."""
    assert (await ada.get("/v1/sessions/s1/runs/never")).status_code == 404
