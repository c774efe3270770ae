"""Records, sessions as they were, forks and lists of all sessions, over HTTP."""

import pytest

from actgent import Sender
from actgent.journal.transfer import load_sessions


@pytest.fixture
async def ada(served):
    """Ada, who has said two things in a session."""
    async with served.client() as client:
        await client.put("/v1/sessions/s1", json={"agent": "clerk"})
        for words in ("one", "two"):
            await client.post(
                "/v1/sessions/s1/messages", json={"content": words}, headers={"prefer": "wait=20"}
            )
        yield client


async def test_records_are_read_page_by_page(served, ada):
    """Each record comes once with its number, time and type; the scope journal is needed."""
    found, after = [], 0
    while after is not None:
        page = (await ada.get("/v1/sessions/s1/records", params={"after": after, "limit": 3})).json()
        found += page["items"]
        after = page["next"]
    total = (await ada.get("/v1/sessions/s1")).json()["records"]
    assert [each["number"] for each in found] == list(range(1, total + 1))
    assert [each["record"]["type"] for each in found[:4]] == ["opened", "accepted", "appended", "said"]
    assert found[3]["record"]["message"]["parts"] == [{"type": "text", "text": "you said: one"}]
    assert all(each["at"].endswith("Z") for each in found)
    async with served.client("reader") as reader:
        assert (await reader.get("/v1/sessions/s1/records")).status_code == 403


async def test_a_session_as_it_was(ada):
    """After a record the history is what it was then, and the digest is the same whenever that is asked for."""
    early = (await ada.get("/v1/sessions/s1/at/4")).json()
    late = (await ada.get("/v1/sessions/s1/at/11")).json()
    assert [each["text"] for each in early["history"]] == ["one", "you said: one"]
    assert len(late["history"]) == 4
    assert early["digest"] == (await ada.get("/v1/sessions/s1/at/4")).json()["digest"] != late["digest"]
    assert (await ada.get("/v1/sessions/s1/state?at=4")).json()["number"] == 4
    for number in ("0", "99", "x", "-1", "9" * 30):
        assert (await ada.get(f"/v1/sessions/s1/at/{number}")).status_code == 404
    assert (await ada.get("/v1/sessions/s1/state?at=99")).status_code == 422


async def test_a_copy_goes_its_own_way(served, ada):
    """A fork begins as the session was after a record, is its owner's, and leaves the original alone."""
    made = await ada.post("/v1/sessions/s1/fork", json={"at": 6, "session_id": "s2", "message": "three"})
    assert (made.status_code, made.json()["id"], made.json()["owner"]) == (201, "s2", "ada")
    again = await ada.post("/v1/sessions/s1/fork", json={"session_id": "s2"})
    assert again.status_code == 409
    assert (await ada.post("/v1/sessions/s1/fork", json={"at": 99})).status_code == 422
    events = await ada.get("/v1/sessions/s2/events", headers={"accept": "application/json"})
    texts = [each["data"]["text"] for each in events.json()["items"] if each["event"] == "message"]
    assert texts[0] == "one"
    assert "two" not in texts
    assert (await ada.get("/v1/sessions/s1")).json()["records"] == 11
    async with served.client("bob") as bob:
        await bob.put("/v1/sessions/b1", json={"agent": "clerk"})
        taken = await bob.post("/v1/sessions/b1/fork", json={"session_id": "s1"})
        assert taken.status_code == 404


async def test_a_copy_of_a_child_is_nobody_elses(served, ada):
    """A session that an agent opened in its own name below another is not copied into one of whoever is called like it."""
    opener = served.runtime.agents.opener
    parent = await opener("clerk").find("s1")
    child = opener("helper").new(Sender("clerk", "agent"), session_id="c1", parent=parent)
    await child.log.flush()
    assert (await ada.get("/v1/sessions/c1")).json()["owner"] == "clerk"
    refused = await ada.post("/v1/sessions/c1/fork", json={"session_id": "c2"})
    assert (refused.status_code, refused.json()["type"]) == (409, "/errors/conflict")
    assert (await ada.get("/v1/sessions/c2")).status_code == 404


async def test_an_exported_session_is_a_file_of_the_journal(ada, tmp_path):
    """What is exported is read by `actgent journal import`."""
    file = tmp_path / "session"
    file.write_bytes((await ada.get("/v1/sessions/s1/export")).content)
    (exported,) = load_sessions(file)
    assert (exported.session_id, exported.agent, len(exported.records)) == ("s1", "clerk", 11)


async def test_lists_over_all_sessions_are_of_the_owner(served, ada):
    """Schedules and budgets of other owners are not listed, and pages end."""
    for number in range(3):
        body = {"description": f"{number}", "after": 1000 - number}
        assert (await ada.post("/v1/sessions/s1/schedules", json=body)).status_code == 201
    found, after = [], {}
    while True:
        page = (await ada.get("/v1/schedules", params={"limit": 1, **after})).json()
        found += [each["description"] for each in page["items"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert found == ["2", "1", "0"]
    await ada.put("/v1/sessions/s9", json={"agent": "clerk", "limits": {"tokens": 1000}})
    (budget,) = (await ada.get("/v1/budgets")).json()["items"]
    assert (budget["session_id"], budget["limits"]) == ("s9", {"tokens": 1000})
    async with served.client("bob") as bob:
        for path in ("/v1/schedules", "/v1/budgets"):
            assert (await bob.get(path)).json() == {"items": [], "next": None}
        assert (await bob.get("/v1/governors")).status_code == 200
