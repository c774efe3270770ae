"""Tools of the client in each protocol: calls, results, repetitions, mixed calls, invalid requests, crashes."""

import json
import signal
import sys
from functools import partial
from pathlib import Path

import openai
import pytest
import trio
from openai import OpenAI

from .conftest import OWN, runs
from .sse import events_of
from .test_ag_ui import asked as ag_ui_run, check_order, run as run_ag_ui, text_of
from .test_vercel import asked as vercel_chat, run as run_vercel

PARAMETERS = {"type": "object", "properties": {"unit": {"type": "string"}}, "required": ["unit"]}
LOCATE = {"name": "locate", "description": "Position of the user.", "parameters": PARAMETERS}
CHAT_TOOL = {"type": "function", "function": LOCATE}
RESPONSE_TOOL = {"type": "function", **LOCATE}
USER = {"role": "user", "content": "where am I?"}


async def states_of(served):
    async with served.client() as client:
        return [each["status"] for each in (await client.get("/v1/sessions")).json()["items"]]


def result_of(call, content="Berlin"):
    return {"role": "tool", "tool_call_id": call.id, "content": content}


# --- chat completions ------------------------------------------------------------------------


async def test_chat_completion_calls_a_tool_and_takes_its_result(served, sdk):
    def talk(client):
        create = partial(client.chat.completions.create, model="clerk", tools=[CHAT_TOOL])
        first = create(messages=[USER])
        (call,) = first.choices[0].message.tool_calls
        return first, create(messages=[USER, first.choices[0].message, result_of(call)])

    first, second = await sdk(talk, "chatter")  # results need no scope approve
    assert first.choices[0].finish_reason == "tool_calls"
    assert first.choices[0].message.content is None
    (call,) = first.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("locate", {"unit": "x"})
    assert first.usage.total_tokens == 17
    assert second.choices[0].message.content == "The result is in. Berlin"
    assert second.choices[0].finish_reason == "stop"
    assert await states_of(served) == ["closed"]


async def test_streamed_chat_completion_calls_a_tool(sdk):
    def talk(client):
        create = partial(client.chat.completions.create, model="clerk", tools=[CHAT_TOOL], stream=True)
        chunks = list(create(messages=[USER], stream_options={"include_usage": True}))
        (call,) = [
            each for chunk in chunks for choice in chunk.choices for each in choice.delta.tool_calls or ()
        ]
        told = {"role": "assistant", "tool_calls": [call.model_dump(exclude={"index"})]}
        return chunks, list(create(messages=[USER, told, result_of(call)]))

    first, second = await sdk(talk)
    assert [each.choices[0].finish_reason for each in first if each.choices][-1] == "tool_calls"
    assert first[-1].usage.total_tokens == 17
    text = "".join(each.choices[0].delta.content or "" for each in second)
    assert text == "The result is in. Berlin"


async def test_tools_belong_to_one_request(sdk, chats):
    """Two requests with different tools in one session."""
    headers = {"x-session-id": "s1"}

    def talk(client):
        create = partial(client.chat.completions.create, model="clerk", extra_headers=headers)
        texts = []
        for name in ("locate", "look_up"):
            tool = {"type": "function", "function": {**LOCATE, "name": name}}
            first = create(messages=[USER], tools=[tool])
            (call,) = first.choices[0].message.tool_calls
            assert call.function.name == name
            texts.append(create(messages=[result_of(call, name)]).choices[0].message.content)
        return [*texts, create(messages=[USER]).choices[0].message.content]

    said = await sdk(talk)
    assert said == ["The result is in. locate", "The result is in. look_up", "you said: where am I?"]
    offers = [[each.name for each in chat.tools if each.name not in OWN] for chat in chats]
    assert offers == [["locate"], ["locate"], ["look_up"], ["look_up"], []]


async def test_repeated_result_gives_the_same_answer(served, sdk):
    headers = {"x-session-id": "s1"}

    def talk(client):
        create = partial(client.chat.completions.create, model="clerk", extra_headers=headers)
        (call,) = create(messages=[USER], tools=[CHAT_TOOL]).choices[0].message.tool_calls
        return [create(messages=[result_of(call, text)]) for text in ("Berlin", "Berlin", "Rome")]

    texts = [each.choices[0].message.content for each in await sdk(talk)]
    assert texts == ["The result is in. Berlin"] * 3  # the first result counts


async def test_message_during_a_pending_call_is_rejected(sdk):
    headers = {"x-session-id": "s1"}

    def talk(client):
        create = partial(client.chat.completions.create, model="clerk", extra_headers=headers)
        create(messages=[USER], tools=[CHAT_TOOL])
        with pytest.raises(openai.ConflictError, match=r"waits for the results of tool calls \(locate\)"):
            create(messages=[{"role": "user", "content": "never mind"}])

    await sdk(talk)


