"""The stream of changes in all sessions of an owner: agents, pending approvals and failures."""

from contextlib import asynccontextmanager

import pytest
import trio

from actgent import BareAgent, ModelError, ScriptedLLM

from .test_streams import Events


@asynccontextmanager
async def watched(served, what, *names):
    """Yield a client, and the events that each named token receives during the block."""
    async with trio.open_nursery() as nursery:
        async with served.client(names[0]) as first:
            found = [await nursery.start(watch, served, name, what) for name in names]
            yield (first, *found)
        nursery.cancel_scope.cancel()


async def watch(served, name, what, task_status):
    """Read a stream. The task starts after its first line, so no later event is missed."""
    events, is_open = Events(), False
    async with (
        served.client(name) as client,
        client.stream("GET", "/v1/events", params={"watch": what}) as stream,
    ):
        async for piece in stream.aiter_text():
            events.feed(piece)
            if not is_open:
                task_status.started(events)
                is_open = True


async def until(condition):
    with trio.fail_after(60):
        while not condition():
            await trio.testing.wait_all_tasks_blocked(0.05)


async def test_watch_reports_approvals_and_decisions(served):
    """A watcher of approvals receives the requests and decisions of its own sessions, and no session heads."""
    async with watched(served, "approvals,errors", "ada", "bob", "root") as (ada, mine, theirs, every):
        await ada.put("/v1/sessions/s1", json={"agent": "clerk", "mode": "act"})
        await ada.post("/v1/sessions/s1/messages", json={"input": "deploy", "message_id": "m1"})
        await until(lambda: mine.has("approval") and every.has("approval"))
        (name, asked) = mine.grown[0]
        assert (name, asked["tool"], asked["session_id"]) == ("approval", "deploy", "s1")
        await ada.post(f"/v1/approvals/{asked['id']}/decision", json={"reject": "not now"})
        await until(lambda: mine.has("decision") and every.has("decision"))
        assert [name for name, _ in mine.grown] == ["approval", "decision"]
        assert (mine.grown[1][1]["id"], mine.grown[1][1]["word"]) == (asked["id"], "rejected")
        assert (mine.grown[1][1]["session_id"], mine.grown[1][1]["by"]) == ("s1", "ada")
        assert theirs.grown == []


async def test_watch_reports_failures_with_their_kind(serving):
    """A watcher of errors receives the message, the session, the error class, and a fixed text."""
    agent = BareAgent("clerk", llm=ScriptedLLM([ModelError("secret-host is down")] * 9))
    async with serving(agents=[agent]) as served, watched(served, "errors", "ada") as (ada, mine):
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        await ada.post("/v1/sessions/s1/messages", json={"input": "hello", "message_id": "m1"})
        await until(lambda: mine.has("error"))
        (name, told) = mine.grown[0]
    assert (name, told["agent"], told["session_id"], told["message_id"]) == ("error", "clerk", "s1", "m1")
    assert (told["failed"], told["error"]["class"]) == ("model", "ModelError")


async def test_watch_reports_changed_agents(served):
    """A watcher of agents receives all of them at once, and then each changed one."""
    async with watched(served, "agents", "ada") as (ada, mine):
        await until(lambda: len(mine.grown) >= 2)
        assert [data["agent"] for _, data in mine.grown] == ["clerk", "helper"]
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        await until(lambda: len(mine.grown) >= 3 and mine.grown[-1][1]["sessions"] == 1)
        assert {(name, data["agent"]) for name, data in mine.grown[2:]} == {("agent", "clerk")}


@pytest.mark.parametrize("what", ["nothing", "heads,", "heads,secrets", ""])
async def test_unknown_watch_kind_is_422(served, what):
    """The response names the known kinds."""
    async with served.client() as ada:
        answer = await ada.get("/v1/events", params={"watch": what})
        assert answer.status_code == 422
        assert "heads, agents, approvals, errors" in answer.json()["detail"]
