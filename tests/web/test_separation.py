"""Objects of another owner are invisible."""

import re

import pytest

from actgent.journal.in_memory_journal import MemoryJournal
from actgent.web.routes.endpoint_table import ENDPOINTS

BODIES = {
    "/sessions": {"agent": "clerk"},
    "/sessions/{id}": {"agent": "clerk"},
    "PATCH /sessions/{id}": {"add_tags": ["billing"]},
    "/sessions/{id}/messages": {"input": "hello"},
    "/sessions/{id}/mode": {"mode": "act"},
    "/sessions/{id}/schedules": {"input": "x", "after": 60},
    "/sessions/{id}/tasks": {"agent": "helper", "input": "x"},
    "/approvals/{id}/decision": {"approve": {}},
    "/sessions/{id}/lifts": {"source": "page"},
    "/sessions/{id}/messages/{m}/feedback": {"score": 1},
    "/sessions/{id}/calls/{call}": {"reject": "no"},
}
"""Bodies by path, or by verb and path, of the endpoints that require a body."""
OF_SESSIONS = [each for each in ENDPOINTS if "{id}" in each.path]


def fill(path, session_id, approval_id):
    known = {"id": approval_id if path.startswith("/approvals") else session_id, "a": "clerk"}
    return "/v1" + re.sub(r"\{(\w+)\}", lambda found: known.get(found[1], "m1"), path)


async def ask(client, endpoint, session_id, approval_id):
    body = BODIES.get(f"{endpoint.verb} {endpoint.path}", BODIES.get(endpoint.path, {}))
    value = {} if endpoint.verb in ("GET", "DELETE") else {"json": body}
    path = fill(endpoint.path, session_id, approval_id)
    return await client.request(endpoint.verb, path, **value)


@pytest.fixture
async def asked(served):
    """Create ada's session with a call that waits for her approval. Return the approval id."""
    async with served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk", "mode": "act"})
        await ada.post("/v1/sessions/s1/messages", json={"input": "deploy", "message_id": "m1"})
        for _ in range(200):
            waiting = (await ada.get("/v1/approvals")).json()["items"]
            if waiting:
                break
        yield served, waiting[0]["id"]


@pytest.mark.parametrize("endpoint", OF_SESSIONS, ids=lambda each: f"{each.verb} {each.path}")
async def test_session_of_another_owner_is_404(asked, endpoint):
    """At each path of a session, another owner gets the same bytes as for an unknown session."""
    served, approval_id = asked
    made = endpoint.verb == "PUT" and endpoint.path == "/sessions/{id}"
    async with served.client("bob") as bob, served.client() as ada:
        before = (await ada.get("/v1/sessions/s1")).json()
        theirs = await ask(bob, endpoint, "s1", approval_id)
        none = await ask(bob, endpoint, "s2", "0.s2")
        assert theirs.status_code == (403 if endpoint.scope == "admin" else 404)
        if not made:  # a PUT with a free id creates a session
            known = ("instance",)
            first, second = (
                {k: v for k, v in each.json().items() if k not in known} for each in (theirs, none)
            )
            assert first == second
            assert theirs.headers.keys() == none.headers.keys()
        assert (await ada.get("/v1/sessions/s1")).json() == before


async def test_agent_parameter_selects_one_session(served):
    """The same id with another agent or another owner is a 404, like an unknown session."""
    async with served.client() as ada, served.client("bob") as bob:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        for client, agent, status in ((ada, "clerk", 202), (ada, "helper", 404), (bob, "clerk", 404)):
            path = f"/v1/sessions/s1/messages?agent={agent}"
            assert (await client.post(path, json={"input": "hello"})).status_code == status


async def test_owner_check_takes_one_read_with_the_agent_named(serving):
    """If the request names the agent, the gateway does not look the session up among all agents."""
    asked = []

    class Noting(MemoryJournal):
        async def agents_with_session(self, session_id):
            asked.append(session_id)
            return await super().agents_with_session(session_id)

    async with Noting().running() as journal, serving(journal=journal) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        asked.clear()
        response = await ada.post("/v1/sessions/s1/messages?agent=clerk", json={"input": "hello"})
        assert (response.status_code, asked) == (202, [])
        response = await ada.post("/v1/sessions/s1/messages", json={"input": "hello"})
        assert (response.status_code, asked) == (202, ["s1"])


async def test_lists_have_only_the_owners_objects(asked):
    """For each query, lists of sessions and approvals have only the owner's objects. An admin's lists have all."""
    served, approval_id = asked
    async with served.client("bob") as bob, served.client("root") as root:
        for query in ("", "?q=s1", "?agent=clerk", "?status=suspended"):
            assert (await bob.get(f"/v1/sessions{query}")).json()["items"] == []
        assert (await bob.get("/v1/sessions?owner=ada")).status_code == 403
        assert (await bob.get("/v1/sessions?parent=s1")).status_code == 404
        assert (await bob.get("/v1/approvals")).json()["items"] == []
        assert [each["id"] for each in (await root.get("/v1/sessions?owner=ada")).json()["items"]] == ["s1"]
        assert [each["id"] for each in (await root.get("/v1/approvals")).json()["items"]] == [approval_id]


async def test_child_session_belongs_to_the_roots_owner(served):
    """The root session's owner can access a child session. An owner with the name of the child's agent cannot."""
    from actgent.web.access_tokens import new_token

    secret, token = new_token("imposter", owner="clerk", scopes=("chat",))
    async with served.client() as ada, served.client("bob") as bob:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        made = await ada.post(
            "/v1/sessions/s1/tasks", json={"agent": "helper", "input": "x", "task_id": "t1"}
        )
        assert made.status_code == 202
        below = (await ada.get("/v1/sessions?parent=s1")).json()["items"]
        assert len(below) == 1
        path = "/v1/sessions/" + below[0]["id"].replace("/", "%2F")
        assert (await ada.get(path)).json()["parent"] == {"agent": "clerk", "id": "s1"}
        assert (await bob.get(path)).status_code == 404
        served.gateway.app.tokens.add(token)
        bob.headers["authorization"] = f"Bearer {secret}"
        assert (await bob.get(path)).status_code == 404
        assert (await bob.get("/v1/sessions")).json()["items"] == []


async def test_impersonating_token_reaches_the_owners_sessions(served):
    """A back end with `impersonate:*` acts as the named owner. A token without that scope cannot."""
    async with served.client() as ada, served.client("service", **{"actgent-owner": "ada"}) as service:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        assert (await service.get("/v1/sessions/s1")).status_code == 200
        assert (await ada.get("/v1/sessions/s1", headers={"actgent-owner": "bob"})).status_code == 403
        assert (await service.get("/v1/sessions/s1", headers={"actgent-owner": "bob"})).status_code == 404
        assert (await ada.put("/v1/sessions/s2", json={"agent": "clerk", "owner": "bob"})).status_code == 403
