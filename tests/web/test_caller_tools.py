"""Client tools for one turn over HTTP: `tools` of a message, open calls, results, scopes and owners."""

from contextlib import asynccontextmanager

import pytest
import trio

from actgent import BareAgent, Reject, Respond, ScriptedLLM, connect
from tests.agents.approvals.test_caller_tools import LOCATE, answer, pay

from .conftest import open_served

WAIT = {"prefer": "wait=20"}


@pytest.fixture
async def served():
    async with open_served(agents=[BareAgent("clerk", llm=ScriptedLLM(answer), tools=[pay])]) as opened:
        yield opened


@asynccontextmanager
async def with_session(served, name="chatter"):
    async with served.client(name) as client:
        await client.put("/v1/sessions/s1", json={"agent": "clerk"})
        yield client


async def send(client, content="locate", status=202, **fields):
    body = {"input": content, "tools": [LOCATE], **fields}
    response = await client.post("/v1/sessions/s1/messages", json=body, headers=WAIT)
    assert response.status_code == status, response.text
    return response.json()


async def test_message_shows_the_call_and_its_result_continues_the_turn(served):
    async with with_session(served) as client:
        sent = await send(client, message_id="m1")
        (call,) = sent["waits_for"]
        assert sent["status"] == "suspended"
        assert (call["tool"], call["arguments"], call["for_caller"]) == ("locate", {"digits": 2}, True)
        path = f"/v1/sessions/s1/calls/{call['id']}"
        assert (await client.post(path, json={"respond": {"lat": 1}})).status_code == 204
        done = (await client.get("/v1/sessions/s1/runs/m1", headers=WAIT)).json()
        assert done["outcome"]["text"] == '{"lat": 1}'
        again = await client.post(path, json={"respond": {"lat": 1}})
        assert (again.status_code, again.json()["as_asked"]) == (409, True)


async def test_approval_lists_omit_caller_calls(served):
    async with with_session(served, "ada") as client:
        await send(client, "locate pay")
        for path in ("/v1/approvals", "/v1/sessions/s1/approvals"):
            assert [each["tool"] for each in (await client.get(path)).json()["items"]] == ["pay"]
        shown = (await client.get("/v1/sessions/s1")).json()
        assert [each["tool"] for each in shown["approvals"]] == ["pay"]
        calls = (await client.get("/v1/sessions/s1/calls")).json()["items"]
        assert [each["tool"] for each in calls] == ["locate"]


async def test_events_name_the_call(served):
    async with with_session(served, "ada") as client:
        await send(client)
        names = []
        with trio.fail_after(20):
            async with client.stream("GET", "/v1/sessions/s1/events?after=0") as response:
                async for line in response.aiter_lines():
                    names += [line.removeprefix("event: ")] if line.startswith("event: ") else []
                    if "suspended" in line:
                        break
    assert "call" in names
    assert "approval" not in names


async def test_scope_chat_answers_calls_and_no_approvals(served):
    async with with_session(served) as client:
        sent = await send(client, "locate pay")
        ids = {each["tool"]: each["id"] for each in sent["waits_for"]}
        refused = await client.post(f"/v1/sessions/s1/calls/{ids['pay']}", json={"respond": "paid"})
        assert refused.status_code == 404
        unknown = await client.post("/v1/sessions/s1/calls/nothing.s1", json={"respond": "x"})
        assert unknown.status_code == 404
        taken = await client.post(f"/v1/sessions/s1/calls/{ids['locate']}", json={"reject": "no"})
        assert taken.status_code == 204
        wrong = await client.post(f"/v1/sessions/s1/calls/{ids['locate']}", json={"approve": {}})
        assert wrong.status_code == 422
    async with served.client("bob") as stranger:
        path = f"/v1/sessions/s1/calls/{ids['locate']}"
        assert (await stranger.post(path, json={"respond": "x"})).status_code == 404
        assert (await stranger.get("/v1/sessions/s1/calls")).status_code == 404


async def test_repeated_message_with_other_tools_is_rejected(served):
    async with with_session(served) as client:
        first = await send(client, message_id="m1")
        assert (await send(client, message_id="m1"))["waits_for"] == first["waits_for"]
        other = [{**LOCATE, "description": "Another one."}]
        refused = await send(client, status=422, message_id="m1", tools=other)
        assert refused["type"].endswith("key-reused")


@pytest.mark.parametrize(
    "tools", [[{**LOCATE, "name": "pay"}], [LOCATE, LOCATE], [{"name": "no spaces"}], [{**LOCATE, "x": 1}]]
)
async def test_invalid_client_tools_are_rejected(served, tools):
    async with with_session(served) as client:
        refused = await send(client, status=422, tools=tools)
        assert refused["type"].endswith("invalid")


async def test_remote_session_offers_tools_and_answers_calls(served):
    async with connect(served.gateway.url, token=served.tokens["chatter"]) as client:
        session = await client.agent("clerk").create_session(session_id="s1")
        for decision, text in (
            (Respond("here"), "here"),
            (Reject("no"), "Error: the caller did not run it: no"),
        ):
            message_id = await session.chat("locate", tools=[LOCATE])
            await session.wait_idle()
            (call,) = await session.caller_calls()
            assert (call.tool_name, call.for_caller, call.is_genuine) == ("locate", True, True)
            await session.answer(call, decision)
            assert (await client.agent("clerk").outcome(session, message_id)).text == text
