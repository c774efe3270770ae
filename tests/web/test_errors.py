"""Failures over HTTP."""

import pytest
import trio

from actgent import BareAgent, ProviderUnavailable, ScriptedLLM, ServerUnreachable, ToolCall, ToolError, tool
from actgent.actors import DeadLetter
from actgent.web.problem_documents import problem_of


async def fail(client, session_id):
    made = await client.put(f"/v1/sessions/{session_id}", json={"agent": "scout"})
    assert made.status_code == 201
    body, headers = {"input": "What is there?"}, {"prefer": "wait=20"}
    response = await client.post(f"/v1/sessions/{session_id}/messages", json=body, headers=headers)
    assert response.json()["status"] == "failed"


async def test_errors_are_limited_to_the_owner(serving):
    """Errors are grouped by kind and class, with the newest session first. An owner sees its own errors, and an admin sees all."""
    errors = [ProviderUnavailable("503"), ProviderUnavailable("down"), ProviderUnavailable("of bob")]
    agent = BareAgent(name="scout", llm=ScriptedLLM(errors))
    async with serving(agents=[agent]) as served, served.client() as ada, served.client("bob") as bob:
        assert (await ada.get("/v1/errors")).json() == {"items": [], "next": None}
        for client, session_id in ((ada, "s1"), (ada, "s2"), (bob, "b1")):
            await fail(client, session_id)
        (group,) = (await ada.get("/v1/errors")).json()["items"]
        assert (group["kind"], group["error"], group["count"]) == ("model", "ProviderUnavailable", 2)
        assert group["text"] == "down"
        assert group["agents"] == ["scout"]
        assert [each["id"] for each in group["sessions"]] == ["s2", "s1"]
        assert group["first_at"] <= group["last_at"]
        async with served.client("root") as root:
            (whole,) = (await root.get("/v1/errors")).json()["items"]
            assert (whole["count"], whole["text"]) == (3, "of bob")
            await root.delete("/v1/sessions/b1")
        assert (await bob.get("/v1/errors")).json()["items"] == []


async def test_dead_letters_are_shown_to_admins(served):
    """An undelivered message is an error of a separate kind. It has no session and no owner."""
    async with served.client() as ada, served.client("root") as root:
        served.runtime.dead_letter(DeadLetter("helper", "hello", "it was stopped"))
        letters = [
            each for each in (await root.get("/v1/errors")).json()["items"] if each["kind"] == "dead letter"
        ]
        assert [(each["text"], each["agents"], each["sessions"]) for each in letters] == [
            ("it was stopped", ["helper"], [])
        ]
        assert (await ada.get("/v1/errors")).json()["items"] == []


SECRET = "postgres://desk:hunter2@db/desk"


@tool
def connect() -> str:
    """Connect."""
    raise RuntimeError(f"cannot connect to {SECRET}")


@tool
def advise() -> str:
    """Say what to do."""
    raise ToolError("try it tomorrow")


async def words_of(served, name, session_id):
    """Return all text that a token can read of a session: pages, streams, messages and errors."""
    json, stream = {"accept": "application/json"}, {"accept": "text/event-stream"}
    async with served.client(name) as client:
        path = f"/v1/sessions/{session_id}"
        pages = [
            (await client.get(each, headers=json)).text
            for each in (f"{path}/events", f"{path}/observations", f"{path}/messages", "/v1/errors", path)
        ]
        streams = [
            (await client.get(f"{path}/{each}", headers=stream)).text for each in ("events", "observations")
        ]
        return "\n".join([*pages, *streams])


async def test_exception_messages_require_the_scope_journal(serving):
    """A token without the scope sees the class and a fixed text. The model, the scope journal and an admin see the raised message."""
    shown = []

    def answer(chat):
        results = [part for each in chat.messages for part in each.parts if hasattr(part, "call_id")]
        shown.extend(part.text for part in results)
        if not results:
            return [ToolCall("connect", {}), ToolCall("advise", {})]
        raise ValueError(f"the model was asked by {SECRET}")

    agent = BareAgent(name="scout", llm=ScriptedLLM(answer), tools=[connect, advise])
    async with serving(agents=[agent]) as served:
        async with served.client("chatter") as client:
            await fail(client, "s1")
            place = await client.get("/v1/sessions/s1/events", headers={"accept": "application/json"})
            said = next(each["data"] for each in place.json()["items"] if each["event"] == "message")
            outcome = (await client.get(f"/v1/sessions/s1/runs/{said['message_id']}")).json()["outcome"]
            assert SECRET not in str(outcome)
            await client.post("/v1/sessions/s1/close", json={})
        assert any(SECRET in each for each in shown)
        hidden = await words_of(served, "chatter", "s1")
        assert SECRET not in hidden
        assert "the tool raised RuntimeError" in hidden
        assert "ValueError" in hidden
        assert "try it tomorrow" in hidden
        for name in ("auditor", "root"):
            seen = await words_of(served, name, "s1")
            assert f"RuntimeError: cannot connect to {SECRET}" in seen
            assert f"ValueError: the model was asked by {SECRET}" in seen
        async with served.client("root") as root:
            groups = {each["error"]: each for each in (await root.get("/v1/errors")).json()["items"]}
            assert {name: each["kind"] for name, each in groups.items()} == {
                "ModelError": "model",
                "RuntimeError": "tool",
                "ToolError": "tool",
            }
            assert groups["RuntimeError"]["cause"] == f"RuntimeError: cannot connect to {SECRET}"
            assert groups["ToolError"]["text"] == "try it tomorrow"
            group = groups["ModelError"]
            assert group["cause"] == f"ValueError: the model was asked by {SECRET}"


async def test_readers_with_two_scopes_follow_one_session(serving):
    """Each of two concurrent streams has the error text that its scope permits."""
    agent = BareAgent(
        name="scout", llm=ScriptedLLM([ToolCall("connect", {}), "it cannot be reached"]), tools=[connect]
    )
    texts = {"chatter": "", "auditor": ""}

    async def read(name):
        async with served.client(name) as reader:
            texts[name] = (await reader.get("/v1/sessions/s1/events")).text

    async with serving(agents=[agent]) as served, served.client("chatter") as client:
        await client.put("/v1/sessions/s1", json={"agent": "scout"})
        async with trio.open_nursery() as nursery:
            for name in texts:
                nursery.start_soon(read, name)
            await client.post(
                "/v1/sessions/s1/messages", json={"input": "hello"}, headers={"prefer": "wait=20"}
            )
            await client.post("/v1/sessions/s1/close", json={})
    assert SECRET not in texts["chatter"]
    assert SECRET in texts["auditor"]


@pytest.mark.parametrize("was_sent", [False, True])
def test_request_that_no_node_answered_can_be_retried(was_sent):
    """The session moved during the request, and its owner did not answer. The response is not an internal error of the gateway."""
    problem = problem_of(ServerUnreachable("no node serves this session", was_sent=was_sent))
    assert (problem.status, problem.kind) == (503, "unavailable")
    assert problem.fields.get("may_be_done", False) is was_sent
    assert "retry-after" in problem.headers
