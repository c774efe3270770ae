"""Runs of a session: streamed from the request that sends a message, listed, read and cancelled."""

import pytest
import trio

from actgent import BareAgent, GatewayLimits, ScriptedLLM
from tests.web.test_streams import Events, pages

MESSAGES, RUNS = "/v1/sessions/s1/messages", "/v1/sessions/s1/runs"
WAIT = {"prefer": "wait=20"}


@pytest.fixture
async def ada(served):
    async with served.client() as client:
        await client.put("/v1/sessions/s1", json={"agent": "clerk", "mode": "act"})
        yield client


async def stream(client, body, *, headers=None, until=None):
    """Send a message with `stream`, and return the events up to the end of the answer, or up to the event `until`."""
    events = Events()
    asked = client.stream("POST", MESSAGES, json={**body, "stream": True}, headers=headers or {})
    with trio.fail_after(30):
        async with asked as answer:
            assert (answer.status_code, answer.headers["content-type"]) == (
                200,
                "text/event-stream; charset=utf-8",
            )
            async for chunk in answer.aiter_text():
                events.feed(chunk)
                if until is not None and any(name == until for _, name, _ in events.found):
                    break
    return events.found


def numbered(found):
    return [(int(number), name) for number, name, _ in found if number]


async def test_the_request_that_sends_a_message_streams_its_run(ada):
    """The stream has the session's events from the message on, and ends after the run."""
    await ada.post(MESSAGES, json={"input": "before"}, headers=WAIT)
    found = await stream(ada, {"input": "hello", "message_id": "m1"})
    assert [name for _, name, _ in found if name != "token"] == [
        "message",
        "turn",
        "answer",
        "reply",
        "ended",
    ]
    listed = await pages(ada, "/v1/sessions/s1/events")
    assert numbered(found) == [
        (number, name) for number, name, _ in listed if int(number) >= int(found[0][0])
    ]
    again = await stream(ada, {"input": "hello", "message_id": "m1"})
    assert [each for each in again if each[0]] == [each for each in found if each[0]]


async def test_stream_of_a_run_has_the_events_that_the_client_selects(serving):
    """The events that are held back until the next turn arrive before the answer ends."""
    answers = trio.Event()

    async def think(_):
        await answers.wait()
        return "done"

    agents = [BareAgent(name="slow", llm=ScriptedLLM(think))]
    async with serving(agents=agents) as served, served.client() as client:
        await client.put("/v1/sessions/s1", json={"agent": "slow"})
        headers = {"actgent-events": "turn", "actgent-events-along": "reply"}
        events, body = Events(), {"input": "hello", "stream": True}
        with trio.fail_after(30):
            async with client.stream("POST", MESSAGES, json=body, headers=headers) as answer:
                async for chunk in answer.aiter_text():
                    events.feed(chunk)
                    if events.has("turn"):
                        answers.set()
        assert [name for _, name, _ in events.found] == ["turn", "reply"]


async def test_stream_of_a_run_resumes_after_the_last_event(ada):
    """A repeated request with the same key sends no second message, and gets only the later events."""
    headers = {"idempotency-key": "k1"}
    whole = numbered(await stream(ada, {"input": "hello"}, headers=headers))
    for index, (number, _) in enumerate(whole, 1):
        rest = await stream(ada, {"input": "hello"}, headers={**headers, "last-event-id": str(number)})
        assert numbered(rest) == whole[index:]
    assert len((await ada.get(RUNS)).json()["items"]) == 1


async def test_stream_of_a_run_ends_when_it_waits_for_an_approval(ada):
    found = await stream(ada, {"input": "deploy", "message_id": "m1"})
    assert {"approval", "turn"} == {name for _, name, _ in found[-2:]}
    (approval,) = (await ada.get("/v1/approvals")).json()["items"]
    assert (await ada.post(f"/v1/approvals/{approval['id']}/decision", json={"approve": {}})).is_success
    body, headers = {"input": "deploy", "message_id": "m1"}, {"last-event-id": found[-1][0]}
    rest = await stream(ada, body, headers=headers)
    assert (rest[0][1], rest[-1][1]) == ("decision", "ended")
    assert int(rest[0][0]) > int(found[-1][0])


