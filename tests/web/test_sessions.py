"""Sessions over HTTP."""

import base64
from functools import partial

import trio

from actgent import LLM, BareAgent, ScriptedLLM, open_runtime
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import (
    NOT_KEPT,
    REFUSED,
    MessageAcceptedRecord,
    MessageEndRecord,
    SessionClosedRecord,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import Message, Sender, Text
from actgent.web.streaming.session_events import find_message


async def test_put_creates_a_session_once(served):
    """The same PUT again changes nothing. Another body with the same id is rejected."""
    async with served.client() as ada:
        first = await ada.put("/v1/sessions/s1", json={"agent": "clerk", "limits": {"tokens": 9}})
        again = await ada.put("/v1/sessions/s1", json={"agent": "clerk", "limits": {"tokens": 9}})
        other = await ada.put("/v1/sessions/s1", json={"agent": "clerk", "limits": {"tokens": 8}})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert first.json()["owner"] == "ada"
    assert (other.status_code, other.json()["type"]) == (409, "/errors/session-exists")
    assert other.headers["content-type"] == "application/problem+json"


async def test_key_creates_one_session(served):
    """POST with an Idempotency-Key returns the same session again, only for the same owner."""
    async with served.client() as ada, served.client("bob") as bob:
        places = [
            (
                await client.post("/v1/sessions", json={"agent": "clerk"}, headers={"idempotency-key": "k"})
            ).headers["location"]
            for client in (ada, ada, bob)
        ]
        assert (await ada.get(places[0])).status_code == 200
    assert places[0] == places[1] != places[2]


async def test_session_with_an_id_belongs_to_its_creator(served):
    """A repeated PUT with the same Idempotency-Key gets the first response. Another key is rejected."""

    async def put(client, key):
        return await client.put("/v1/sessions/s1", json={"agent": "clerk"}, headers={"idempotency-key": key})

    async with served.client() as ada:
        first = await put(ada, "k1")
        again = await put(ada, "k1")
        other = await put(ada, "k2")
        plain = await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
    assert (first.status_code, again.status_code, plain.status_code) == (201, 201, 200)
    assert first.json() == again.json() == plain.json()
    assert (other.status_code, other.json()["type"]) == (409, "/errors/session-exists")


async def test_unknown_mode_is_rejected_with_the_nearest(served):
    await served.runtime.start(BareAgent("quiet", llm=ScriptedLLM([])))
    async with served.client() as ada:
        unknown = await ada.put("/v1/sessions/s1", json={"agent": "clerk", "mode": "acct"})
        without = await ada.put("/v1/sessions/s1", json={"agent": "quiet", "mode": "act"})
    assert (unknown.status_code, without.status_code) == (422, 422)
    assert unknown.json()["detail"] == "the agent has no mode with the name 'acct': did you mean 'act'?"
    assert without.json()["detail"] == "the agent has no modes: leave out the field mode"


async def test_session_is_read_until_it_is_erased(served):
    """GET returns the session, and 304 without changes. After a close the status is closed, and after a DELETE the session is a 404."""
    async with served.client() as ada, served.client("root") as root:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk", "mode": "act"})
        got = await ada.get("/v1/sessions/s1")
        assert (got.json()["status"], got.json()["mode"]) == ("idle", "act")
        tag = {"if-none-match": got.headers["etag"]}
        assert (await ada.get("/v1/sessions/s1", headers=tag)).status_code == 304
        assert (await ada.post("/v1/sessions/s1/close", json={})).status_code == 204
        assert (await ada.post("/v1/sessions/s1/close", json={})).status_code == 204
        assert (await ada.get("/v1/sessions/s1", headers=tag)).json()["status"] == "closed"
        response = await ada.post("/v1/sessions/s1/messages", json={"input": "more"})
        assert response.json()["type"] == "/errors/session-closed"
        assert (await ada.delete("/v1/sessions/s1")).status_code == 403
        assert (await root.delete("/v1/sessions/s1")).status_code == 204
        assert (await ada.get("/v1/sessions/s1")).status_code == 404


async def test_lists_are_paged(served):
    """Each session is on one page, the last changed first. Filters apply."""
    async with served.client() as ada:
        for number in range(5):
            await ada.put(f"/v1/sessions/s{number}", json={"agent": "clerk"})
        await ada.put("/v1/sessions/other", json={"agent": "helper"})
        found, after = [], {}
        while True:
            page = (await ada.get("/v1/sessions", params={"limit": 2, **after})).json()
            found += [each["id"] for each in page["items"]]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert found == ["other", "s4", "s3", "s2", "s1", "s0"]
        of_helper = (await ada.get("/v1/sessions", params={"agent": "helper"})).json()["items"]
        begins = (await ada.get("/v1/sessions", params={"q": "s3"})).json()["items"]
        assert ([each["id"] for each in of_helper], [each["id"] for each in begins]) == (["other"], ["s3"])


async def test_invented_cursor_is_rejected(served):
    """`after` accepts only the `next` value of a page."""
    async with served.client() as ada:
        with_zero = base64.urlsafe_b64encode(b'[1.0,"a\\u0000","b"]').decode().rstrip("=")
        for after in ("x", "W10", "WzEsMiwzXQ", "bnVsbA", "%F0", with_zero):
            refused = await ada.get(f"/v1/sessions?after={after}")
            assert refused.status_code in (400, 422), after


async def test_client_ids_are_validated(served):
    """An id that needs escaping in URLs and logs is rejected."""
    async with served.client() as ada:
        for name in ("a%20b", "%2e%2e%2fx", "a%0d%0aSet-Cookie:x", "x" * 129, "%C3%A4", "a%2Fb"):
            made = await ada.put(f"/v1/sessions/{name}", json={"agent": "clerk"})
            assert made.status_code in (404, 422), name
            assert "set-cookie" not in made.headers


async def test_interrupt_ends_the_turn(serving):
    """The response is sent when the turn has ended, and the message has the outcome."""
    import trio

    from actgent import BareAgent, ScriptedLLM

    async def slow(chat):
        await trio.sleep_forever()

    async with (
        serving(agents=[BareAgent(name="slow", llm=ScriptedLLM(slow), grace=0)]) as served,
        served.client() as ada,
    ):
        await ada.put("/v1/sessions/s1", json={"agent": "slow"})
        response = await ada.post("/v1/sessions/s1/messages", json={"input": "go", "message_id": "m1"})
        assert response.status_code == 202
        done = await ada.post("/v1/sessions/s1/interrupt", json={"reason": "enough"})
        assert done.status_code == 204
        story = (await ada.get("/v1/sessions/s1/runs/m1")).json()
        assert (story["status"], story["outcome"]["failed"]) == ("failed", "interrupted")


async def test_agent_parameter_selects_among_equal_ids(served):
    """If several agents have a session with an id, `?agent=` selects one."""
    async with served.client() as ada:
        for agent in ("clerk", "helper"):
            await ada.put("/v1/sessions/s1", json={"agent": agent})
        unclear = await ada.get("/v1/sessions/s1")
        assert (unclear.status_code, unclear.json()["agents"]) == (409, ["clerk", "helper"])
        assert (await ada.get("/v1/sessions/s1?agent=helper")).json()["agent"] == "helper"


async def test_concurrent_close_is_retried(serving):
    """While the first close runs, a second close is a 503. It is a 204 after the journal has recorded the close."""
    agent, notified, may_end = BareAgent("clerk", llm=Held()), trio.Event(), trio.Event()

    @agent.on_session
    def attach(session):
        @session.on_exception
        async def hold(_):
            notified.set()
            await may_end.wait()

    async with serving(agents=[agent]) as served, served.client() as ada, trio.open_nursery() as nursery:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        await ada.post("/v1/sessions/s1/messages", json={"input": "hello"})
        close = partial(ada.post, "/v1/sessions/s1/close", json={})
        nursery.start_soon(close)
        with trio.fail_after(20):
            await notified.wait()
            assert (await close()).status_code == 503
            response = await ada.post("/v1/sessions/s1/messages", json={"input": "more"})
            assert response.json()["type"] == "/errors/session-closed"
            may_end.set()
            while (again := await close()).status_code == 503:
                await trio.lowlevel.checkpoint()
    assert again.status_code == 204


async def test_second_close_closes_open_children(serving, tmp_path):
    """The process that closed the root stopped before it closed the children. A repeated close must close them."""
    journal = f"sqlite:///{tmp_path}/j.db"
    agents = [BareAgent(name, llm=Held()) for name in ("clerk", "helper")]
    async with open_runtime(journal=journal) as runtime:
        for agent in agents:
            await runtime.start(agent)
        root = await agents[0].create_session("ada", session_id="root")
        child = await agents[1].create_session("ada", session_id="child", parent=root)
        await agents[0].create_session("ada", session_id="last", parent=child)
    async with open_journal(journal) as opened:
        entry = Entry(session_id="root", agent="clerk", records=(SessionClosedRecord(),))
        await opened.commit(entry, epoch=await opened.acquire())
    agents = [BareAgent(name, llm=Held()) for name in ("clerk", "helper")]
    async with serving(agents=agents, journal=journal) as served, served.client() as ada:

        async def states():
            asked = [f"/v1/sessions/{each}" for each in ("root", "child", "last")]
            return [(await ada.get(each)).json()["status"] for each in asked]

        assert await states() == ["closed", "idle", "idle"]
        assert (await ada.post("/v1/sessions/root/close", json={})).status_code == 204
        assert await states() == ["closed"] * 3


class Held(LLM):
    """A model that never answers."""

    name = "held"

    async def complete(self, chat, on_text=None):
        await trio.sleep_forever()


async def test_rejected_message_has_no_status_until_accepted():
    """A rejected message can be sent again, so it has no status of failure. After the retry it has the cursor of its acceptance."""
    message = Message(session_id="s1", sender=Sender("ada"), parts=(Text("hi"),))
    key, tries = (
        SessionKey("clerk", "s1"),
        [MessageEndRecord(message_id=message.id, failed=REFUSED), MessageAcceptedRecord(message=message)],
    )
    async with MemoryJournal().running() as journal:
        epoch = await journal.acquire()
        found = []
        for record in (
            MessageAcceptedRecord(message=message),
            *tries,
            MessageEndRecord(message_id=message.id, failed=None),
        ):
            entry = Entry(session_id="s1", agent="clerk", records=(record,))
            await journal.commit(entry, epoch=epoch)
            story = await find_message(journal, key, message.id, len(found) + 1)
            found.append(story and (story.status, story.document(key)["cursor"], story.ended is not None))
    assert found == [("waiting", 0, False), None, ("waiting", 2, False), ("answered", 2, True)]


async def test_retried_message_hides_the_failure_of_the_first_try():
    """The sender sent the message again, so its status is that of the second try."""
    message = Message(session_id="s1", sender=Sender("ada"), parts=(Text("hi"),))
    key, accepted = SessionKey("clerk", "s1"), MessageAcceptedRecord(message=message)
    first, last = [MessageEndRecord(message_id=message.id, failed=failed) for failed in (NOT_KEPT, None)]
    async with MemoryJournal().running() as journal:
        epoch = await journal.acquire()
        found = []
        for record in (accepted, first, accepted, last):
            entry = Entry(session_id="s1", agent="clerk", records=(record,))
            await journal.commit(entry, epoch=epoch)
            story = await find_message(journal, key, message.id, len(found) + 1)
            told = story.document(key)
            found.append((told["status"], told["outcome"] and told["outcome"]["failed"]))
    assert found == [("waiting", None), ("failed", NOT_KEPT), ("waiting", None), ("answered", None)]


async def test_tags_and_metadata_are_set_changed_and_found(served):
    """PUT, POST and PATCH set tags and metadata, also of a closed session. Lists select by several tags and values."""
    async with served.client() as ada:
        body = {"agent": "clerk", "tags": ["b", "a"], "metadata": {"ticket": "4711"}}
        made = await ada.put("/v1/sessions/s1", json=body)
        assert (made.status_code, made.json()["tags"], made.json()["metadata"]) == (
            201,
            ["a", "b"],
            {"ticket": "4711"},
        )
        assert (await ada.put("/v1/sessions/s1", json=body)).status_code == 200
        for other in ({"agent": "clerk"}, {**body, "tags": ["a"]}, {**body, "metadata": {}}):
            assert (await ada.put("/v1/sessions/s1", json=other)).status_code == 409
        await ada.post("/v1/sessions/s1/close", json={})
        change = {"add_tags": ["c"], "remove_tags": ["a", "x"], "metadata": {"ticket": None, "team": "north"}}
        for _ in range(2):
            changed = await ada.patch("/v1/sessions/s1", json=change)
            assert (changed.status_code, changed.json()["tags"]) == (200, ["b", "c"])
        one = (await ada.get("/v1/sessions/s1")).json()
        assert (one["tags"], one["metadata"]) == (["b", "c"], {"team": "north"})
        await ada.post("/v1/sessions", json={"agent": "clerk", "tags": ["c"]})
        for query, count in (
            ({"tags": "c"}, 2),
            ({"tags": "c,b"}, 1),
            ({"tags": "c", "metadata": '{"team":"north"}'}, 1),
            ({"metadata": '{"team":"south"}'}, 0),
            ({"tags": ""}, 2),
        ):
            assert len((await ada.get("/v1/sessions", params=query)).json()["items"]) == count


async def test_invalid_tags_and_metadata_are_rejected(served):
    """Bodies and queries with invalid tags or metadata are rejected."""
    async with served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        for body in (
            {"add_tags": ["a,b"]},
            {"add_tags": [""]},
            {"metadata": {"a b": "c"}},
            {"metadata": {"a": 1}},
            {"tags": []},
        ):
            assert (await ada.patch("/v1/sessions/s1", json=body)).status_code == 422
        many = {"add_tags": [str(number) for number in range(20)]}
        assert (await ada.patch("/v1/sessions/s1", json=many)).status_code == 200
        more = {"add_tags": [f"x{number}" for number in range(20)]}
        refused = await ada.patch("/v1/sessions/s1", json=more)
        assert (refused.status_code, "at most 32 tags, not 40" in refused.json()["detail"]) == (422, True)
        for query in ({"metadata": "x"}, {"metadata": "[1]"}, {"metadata": '{"a":1}'}, {"tags": "a,,b"}):
            assert (await ada.get("/v1/sessions", params=query)).status_code == 422


async def test_only_the_owner_changes_tags(served):
    async with served.client() as ada, served.client("bob") as bob:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        assert (await bob.patch("/v1/sessions/s1", json={"add_tags": ["a"]})).status_code == 404
        assert (await ada.patch("/v1/sessions/nothing", json={"add_tags": ["a"]})).status_code == 404
        assert (await ada.get("/v1/sessions/s1")).json()["tags"] == []
