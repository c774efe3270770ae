"""Records, past states, forks, and lists of all sessions over HTTP."""

from functools import partial

import pytest
import trio

from actgent import BareAgent, GatewayLimits, ScriptedLLM, Sender, tool
from actgent.journal.session_export_and_fork import load_sessions
from actgent.web.routes import records_forks_and_replays


@tool
def look() -> str:
    """Look."""
    return "seen"


@pytest.fixture
async def ada(served):
    """Yield a client of ada, with a session of two messages."""
    async with served.client() as client:
        await client.put("/v1/sessions/s1", json={"agent": "clerk"})
        for text in ("one", "two"):
            await client.post("/v1/sessions/s1/messages", json={"input": text}, headers={"prefer": "wait=20"})
        yield client


async def test_records_are_read_page_by_page(served, ada):
    """Each record appears once with number, time and type. The scope journal is required."""
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


async def test_past_state_is_returned(ada):
    """After a record, the history has its former content. The digest is stable."""
    early = (await ada.get("/v1/sessions/s1/at/4")).json()
    late = (await ada.get("/v1/sessions/s1/at/11")).json()
    assert [each["text"] for each in early["history"]] == ["one", "you said: one"]
    assert len(late["history"]) == 4
    assert early["digest"] == (await ada.get("/v1/sessions/s1/at/4")).json()["digest"] != late["digest"]
    assert (await ada.get("/v1/sessions/s1/state?at=4")).json()["number"] == 4
    for number in ("0", "99", "x", "-1", "9" * 30):
        assert (await ada.get(f"/v1/sessions/s1/at/{number}")).status_code == 404
    assert (await ada.get("/v1/sessions/s1/state?at=99")).status_code == 422


async def test_fork_is_independent_of_the_original(served, ada):
    """A fork starts after a record, belongs to the caller's owner, and does not change the original."""
    made = await ada.post("/v1/sessions/s1/fork", json={"at": 6, "session_id": "s2", "input": "three"})
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


async def test_fork_resumes_an_open_turn(ada):
    """The open turn resumes in the copy, and ends. The original gets no more records."""
    for at in (3, 4, 8):
        made = await ada.post("/v1/sessions/s1/fork", json={"at": at, "session_id": f"s1-{at}"})
        assert made.status_code == 201, made.text
        events = await ada.get(f"/v1/sessions/s1-{at}/events", headers={"accept": "application/json"})
        texts = [each["data"] for each in events.json()["items"] if each["event"] == "message"][-1]
        path = f"/v1/sessions/s1-{at}/runs/{texts['message_id']}"
        outcome = (await ada.get(path, headers={"prefer": "wait=20"})).json()["outcome"]
        assert outcome["text"] == f"you said: {'one' if at < 7 else 'two'}"
    assert (await ada.get("/v1/sessions/s1")).json()["records"] == 11


async def test_reading_a_session_does_not_start_its_turn(serving):
    """A session with a suspended turn is shown as waiting by each GET, and is not loaded. A POST starts the turn."""
    requests = []
    llm = ScriptedLLM(lambda chat: requests.append(chat) or "yes")
    async with (
        serving(agents=[BareAgent(name="clerk", llm=llm)]) as served,
        served.client() as ada,
        served.client("root") as reader,
    ):
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        await ada.post("/v1/sessions/s1/messages", json={"input": "one"}, headers={"prefer": "wait=20"})
        await served.runtime.fork("s1", to=3, new_id="s2")
        running = served.runtime.agents.opener("clerk").running
        for path in ("", "/messages", "/schedules", "/tasks", "/approvals", "/messages?limit=1", "/state"):
            answer = await reader.get(f"/v1/sessions/s2{path}")
            assert answer.status_code == 200, (path, answer.text)
            assert "s2" not in running.sessions, path
        shown = (await reader.get("/v1/sessions/s2")).json()
        assert (shown["status"], [each["text"] for each in shown["waiting"]]) == ("waiting", ["one"])
        assert shown["turn"] == {"message_id": shown["waiting"][0]["message_id"]}
        assert len(requests) == 1
        response = await ada.post(
            "/v1/sessions/s2/messages", json={"input": "two"}, headers={"prefer": "wait=20"}
        )
        assert response.json()["status"] == "answered"
        assert len(requests) == 3
        assert (await reader.get("/v1/sessions/s2")).json()["status"] == "idle"


async def test_fork_of_a_child_session_is_rejected(served, ada):
    """The session's owner is the agent that opened it. A fork would give the copy to an owner with the same name."""
    opener = served.runtime.agents.opener
    parent = await opener("clerk").find("s1")
    child = opener("helper").new(Sender("clerk", "agent"), session_id="c1", parent=parent)
    await child.log.flush()
    assert (await ada.get("/v1/sessions/c1")).json()["owner"] == "clerk"
    refused = await ada.post("/v1/sessions/c1/fork", json={"session_id": "c2"})
    assert (refused.status_code, refused.json()["type"]) == (409, "/errors/conflict")
    assert (await ada.get("/v1/sessions/c2")).status_code == 404


async def test_exported_session_can_be_imported(ada, tmp_path):
    """`actgent journal import` reads the exported file."""
    file = tmp_path / "session"
    file.write_bytes((await ada.get("/v1/sessions/s1/export")).content)
    (exported,) = load_sessions(file)
    assert (exported.session_id, exported.agent, len(exported.records)) == ("s1", "clerk", 11)


