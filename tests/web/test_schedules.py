"""Schedules and tasks over HTTP."""

import pytest


async def test_schedule_is_created_once_per_key(ada):
    """The same key creates no second schedule. A schedule is listed until it is removed."""
    body = {
        "input": "look",
        "cron": "0 9 * * 1",
        "zone": "Europe/Berlin",
        "key": "k",
        "priority": "high",
        "metadata": {"ticket": 7},
    }
    first, again = [await ada.post("/v1/sessions/s1/schedules", json=body) for _ in range(2)]
    assert (first.status_code, first.json()) == (201, again.json())
    listed = (await ada.get("/v1/sessions/s1/schedules")).json()["items"]
    assert listed == [first.json()]
    assert listed[0]["metadata"] == {"ticket": 7}
    assert (listed[0]["zone"], listed[0]["priority"], listed[0]["due"][-1]) == ("Europe/Berlin", "high", "Z")
    path = f"/v1/sessions/s1/schedules/{listed[0]['id']}"
    assert [(await ada.delete(path)).status_code for _ in range(2)] == [204, 404]
    assert (await ada.get("/v1/sessions/s1/schedules")).json()["items"] == []


@pytest.mark.parametrize(
    "body",
    [
        {"input": "x"},
        {"input": "x", "after": 1, "cron": "* * * * *"},
        {"input": "x", "after": -1},
        {"input": "x", "at": "tomorrow"},
        {"input": "x", "at": "2001-01-01T00:00:00Z"},
        {"input": "x", "cron": "* * *"},
        {"input": "x", "cron": "* * * * *", "zone": "Europe/Atlantis"},
        {"input": " ", "after": 1},
    ],
)
async def test_invalid_time_is_rejected(ada, body):
    """No schedule is created."""
    assert (await ada.post("/v1/sessions/s1/schedules", json=body)).status_code == 422
    assert (await ada.get("/v1/sessions/s1/schedules")).json()["items"] == []


async def test_delegated_task_reports_its_result(ada):
    """The result is a message to the session. An unknown agent or task is a 404."""
    given = await ada.post(
        "/v1/sessions/s1/tasks",
        json={"agent": "helper", "input": "do it", "task_id": "t1", "metadata": {"ticket": 7}},
    )
    assert (given.status_code, given.json()) == (202, {"id": "t1", "agent": "helper"})
    seen = {"records": 0}
    while (found := (await ada.get("/v1/sessions/s1")).json())["records"] != seen["records"] or found[
        "unfinished"
    ]:
        seen = found
    assert (
        await ada.post("/v1/sessions/s1/tasks", json={"agent": "nobody", "input": "x"})
    ).status_code == 404
    wrong = {"agent": "helper", "input": "x", "metadata": "x"}
    assert (await ada.post("/v1/sessions/s1/tasks", json=wrong)).status_code == 422
    told, unknown = [await ada.delete(f"/v1/sessions/s1/tasks/{each}") for each in ("t1", "none")]
    assert (told.status_code, told.json()["as_asked"]) == (404, False)
    assert (unknown.status_code, "as_asked" in unknown.json()) == (404, False)


async def test_removal_of_a_fired_schedule_reports_it(ada):
    """A caller that lost the first response learns that the schedule fired before its removal. A removed schedule has no such field."""
    fired, removed = [
        (await ada.post("/v1/sessions/s1/schedules", json={"input": "look", "after": after})).json()["id"]
        for after in (0.001, 3600)
    ]
    assert (await ada.delete(f"/v1/sessions/s1/schedules/{removed}")).status_code == 204
    while len((await ada.get("/v1/sessions/s1/schedules")).json()["items"]):
        pass
    first, second = [await ada.delete(f"/v1/sessions/s1/schedules/{each}") for each in (fired, removed)]
    assert (first.status_code, first.json()["as_asked"]) == (404, False)
    assert (second.status_code, "as_asked" in second.json()) == (404, False)


async def test_running_task_is_listed_and_cancelled(serving):
    """A running task is listed, and a cancelled task is not. Its message has the metadata of the request."""
    import trio

    from actgent import BareAgent, ScriptedLLM

    noted, has_begun = [], trio.Event()

    async def slow(chat):
        has_begun.set()
        await trio.sleep_forever()

    agents = [BareAgent(name=name, llm=ScriptedLLM(slow), grace=0) for name in ("clerk", "helper")]
    agents[1].on_query(lambda message: noted.append(dict(message.metadata)))
    async with serving(agents=agents) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        request = {"agent": "helper", "input": "x", "task_id": "t1", "metadata": {"ticket": 7}}
        await ada.post("/v1/sessions/s1/tasks", json=request)
        await has_begun.wait()
        assert noted == [{"ticket": 7}]
        (listed,) = (await ada.get("/v1/sessions/s1/tasks")).json()["items"]
        assert (listed["id"], listed["agent"], listed["status"]) == ("t1", "helper", "working")
        assert (await ada.delete("/v1/sessions/s1/tasks/t1")).status_code == 204
        assert (await ada.get("/v1/sessions/s1/tasks")).json()["items"] == []
