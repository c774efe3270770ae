"""A2A 1.0: both bindings, states of tasks, approvals, repeated messages, owners and errors."""

import json
import random
import re

import pytest
import trio

from actgent import (
    BareAgent,
    ConfigurationError,
    GatewayLimits,
    Image,
    Instruction,
    ScriptedLLM,
    SimpleAgent,
    Text,
)
from actgent.interop import PROTOCOLS, A2AProtocol
from actgent.llm.model_interface import ModelResponse
from tests.web.conftest import open_served

from .conftest import make_agents, runs
from .sse import events_of

VERSION = {"a2a-version": "1.0"}
PATHS = {
    "SendMessage": ("POST", "/message:send"),
    "SendStreamingMessage": ("POST", "/message:stream"),
    "GetTask": ("GET", "/tasks/{id}"),
    "ListTasks": ("GET", "/tasks"),
    "CancelTask": ("POST", "/tasks/{id}:cancel"),
    "SubscribeToTask": ("GET", "/tasks/{id}:subscribe"),
    "GetExtendedAgentCard": ("GET", "/extendedAgentCard"),
}


async def call_rpc(client, method, params, agent="clerk"):
    """Call a method over JSON-RPC. Return its result, its events or its error."""
    body = {"jsonrpc": "2.0", "id": "r1", "method": method, "params": params}
    response = await client.post(f"/a2a/{agent}", json=body, headers=VERSION)
    if response.headers["content-type"].startswith("text/event-stream"):
        answers = events_of(response.text)
        assert all(each["id"] == "r1" and each["jsonrpc"] == "2.0" for each in answers)
        return [each["result"] for each in answers]
    answer = response.json()
    assert answer["id"] == "r1"
    return answer.get("result", answer.get("error"))


async def call_rest(client, method, params, agent="clerk"):
    """Call a method over HTTP+JSON. Return its result, its events or its error."""
    verb, path = PATHS[method]
    path = f"/a2a/{agent}/v1{path.replace('{id}', str(params.get('id')))}"
    if verb == "POST":
        options = {
            "content": json.dumps(params),
            "headers": {**VERSION, "content-type": "application/a2a+json"},
        }
    else:
        query = {name: json.dumps(value).strip('"') for name, value in params.items() if name != "id"}
        options = {"params": query, "headers": VERSION}
    response = await client.request(verb, path, **options)
    if response.headers["content-type"].startswith("text/event-stream"):
        return events_of(response.text)
    answer = response.json()
    return answer.get("error", answer)


@pytest.fixture(params=[call_rpc, call_rest], ids=["json-rpc", "http+json"])
def ask(request):
    return request.param


async def wait_until(condition):
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - no event signals this state
            await trio.sleep(0.01)


def message(text, message_id="m1", **more):
    return {"message": {"messageId": message_id, "role": "ROLE_USER", "parts": [{"text": text}], **more}}


def decide(task, data, message_id="d1"):
    known = {"taskId": task["id"], "contextId": task["contextId"]}
    return {"message": {"messageId": message_id, "role": "ROLE_USER", "parts": [{"data": data}], **known}}


def state_of(task):
    return task["status"]["state"].removeprefix("TASK_STATE_")


def text_of(task):
    (artifact,) = task["artifacts"]
    return "".join(each.get("text", "") for each in artifact["parts"])


def reason_of(error):
    (detail,) = error.get("data") or error.get("details")
    return detail.get("reason") or detail["fieldViolations"][0]["field"]


def fold(events):
    """Return the task of a client after the events of a stream, as the SDKs compute it."""
    task = {**events[0]["task"], "artifacts": []}
    for event in events[1:]:
        if update := event.get("artifactUpdate"):
            artifact = update["artifact"]
            if update["append"]:
                task["artifacts"][0]["parts"] += artifact["parts"]
            else:
                task["artifacts"] = [{**artifact, "parts": [*artifact["parts"]]}]
        else:
            task["status"] = event["statusUpdate"]["status"]
    return task


async def test_message_is_answered_by_a_completed_task(served, ask):
    async with served.client() as client:
        task = (await ask(client, "SendMessage", message("hello")))["task"]
        again = await ask(client, "GetTask", {"id": task["id"]})
    assert (state_of(task), text_of(task)) == ("COMPLETED", "you said: hello")
    assert [each["parts"] for each in task["history"]] == [[{"text": "hello"}]]
    assert task["metadata"]["actgent.usage"] == {"inputTokens": 12, "outputTokens": 5}
    assert again == task


