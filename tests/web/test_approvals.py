"""Approvals and modes over HTTP."""

import pytest


@pytest.fixture
async def ada(served):
    """Yield a client of ada, in whose session a `deploy` call waits for an approval."""
    async with served.client() as client:
        await client.put("/v1/sessions/s1", json={"agent": "clerk", "mode": "act"})
        assert (await story(client))["status"] == "suspended"
        yield client


async def story(client):
    """Send the message `m1` again. Return its status and outcome."""
    body = {"input": "deploy", "message_id": "m1"}
    response = await client.post("/v1/sessions/s1/messages", json=body, headers={"prefer": "wait=20"})
    return response.json()


async def decide(client, body, approval_id=None):
    known = (await client.get("/v1/sessions/s1/approvals")).json()["items"]
    return await client.post(f"/v1/approvals/{approval_id or known[0]['id']}/decision", json=body)


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"approve": {}}, "done: deployed to mars"),
        ({"edit": {"place": "venus"}, "reason": "nearer"}, "done: deployed to venus"),
        ({"respond": "it is there"}, "done: it is there"),
    ],
)
async def test_decision_resumes_the_turn(ada, body, answer):
    """Each kind of decision has its effect, and the turn of the message ends."""
    waiting = (await ada.get("/v1/approvals")).json()["items"]
    assert [(each["tool"], each["arguments"]) for each in waiting] == [("deploy", {"place": "mars"})]
    assert (await decide(ada, body)).status_code == 204
    assert (await story(ada))["outcome"]["text"].partition("\n")[0] == answer
    assert (await ada.get("/v1/approvals")).json()["items"] == []


async def test_approvals_are_listed_oldest_first(serving):
    """The order is independent of the session ids and of the pages. It includes an approval that was requested between two pages."""
    async with serving() as served, served.client() as ada, served.client("bob") as bob:
        requests = []
        for client, name in ((ada, "s9"), (bob, "s5"), (ada, "s1"), (ada, "s4")):
            await client.put(f"/v1/sessions/{name}", json={"agent": "clerk", "mode": "act"})
            body = {"input": "deploy"}
            await client.post(f"/v1/sessions/{name}/messages", json=body, headers={"prefer": "wait=20"})
            requests.append(name)
        # A message that is queued after the approval changes the session, and not the age of the approval.
        await ada.post("/v1/sessions/s9/messages", json={"input": "and?"})
        found, after = [], {}
        while True:
            page = (await ada.get("/v1/approvals", params={"limit": 1, **after})).json()
            found += [each["session_id"] for each in page["items"]]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert found == ["s9", "s1", "s4"]
        (first, *_) = (await ada.get("/v1/approvals")).json()["items"]
        await ada.post(f"/v1/approvals/{first['id']}/decision", json={"reject": "no"})
        async with served.client("root") as root:
            all_left = (await root.get("/v1/approvals?agent=clerk")).json()["items"]
            assert [each["session_id"] for each in all_left][:3] == ["s5", "s1", "s4"]
            assert (await root.get("/v1/approvals?agent=helper")).json()["items"] == []
            assert (await root.get("/v1/approvals?after=bad")).status_code == 422


async def test_second_decision_is_a_conflict(ada):
    """An unknown approval is a 404, and an invalid decision leaves the approval open."""
    (waiting,) = (await ada.get("/v1/approvals")).json()["items"]
    wrong = await decide(ada, {"edit": {"place": 5}})
    assert (wrong.status_code, wrong.json()["type"]) == (422, "/errors/invalid-arguments")
    for body in (
        {},
        {"approve": {}, "reject": "x"},
        {"approve": True},
        {"by": "bob", "approve": {}},
        {"expire": {}},
    ):
        assert (await decide(ada, body, waiting["id"])).status_code == 422, body
    told = (await decide(ada, {"decision": "approve"}, waiting["id"])).json()["detail"]
    assert "exactly one of approve, reject, edit, respond must be present, not none" in told
    assert (await decide(ada, {"approve": {}}, "0.s1")).status_code == 404
    assert (await decide(ada, {"reject": "no"}, waiting["id"])).status_code == 204
    again = await decide(ada, {"approve": {}}, waiting["id"])
    assert (again.status_code, again.json()["type"]) == (409, "/errors/already-decided")


@pytest.mark.parametrize(
    ("body", "others"),
    [
        ({"approve": {}}, [{"approve": {}, "reason": "fine"}, {"reject": "no"}]),
        ({"edit": {"place": "venus"}, "reason": "nearer"}, [{"edit": {"place": "mars"}, "reason": "nearer"}]),
        ({"respond": {"there": True}}, [{"respond": "it is there"}, {"approve": {}}]),
        ({"reject": "no"}, [{"reject": ""}, {"respond": "no"}]),
    ],
)
async def test_repeated_decision_reports_the_effective_one(served, ada, body, others):
    """A caller that lost the first response learns whether its own decision or another one was recorded."""
    approval_id = (await ada.get("/v1/sessions/s1/approvals")).json()["items"][0]["id"]
    assert (await decide(ada, body, approval_id)).status_code == 204
    for each, is_same in ((body, True), *((other, False) for other in others)):
        again = await decide(ada, each, approval_id)
        assert (again.status_code, again.json()["as_asked"]) == (409, is_same)


async def test_decision_is_recorded_for_the_tokens_owner(served, ada):
    """The journal contains the name of the token's owner."""
    from actgent.journal.record_types import ApprovalDecisionRecord

    assert (await decide(ada, {"reject": "no"})).status_code == 204
    records = await served.runtime.journal.load("s1", agent="clerk")
    assert [each.by for each in records if isinstance(each, ApprovalDecisionRecord)] == ["ada"]


async def test_mode_is_switched(served):
    """The response has the new mode. `force` requires an admin, and an unknown mode is rejected."""
    async with served.client() as ada, served.client("root") as root:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        assert (await ada.put("/v1/sessions/s1/mode", json={"mode": "act"})).json() == {"mode": "act"}
        assert (await ada.get("/v1/sessions/s1")).json()["mode"] == "act"
        assert (
            await ada.put("/v1/sessions/s1/mode", json={"mode": "plan", "force": True})
        ).status_code == 403
        assert (
            await root.put("/v1/sessions/s1/mode", json={"mode": "plan", "force": True})
        ).status_code == 200
        assert (await ada.put("/v1/sessions/s1/mode", json={"mode": "fly"})).status_code == 422
        assert (await ada.put("/v1/sessions/s3", json={"agent": "helper", "mode": "act"})).status_code == 422
