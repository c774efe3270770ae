"""Turns that wait for their client several times: repeated requests, and cancelled responses."""

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, Text, ToolCall, ToolResult, tool
from actgent.interop import PROTOCOLS
from tests.web.conftest import open_served

from .sse import events_of
from .test_ag_ui import asked as ag_ui_run
from .test_vercel import asked as vercel_chat, text_of

TOOLS = [
    {"name": name, "description": "Find.", "parameters": {"type": "object"}} for name in ("first", "second")
]
OPENAI_TOOLS = [{"type": "function", **each} for each in TOOLS]


@pytest.fixture
def release():
    """Return the event that ends the calls of the tool `hold`."""
    return trio.Event()


@pytest.fixture
async def served(release):
    """Yield a server with an agent that calls `first`, then `second`, then answers."""

    @tool(effect="pure")
    async def hold() -> str:
        """Wait."""
        await release.wait()
        return "released"

    def script(chat):
        last = chat.messages[-1]
        results = [part for part in last.parts if isinstance(part, ToolResult)]
        text = "".join(part.text for part in last.parts if isinstance(part, Text))
        if "hold" in text or any("hold" in each.text for each in results):
            return ToolCall("hold", {})
        if not results:
            return ToolCall("first", {})
        return ToolCall("second", {}) if results[0].tool_name == "first" else f"done: {results[0].text}"

    agents = [BareAgent("clerk", llm=ScriptedLLM(script), tools=[hold])]
    async with open_served(agents=agents, protocols=PROTOCOLS) as opened:
        yield opened


async def send_vercel(client, outputs):
    body = {**vercel_chat("begin"), "tools": TOOLS}
    if outputs:
        parts = [
            {"type": "dynamic-tool", "state": "output-available", "toolCallId": call_id, "output": output}
            for call_id, output in outputs
        ]
        body["messages"].append({"id": "m1-answer", "role": "assistant", "parts": parts})
    response = await client.post("/vercel/clerk", json=body)
    assert response.status_code == 200, response.text
    return events_of(response.text)[:-1]


async def test_repeated_chat_with_outputs_of_two_suspensions_is_the_last_run(served):
    async with served.client() as client:
        outputs = []
        for output in ("Berlin", "Rome"):
            events = await send_vercel(client, outputs)
            (call_id,) = [each["toolCallId"] for each in events if each["type"] == "tool-input-available"]
            outputs.append((call_id, output))
        last, again = [await send_vercel(client, outputs) for _ in range(2)]
        first_again = await send_vercel(client, outputs[:1])
    assert text_of(last) == text_of(again) == "done: Rome"
    assert [each["type"] for each in again].count("tool-input-available") == 0
    assert [each["toolName"] for each in first_again if each["type"] == "tool-input-available"] == ["second"]


async def test_repeated_ag_ui_run_with_results_of_two_suspensions_is_the_last_run(served):
    async with served.client() as client:
        results, texts = [], []
        for output in ("Berlin", "Rome", "", ""):
            body = {**ag_ui_run("begin"), "tools": TOOLS}
            body["messages"] += results
            response = await client.post("/agui/clerk", json=body)
            events = events_of(response.text)
            if output:
                call_id = events[-1]["pendingToolCallIds"][0]
                results.append({"id": call_id, "role": "tool", "toolCallId": call_id, "content": output})
            texts.append("".join(each.get("delta", "") for each in events if "messageId" in each))
    assert texts[2:] == ["done: Rome"] * 2


async def respond(client, **body):
    response = await client.post("/openai/v1/responses", json={"model": "clerk", **body})
    assert response.status_code == 200, response.text
    return response.json()


async def status_of(client, response_id):
    return (await client.get(f"/openai/v1/responses/{response_id}")).json()["status"]


async def until_status(client, response_id, status):
    with trio.fail_after(60):
        while await status_of(client, response_id) != status:  # noqa: ASYNC110 - polling is what a client does
            await trio.sleep(0.01)


async def start_answer(client, output):
    """Start a turn, send the result of its call, and return the response that follows, which runs in the background."""
    first = await respond(client, input="begin", tools=OPENAI_TOOLS)
    result = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": output}
    return await respond(client, input=[result], previous_response_id=first["id"], background=True)


async def test_cancelled_answer_response_stops_its_turn(served):
    async with served.client() as client:
        made = await start_answer(client, "hold it")
        await until_status(client, made["id"], "in_progress")
        cancelled = await client.post(f"/openai/v1/responses/{made['id']}/cancel", json={})
        assert cancelled.json()["status"] == "cancelled"
        assert await status_of(client, made["id"]) == "cancelled"


async def test_cancelled_answer_response_does_not_stop_a_later_turn(served, release):
    async with served.client() as client:
        made = await start_answer(client, "Berlin")
        await until_status(client, made["id"], "completed")
        read = (await client.get(f"/openai/v1/responses/{made['id']}")).json()
        result = {"type": "function_call_output", "call_id": read["output"][0]["call_id"], "output": "Rome"}
        await respond(client, input=[result], previous_response_id=made["id"])
        later = await respond(client, input="hold", previous_response_id=made["id"], background=True)
        await until_status(client, later["id"], "in_progress")
        unknown = made["id"].partition("_")[2].partition("_")[0]
        missing = await client.post(f"/openai/v1/responses/resp_{unknown}_x.a/cancel", json={})
        cancelled = await client.post(f"/openai/v1/responses/{made['id']}/cancel", json={})
        assert (missing.status_code, cancelled.status_code) == (404, 200)
        assert await status_of(client, made["id"]) == "completed"
        assert await status_of(client, later["id"]) == "in_progress"
        release.set()
        await until_status(client, later["id"], "completed")


@pytest.mark.parametrize("wrong", ["resp_x_y", "resp_x", "x", "resp_{}_x", "resp_{}_x.a"])
async def test_unknown_response_is_not_found(served, wrong):
    async with served.client() as client:
        made = await respond(client, input="begin", tools=OPENAI_TOOLS)
        address = f"/openai/v1/responses/{wrong.format(made['id'].split('_')[1])}"
        found = [await client.get(address), await client.post(f"{address}/cancel", json={})]
    assert [each.status_code for each in found] == [404, 404]
