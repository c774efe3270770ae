"""Ratings of answers over HTTP."""

import pytest

from actgent import ConfigurationError, SessionNotFound, UsageError

PLACE = "/v1/sessions/s1/messages/m1/feedback"


@pytest.fixture
async def ada(served):
    """Yield a client of ada with an answered message."""
    async with served.client() as client:
        await answered(client)
        yield client


async def answered(client):
    """Send the message `m1`, and wait for the answer."""
    await client.put("/v1/sessions/s1", json={"agent": "clerk"})
    body = {"input": "hello", "message_id": "m1"}
    response = await client.post("/v1/sessions/s1/messages", json=body, headers={"prefer": "wait=20"})
    assert response.status_code == 200


async def records(client):
    """Return the number of records of the session."""
    return (await client.get("/v1/sessions/s1")).json()["records"]


async def test_latest_rating_of_an_owner_counts(ada, served):
    """An equal rating writes nothing. A different rating of the same owner replaces the first one. A rating of another owner is added."""
    good = {"score": 1, "comment": "right"}
    assert (await ada.post(PLACE, json=good)).status_code == 204
    number = await records(ada)
    assert (await ada.post(PLACE, json=good)).status_code == 204
    assert await records(ada) == number
    assert (await ada.post(PLACE, json={"score": 0, "expected": "other"})).status_code == 204
    async with served.client("root") as root:
        assert (await root.post(PLACE, json={"score": 0.5})).status_code == 204
    items = (await ada.get(PLACE)).json()["items"]
    assert [(each["by"], each["score"], each["expected"]) for each in items] == [
        ("ada", 0, "other"),
        ("root", 0.5, None),
    ]
    page = await ada.get("/v1/sessions/s1/events", headers={"accept": "application/json"})
    received = [each for each in page.json()["items"] if each["event"] == "feedback"]
    assert [each["data"]["score"] for each in received] == [1, 0, 0.5]


async def test_rating_does_not_change_the_conversation(ada):
    """A rating between two messages and a rating after the end do not change the conversation."""
    assert (await ada.post(PLACE, json={"score": 1})).status_code == 204
    response = await ada.post(
        "/v1/sessions/s1/messages", json={"input": "more"}, headers={"prefer": "wait=20"}
    )
    assert response.json()["outcome"]["text"] == "you said: more"
    await ada.post("/v1/sessions/s1/close", json={})
    assert (await ada.post(PLACE, json={"score": 0})).status_code == 204
    assert (await ada.get("/v1/sessions/s1")).json()["status"] == "closed"
    assert (await ada.get(PLACE)).json()["items"][0]["score"] == 0


@pytest.mark.parametrize(
    ("name", "message_id", "body", "status"),
    [
        ("reader", "m1", {"score": 1}, 403),
        ("bob", "m1", {"score": 1}, 404),
        ("ada", "m1", {"score": 2}, 422),
        ("ada", "m1", {}, 422),
        ("ada", "m1", {"score": 1, "by": "bob"}, 422),
        ("ada", "m2", {"score": 1}, 409),
    ],
)
async def test_invalid_rating_is_rejected(served, name, message_id, body, status):
    """A wrong scope, a session of another owner, an invalid rating, and an unknown message are rejected."""
    async with served.client() as ada, served.client(name) as client:
        await answered(ada)
        number = await records(ada)
        place = PLACE.replace("m1", message_id)
        assert (await client.post(place, json=body)).status_code == status
        assert await records(ada) == number


async def test_rating_survives_a_restart(serving, tmp_path):
    """The rating exists after a restart. An unanswered message and an unknown session accept no rating."""
    journal = f"sqlite:///{tmp_path}/a.db"
    async with serving(journal=journal) as served, served.client() as client:
        await client.put("/v1/sessions/s1", json={"agent": "clerk", "mode": "act"})
        for content, message_id in (("hello", "m1"), ("deploy", "m2")):
            body = {"input": content, "message_id": message_id}
            await client.post("/v1/sessions/s1/messages", json=body, headers={"prefer": "wait=20"})
        assert await served.runtime.rate("s1", "m1", score=1, by="ada")
        with pytest.raises(UsageError, match="no answered message"):
            await served.runtime.rate("s1", "m2", score=1, by="ada")
        with pytest.raises(SessionNotFound):
            await served.runtime.rate("s2", "m1", score=1, by="ada")
        with pytest.raises(ConfigurationError, match="from 0"):
            await served.runtime.rate("s1", "m1", score=float("nan"), by="ada")
    async with serving(journal=journal) as served, served.client() as client:
        assert (await client.get(PLACE)).json()["items"][0]["score"] == 1
        assert not await served.runtime.rate("s1", "m1", score=1, by="ada")
        response = await client.get("/v1/sessions/s1/runs/m2")
        assert response.json()["status"] == "suspended"