async def test_partial_results_return_the_remaining_calls(sdk):
    tools = [CHAT_TOOL, {"type": "function", "function": {**LOCATE, "name": "look_up"}}]

    def talk(client):
        create = partial(client.chat.completions.create, model="clerk")
        first = create(messages=[USER], tools=tools).choices[0].message
        one, other = first.tool_calls
        second = create(messages=[USER, first, result_of(one)]).choices[0].message
        again = create(messages=[USER, first, result_of(one)]).choices[0].message
        last = create(messages=[USER, first, result_of(one), result_of(other, "Rome")])
        return other, second, again, last.choices[0].message.content

    with trio.fail_after(20):
        other, second, again, text = await sdk(talk)
    assert [each.id for each in second.tool_calls] == [each.id for each in again.tool_calls] == [other.id]
    assert text == "The result is in. Berlin Rome"


async def test_answer_may_mix_caller_calls_and_approvals(served, sdk):
    def talk(client):
        create = partial(client.chat.completions.create, model="clerk", tools=[CHAT_TOOL])
        said = {"role": "user", "content": "where can I pay?"}
        first = create(messages=[said])
        (call,) = first.choices[0].message.tool_calls
        return first, create(messages=[said, first.choices[0].message, result_of(call)])

    first, second = await sdk(talk)
    assert first.choices[0].message.content == "Really pay?"
    assert second.choices[0].message.tool_calls is None
    assert second.choices[0].message.content == "Really pay?"
    (approval,) = second.actgent["approvals"]
    async with served.client() as client:
        decided = await client.post(f"/v1/approvals/{approval}/decision", json={"approve": {}})
        assert decided.status_code == 204


async def test_past_tool_calls_are_history(sdk, chats):
    function = {"name": "locate", "arguments": '{"unit": "x"}'}
    past = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "Berlin"}
    told = {"role": "assistant", "content": "You are in Berlin."}
    messages = [USER, past, result, told, {"role": "user", "content": "thanks"}]
    made = await sdk(lambda client: client.chat.completions.create(model="clerk", messages=messages))
    assert made.choices[0].message.content == "you said: thanks"
    (chat,) = chats
    assert [each.role for each in chat.messages] == ["user", "assistant", "tool", "assistant", "user"]


async def test_tool_choice_is_respected(sdk, chats):
    def create(client, choice):
        return client.chat.completions.create(
            model="clerk", messages=[USER], tools=[CHAT_TOOL], tool_choice=choice
        )

    named = {"type": "function", "function": {"name": "locate"}}
    kinds = [
        (await sdk(partial(create, choice=choice))).choices[0].finish_reason
        for choice in ("none", "auto", "required", named)
    ]
    assert kinds == ["stop", "tool_calls", "tool_calls", "tool_calls"]
    ends = [chat.system.rpartition("\n\n")[2] for chat in chats[2:]]
    assert ends == [
        "Call at least one of these tools before you answer: locate.",
        "Call the tool locate before you answer.",
    ]
    with pytest.raises(openai.BadRequestError):
        await sdk(partial(create, choice={"type": "function", "function": {"name": "other"}}))


async def test_wrong_tools_and_results_are_rejected(served, sdk):
    def create(client, **given):
        return client.chat.completions.create(**{"model": "clerk", "messages": [USER], **given})

    unknown = {"role": "tool", "tool_call_id": "nothing", "content": "x"}
    for wrong, expected in (
        (
            {"tools": [{"type": "function", "function": {**LOCATE, "name": "add"}}]},
            "the agent already has a tool 'add'",
        ),
        ({"tools": [CHAT_TOOL, CHAT_TOOL]}, "two tools have the name"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "must be function"),
        ({"messages": [USER, unknown]}, "no tool call of this id"),
        ({"messages": [USER, {**unknown, "tool_call_id": "a.b"}]}, "no tool call of this id"),
    ):
        with pytest.raises(openai.BadRequestError, match=expected):
            await sdk(partial(create, **wrong))
    assert await states_of(served) == []


async def test_result_of_another_owner_is_unknown(sdk):
    made = await sdk(
        lambda client: client.chat.completions.create(model="clerk", messages=[USER], tools=[CHAT_TOOL])
    )
    (call,) = made.choices[0].message.tool_calls
    with pytest.raises(openai.BadRequestError, match="no tool call of this id"):
        await sdk(
            lambda client: client.chat.completions.create(model="clerk", messages=[result_of(call)]), "bob"
        )


# --- Responses -------------------------------------------------------------------------------