async def test_stream_begins_with_the_task_and_ends_with_its_state(served, ask):
    async with served.client() as client:
        events = await ask(client, "SendStreamingMessage", message("please add"))
        task = await ask(client, "GetTask", {"id": events[0]["task"]["id"]})
    states = [state_of(each["statusUpdate"]) for each in events if "statusUpdate" in each]
    assert state_of(events[0]["task"]) == "SUBMITTED"
    assert states == ["WORKING", "COMPLETED"]
    seen = fold(events)
    assert (state_of(seen), text_of(seen)) == ("COMPLETED", "The result is in.")
    assert text_of(task) == "The result is in."
    assert [each["role"] for each in task["history"]] == ["ROLE_USER", "ROLE_AGENT"]
    assert task["history"][1]["parts"] == [{"text": "I add. "}]


@pytest.mark.parametrize(
    ("part", "state", "paid"),
    [
        ({"text": "approve"}, "COMPLETED", 1),
        ({"text": "Reject"}, "COMPLETED", 0),
        ({"text": "it costs too much"}, "COMPLETED", 0),
        ({"data": {"approve": True}}, "COMPLETED", 1),
        ({"data": {"approve": False, "reason": "no"}}, "COMPLETED", 0),
        ({"data": {"edit": {"euros": 1}}}, "COMPLETED", 1),
        ({"data": {"response": "paid by hand"}}, "COMPLETED", 0),
    ],
)
async def test_message_to_the_task_decides_its_approval(served, ask, part, state, paid):
    async with served.client() as client:
        task = (await ask(client, "SendMessage", message("please pay")))["task"]
        assert state_of(task) == "INPUT_REQUIRED"
        text, data = task["status"]["message"]["parts"]
        assert text == {"text": "Really pay?"}
        assert data["data"]["approvals"][0]["arguments"] == {"euros": 3}
        assert runs["pay"] == 0
        decision = decide(task, None)
        decision["message"]["parts"] = [part]
        task = (await ask(client, "SendMessage", decision))["task"]
    assert (state_of(task), text_of(task), runs["pay"]) == (state, "The result is in.", paid)


async def test_decisions_by_id_can_be_repeated_and_streamed(served, ask):
    async with served.client() as client:
        task = (await ask(client, "SendMessage", message("please pay")))["task"]
        (asked,) = task["status"]["message"]["parts"][1]["data"]["approvals"]
        for _ in range(2):
            decision = decide(task, {asked["id"]: {"approve": True}})
            seen = fold(await ask(client, "SendStreamingMessage", decision))
            assert (state_of(seen), text_of(seen)) == ("COMPLETED", "The result is in.")
            assert seen["id"] == task["id"]
    assert runs["pay"] == 1


async def test_decision_requires_the_scope_approve(served, ask):
    async with served.client() as client:
        task = (await ask(client, "SendMessage", message("please pay")))["task"]
    async with served.client("chatter") as client:
        error = await ask(client, "SendMessage", decide(task, {"approve": True}))
        assert reason_of(error) == "FORBIDDEN"
        assert state_of(await ask(client, "GetTask", {"id": task["id"]})) == "INPUT_REQUIRED"
    assert runs["pay"] == 0


async def test_unclear_decisions_are_rejected(served, ask):
    async with served.client() as client:
        task = (await ask(client, "SendMessage", message("please pay")))["task"]
        for data in ({}, {"unknown": True}, {"approve": "yes"}):
            assert reason_of(await ask(client, "SendMessage", decide(task, data))) == "message.parts"
        other = decide({**task, "contextId": "other"}, {"approve": True})
        assert reason_of(await ask(client, "SendMessage", other)) == "message.contextId"
    assert runs["pay"] == 0


async def test_message_to_an_ended_or_unknown_task_is_rejected(served, ask):
    async with served.client() as client:
        task = (await ask(client, "SendMessage", message("hello")))["task"]
        error = await ask(client, "SendMessage", decide(task, {"approve": True}))
        assert reason_of(error) == "UNSUPPORTED_OPERATION"
        error = await ask(client, "SubscribeToTask", {"id": task["id"]})
        assert reason_of(error) == "UNSUPPORTED_OPERATION"
        assert reason_of(await ask(client, "CancelTask", {"id": task["id"]})) == "TASK_NOT_CANCELABLE"
        for task_id in ("unknown", "a~b", "~", f"{task['contextId']}~m2"):
            error = await ask(client, "GetTask", {"id": task_id})
            assert reason_of(error) == "TASK_NOT_FOUND"


async def test_waiting_task_is_cancelled(served, ask):
    async with served.client() as client:
        task = (await ask(client, "SendMessage", message("please pay")))["task"]
        canceled = await ask(client, "CancelTask", {"id": task["id"]})
        assert state_of(canceled) == "CANCELED"
        assert reason_of(await ask(client, "CancelTask", {"id": task["id"]})) == "TASK_NOT_CANCELABLE"
    assert runs["pay"] == 0


