"""Readiness of a gateway with its reason, and the limits of agents."""

import pytest
import trio

from actgent import BareAgent, Limits, ScriptedLLM
from actgent.errors import Fenced, JournalFull
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.web.routes import agents_and_server_status as health


class Failing(MemoryJournal):
    """A journal that fails each write while an error is set."""

    error = None

    async def _write(self, rows, heads, epoch):
        if self.error is not None:
            raise self.error
        await super()._write(rows, heads, epoch)


async def reasons_of(client):
    answer = await client.get("/v1/health/ready")
    assert answer.status_code in (200, 503)
    if answer.status_code == 503:
        assert answer.headers["retry-after"]
        assert answer.json()["type"] == "/errors/unavailable"
    return answer.json().get("reasons", [])


async def test_not_ready_while_an_inbox_is_full(serving):
    """The gateway is ready again when the inbox has room."""
    gate = trio.Event()

    async def answer(_):
        await gate.wait()
        return "done"

    full = BareAgent("clerk", llm=ScriptedLLM(answer), inbox_capacity=2)
    agents = [full, BareAgent("helper", llm=ScriptedLLM([]))]
    async with serving(agents=agents) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        statuses = []
        for _ in range(4):
            response = await ada.post("/v1/sessions/s1/messages", json={"input": "x"})
            statuses.append(response.status_code)
        assert statuses == [202, 202, 202, 429]
        assert await reasons_of(ada) == ["full inboxes: 1 of 2"]
        gate.set()
        with trio.fail_after(60):
            while await reasons_of(ada):
                await trio.testing.wait_all_tasks_blocked(0.01)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (JournalFull("no space"), "the journal cannot be written"),
        (Fenced("gone"), "another process owns the journal"),
    ],
)
async def test_not_ready_while_the_journal_fails(serving, error, answer, monkeypatch):
    """The gateway is not ready after a failed write. A fenced journal becomes ready after a write that succeeds, and other failures also expire."""
    async with Failing().running() as journal, serving(journal=journal) as served, served.client() as ada:
        assert await reasons_of(ada) == []
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        journal.error = error
        failed = await ada.post("/v1/sessions/s1/messages", json={"input": "x"})
        assert failed.status_code == 503
        assert await reasons_of(ada) == [answer]
        monkeypatch.setattr(health, "FAILURE_SECONDS", 0.0)
        assert await reasons_of(ada) == ([answer] if isinstance(error, Fenced) else [])
        monkeypatch.undo()
        journal.error = None
        ended = await ada.post("/v1/sessions/s1/messages", json={"input": "x"}, headers={"prefer": "wait=20"})
        assert ended.json()["status"] == "answered"
        assert await reasons_of(ada) == []


async def test_not_ready_without_agents(serving):
    """A gateway without agents is not ready."""
    async with serving(agents=[]) as served, served.client() as ada:
        assert await reasons_of(ada) == ["no agent runs here"]
        assert (await ada.get("/v1/health/live")).status_code == 200


async def test_agent_shows_its_limits(serving):
    """The agent document has the limits of each turn."""
    agents = [BareAgent("clerk", llm=ScriptedLLM([]), limits=Limits(model_calls=7, seconds=30))]
    async with serving(agents=agents) as served, served.client() as ada:
        limits = (await ada.get("/v1/agents/clerk")).json()["limits"]
        (listed,) = (await ada.get("/v1/agents")).json()["items"]
    assert (limits["model_calls"], limits["seconds"], limits["tokens"], limits["depth"]) == (7, 30, None, 8)
    assert listed["limits"] == limits
