"""Outside protocols at two nodes. Each request arrives at the owner of its session, or at the other node."""

from contextlib import asynccontextmanager
from functools import partial

import attrs
import httpx2
import pytest
import trio

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from actgent import GatewayLimits, open_gateway
from actgent.client.transport_interface import ConnectionLost
from actgent.cluster.relay_client import NodeTransport
from actgent.interop import PROTOCOLS
from actgent.interop.runs_of_protocol_requests import Run
from actgent.web.access_tokens import new_token
from actgent.web.routes.endpoints import Forwarding
from tests.interop.sse import events_of

from .pairs import PATIENCE, drain, open_pair

LIMITS = GatewayLimits(rate=100_000, burst=100_000, requests=1000, messages=10_000, grace=1)
A2A = {"a2a-version": "1.0"}
MCP = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28"}
OWNERS = {
    name: new_token(name, owner=owner, scopes=("chat", "read", "approve"))
    for name, owner in (("ada", "ada"), ("bo", "bo"))
}


@attrs.frozen
class Served:
    """A pair of nodes whose gateways serve all protocols."""

    pair: object
    urls: tuple

    def ids(self):
        """Return a new session id of each node."""
        return [self.pair.id_at(each) for each in (self.pair.one, self.pair.two)]

    def at(self, number, token="ada", **headers):
        """Return a client of the gateway of a node."""
        settings = {"authorization": f"Bearer {OWNERS[token][0] if token in OWNERS else token}", **headers}
        return httpx2.AsyncClient(base_url=self.urls[number], headers=settings, timeout=60)

    async def post(self, number, path, body, token="ada", **headers):
        async with self.at(number, token, **headers) as client:
            return await client.post(path, json=body)

    async def get(self, number, path, token="ada", **headers):
        async with self.at(number, token, **headers) as client:
            return await client.get(path)

    @property
    def asked(self):
        return [each for model in self.pair.models for each in model.asked]


@pytest.fixture
async def served(open_cluster):
    settings = {"bind": "127.0.0.1:0", "tokens": [known for _, known in OWNERS.values()], "limits": LIMITS}
    with trio.fail_after(PATIENCE):
        async with (
            open_pair(open_cluster) as pair,
            open_gateway(pair.one, protocols=PROTOCOLS, **settings) as first,
            open_gateway(pair.two, protocols=PROTOCOLS, **settings) as second,
        ):
            yield Served(pair, (first.url, second.url))


def test_each_protocol_endpoint_declares_its_routing():
    """The default routing key is the path segment `id`, which names no session in these protocols."""
    rows = [each for protocol in PROTOCOLS for each in protocol.endpoints]
    assert [each.path for each in rows if each.forwarding == Forwarding()] == []


# --- AG-UI ---------------------------------------------------------------------------------


def agui(thread, text="", run="r1", **more):
    messages = [{"id": "m", "role": "user", "content": text}] if text else []
    return {"threadId": thread, "runId": run, "messages": messages, **more}


def deltas(response, kind="TEXT_MESSAGE_CONTENT"):
    events = [each for each in events_of(response.text) if each != "[DONE]"]
    return "".join(each["delta"] for each in events if each["type"] == kind)


async def test_ag_ui_runs_at_any_node(served):
    for thread in served.ids():
        for number in (0, 1):
            answer = await served.post(number, "/agui/clerk", agui(thread, f"n{number}", run=f"r{number}"))
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert deltas(answer) == f"you said: n{number}"
            assert events_of(answer.text)[-1]["type"] == "RUN_FINISHED"
        again = await served.post(0, "/agui/clerk", agui(thread, "n1", run="r1"))
        assert deltas(again) == "you said: n1"
        asked = await served.post(0, "/agui/clerk", agui(thread, "deploy mars", run="r2"))
        (interrupt,) = events_of(asked.text)[-1]["outcome"]["interrupts"]
        decided = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
        for number in (1, 0):  # the second request repeats the first one
            resumed = await served.post(number, "/agui/clerk", agui(thread, run="r3", resume=decided))
            assert deltas(resumed) == "done: deployed to mars"
    assert served.asked.count("n1") == 2


# --- Vercel --------------------------------------------------------------------------------


def vercel(chat, text, message="m1"):
    parts = [{"type": "text", "text": text}]
    return {
        "id": chat,
        "trigger": "submit-message",
        "messages": [{"id": message, "role": "user", "parts": parts}],
    }