async def test_long_session_is_exported_page_by_page(serving, tmp_path, monkeypatch):
    """The file has all records and the announced size. At most one page of records is read at a time."""
    async with serving() as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        for number in range(60):
            body = {"input": f"{number} \N{SNOWMAN} " + "x" * 2000}
            await ada.post("/v1/sessions/s1/messages", json=body, headers={"prefer": "wait=20"})
        journal, requests = served.runtime.journal, []
        read = journal.read

        async def noted(*arguments, limit, **more):
            requests.append(limit)
            return await read(*arguments, limit=limit, **more)

        async def load(*_, **__):
            pytest.fail("the whole session was read")

        monkeypatch.setattr(type(journal), "read", lambda _, *a, **k: noted(*a, **k))
        monkeypatch.setattr(type(journal), "load", load)
        answer = await ada.get("/v1/sessions/s1/export")
        monkeypatch.undo()
        records = await journal.load("s1")
    file = tmp_path / "session"
    file.write_bytes(answer.content)
    (exported,) = load_sessions(file)
    assert exported.records == records
    assert len(records) > 200
    assert (max(requests), len(requests)) == (200, 4)
    assert int(answer.headers["content-length"]) == len(answer.content)


async def test_model_request_of_a_record_is_rebuilt(serving):
    """The response is the request of the next answer, as the current code builds it. After the last answer there is none."""
    agents = [BareAgent("clerk", llm=ScriptedLLM(["one", "two"]), tools=[look], system_prompt="Be kind.")]
    async with serving(agents=agents) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        for text in ("first", "second"):
            body = {"input": text}
            await ada.post("/v1/sessions/s1/messages", json=body, headers={"prefer": "wait=20"})
        last = (await ada.get("/v1/sessions/s1")).json()["records"]
        found = [(await ada.get(f"/v1/sessions/s1/at/{n}/request")).json() for n in range(1, last + 1)]
        assert (await ada.get("/v1/sessions/s1/at/99/request")).status_code == 404
    early, late = found[0]["request"], found[5]["request"]
    text = [[part["text"] for each in shown["messages"] for part in each["parts"]] for shown in (early, late)]
    assert text == [["first"], ["first", "one", "second"]]
    assert ("Be kind." in early["system"], early["tools"][0]["name"], early["is_same_prompt"]) == (
        True,
        "look",
        True,
    )
    answers = [each["request"] and each["request"]["answer"] for each in found]
    assert (answers[0], answers[3], answers[4]) == (4, 4, late["answer"])
    assert found[-1]["request"] is None


async def test_schedules_and_budgets_are_limited_to_the_owner(served, ada):
    """Schedules and budgets of other owners are not listed, and pages end."""
    for number in range(3):
        body = {"input": f"{number}", "after": 1000 - number}
        assert (await ada.post("/v1/sessions/s1/schedules", json=body)).status_code == 201
    found, after = [], {}
    while True:
        page = (await ada.get("/v1/schedules", params={"limit": 1, **after})).json()
        found += [each["input"] for each in page["items"]]
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
        assert (await bob.get("/v1/rate-limiters")).status_code == 200


async def test_comparison_with_the_same_code_finds_no_difference(served, ada):
    """The comparison does not change the session."""
    before = (await ada.get("/v1/sessions/s1")).json()
    same = await ada.post("/v1/sessions/s1/compare", json={})
    assert (same.status_code, same.json()) == (200, {"number": 11, "difference": None})
    assert (await ada.get("/v1/sessions/s1")).json() == before
    assert (await ada.post("/v1/sessions/s1/compare", json={"at": 99})).status_code == 422
    async with served.client("reader") as reader:
        assert (await reader.post("/v1/sessions/s1/compare", json={})).status_code == 403


async def test_first_difference_has_both_sides(serving, tmp_path):
    """After a restart with another prompt, the comparison has the record number, the recorded value and the replayed value."""
    url = f"sqlite:///{tmp_path}/j.db"
    for prompt in ("Be kind.", "Be rude."):
        agent = BareAgent("clerk", llm=ScriptedLLM(["yes"] * 9), system_prompt=prompt)
        async with serving(journal=url, agents=[agent]) as served, served.client() as ada:
            if prompt == "Be kind.":
                await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
                body = {"input": "hello"}
                await ada.post("/v1/sessions/s1/messages", json=body, headers={"prefer": "wait=20"})
            found = (await ada.post("/v1/sessions/s1/compare", json={})).json()["difference"]
            early = (await ada.post("/v1/sessions/s1/compare", json={"at": 2})).json()["difference"]
    assert (found["step"], found["recorded"][:24]) == (4, "system prompt and tools ")
    assert found["replayed"] != found["recorded"]
    assert early is None


async def test_comparisons_are_limited_and_end_with_their_client(serving, monkeypatch):
    """A comparison above the limit is rejected at once. A disconnected client cancels its comparison. A comparison that takes too long is a 503."""
    entered, left = [], []

    async def compare(*_, **__):
        entered.append(1)
        try:
            await trio.sleep_forever()
        finally:
            left.append(1)

    monkeypatch.setattr(records_forks_and_replays, "compare_session", compare)
    async with serving(limits=GatewayLimits(grace=1, comparisons=1)) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(ada.post, "/v1/sessions/s1/compare", json={}))
            await until(lambda: entered)
            refused = await ada.post("/v1/sessions/s1/compare", json={})
            assert (refused.status_code, refused.json()["type"]) == (429, "/errors/too-many-requests")
            nursery.cancel_scope.cancel()
        await until(lambda: left)
    async with serving(limits=GatewayLimits(grace=1, compare_seconds=0.01)) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        late = await ada.post("/v1/sessions/s1/compare", json={})
        assert (late.status_code, late.json()["detail"].partition(":")[0]) == (
            503,
            "the comparison took longer than 0.01 s",
        )


async def until(condition):
    with trio.fail_after(60):
        while not condition():
            await trio.testing.wait_all_tasks_blocked(0.02)
