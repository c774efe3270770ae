"""Messages over HTTP."""

import base64

import pytest
import trio

from actgent import BareAgent, ScriptedLLM


@pytest.fixture
async def ada(served):
    async with served.client() as client:
        await client.put("/v1/sessions/s1", json={"agent": "clerk"})
        yield client


async def test_a_message_is_taken_and_answered(ada):
    """202 with a cursor at once; who prefers to wait gets the outcome."""
    taken = await ada.post("/v1/sessions/s1/messages", json={"content": "hello"})
    assert taken.status_code == 202
    waited = await ada.post(
        "/v1/sessions/s1/messages", json={"content": "again"}, headers={"prefer": "wait=10"}
    )
    assert waited.status_code == 200
    assert waited.json()["outcome"] == {
        "text": "you said: again",
        "data": None,
        "message_type": None,
        "failed": None,
        "error": None,
    }
    assert (await ada.get(taken.headers["location"])).json()["outcome"]["text"] == "you said: hello"


async def test_a_key_says_a_message_once(ada):
    """The same key gives the same message and outcome again, and other words under it are refused."""
    asked = {"json": {"content": "one"}, "headers": {"idempotency-key": "k1", "prefer": "wait=10"}}
    first, again = [await ada.post("/v1/sessions/s1/messages", **asked) for _ in range(2)]
    assert first.json() == again.json()
    by_body = await ada.post("/v1/sessions/s1/messages", json={"content": "one", "message_id": "k1"})
    assert by_body.json() == first.json()
    other = await ada.post("/v1/sessions/s1/messages", json={"content": "two", "message_id": "k1"})
    assert other.json()["type"] == "/errors/key-reused"
    both = await ada.post(
        "/v1/sessions/s1/messages", json={"content": "x", "message_id": "a"}, headers={"idempotency-key": "b"}
    )
    assert both.status_code == 422
    assert (await ada.get("/v1/sessions/s1")).json()[
        "records"
    ] == 6  # of one turn, and the first of the session


async def test_a_hundred_of_one_key_are_one_turn(serving):
    """Repetitions that come together are one message and one answer."""
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
            said = await ada.post(
                "/v1/sessions/s1/messages",
                json={"content": "x"},
                headers={"idempotency-key": "k", "prefer": "wait=20"},
            )
            outcomes.append((said.status_code, said.json()["outcome"]["text"]))

        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(say)
        assert (outcomes, calls) == ([(200, "42")] * 40, 1)


async def test_a_key_is_known_after_a_restart(serving, tmp_path):
    """A repetition in another process finds the message and what it came to."""
    journal = f"sqlite:///{tmp_path}/agents.db"
    asked = {"json": {"content": "one"}, "headers": {"idempotency-key": "k1", "prefer": "wait=10"}}
    stories = []
    for _ in range(2):
        async with serving(journal=journal) as served, served.client() as ada:
            await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
            stories.append((await ada.post("/v1/sessions/s1/messages", **asked)).json())
    assert stories[0] == stories[1]
    assert stories[0]["status"] == "answered"


async def test_who_waits_for_too_short_gets_the_message_as_it_is(serving):
    """After the time of `Prefer: wait` the answer is 202, and the turn goes on."""
    go = trio.Event()

    async def slow(chat):
        await go.wait()
        return "at last"

    async with (
        serving(agents=[BareAgent(name="slow", llm=ScriptedLLM(slow), grace=0)]) as served,
        served.client() as ada,
    ):
        await ada.put("/v1/sessions/s1", json={"agent": "slow"})
        said = await ada.post(
            "/v1/sessions/s1/messages", json={"content": "x", "message_id": "m"}, headers={"prefer": "wait=1"}
        )
        assert (said.status_code, said.json()["status"]) == (202, "working")
        go.set()
        said = await ada.post(
            "/v1/sessions/s1/messages",
            json={"content": "x", "message_id": "m"},
            headers={"prefer": "wait=10"},
        )
        assert said.json()["outcome"]["text"] == "at last"


async def test_a_full_inbox_is_429_at_once(serving):
    """What is full does not queue, and says when to come again."""

    async def slow(chat):
        await trio.sleep_forever()

    agent = BareAgent(name="slow", llm=ScriptedLLM(slow), session_inbox=1, grace=0)
    async with serving(agents=[agent]) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "slow"})
        answers = [await ada.post("/v1/sessions/s1/messages", json={"content": "x"}) for _ in range(3)]
        assert [each.status_code for each in answers] == [202, 202, 429]
        assert answers[2].json()["type"] == "/errors/inbox-full"
        assert int(answers[2].headers["retry-after"]) >= 1


async def test_parts_are_said(serving):
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
        said = await ada.post(
            "/v1/sessions/s1/messages", json={"content": parts}, headers={"prefer": "wait=10"}
        )
        assert said.status_code == 200
    assert (seen[0].text, seen[1].data, seen[2].url, seen[2].name) == (
        "look",
        b"\x89PNG",
        "https://example.com/a.pdf",
        "a.pdf",
    )


@pytest.mark.parametrize(
    "content",
    ["", "  ", [], [{"type": "text"}], [{"type": "image", "media_type": "image/png", "data": "!"}], [{"type": "image", "media_type": "image/png"}], 5, {"type": "text", "text": "x"}],
)  # fmt: skip
async def test_what_is_no_message_is_refused(ada, content):
    """Empty and malformed content is a 422, and nothing is written."""
    before = (await ada.get("/v1/sessions/s1")).json()["records"]
    refused = await ada.post("/v1/sessions/s1/messages", json={"content": content})
    assert refused.status_code == 422
    assert (await ada.get("/v1/sessions/s1")).json()["records"] == before


async def test_an_unknown_message_is_not_found(ada):
    """Only accepted messages have an address."""
    assert (await ada.get("/v1/sessions/s1/messages/never")).status_code == 404