async def test_two_requests_stream_one_run_and_both_end(serving):
    """The second one, with the same key, neither sends a second message nor gets other events."""
    requested, answers = trio.Event(), trio.Event()

    async def think(_):
        requested.set()
        await answers.wait()
        return "done"

    async with (
        serving(agents=[BareAgent(name="slow", llm=ScriptedLLM(think))]) as served,
        served.client() as client,
    ):
        await client.put("/v1/sessions/s1", json={"agent": "slow"})
        found = []

        async def read():
            found.append(await stream(client, {"input": "hello", "message_id": "m1"}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await requested.wait()
            nursery.start_soon(read)
            await client.get("/v1/agents")
            answers.set()
        first, second = map(numbered, found)
        assert first == second
        assert first[-1][1] == "ended"
        assert len((await client.get(RUNS)).json()["items"]) == 1


async def test_client_that_disconnects_does_not_end_the_run(serving):
    answers = trio.Event()

    async def think(_):
        await answers.wait()
        return "done"

    async with (
        serving(agents=[BareAgent(name="slow", llm=ScriptedLLM(think))]) as served,
        served.client() as client,
    ):
        await client.put("/v1/sessions/s1", json={"agent": "slow"})
        await stream(client, {"input": "hello", "message_id": "m1"}, until="turn")
        answers.set()
        assert (await client.get(f"{RUNS}/m1", headers=WAIT)).json()["status"] == "answered"
        async with served.client("root") as admin:
            while "actgent_http_streams 0\n" not in (await admin.get("/v1/metrics")).text:  # noqa: ASYNC110 - the server sees it later
                await trio.sleep(0.01)


async def test_stream_that_exceeds_the_limit_sends_no_message(serving):
    """The message of the rejected request is not accepted; later ones are."""
    answers = trio.Event()

    async def think(_):
        await answers.wait()
        return "done"

    agents = [BareAgent(name="slow", llm=ScriptedLLM(think))]
    async with (
        serving(agents=agents, limits=GatewayLimits(grace=1, streams=1)) as served,
        served.client() as client,
    ):
        await client.put("/v1/sessions/s1", json={"agent": "slow"})
        async with client.stream("POST", MESSAGES, json={"input": "one", "message_id": "m1", "stream": True}):
            body = {"input": "two", "message_id": "m2", "stream": True}
            with trio.fail_after(30):
                refused = await client.post(MESSAGES, json=body)
            assert (refused.status_code, refused.json()["limit"]) == (429, "streams")
            assert (await client.get(f"{RUNS}/m2")).status_code == 404
        answers.set()
        assert (await client.get(f"{RUNS}/m1", headers=WAIT)).json()["status"] == "answered"
        assert (await stream(client, {"input": "two", "message_id": "m2"}))[-1][1] == "ended"


async def test_runs_are_listed_newest_first_in_pages(ada):
    for number in range(5):
        await ada.post(MESSAGES, json={"input": f"{number}", "message_id": f"m{number}"}, headers=WAIT)
    await ada.post(MESSAGES, json={"input": "deploy", "message_id": "m5"}, headers=WAIT)
    items, query = [], {"limit": 3}
    while True:
        page = (await ada.get(RUNS, params=query)).json()
        items += page["items"]
        if page["next"] is None:
            break
        query["after"] = page["next"]
    statuses = [(each["message_id"], each["status"]) for each in items]
    assert statuses == [("m5", "suspended"), *((f"m{number}", "answered") for number in (4, 3, 2, 1, 0))]
    for each in items:
        assert (await ada.get(f"{RUNS}/{each['message_id']}")).json() == each
    assert (await ada.get(RUNS, params={"after": "x"})).status_code == 422


async def test_cancelling_a_queued_run_keeps_the_running_one(serving):
    """Cancelling it twice, and cancelling an ended run, has no effect. An unknown run is a 404."""
    requested, answers = trio.Event(), trio.Event()

    async def think(_):
        requested.set()
        await answers.wait()
        return "done"

    async with (
        serving(agents=[BareAgent(name="slow", llm=ScriptedLLM(think))]) as served,
        served.client() as client,
    ):
        await client.put("/v1/sessions/s1", json={"agent": "slow"})
        await client.post(MESSAGES, json={"input": "one", "message_id": "m1"})
        await requested.wait()
        await client.post(MESSAGES, json={"input": "two", "message_id": "m2"})
        for _ in range(2):
            assert (await client.post(f"{RUNS}/m2/cancel", json={"reason": "not needed"})).status_code == 204
        assert (await client.post(f"{RUNS}/m3/cancel", json={})).status_code == 404
        answers.set()
        assert (await client.get(f"{RUNS}/m1", headers=WAIT)).json()["status"] == "answered"
        assert (await client.post(f"{RUNS}/m1/cancel", json={})).status_code == 204
        outcomes = {each["message_id"]: each["status"] for each in (await client.get(RUNS)).json()["items"]}
        assert outcomes == {"m1": "answered", "m2": "failed"}
        async with served.client("bob") as bob:
            assert (await bob.get(RUNS)).status_code == 404
            assert (await bob.post(f"{RUNS}/m1/cancel", json={})).status_code == 404