async def test_vercel_chats_at_any_node(served):
    for index, chat in enumerate(served.ids()):
        for number in (0, 1):
            answer = await served.post(number, "/vercel/clerk", vercel(chat, f"n{number}", f"m{number}"))
            assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
            assert deltas(answer, "text-delta") == f"you said: n{number}"
        assert (await served.get(1 - index, f"/vercel/clerk/{chat}/stream")).status_code == 204


async def test_vercel_stream_resumes_at_the_other_node(served, monkeypatch):
    opened, open_run = [], Run.open

    def note(run, **options):
        opened.append(run.message_id)
        return open_run(run, **options)

    monkeypatch.setattr(Run, "open", note)
    for index, chat in enumerate(served.ids()):
        answers = []

        async def keep(call, answers=answers):
            answers.append(await call())

        async with trio.open_nursery() as nursery:
            send = partial(served.post, 1 - index, "/vercel/clerk", vercel(chat, "hold", f"m{index}"))
            nursery.start_soon(keep, send)
            while "hold" not in served.pair.models[index].asked:  # noqa: ASYNC110 - only a counter of the model changes
                await trio.sleep(0.01)
            nursery.start_soon(keep, partial(served.get, 1 - index, f"/vercel/clerk/{chat}/stream"))
            while opened.count(f"m{index}") < 2:  # noqa: ASYNC110 - as above
                await trio.sleep(0.01)
            served.pair.models[index].may_go.set()
        assert [deltas(each, "text-delta") for each in answers] == ["you said: hold"] * 2


# --- OpenAI --------------------------------------------------------------------------------

WHERE = {"name": "deploy_there", "parameters": {"type": "object"}}


def completion(text, **more):
    return {"model": "clerk", "messages": [{"role": "user", "content": text}], **more}


async def test_chat_completions_keep_a_session_at_any_node(served):
    path = "/openai/v1/chat/completions"
    for session_id in served.ids():
        named = {"x-session-id": session_id}
        for number in (0, 1):
            answer = await served.post(number, path, completion(f"n{number}"), **named)
            assert answer.json()["choices"][0]["message"]["content"] == f"you said: n{number}"
            streamed = await served.post(number, path, completion("more", stream=True), **named)
            chunks = events_of(streamed.text)
            assert chunks[-1] == "[DONE]"
            text = "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks[:-1])
            assert text == "you said: more"
        key = {**named, "idempotency-key": f"k-{session_id}"}
        answers = [await served.post(number, path, completion("once"), **key) for number in (0, 1)]
        assert len({each.json()["id"] for each in answers}) == 1
    assert served.asked.count("once") == 2
    for number in (0, 1):  # without a session, the node itself answers
        answer = await served.post(number, path, completion("alone"))
        assert answer.json()["choices"][0]["message"]["content"] == "you said: alone"
        assert served.pair.models[number].asked.count("alone") == 1


async def test_responses_continue_at_the_other_node(served):
    path = "/openai/v1/responses"
    for number in (0, 1):
        first = (await served.post(number, path, {"model": "clerk", "input": "one"})).json()
        more = {"model": "clerk", "input": "two", "previous_response_id": first["id"]}
        second = (await served.post(1 - number, path, more)).json()
        assert second["output"][0]["content"][0]["text"] == "you said: two"
        for place in (0, 1):
            found = (await served.get(place, f"{path}/{second['id']}")).json()
            assert found["output"] == second["output"]
        request = {**more, "input": "deploy mars", "previous_response_id": second["id"]}
        waits = (await served.post(number, path, request)).json()
        approval = waits["output"][-1]["id"]
        decided = {"type": "mcp_approval_response", "approval_request_id": approval, "approve": True}
        done = (await served.post(1 - number, path, {"model": "clerk", "input": [decided]})).json()
        assert done["output"][0]["content"][0]["text"] == "done: deployed to mars"


async def test_response_with_an_idempotency_key_is_one_turn_at_both_nodes(served):
    """Both nodes get the request at once. The key selects the session, which is at one of the nodes."""
    for name in ("a", "b", "c", "d"):
        body, key, made = {"model": "clerk", "input": f"once {name}"}, {"idempotency-key": name}, []

        async def ask(number, body=body, key=key, made=made):
            made.append((await served.post(number, "/openai/v1/responses", body, **key)).json()["id"])

        async with trio.open_nursery() as nursery:
            for number in (0, 1):
                nursery.start_soon(ask, number)
        assert (len(set(made)), served.asked.count(f"once {name}")) == (1, 1)