async def test_subscription_replays_the_run_and_resumes_after_a_decision(served, ask):
    followed = []

    async def follow(client, task):
        followed.append(await ask(client, "SubscribeToTask", {"id": task["id"]}))

    async with served.client() as client:
        task = (await ask(client, "SendMessage", message("please pay")))["task"]
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(follow, client, task)
                await wait_until(lambda: served.gateway.app.context.streams.open == 2)
                await ask(client, "SendMessage", decide(task, {"approve": True}))
    first, second = ([each for each in events if "artifactUpdate" not in each] for events in followed)
    assert first == second  # the text may arrive in other chunks
    states = [state_of(each["statusUpdate"]) for each in first[1:]]
    assert followed[0][0]["task"]["status"] == task["status"]
    assert states == ["WORKING", "INPUT_REQUIRED", "WORKING", "COMPLETED"]
    assert [text_of(fold(each)) for each in followed] == ["The result is in."] * 2


async def test_running_task_is_returned_at_once_followed_and_cancelled(ask):
    """The model answers after the test releases it."""
    gate = trio.Event()

    async def wait(_chat):
        await gate.wait()
        return "done"

    agent = BareAgent("clerk", llm=ScriptedLLM([wait, wait]))
    async with open_served(agents=[agent], protocols=PROTOCOLS) as served, served.client() as client:
        params = {**message("hello"), "configuration": {"returnImmediately": True}}
        with trio.fail_after(30):
            task = (await ask(client, "SendMessage", params))["task"]
            assert state_of(task) in ("SUBMITTED", "WORKING")
            error = await ask(client, "SendMessage", decide(task, {"approve": True}))
            assert reason_of(error) == "UNSUPPORTED_OPERATION"
            followed = []

            async def follow():
                followed.extend(await ask(client, "SubscribeToTask", {"id": task["id"]}))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow)
                await wait_until(lambda: served.gateway.app.context.streams.open)
                gate.set()
            assert (state_of(fold(followed)), text_of(fold(followed))) == ("COMPLETED", "done")
            gate = trio.Event()
            task = (await ask(client, "SendMessage", {**params, **message("hello", "m2")}))["task"]
            params["message"]["messageId"] = "m2"
            again = (await ask(client, "SendMessage", params))["task"]
            assert again["id"] == task["id"]
            assert state_of(await ask(client, "CancelTask", {"id": task["id"]})) == "CANCELED"


async def list_states(client):
    """Return the states of all listed tasks."""
    states, token = [], ""
    while not states or token:
        page = await call_rpc(client, "ListTasks", {"pageSize": 100, "pageToken": token})
        states += [state_of(each) for each in page["tasks"]]
        token = page["nextPageToken"]
    return states


async def test_aborted_streams_leave_their_tasks_running_and_nothing_else():
    """200 clients disconnect after the first event. Each task completes, and no stream or trio task is left."""

    async def abort(client, number):
        sent = message("please add", f"m{number}")
        path = "/a2a/clerk/v1/message:stream"
        async with client.stream("POST", path, json=sent, headers=VERSION) as response:
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    return

    limits = GatewayLimits(grace=1, rate=1000, burst=1000)
    async with open_served(agents=make_agents(), protocols=PROTOCOLS, limits=limits) as served:
        async with served.client() as client:
            await abort(client, "first")
            await wait_until(lambda: not served.gateway.app.context.streams.open)
        before = trio.lowlevel.current_statistics().tasks_living
        async with served.client() as client:
            with trio.fail_after(120):
                for start in range(0, 200, 10):
                    async with trio.open_nursery() as nursery:
                        for number in range(start, start + 10):
                            nursery.start_soon(abort, client, number)
            await wait_until(lambda: not served.gateway.app.context.streams.open)
            with trio.fail_after(60):
                while await list_states(client) != ["COMPLETED"] * 200:  # noqa: ASYNC110 - as above
                    await trio.sleep(0.05)
        # Idle workers of the runtime stay, at most one for each of the 10 concurrent turns.
        await wait_until(lambda: trio.lowlevel.current_statistics().tasks_living <= before + 10)


async def test_repeated_message_is_the_same_task(served, ask):
    async with served.client() as client:
        tasks = [(await ask(client, "SendMessage", message("hello")))["task"] for _ in range(2)]
        streamed = fold(await ask(client, "SendStreamingMessage", message("hello")))
        context = {"contextId": tasks[0]["contextId"]}
        error = await ask(client, "SendMessage", message("something else", **context))
        other = (await ask(client, "SendMessage", message("something else")))["task"]
        assert other["contextId"] != tasks[0]["contextId"]
        assert {each["id"] for each in (*tasks, streamed)} == {tasks[0]["id"]}
        assert text_of(streamed) == "you said: hello"
        assert reason_of(error) == "KEY_REUSED"
        page = (await client.get("/v1/sessions")).json()["items"]
        assert len(page) == 2


