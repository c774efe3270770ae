"""Vercel UI message stream: parts, approvals, repeated requests and reconnection."""

from .conftest import runs
from .sse import events_of


def asked(text, message_id="m1", chat_id="v1"):
    message = {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": chat_id, "trigger": "submit-message", "messages": [message]}


async def run(client, body):
    response = await client.post("/vercel/clerk", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
    events = events_of(response.text)
    assert events[-1] == "[DONE]"
    return events[:-1]


def kinds(events):
    return [each["type"] for each in events if each["type"] != "text-delta"]


def text_of(events):
    return "".join(each["delta"] for each in events if each["type"] == "text-delta")


async def test_vercel_text_is_one_step(served):
    async with served.client() as client:
        events = await run(client, asked("hello"))
    assert kinds(events) == [
        "start", "start-step", "text-start", "text-end", "finish-step", "message-metadata", "finish",
    ]  # fmt: skip
    assert text_of(events) == "you said: hello"
    assert events[-2]["messageMetadata"] == {"usage": {"inputTokens": 12, "outputTokens": 5}}


async def test_tool_calls_and_the_answer_are_two_steps(served):
    async with served.client() as client:
        events = await run(client, asked("please add"))
    assert kinds(events).count("start-step") == kinds(events).count("finish-step") == 2
    outputs = [each["output"] for each in events if each["type"] == "tool-output-available"]
    assert outputs == ["3", "4"]


async def test_approval_response_continues_the_message(served):
    async with served.client() as client:
        first = await run(client, asked("please pay"))
        (request,) = [each for each in first if each["type"] == "tool-approval-request"]
        assert first[-1] == {"type": "finish", "finishReason": "tool-calls"}
        part = {
            "type": "dynamic-tool",
            "state": "approval-responded",
            "approval": {"id": request["approvalId"], "approved": True},
        }
        message = {"id": "m1-answer", "role": "assistant", "parts": [part]}
        second = await run(client, {"id": "v1", "trigger": "submit-message", "messages": [message]})
    assert second[0] == {"type": "start", "messageId": "m1-answer"}
    assert [each["output"] for each in second if each["type"] == "tool-output-available"] == ["paid 3"]
    assert text_of(second) == "The result is in."
    assert runs["pay"] == 1


async def test_repeated_request_gives_the_same_answer(served):
    async with served.client() as client:
        first, second = [await run(client, asked("please add")) for _ in range(2)]
    assert kinds(first) == kinds(second)
    assert text_of(first) == text_of(second)


async def test_failure_is_an_error_part(served):
    async with served.client("chatter") as client:
        events = await run(client, asked("please fail"))
    assert "error" in kinds(events)
    assert events[-1]["finishReason"] == "error"
    assert "secret-canary" not in str(events)


async def test_reconnection_without_a_running_turn_is_204(served):
    async with served.client() as client:
        await run(client, asked("hello"))
        assert (await client.get("/vercel/clerk/v1/stream")).status_code == 204
    async with served.client("bob") as client:
        assert (await client.get("/vercel/clerk/v1/stream")).status_code == 404