async def test_background_response_is_cancelled_from_the_other_node(served):
    path = "/openai/v1/responses"
    body = {"model": "clerk", "input": "hold", "background": True}
    made = (await served.post(0, path, body)).json()
    assert made["status"] == "queued"
    ended = (await served.post(1, f"{path}/{made['id']}/cancel", {})).json()
    assert ended["status"] == "cancelled"


# --- A2A -----------------------------------------------------------------------------------


def rpc(method, params):
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def message(text="", message_id="m1", **more):
    parts = more.pop("parts", [{"text": text}])
    return {"message": {"messageId": message_id, "role": "ROLE_USER", "parts": parts, **more}}


async def call_rpc(served, number, method, params, token="ada"):
    answer = await served.post(number, "/a2a/clerk", rpc(method, params), token, **A2A)
    if answer.headers["content-type"].startswith("text/event-stream"):
        return [each["result"] for each in events_of(answer.text)]
    return answer.json()


def text_of_task(task):
    return task["artifacts"][0]["parts"][0]["text"]


async def test_a2a_tasks_are_equal_at_both_nodes(served):
    for context in served.ids():
        for number in (0, 1):
            sent = message(f"n{number}", f"m{number}", contextId=context)
            task = (await call_rpc(served, number, "SendMessage", sent))["result"]["task"]
            assert text_of_task(task) == f"you said: n{number}"
            for place in (0, 1):
                found = await call_rpc(served, place, "GetTask", {"id": task["id"]})
                assert found["result"]["status"]["state"] == "TASK_STATE_COMPLETED"
                over_rest = await served.get(place, f"/a2a/clerk/v1/tasks/{task['id']}", **A2A)
                assert over_rest.json()["id"] == task["id"]
        streamed = await call_rpc(served, 0, "SendStreamingMessage", message("more", "m5", contextId=context))
        assert streamed[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        asked = await call_rpc(served, 0, "SendMessage", message("deploy mars", "m7", contextId=context))
        task_id = asked["result"]["task"]["id"]
        for place in (0, 1):
            listed = await call_rpc(served, place, "ListTasks", {"contextId": context})
            waiting = [each for each in listed["result"]["tasks"] if each["id"] == task_id]
            assert waiting[0]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
            assert "mars" in str(waiting[0]["status"]["message"])
        yes = message(message_id="m8", taskId=task_id, parts=[{"data": {"approve": True}}])
        done = await call_rpc(served, 1, "SendMessage", yes)
        assert text_of_task(done["result"]["task"]) == "done: deployed to mars"
        for place in (0, 1):
            listed = await call_rpc(served, place, "ListTasks", {"contextId": context})
            assert listed["result"]["totalSize"] == 4


async def test_a2a_message_without_a_context_is_one_task_at_both_nodes(served):
    for name in ("a", "b", "c", "d"):
        sent = message(f"once {name}", name)
        tasks = [(await call_rpc(served, each, "SendMessage", sent))["result"]["task"] for each in (0, 1)]
        assert tasks[0]["id"] == tasks[1]["id"]
        assert served.asked.count(f"once {name}") == 1


async def test_a2a_task_is_cancelled_from_the_other_node(served):
    for index, context in enumerate(served.ids()):
        sent = message("hold", contextId=context)
        sent["configuration"] = {"returnImmediately": True}
        task = (await call_rpc(served, 1 - index, "SendMessage", sent))["result"]["task"]
        ended = await call_rpc(served, 1 - index, "CancelTask", {"id": task["id"]})
        assert ended["result"]["status"]["state"] == "TASK_STATE_CANCELED"
        again = await call_rpc(served, 1 - index, "CancelTask", {"id": task["id"]})
        assert again["error"]["code"] == -32002


async def test_a2a_errors_have_the_form_of_their_binding_at_any_node(served):
    (first, second) = served.ids()
    for context in (first, second):
        for number in (0, 1):
            unknown = f"{context}~m1"
            found = await call_rpc(served, number, "GetTask", {"id": unknown})
            assert found["error"]["code"] == -32001
            over_rest = await served.get(number, f"/a2a/clerk/v1/tasks/{unknown}", **A2A)
            assert over_rest.status_code == 404
            assert over_rest.json()["error"]["status"] == "NOT_FOUND"


# --- MCP -----------------------------------------------------------------------------------


def call_tool(message_text, *, meta=None, **params):
    arguments = {"message": message_text, **params.pop("arguments", {})}
    known = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    }
    params = {"name": "clerk", "arguments": arguments, "_meta": {**known, **(meta or {})}, **params}
    return rpc("tools/call", params)