async def test_many_equal_messages_at_once_are_one_task(served, ask):
    found = []

    async def send(client):
        found.append((await ask(client, "SendMessage", message("hello")))["task"]["id"])

    async with served.client() as client:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(send, client)
        listed = await ask(client, "ListTasks", {})
    assert len(found) == 20
    assert [each["id"] for each in listed["tasks"]] == [found[0]]


async def test_context_is_the_session(served, ask, chats):
    async with served.client() as client:
        first = (await ask(client, "SendMessage", message("hello")))["task"]
        second = message("again", "m2", contextId=first["contextId"])
        task = (await ask(client, "SendMessage", second))["task"]
    assert task["contextId"] == first["contextId"]
    assert len(chats[-1].messages) == 3


async def test_tasks_are_listed_by_pages_newest_first(served, ask):
    async with served.client() as client:
        for number in range(5):
            known = {"contextId": "even"} if number % 2 == 0 else {}
            await ask(client, "SendMessage", message(f"hello {number}", f"m{number}", **known))
        await ask(client, "SendMessage", message("please pay", "m5"))
        pages, token = [], ""
        while not pages or token:
            page = await ask(client, "ListTasks", {"pageSize": 4, **({"pageToken": token} if token else {})})
            pages.append(page["tasks"])
            token = page["nextPageToken"]
            assert (page["totalSize"], page["pageSize"]) == (6, 4)
        listed = [each for page in pages for each in page]
        assert [len(page) for page in pages] == [4, 2]
        assert [each["id"].rpartition("~")[2] for each in listed] == ["m5", "m4", "m3", "m2", "m1", "m0"]
        assert not any("artifacts" in each for each in listed)
        waiting = await ask(client, "ListTasks", {"status": "TASK_STATE_INPUT_REQUIRED"})
        even = await ask(client, "ListTasks", {"contextId": "even", "includeArtifacts": True})
        newer = await ask(client, "ListTasks", {"statusTimestampAfter": listed[0]["status"]["timestamp"]})
        none = await ask(client, "ListTasks", {"contextId": "unknown"})
    assert [state_of(each) for each in waiting["tasks"]] == ["INPUT_REQUIRED"]
    assert [text_of(each) for each in even["tasks"]] == [f"you said: hello {number}" for number in (4, 2, 0)]
    assert [each["id"] for each in newer["tasks"]] == [listed[0]["id"]]
    assert none["tasks"] == []


async def test_tasks_of_another_owner_do_not_exist(served, ask):
    async with served.client() as client:
        task = (await ask(client, "SendMessage", message("please pay")))["task"]
    async with served.client("bob") as client:
        for method in ("GetTask", "CancelTask", "SubscribeToTask"):
            theirs = await ask(client, method, {"id": task["id"]})
            unknown = await ask(client, method, {"id": "unknown~m1"})
            assert theirs == unknown
            assert reason_of(theirs) == "TASK_NOT_FOUND"
        assert (
            reason_of(await ask(client, "SendMessage", decide(task, {"approve": True}))) == "TASK_NOT_FOUND"
        )
        foreign = message("hello", contextId=task["contextId"])
        assert reason_of(await ask(client, "SendMessage", foreign)) == "TASK_NOT_FOUND"
        assert (await ask(client, "ListTasks", {}))["tasks"] == []
        assert (await ask(client, "ListTasks", {"contextId": task["contextId"]}))["tasks"] == []
        own = (await ask(client, "SendMessage", message("please pay")))["task"]
        assert own["contextId"] != task["contextId"]
    assert runs["pay"] == 0


async def test_failed_task_hides_the_error_text(served, ask):
    async with served.client("chatter") as client:
        task = (await ask(client, "SendMessage", message("please fail")))["task"]
        again = await ask(client, "GetTask", {"id": task["id"]})
    assert state_of(task) == state_of(again) == "FAILED"
    assert task["metadata"]["actgent.failed"] == "model"
    assert "secret-canary" not in json.dumps([task, again])