@pytest.mark.parametrize("names_previous", [True, False])
async def test_response_calls_a_function_and_takes_its_output(sdk, names_previous):
    def talk(client):
        create = partial(client.responses.create, model="clerk", tools=[RESPONSE_TOOL])
        first = create(input="where am I?")
        (call,) = first.output
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "Berlin"}
        more = {"previous_response_id": first.id} if names_previous else {}
        sent = [output] if names_previous else [USER, call.model_dump(), output]
        second = create(input=sent, **more)
        return first, call, second, [client.responses.retrieve(each.id) for each in (first, second)]

    first, call, second, read = await sdk(talk, "ada")
    assert (first.status, call.type, call.name, call.arguments) == (
        "completed", "function_call", "locate", '{"unit": "x"}',
    )  # fmt: skip
    assert second.output_text == "The result is in. Berlin"
    assert [each.name for each in first.tools] == ["locate"]
    assert read[0].output[0].call_id == call.call_id
    assert read[1].output_text == second.output_text


async def test_streamed_response_calls_a_function(sdk):
    def talk(client):
        stream = partial(client.responses.create, model="clerk", tools=[RESPONSE_TOOL], stream=True)
        events = list(stream(input="where am I?"))
        call = events[-1].response.output[0]
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "Berlin"}
        return events, list(stream(input=[output], previous_response_id=events[-1].response.id))

    first, second = await sdk(talk)
    assert [each.type for each in first] == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.function_call_arguments.delta", "response.function_call_arguments.done",
        "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert second[-1].response.output_text == "The result is in. Berlin"
    assert [each.sequence_number for each in first] == list(range(len(first)))


async def test_approval_response_resumes_a_response(sdk):
    def talk(client, approve):
        first = client.responses.create(model="clerk", input="please pay")
        item = {
            "type": "mcp_approval_response", "approval_request_id": first.output[0].id, "approve": approve,
        }  # fmt: skip
        return client.responses.create(model="clerk", input=[item], previous_response_id=first.id)

    assert (await sdk(partial(talk, approve=True))).output_text == "The result is in."
    assert runs["pay"] == 1
    assert (await sdk(partial(talk, approve=False))).output_text == "The result is in."
    assert runs["pay"] == 1
    with pytest.raises(openai.PermissionDeniedError):
        await sdk(partial(talk, approve=True), "chatter")


async def test_result_cannot_decide_an_approval(sdk):
    """A result needs no scope `approve`, so it cannot decide an approval."""

    def talk(client):
        first = client.responses.create(model="clerk", input="please pay")
        output = {"type": "function_call_output", "call_id": first.output[0].id, "output": "paid"}
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="clerk", input=[output], previous_response_id=first.id)

    await sdk(talk, "chatter")
    assert runs["pay"] == 0


# --- AG-UI -----------------------------------------------------------------------------------


def tool_message(call_id, content="Berlin", **more):
    return {"id": f"r-{call_id}", "role": "tool", "toolCallId": call_id, "content": content, **more}


async def test_ag_ui_run_ends_with_a_pending_call_and_takes_its_result(served):
    async with served.client("chatter") as client:
        first = await run_ag_ui(client, ag_ui_run("where am I?", tools=[LOCATE]))
        check_order(first)
        (call_id,) = first[-1]["pendingToolCallIds"]
        assert [each["toolCallName"] for each in first if each["type"] == "TOOL_CALL_START"] == ["locate"]
        assert [each["toolCallId"] for each in first if each["type"] == "TOOL_CALL_START"] == [call_id]
        assert not any(each["type"] == "TOOL_CALL_RESULT" for each in first)
        body = ag_ui_run("where am I?", run_id="r2", tools=[LOCATE])
        body["messages"].append(tool_message(call_id))
        second, again = [await run_ag_ui(client, body) for _ in range(2)]
        check_order(second)
        assert text_of(second) == text_of(again) == "The result is in. Berlin"
        assert second[-1]["outcome"] == {"type": "success"}


async def test_ag_ui_error_of_a_tool_rejects_its_call(served):
    async with served.client() as client:
        first = await run_ag_ui(client, ag_ui_run("where am I?", tools=[LOCATE]))
        body = ag_ui_run("", run_id="r2")
        body["messages"] = [tool_message(first[-1]["pendingToolCallIds"][0], "", error="no sensor")]
        second = await run_ag_ui(client, body)
        assert text_of(second) == "The result is in. Error: the caller did not run it: no sensor"
        body["messages"] = [tool_message("unknown")]
        response = await client.post("/agui/clerk", json=body)
        assert response.status_code == 404


async def test_ag_ui_shows_results_of_the_agents_own_calls(served):
    """The first run executes the agent's tool and waits for the client's tool.

    The second run does not repeat the result.
    """
    async with served.client() as client:
        first = await run_ag_ui(client, ag_ui_run("where am I? add it", tools=[LOCATE]))
        results = [each["content"] for each in first if each["type"] == "TOOL_CALL_RESULT"]
        assert results == ["3"]
        body = ag_ui_run("", run_id="r2")
        body["messages"] = [tool_message(first[-1]["pendingToolCallIds"][0])]
        second = await run_ag_ui(client, body)
        assert not any(each["type"] == "TOOL_CALL_RESULT" for each in second)