async def call_mcp(served, number, body, token="ada"):
    headers = {**MCP, "mcp-method": "tools/call", "mcp-name": "clerk"}
    answer = await served.post(number, "/mcp", body, token, **headers)
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        return [each for each in events_of(answer.text) if "result" in each][-1]["result"]
    return answer.json()["result"]


async def test_mcp_calls_an_agent_at_any_node(served):
    pytest.importorskip("mcp")
    for session_id in served.ids():
        for number in (0, 1):
            named = {"arguments": {"session_id": session_id}}
            found = await call_mcp(served, number, call_tool(f"n{number}", **named))
            assert found["content"][0]["text"] == f"you said: n{number}"
        once = call_tool("once", meta={"actgent/messageId": "m1"}, **named)
        for number in (0, 1):
            assert (await call_mcp(served, number, once))["content"][0]["text"] == "you said: once"
    for number in (0, 1):  # the message id contains a session id, which lives at one of the nodes
        found = await call_mcp(served, number, call_tool("new", meta={"actgent/messageId": "m1"}))
        assert found["content"][0]["text"] == "you said: new"
        assert (await call_mcp(served, number, call_tool("alone")))["content"][0]["text"] == "you said: alone"
        assert served.pair.models[number].asked.count("alone") == 1
    assert (served.asked.count("once"), served.asked.count("new")) == (2, 1)


async def test_mcp_question_is_answered_at_the_other_node(served):
    pytest.importorskip("mcp")
    for number in (0, 1):
        for session_id in ("", *served.ids()):
            named = {"arguments": {"session_id": session_id} if session_id else {}}
            asked = await call_mcp(served, number, call_tool("deploy mars", **named))
            assert asked["resultType"] == "input_required"
            answers = {
                each: {"action": "accept", "content": {"approve": True}} for each in asked["inputRequests"]
            }
            more = {"requestState": asked["requestState"], "inputResponses": answers, **named}
            done = await call_mcp(served, 1 - number, call_tool("deploy mars", **more))
            assert done["content"][0]["text"] == "done: deployed to mars"
            others = (
                await call_mcp(served, 1 - number, call_tool("deploy mars", **more)) if session_id else None
            )
            assert others is None or others["content"][0]["text"] == "done: deployed to mars"


async def test_mcp_client_of_the_revision_2025_reaches_both_nodes(served):
    mcp = pytest.importorskip("mcp")
    from mcp.client.streamable_http import streamable_http_client

    for number in (0, 1):
        async with served.at(number) as http:
            transport = streamable_http_client(f"{served.urls[number]}/mcp", http_client=http)
            async with mcp.Client(transport, mode="legacy") as client:
                assert [each.name for each in (await client.list_tools()).tools] == ["clerk"]
                for session_id in served.ids():
                    arguments = {"message": "hello", "session_id": session_id}
                    found = await client.call_tool("clerk", arguments)
                    assert found.content[0].text == "you said: hello"


# --- all protocols -------------------------------------------------------------------------


async def _others(served, number, session_id):
    """Return the status and the body that the user bo gets for a session of ada, by protocol."""
    send = partial(served.post, number, token="bo")
    calls = (
        send("/agui/clerk", agui(session_id, "mine", run="x")),
        send("/vercel/clerk", vercel(session_id, "mine", "x")),
        served.get(number, f"/vercel/clerk/{session_id}/stream", "bo"),
        send("/openai/v1/chat/completions", completion("mine"), **{"x-session-id": session_id}),
        served.get(number, f"/openai/v1/responses/resp_{session_id}_m1", "bo"),
        send("/a2a/clerk", rpc("GetTask", {"id": f"{session_id}~m1"}), **A2A),
        send("/a2a/clerk", rpc("SendMessage", message("mine", contextId=session_id)), **A2A),
        served.get(number, f"/a2a/clerk/v1/tasks/{session_id}~m1", "bo", **A2A),
    )
    return [await each for each in calls]


async def test_owners_do_not_see_each_others_sessions_by_another_node(served):
    for session_id in served.ids():
        await served.post(0, "/agui/clerk", agui(session_id, "ada-word", run="m1"))
        for number in (0, 1):
            for answer in await _others(served, number, session_id):
                is_rpc = "jsonrpc" in answer.text
                assert answer.status_code in ((200,) if is_rpc else (404,)), answer.text
                assert not is_rpc or answer.json()["error"]["code"] == -32001
                assert "ada-word" not in answer.text
            if pytest.importorskip("mcp"):
                named = {"arguments": {"session_id": session_id}}
                assert (await call_mcp(served, number, call_tool("mine", **named), "bo"))["isError"]
    assert "mine" not in served.asked