async def test_media_of_message_and_answer_are_transferred(ask, chats):
    def paint(_chat):
        return ModelResponse(parts=(Text("Here."), Image(media_type="image/png", data=b"png")))

    def look(chat):
        chats.append(chat)
        return paint(chat)

    agent = BareAgent("clerk", llm=ScriptedLLM([look]))
    parts = [
        {"text": "look"},
        {"raw": "_-8", "mediaType": "image/png", "filename": "a.png"},
        {"url": "https://example.com/b.pdf", "mediaType": "application/pdf"},
        {"data": {"count": 1}},
    ]
    params = message("")
    params["message"]["parts"] = parts
    async with open_served(agents=[agent], protocols=PROTOCOLS) as served, served.client() as client:
        task = (await ask(client, "SendMessage", params))["task"]
    text, image, file, data = chats[0].messages[-1].parts
    assert (text.text, data.text) == ("look", '{"count": 1}')
    assert (image.data, file.url) == (b"\xff\xef", "https://example.com/b.pdf")
    assert task["artifacts"][0]["parts"] == [{"text": "Here."}, {"raw": "cG5n", "mediaType": "image/png"}]


async def test_structured_answer_is_a_data_part(ask):
    schema = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
    agent = BareAgent("clerk", llm=ScriptedLLM(['{"count": 2}']), output=schema)
    async with open_served(agents=[agent], protocols=PROTOCOLS) as served, served.client() as client:
        task = (await ask(client, "SendMessage", message("count")))["task"]
        again = await ask(client, "GetTask", {"id": task["id"]})
        streamed = fold(await ask(client, "SendStreamingMessage", message("count")))
    assert task["artifacts"] == again["artifacts"] == streamed["artifacts"]
    assert task["artifacts"][0]["parts"] == [{"data": {"count": 2}, "mediaType": "application/json"}]


async def test_text_around_structured_data_stays(ask):
    schema = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
    agent = BareAgent("clerk", llm=ScriptedLLM(['I found {"count": 2}']), output=schema)
    async with open_served(agents=[agent], protocols=PROTOCOLS) as served, served.client() as client:
        task = (await ask(client, "SendMessage", message("count")))["task"]
    text, data = task["artifacts"][0]["parts"]
    assert text == {"text": 'I found {"count": 2}'}
    assert data["data"] == {"count": 2}


GREETING = Instruction("Greeting", "A short answer.", {"text": "<the text>"})
COUNT = Instruction("Count", "Structured data.", {"count": "<a number>"})


def typed(kind, content):
    return json.dumps({"messageType": kind, "content": content})


async def test_answers_without_text_have_no_text_part(ask):
    """Cases: only an image, only an event, and an image with an answer whose text is extracted from the model's text."""
    image = Image(media_type="image/png", data=b"png")
    script = [[image], typed("Count", {"count": 2}), [typed("DIRECT_RESPONSE", "Here."), image]]
    agent = SimpleAgent("clerk", llm=ScriptedLLM(script, chunk=4), instructions=[COUNT])
    async with open_served(agents=[agent], protocols=PROTOCOLS) as served, served.client() as client:
        for number, expected in enumerate(
            (
                [{"raw": "cG5n", "mediaType": "image/png"}],
                [{"data": {"count": 2}, "mediaType": "application/json"}],
                [{"text": "Here."}, {"raw": "cG5n", "mediaType": "image/png"}],
            )
        ):
            events = await ask(client, "SendStreamingMessage", message("go", f"m{number}"))
            task = await ask(client, "GetTask", {"id": events[0]["task"]["id"]})
            assert task["artifacts"][0]["parts"] == expected
            (streamed,) = fold(events)["artifacts"]
            texts = [each["text"] for each in streamed["parts"] if "text" in each]
            others = [each for each in streamed["parts"] if "text" not in each]
            shown = [{"text": "".join(texts)}, *others] if texts else others
            assert shown == expected


async def test_answers_of_message_types_are_messages(ask):
    greeting = typed("Greeting", {"text": "Hi."})
    script = [greeting, typed("DIRECT_RESPONSE", "Done."), greeting, greeting]
    agent = SimpleAgent("clerk", llm=ScriptedLLM(script), instructions=[GREETING])
    protocols = [A2AProtocol(message_types=["Greeting"])]
    async with open_served(agents=[agent], protocols=protocols) as served, served.client() as client:
        for _ in range(2):  # a repeated message has the same answer
            answer = (await ask(client, "SendMessage", message("hello", contextId="c")))["message"]
            assert answer["role"] == "ROLE_AGENT"
            assert answer["contextId"] == "c"
            assert answer["messageId"]
            assert answer["parts"][0] == {"text": "Hi."}
            assert "taskId" not in answer
        task = (await ask(client, "SendMessage", message("work", "m2", contextId="c")))["task"]
        assert text_of(task) == "Done."
        streamed = fold(await ask(client, "SendStreamingMessage", message("hello", "m3", contextId="c")))
        assert state_of(streamed) == "COMPLETED"
        params = {**message("hello", "m4", contextId="c"), "configuration": {"returnImmediately": True}}
        assert "task" in await ask(client, "SendMessage", params)


