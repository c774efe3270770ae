"""Plans, thoughts, calls and answers of an agent over HTTP: history pages, streams, several subscribers."""

import json
import logging

import pytest
import trio

from actgent import LLM, ModelResponse, PlanAgent, ScriptedLLM, Text, tool

from .test_streams import Events, read

PATH = "/v1/sessions/s1/observations"


@tool(effect="pure")
async def depth(lake: str) -> int:
    """Tell how deep a lake is."""
    return {"Baikal": 1642}[lake]


PLAN = json.dumps(
    {
        "thoughts": "One lookup will do.",
        "title": "Depth",
        "intent": "know how deep Baikal is",
        "plan": ["look it up"],
        "toolCalls": [{"toolName": "depth", "arguments": {"lake": "Baikal"}}],
    }
)
ANSWER = "It is 1642 m deep."


def planner(llm):
    names = {"role": "clerk", "goal": "help", "capabilities": "words"}
    return PlanAgent("clerk", llm=llm, tools=[depth], **names)


async def observed(client, **query):
    """Return all observations, read page by page."""
    found, after = [], 0
    while after is not None:
        page = await client.get(
            PATH, params={"limit": 500, "after": after, **query}, headers={"accept": "application/json"}
        )
        assert page.status_code == 200, page.text
        found += page.json()["items"]
        after = page.json()["next"]
    return found


@pytest.fixture
async def looked(serving):
    """Yield a gateway whose agent ran a lookup for ada, and her client."""
    async with serving(agents=[planner(ScriptedLLM([PLAN, ANSWER] * 9))]) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        for name in ("m1", "m2"):
            body = {"input": "How deep is Baikal?", "message_id": name}
            await ada.post("/v1/sessions/s1/messages", json=body, headers={"prefer": "wait=20"})
        yield served, ada


async def test_observations_are_read_with_and_without_a_filter(looked):
    """Observations have ids, times and parents. `types` and `turn` filter them."""
    _, ada = looked
    every = await observed(ada)
    kinds = {each["type"] for each in every}
    assert {"INTENT", "PLAN", "THOUGHTS", "TOOL_EXECUTION", "FINAL_RESPONSE"} <= kinds
    assert len({each["id"] for each in every}) == len(every)
    result = next(each for each in every if each["type"] == "TOOL_EXECUTION")
    assert (result["content"], result["metadata"]["status"], result["turn"]) == ("1642", "success", "m1")
    assert all(each["at"].endswith("Z") and each["is_whole"] for each in every)
    assert await observed(ada, types="TOOL_EXECUTION,PLAN", turn="m2") == [
        each for each in every if each["turn"] == "m2" and each["type"] in ("TOOL_EXECUTION", "PLAN")
    ]


async def test_each_subscriber_receives_its_filtered_observations(looked):
    """Two subscribers with different filters receive history and new observations. Each stream equals the pages."""
    _, ada = looked
    answers, tools = Events(), Events()
    async with trio.open_nursery() as nursery:
        for events, types in ((answers, "FINAL_RESPONSE"), (tools, "PLAN,TOOL_EXECUTION")):
            nursery.start_soon(read, ada, f"{PATH}?types={types}", events, "end")
        body = {"input": "How deep is Baikal?", "message_id": "m3"}
        await ada.post("/v1/sessions/s1/messages", json=body, headers={"prefer": "wait=20"})
        await ada.post("/v1/sessions/s1/close", json={})
    for events, types in ((answers, "FINAL_RESPONSE"), (tools, "PLAN,TOOL_EXECUTION")):
        received = [each[-1] for each in sorted([*events.found, *events.grown], key=order) if each[-1]]
        assert received == await observed(ada, types=types)
    assert len(answers.found) == 4  # three answers, and the end
    headers = {"last-event-id": answers.last}
    assert (await ada.get(PATH, headers=headers)).status_code == 204


def order(found):
    return found[-1].get("number", 1e9)


async def test_subscriber_resumes_after_its_cursor(looked):
    """After a record number, the stream has only later observations."""
    _, ada = looked
    await ada.post("/v1/sessions/s1/close", json={})
    every = await observed(ada)
    middle = every[len(every) // 2]["number"]
    events = Events(last=str(middle))
    await read(ada, PATH, events, "end")
    received = [each[-1]["id"] for each in sorted([*events.found, *events.grown], key=order) if each[-1]]
    assert received == [each["id"] for each in every if each["number"] > middle]


class Slow(LLM):
    """A model that emits a plan in pieces. After the first piece it waits for a signal."""

    name = "slow"

    def __init__(self):
        self.go_on = trio.Event()
        self.answers = [PLAN, ANSWER]

    async def complete(self, chat, on_text=None):
        text = self.answers.pop(0)
        if on_text is not None:
            await on_text(text[:25], 0)
        await self.go_on.wait()
        if on_text is not None:
            await on_text(text[25:], 0)
        return ModelResponse(parts=(Text(text),))


async def subscribe(client, path, task_status):
    """Read a stream to its end. The task starts when the stream is open."""
    events, is_open = Events(), False
    async with client.stream("GET", path) as stream:
        async for piece in stream.aiter_text():
            events.feed(piece)
            if not is_open:
                task_status.started(events)
                is_open = True


async def test_thoughts_are_streamed(serving):
    """A partial thought has no number. The complete thought arrives with the answer."""
    llm = Slow()
    async with serving(agents=[planner(llm)]) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        async with trio.open_nursery() as nursery:
            events = await nursery.start(subscribe, ada, f"{PATH}?types=THOUGHTS")
            await ada.post("/v1/sessions/s1/messages", json={"input": "think", "message_id": "m1"})
            with trio.fail_after(60):
                while not events.grown:
                    await trio.testing.wait_all_tasks_blocked(0.05)
            llm.go_on.set()
            with trio.fail_after(60):
                while not events.found:
                    await trio.testing.wait_all_tasks_blocked(0.05)
            await ada.post("/v1/sessions/s1/close", json={})
    name, growing = events.grown[0]
    number, _, whole = events.found[0]
    assert (name, growing["content"], growing["is_whole"]) == ("observation", "One lookup ", False)
    assert (whole["content"], whole["is_whole"], whole["id"]) == ("One lookup will do.", True, growing["id"])
    assert int(number) == whole["number"]


async def test_invalid_queries_are_rejected(looked):
    """An unknown type, and a cursor above the last record, are errors that name the remedy."""
    _, ada = looked
    wrong = await ada.get(PATH, params={"types": "INTENT,DREAMS"})
    assert wrong.status_code == 422
    assert "THOUGHTS" in wrong.json()["detail"]
    assert (await ada.get(PATH, params={"after": 10_000})).status_code == 409


async def test_open_gateway_suppresses_the_no_approver_log(served, caplog):
    """While a gateway is open, the log does not report that no approver exists."""
    caplog.set_level(logging.WARNING)
    async with served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk", "mode": "act"})
        await ada.post("/v1/sessions/s1/messages", json={"input": "deploy"}, headers={"prefer": "wait=20"})
        assert len((await ada.get("/v1/approvals")).json()["items"]) == 1
    assert "no handler received" not in caplog.text