async def test_wrong_token_error_has_the_format_of_the_protocol(served):
    session_id = served.ids()[1]
    answer = await served.post(
        0, "/openai/v1/chat/completions", completion("x"), "act_wrong", **{"x-session-id": session_id}
    )
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert (await served.post(0, "/agui/clerk", agui(session_id, "x"), "act_wrong")).status_code == 401
    assert served.asked == []


async def test_rejected_relayed_request_has_the_format_of_its_protocol(served):
    """The owner rejects the request, because its session waits for an approval."""
    for session_id in served.ids():
        for number in (0, 1):
            answer = await served.post(
                number,
                "/openai/v1/chat/completions",
                completion("x", temperature=9),
                **{"x-session-id": session_id},
            )
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "temperature"


async def test_an_owner_without_the_protocol_gives_an_error_of_the_protocol(open_cluster):
    settings = {"bind": "127.0.0.1:0", "tokens": [OWNERS["ada"][1]], "limits": LIMITS}
    with trio.fail_after(PATIENCE):
        async with (
            open_pair(open_cluster) as pair,
            open_gateway(pair.one, protocols=PROTOCOLS, **settings) as gateway,
        ):
            served = Served(pair, (gateway.url,))
            named = {"x-session-id": pair.id_at(pair.two)}
            answer = await served.post(0, "/openai/v1/chat/completions", completion("x"), **named)
    assert answer.status_code == 503
    assert "the same protocols at all nodes" in answer.json()["error"]["message"]


async def test_a_run_is_repeated_if_its_answer_was_lost(served, monkeypatch):
    """The gateway sends the request again under the same id, which it chose itself. The turn runs once."""
    relay, lost = NodeTransport.relay, []

    @asynccontextmanager
    async def lose_the_first(way, request, **asked):
        async with relay(way, request, **asked) as answer:
            if len(lost) < 1:
                lost.append(answer.status)
                raise ConnectionLost("lost", was_sent=True)
            yield answer

    path, session_id = "/openai/v1/chat/completions", served.ids()[1]
    calls = {
        "chat": lambda: served.post(0, path, completion("chat"), **{"x-session-id": session_id}),
        "mcp": lambda: call_mcp(served, 0, call_tool("mcp", arguments={"session_id": session_id})),
        "a2a": lambda: call_rpc(served, 0, "SendMessage", message("a2a", contextId=session_id)),
    }
    monkeypatch.setattr(NodeTransport, "relay", lose_the_first)
    for word, call in calls.items():
        lost.clear()
        answer = await call()
        assert f"you said: {word}" in (answer.text if isinstance(answer, httpx2.Response) else str(answer))
        assert lost == [200]
        assert served.asked.count(word) == 1


async def test_a_run_without_a_stream_is_answered_by_the_next_owner(served, monkeypatch):
    """The session moves while the model works. The gateway repeats the request at the new owner, and the client notices nothing."""
    monkeypatch.setattr("actgent.cluster.cluster_node.LEAVE_GRACE_SECONDS", 0.2)
    pair, session_id, answers = served.pair, served.ids()[1], []
    for model in pair.models:
        model.may_go = trio.Event()

    async def send():
        body, named = completion("hold"), {"x-session-id": session_id}
        answers.append(await served.post(0, "/openai/v1/chat/completions", body, **named))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        while "hold" not in pair.models[1].asked:  # noqa: ASYNC110 - only a counter of the model changes
            await trio.sleep(0.01)
        await drain(pair.cluster, pair.two)
        for model in pair.models:
            model.may_go.set()
    assert answers[0].json()["choices"][0]["message"]["content"] == "you said: hold"


async def test_node_without_partitions_forwards_requests(served):
    await drain(served.pair.cluster, served.pair.two)
    answer = await served.post(1, "/openai/v1/chat/completions", completion("alone"))
    assert answer.json()["choices"][0]["message"]["content"] == "you said: alone"
    pytest.importorskip("mcp")
    assert (await call_mcp(served, 1, call_tool("alone")))["content"][0]["text"] == "you said: alone"
    assert served.pair.models[0].asked == ["alone", "alone"]