async def test_media_types_of_the_card_are_checked(ask):
    agent = BareAgent("clerk", llm=ScriptedLLM(lambda _: "seen"))
    protocols = [A2AProtocol(input_modes=["text/plain", "video/*"], output_modes=["text/plain"])]
    async with open_served(agents=[agent], protocols=protocols) as served, served.client() as client:
        card = await ask(client, "GetExtendedAgentCard", {})
        assert card["defaultInputModes"] == ["text/plain", "video/*"]
        assert card["defaultOutputModes"] == ["text/plain"]
        for number, (part, is_supported) in enumerate(
            (
                ({"raw": "AA==", "mediaType": "Video/MP4; codecs=x"}, True),
                ({"raw": "AA==", "mediaType": "image/png"}, False),
                ({"url": "data:video/mp4;base64,AA=="}, True),
                ({"url": "data:image/png;base64,AA==", "mediaType": "video/mp4"}, False),
            )
        ):
            params = message("", f"m{number}")
            params["message"]["parts"] = [part]
            result = await ask(client, "SendMessage", params)
            assert ("task" in result) is is_supported, part
            assert is_supported or reason_of(result) == "CONTENT_TYPE_NOT_SUPPORTED"
        for number, (accepted, is_supported) in enumerate(
            (([], True), (["text/*"], True), (["text"], True), (["*/*"], True), (["image/png"], False))
        ):
            params = {**message("x", f"a{number}"), "configuration": {"acceptedOutputModes": accepted}}
            result = await ask(client, "SendMessage", params)
            assert ("task" in result) is is_supported, accepted
            assert is_supported or reason_of(result) == "CONTENT_TYPE_NOT_SUPPORTED"
        params["configuration"]["acceptedOutputModes"] = "text/plain"
        assert reason_of(await ask(client, "SendMessage", params)) == "configuration.acceptedOutputModes"


@pytest.mark.parametrize("modes", ["text", ["a/b/c"], []], ids=["no slash", "two slashes", "none"])
def test_wrong_media_types_of_a_card_are_rejected(modes):
    with pytest.raises(ConfigurationError, match="media type"):
        A2AProtocol(input_modes=modes)


async def test_names_of_the_proto_file_are_accepted(served, ask):
    """Like ProtoJSON parsers, the server accepts `history_length` too. Data of the client keeps its names."""
    async with served.client() as client:
        sent = message("x", "m1", context_id="c")
        sent["message"]["parts"] = [{"data": {"snake_case": 1}, "media_type": "application/json"}]
        task = (await ask(client, "SendMessage", {**sent, "configuration": {"history_length": 0}}))["task"]
        whole = await ask(client, "GetTask", {"id": task["id"]})
    assert task["contextId"] == "c"
    assert "history" not in task
    assert whole["history"][0]["parts"][0]["text"] == '{"snake_case": 1}'


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ({"text": "approve"}, {"text": "approve"}),
        ({"data": {"approve": False, "reason": "too much"}}, {"text": "too much"}),
        ({"text": "paid by hand"}, {"text": "paid by hand"}),
        ({"data": {"response": 3}}, {"text": "3"}),
        ({"data": {"edit": {"euros": 1}}}, {"data": {"edit": {"euros": 1}}, "mediaType": "application/json"}),
    ],
    ids=["approve", "reject", "text", "data", "edit"],
)
async def test_history_has_questions_and_decisions(served, ask, sent, shown):
    async with served.client() as client:
        task = (await ask(client, "SendMessage", message("please pay")))["task"]
        decision = decide(task, None)
        decision["message"]["parts"] = [sent]
        task = (await ask(client, "SendMessage", decision))["task"]
        again = await ask(client, "GetTask", {"id": task["id"]})
    assert again["history"] == task["history"]
    request, question, answer = task["history"]
    assert request["parts"] == [{"text": "please pay"}]
    assert question["role"] == "ROLE_AGENT"
    assert question["parts"][0] == {"text": "Really pay?"}
    assert answer["role"] == "ROLE_USER"
    assert answer["parts"] == [shown]