# --- Vercel ----------------------------------------------------------------------------------


@pytest.mark.parametrize("tools", [[LOCATE], {"locate": {"parameters": PARAMETERS}}])
async def test_vercel_message_waits_for_an_output(served, tools):
    async with served.client("chatter") as client:
        first = await run_vercel(client, {**vercel_chat("where am I? add it"), "tools": tools})
        (call_id,) = [each["toolCallId"] for each in first if each.get("toolName") == "locate"][:1]
        waiting = {each["toolCallId"] for each in first if each["type"] == "tool-output-available"}
        assert call_id not in waiting
        assert first[-1] == {"type": "finish", "finishReason": "tool-calls"}
        part = {
            "type": "dynamic-tool",
            "state": "output-available",
            "toolCallId": call_id,
            "output": "Berlin",
        }
        own = {
            "type": "dynamic-tool",
            "state": "output-available",
            "toolCallId": waiting.pop(),
            "output": "4",
        }
        body = vercel_chat("where am I? add it")
        body["messages"].append({"id": "m1-answer", "role": "assistant", "parts": [own, part]})
        second, again = [await run_vercel(client, body) for _ in range(2)]
    assert second[0] == {"type": "start", "messageId": "m1-answer"}
    for events in (second, again):
        text = "".join(each["delta"] for each in events if each["type"] == "text-delta")
        assert text == "The result is in. Berlin 3"


# --- crashes ---------------------------------------------------------------------------------

LIFE = """
import json, sys
sys.path.insert(0, {root!r})
import trio
from actgent.interop import PROTOCOLS
from tests.interop.conftest import make_agents
from tests.web.conftest import open_served

async def main():
    async with open_served(agents=make_agents(), protocols=PROTOCOLS, journal=sys.argv[1]) as served:
        print(json.dumps([served.gateway.url, served.tokens["ada"]]), flush=True)
        await trio.sleep_forever()

trio.run(main)
"""
ROOT = Path(__file__).parents[2]


def test_calls_survive_a_kill(process_server, tmp_path):
    """The process is killed between the call and its result.

    The next process accepts the result, in each protocol.
    """
    command = [sys.executable, "-c", LIFE.format(root=str(ROOT)), f"sqlite:///{tmp_path}/agents.db"]
    waiting = []
    for is_second in (False, True):
        life = process_server.popen(command, stdout=-1)
        try:
            url, token = json.loads(life.stdout.readline())
            waiting = talk(url, token, waiting) if is_second else talk(url, token)
        finally:
            life.send_signal(signal.SIGKILL)
            life.communicate()
    assert waiting == ["The result is in. Berlin"] * 4


def talk(url, token, waiting=None):
    """Make a call in each protocol.

    With `waiting`, send the results of these calls and return the answers.
    """
    with (
        OpenAI(base_url=f"{url}/openai/v1", api_key=token, max_retries=0) as client,
        openai.DefaultHttpxClient(base_url=url, headers={"authorization": f"Bearer {token}"}) as http,
    ):
        chat = partial(client.chat.completions.create, model="clerk")
        respond = partial(client.responses.create, model="clerk")
        ag_ui, vercel = ag_ui_run("where?", tools=[LOCATE]), {**vercel_chat("where?"), "tools": [LOCATE]}
        if waiting is None:
            events = events_of(http.post("/agui/clerk", json=ag_ui).text)
            parts = events_of(http.post("/vercel/clerk", json=vercel).text)
            return [
                chat(messages=[USER], tools=[CHAT_TOOL]).choices[0].message.tool_calls[0],
                respond(input="where am I?", tools=[RESPONSE_TOOL]).output[0],
                events[-1]["pendingToolCallIds"][0],
                next(each["toolCallId"] for each in parts if each != "[DONE]" and "toolCallId" in each),
            ]
        call, item, ag_ui_call, vercel_call = waiting
        output = {"type": "function_call_output", "call_id": item.call_id, "output": "Berlin"}
        ag_ui["runId"], ag_ui["messages"] = "r2", [tool_message(ag_ui_call)]
        part = {
            "type": "dynamic-tool", "state": "output-available", "toolCallId": vercel_call, "output": "Berlin",
        }  # fmt: skip
        vercel["messages"] = [{"id": "m1-answer", "role": "assistant", "parts": [part]}]
        events = events_of(http.post("/agui/clerk", json=ag_ui).text)
        parts = events_of(http.post("/vercel/clerk", json=vercel).text)
        return [
            chat(messages=[USER, result_of(call)]).choices[0].message.content,
            respond(input=[output]).output_text,
            text_of(events),
            "".join(each["delta"] for each in parts if each != "[DONE]" and each["type"] == "text-delta"),
        ]
