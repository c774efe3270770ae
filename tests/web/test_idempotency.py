"""Requests with an `Idempotency-Key` create an object once. A key belongs to one body."""

import pytest
import trio

SCHEDULE = {"input": "look", "after": 3600}
TASK = {"agent": "helper", "input": "do it"}
CREATING = {
    "sessions": ("/v1/sessions", {"agent": "clerk"}, {"agent": "helper"}),
    "limits": ("/v1/sessions", {"agent": "clerk"}, {"agent": "clerk", "limits": {"tokens": 9}}),
    "messages": ("/v1/sessions/s1/messages", {"input": "one"}, {"input": "two"}),
    "metadata": ("/v1/sessions/s1/messages", {"input": "one"}, {"input": "one", "metadata": {"a": 1}}),
    "schedules": ("/v1/sessions/s1/schedules", SCHEDULE, {**SCHEDULE, "input": "listen"}),
    "delays": ("/v1/sessions/s1/schedules", SCHEDULE, {**SCHEDULE, "after": 7200}),
    "tasks": ("/v1/sessions/s1/tasks", TASK, {**TASK, "input": "do more"}),
    "agents": ("/v1/sessions/s1/tasks", TASK, {**TASK, "agent": "clerk"}),
    "forks": ("/v1/sessions/s1/fork", {"at": 6}, {"at": 5}),
    "named": ("/v1/sessions/s1/fork", {"at": 6, "session_id": "x"}, {"at": 5, "session_id": "x"}),
    "told": ("/v1/sessions/s1/fork", {"at": 6, "input": "hi"}, {"at": 6, "input": "ho"}),
}


async def counts(client):
    """Return the numbers of sessions of each kind, of all messages, and of schedules."""
    heads = (await client.get("/v1/sessions")).json()["items"]
    page = {"accept": "application/json"}
    events = [
        each["event"]
        for head in heads
        for each in (
            await client.get(
                f"/v1/sessions/{head['id'].replace('/', '%2F')}/events",
                params={"agent": head["agent"], "limit": 500},
                headers=page,
            )
        ).json()["items"]
    ]
    return len(heads), events.count("message"), events.count("schedule")


async def begin(client):
    await client.put("/v1/sessions/s1", json={"agent": "clerk"})
    body = {"json": {"input": "hello"}, "headers": {"prefer": "wait=20"}}
    assert (await client.post("/v1/sessions/s1/messages", **body)).status_code == 200


def without_times(made):
    """Return the fields of a response that are equal in each repetition."""
    return {name: value for name, value in made.items() if name in ("id", "message_id", "agent", "due")}


@pytest.mark.parametrize("name", CREATING)
async def test_key_creates_once_for_one_body(served, name):
    """A repeated request gets the first response. The key with another body is a 422 and creates nothing."""
    path, body, other = CREATING[name]
    key = {"idempotency-key": "k1"}
    async with served.client() as ada, served.client("root") as root:
        await begin(ada)
        first = await ada.post(path, json=body, headers=key)
        assert first.status_code in (200, 201, 202), first.text
        with trio.fail_after(20):
            await served.runtime.agents.opener("clerk").find("s1")
        before = (await counts(root))[0], (await counts(root))[2]
        again = await ada.post(path, json=body, headers=key)
        assert again.status_code in (first.status_code, 200), again.text
        assert without_times(again.json()) == without_times(first.json())
        refused = await ada.post(path, json=other, headers=key)
        assert (refused.status_code, refused.json()["type"]) == (422, "/errors/key-reused"), refused.text
        assert ((await counts(root))[0], (await counts(root))[2]) == before


@pytest.mark.parametrize("name", ["sessions", "schedules", "tasks", "forks", "told"])
async def test_key_survives_a_restart(serving, tmp_path, name):
    """After a restart the key still belongs to its request, and a repetition creates no second object."""
    path, body, other = CREATING[name]
    journal, key = f"sqlite:///{tmp_path}/a.db", {"idempotency-key": "k1"}
    async with serving(journal=journal) as served, served.client() as ada:
        await begin(ada)
        first = await ada.post(path, json=body, headers=key)
    async with serving(journal=journal) as served, served.client() as ada, served.client("root") as root:
        before = (await counts(root))[0]
        again = await ada.post(path, json=body, headers=key)
        assert again.status_code == first.status_code, again.text
        assert without_times(again.json()) == without_times(first.json())
        assert (await ada.post(path, json=other, headers=key)).status_code == 422
        assert (await counts(root))[0] == before


async def test_concurrent_requests_with_one_key_create_once(served):
    """Of two bodies with one key, one creates the object, and the other is rejected."""
    async with served.client() as ada:
        answers = []

        async def post(agent):
            answers.append(
                await ada.post("/v1/sessions", json={"agent": agent}, headers={"idempotency-key": "k"})
            )

        async with trio.open_nursery() as nursery:
            for agent in ("clerk", "helper", "clerk", "helper"):
                nursery.start_soon(post, agent)
        assert sorted(each.status_code for each in answers) == [201, 201, 422, 422]
        assert len((await ada.get("/v1/sessions")).json()["items"]) == 1


async def test_empty_key_is_rejected(served):
    """A client that sends an empty key would get no idempotency, so the request fails."""
    async with served.client() as ada:
        answer = await ada.post("/v1/sessions", json={"agent": "clerk"}, headers={"idempotency-key": ""})
        assert (answer.status_code, answer.json()["type"]) == (422, "/errors/invalid")
        assert (await ada.get("/v1/sessions")).json()["items"] == []


async def test_keys_of_two_owners_are_independent(served):
    """The same key of another owner is another request."""
    async with served.client() as ada, served.client("bob") as bob:
        made = [
            await client.post("/v1/sessions", json=body, headers={"idempotency-key": "k"})
            for client, body in ((ada, {"agent": "clerk"}), (bob, {"agent": "helper"}))
        ]
    assert [each.status_code for each in made] == [201, 201]


async def test_different_key_and_id_are_rejected(served):
    """The key also names the created object, so the key and the id must be equal."""
    async with served.client() as ada:
        await begin(ada)
        for path, body in (
            ("schedules", {**SCHEDULE, "key": "other"}),
            ("tasks", {**TASK, "task_id": "other"}),
            ("messages", {"input": "x", "message_id": "other"}),
        ):
            answer = await ada.post(f"/v1/sessions/s1/{path}", json=body, headers={"idempotency-key": "k1"})
            assert (answer.status_code, answer.json()["type"]) == (422, "/errors/invalid"), path


async def test_key_of_a_session_with_an_id_creates_once(served):
    """PUT with the same key and another body, or another agent, is a 422. Another key is a 409."""
    async with served.client() as ada:

        async def put(key, **body):
            answer = await ada.put(
                "/v1/sessions/mine", json={"agent": "clerk", **body}, headers={"idempotency-key": key}
            )
            return answer.status_code

        assert [await put("k1"), await put("k1")] == [201, 201]
        assert await put("k1", limits={"tokens": 9}) == 422
        assert await put("k1", agent="helper") == 422
        assert await put("k2") == 409
        assert len((await ada.get("/v1/sessions")).json()["items"]) == 1