async def test_wrong_parameters_are_reported(served, ask):
    wrong = {
        "message.messageId": {"message": {"role": "ROLE_USER", "parts": [{"text": "x"}]}},
        "message.role": {"message": {"messageId": "m", "role": "user", "parts": [{"text": "x"}]}},
        "message.parts": {"message": {"messageId": "m", "role": "ROLE_USER", "parts": []}},
        "message.parts[0]": {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{}]}},
        "message.parts[0].text": message(""),
        "message.contextId": message("x", contextId="a/b"),
        "historyLength": {**message("x"), "configuration": {"historyLength": -1}},
        "configuration": {**message("x"), "configuration": 5},
        "CONTENT_TYPE_NOT_SUPPORTED": {
            "message": {
                "messageId": "m",
                "role": "ROLE_USER",
                "parts": [{"raw": "", "mediaType": "application/x-unknown"}],
            }
        },
        "PUSH_NOTIFICATION_NOT_SUPPORTED": {
            **message("x"),
            "configuration": {"taskPushNotificationConfig": {"url": "https://example.com"}},
        },
    }
    async with served.client() as client:
        for reason, params in wrong.items():
            assert reason_of(await ask(client, "SendMessage", params)) == reason
        assert (await ask(client, "ListTasks", {}))["tasks"] == []


async def test_history_length_limits_the_messages(served, ask):
    async with served.client() as client:
        params = {**message("please add"), "configuration": {"historyLength": 1}}
        task = (await ask(client, "SendMessage", params))["task"]
        none = await ask(client, "GetTask", {"id": task["id"], "historyLength": 0})
    assert [each["role"] for each in task["history"]] == ["ROLE_AGENT"]
    assert "history" not in none


async def test_extended_card_has_more_than_the_public_card(ask):
    agent = BareAgent("clerk", llm=ScriptedLLM(["x"]), goal="answer questions about invoices")
    async with open_served(agents=[agent], protocols=[A2AProtocol()]) as served, served.client() as client:
        extended = await ask(client, "GetExtendedAgentCard", {})
        public = (await client.get("/a2a/clerk/.well-known/agent-card.json")).json()
    assert "invoices" in extended["description"]
    assert "invoices" not in json.dumps(public)
    assert extended["supportedInterfaces"] == public["supportedInterfaces"]


async def test_public_card_needs_no_token(served):
    async with served.client(authorization="") as client:
        card = await client.get("/a2a/clerk/.well-known/agent-card.json")
        tag = card.headers["etag"]
        same = await client.get("/a2a/clerk/.well-known/agent-card.json", headers={"if-none-match": tag})
        unknown = await client.get("/a2a/unknown/.well-known/agent-card.json")
        several = await client.get("/.well-known/agent-card.json")
    urls = [each["url"] for each in card.json()["supportedInterfaces"]]
    assert urls == [f"{served.gateway.url}/a2a/clerk", f"{served.gateway.url}/a2a/clerk/v1"]
    assert "max-age" in card.headers["cache-control"]
    assert (same.status_code, unknown.status_code, several.status_code) == (304, 404, 404)


async def test_card_of_the_only_agent_is_at_the_root_with_the_configured_url():
    agent = BareAgent("the clerk", llm=ScriptedLLM(["x"]))
    protocols = [A2AProtocol(base_url="https://agents.example.com/")]
    async with open_served(agents=[agent], protocols=protocols) as served, served.client() as client:
        card = (await client.get("/.well-known/agent-card.json")).json()
    assert card["supportedInterfaces"][0]["url"] == "https://agents.example.com/a2a/the%20clerk"


async def test_operations_need_their_scopes(served, ask):
    async with served.client("reader") as client:
        assert reason_of(await ask(client, "SendMessage", message("hello"))) == "FORBIDDEN"
        assert (await ask(client, "ListTasks", {}))["tasks"] == []


async def test_json_rpc_errors_have_their_codes(served):
    async def post(content, status=200, **headers):
        headers = {"content-type": "application/json", **VERSION, **headers}
        response = await client.post("/a2a/clerk/", content=content, headers=headers)
        assert response.status_code == status, response.text
        return response.json()["error"]

    known = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}
    async with served.client() as client:
        assert (await post("{"))["code"] == -32700
        assert (await post("[]"))["code"] == -32600
        assert (await post("{}"))["code"] == -32600
        assert (await post(json.dumps({**known, "id": True})))["code"] == -32600
        assert (await post(json.dumps({**known, "jsonrpc": "1.0"})))["code"] == -32600
        assert (await post(json.dumps({**known, "method": "unknown"})))["code"] == -32601
        assert (await post(json.dumps({**known, "params": []})))["code"] == -32602
        assert (await post(json.dumps({**known, "params": {}})))["code"] == -32602
        assert (await post(json.dumps(known)))["code"] == -32001
        assert (await post(json.dumps(known), 415, **{"content-type": "text/plain"}))["code"] == -32005
        push = {**known, "method": "CreateTaskPushNotificationConfig"}
        assert (await post(json.dumps(push)))["code"] == -32003
        for version in ("0.3", "2.0", "1", ""):
            error = await post(json.dumps(known), **{"a2a-version": version})
            shown = (
                f"A2A-Version {version} is not supported" if version else "the header A2A-Version is missing"
            )
            assert error["code"] == -32009
            assert error["message"].startswith(shown)
            assert error["message"].endswith("send A2A-Version: 1.0")
        assert (await post(json.dumps(known), 401, authorization="Bearer act_x"))["code"] == -32600
        unknown = await client.post("/a2a/unknown", json=known, headers=VERSION)
        assert unknown.status_code == 404


async def test_rest_errors_have_their_statuses(served):
    async with served.client() as client:
        get = await client.get("/a2a/clerk/v1/tasks/x", headers=VERSION)
        assert (get.status_code, get.json()["error"]["status"]) == (404, "NOT_FOUND")
        version = await client.get("/a2a/clerk/v1/tasks/x?A2A-Version=1.0")
        assert version.status_code == 404
        assert (await client.get("/a2a/clerk/v1/tasks/x")).status_code == 400
        wrong = await client.get("/a2a/clerk/v1/tasks?pageSize=0", headers=VERSION)
        assert (wrong.status_code, wrong.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
        push = await client.get("/a2a/clerk/v1/tasks/x/pushNotificationConfigs/1", headers=VERSION)
        assert reason_of(push.json()["error"]) == "PUSH_NOTIFICATION_NOT_SUPPORTED"
        task = await call_rest(client, "SendMessage", message("hello"))
        ended = await client.post(
            f"/a2a/clerk/v1/tasks/{task['task']['id']}:cancel", json={}, headers=VERSION
        )
        assert (ended.status_code, ended.json()["error"]["status"]) == (409, "FAILED_PRECONDITION")
        params = message("x", "m2")
        params["message"]["parts"] = [{"raw": "", "mediaType": "application/x-unknown"}]
        media = await client.post("/a2a/clerk/v1/message:send", json=params, headers=VERSION)
        assert (media.status_code, media.json()["error"]["status"]) == (415, "INVALID_ARGUMENT")
        unknown = await client.get("/a2a/unknown/v1/tasks", headers=VERSION)
        assert unknown.status_code == 404


VALUES = (None, True, 0, -1, 2**70, 1.5, "", "x", "\x00", "~", [], {}, [{}], {"text": 1}, "a" * 5000)


def mutate(chance, value):
    """Return a value with one random change: a member is replaced, removed or added."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        rest = {name: each for name, each in value.items() if name != key}
        return rest if chance.random() < 0.1 else {**rest, key: mutate(chance, value[key])}
    if isinstance(value, list) and value and chance.random() < 0.9:
        return [*value[:-1], mutate(chance, value[-1])]
    return chance.choice(VALUES)


@pytest.mark.parametrize("seed", range(4))
async def test_mutated_requests_cause_no_server_error(seed):
    chance = random.Random(seed)
    async with open_served(agents=make_agents(), protocols=PROTOCOLS) as served, served.client() as client:
        tasks = [
            (await call_rpc(client, "SendMessage", message("please pay", f"f{each}")))["task"]
            for each in range(2)
        ]
        known = {
            "SendMessage": {
                **message("hello"),
                "configuration": {"historyLength": 1, "returnImmediately": False},
            },
            "SendStreamingMessage": decide(tasks[0], {"approve": True}),
            "GetTask": {"id": tasks[0]["id"], "historyLength": 1},
            "ListTasks": {
                "contextId": "c",
                "pageSize": 2,
                "pageToken": "W10",
                "statusTimestampAfter": "2026-01-01T00:00:00Z",
            },
            "CancelTask": {"id": tasks[1]["id"]},
            "SubscribeToTask": {"id": tasks[0]["id"]},
        }
        for _ in range(60):
            method = chance.choice(list(known))
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": known[method]}
            for _ in range(chance.randrange(1, 3)):
                body = mutate(chance, body)
            response = await client.post(
                "/a2a/clerk",
                content=json.dumps(body),
                headers={**VERSION, "content-type": "application/json"},
            )
            assert response.status_code < 500, (body, response.text)
            verb, path = PATHS[method]
            params = mutate(chance, known[method])
            path = re.sub(r"\{id\}", lambda _: tasks[0]["id"], f"/a2a/clerk/v1{path}")
            options = (
                {"content": json.dumps(params)}
                if verb == "POST"
                else {
                    "params": {name: str(each) for name, each in params.items()}
                    if isinstance(params, dict)
                    else {}
                }
            )
            response = await client.request(
                verb, path, headers={**VERSION, "content-type": "application/json"}, **options
            )
            assert response.status_code < 500, (params, response.text)
