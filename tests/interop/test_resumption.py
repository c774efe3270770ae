"""Streams that break off after any event: a client that reconnects has what a client without a break has."""

import json
import subprocess
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path

import httpx2
import pytest
import trio

from actgent import LLM, BareAgent, GatewayLimits, ModelResponse, Text, ToolCall, ToolResult, tool
from actgent.interop import PROTOCOLS, runs_of_protocol_requests
from actgent.web.access_tokens import new_token, write_tokens
from tests.web.conftest import open_served
from tests.web.server_process import open_processes, until
from tests.web.test_streams import Events

LIMITS = GatewayLimits(rate=100_000, burst=100_000, requests=1000, messages=10_000, streams=1000)
A2A = {"a2a-version": "1.0"}
MAX_EVENTS = 40
"""A larger number than the events of a turn."""


@tool(effect="pure")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    await trio.sleep(0.002)
    return a + b


class Slow(LLM):
    """A model that writes one word every `pause` seconds, and calls `add` if the message contains "add".

    If the message contains "wait", the model writes nothing for 1.5 s.
    """

    name = "slow"

    def __init__(self, pause=0.002):
        self._pause = pause

    async def complete(self, chat, on_text=None):
        last = chat.messages[-1]
        if any(isinstance(each, ToolResult) for each in last.parts):
            return ModelResponse(parts=(Text(await self._write("The result is in now.", on_text)),))
        text = "".join(each.text for each in last.parts)
        if "wait" in text:
            await trio.sleep(1.5)
        if "add" in text:
            said = await self._write("I will add the numbers.", on_text)
            return ModelResponse(parts=(Text(said), ToolCall("add", {"a": 1, "b": 2})), stop="tool_calls")
        return ModelResponse(parts=(Text(await self._write(f"You said {text} to me.", on_text)),))

    async def _write(self, text, on_text):
        for word in text.split(" "):
            await trio.sleep(self._pause)
            if on_text is not None:
                await on_text(f"{word} ", 0)
        return f"{text} "


@pytest.fixture
async def client():
    agent = BareAgent("clerk", llm=Slow(), tools=[add], max_concurrent_sessions=100)
    serving = open_served(agents=[agent], protocols=PROTOCOLS, limits=LIMITS)
    async with serving as served, served.client() as opened:
        yield opened


async def read(client, verb, path, cut=MAX_EVENTS, **request):
    """Return the fields of the first `cut` server-sent events of a response. Then close the connection."""
    found, text = [], ""
    async with client.stream(verb, path, **request) as response:
        if response.status_code == 204:
            return []
        await response.aread() if response.is_error else None
        assert response.status_code == 200, response.text
        async with aclosing(response.aiter_text()) as pieces:
            async for piece in pieces:
                *frames, text = (text + piece).split("\n\n")
                found += [parse(each) for each in frames if "data:" in each]
                if len(found) >= cut:
                    break
    return found[:cut]


def parse(text):
    fields = dict(line.split(": ", 1) for line in text.split("\n") if not line.startswith(":"))
    with suppress(json.JSONDecodeError):
        fields["data"] = json.loads(fields["data"])
    return fields


def datas(events):
    return [each["data"] for each in events if each["data"] != "[DONE]"]


def joined(events, kind, member):
    """Join the texts of consecutive events of one kind, because the limits of text pieces depend on the time."""
    found = []
    for each in events:
        is_next = each["type"] == kind and found and found[-1]["type"] == kind
        before = found.pop()[member] if is_next else ""
        found.append({**each, member: before + each[member]} if each["type"] == kind else each)
    return found


async def native(client, session_id, word, cut):
    """A run that the request streams, and `Last-Event-ID`: each record arrives once."""
    await client.put(f"/v1/sessions/{session_id}", json={"agent": "clerk"})
    path, body = f"/v1/sessions/{session_id}/messages", {"input": word, "message_id": "m1", "stream": True}
    events = await read(client, "POST", path, cut, json=body)
    yield
    if cut < MAX_EVENTS:
        numbers = [each["id"] for each in events if "id" in each]
        headers = {"last-event-id": numbers[-1]} if numbers else {}
        events += await read(client, "POST", path, json=body, headers=headers)
    yield [(each["id"], each["event"], each["data"].get("text")) for each in events if "id" in each]


async def session_events(client, session_id, word, cut):
    """The stream of a session, and `Last-Event-ID`: each record arrives once, and the growing text has no gap."""
    await client.put(f"/v1/sessions/{session_id}", json={"agent": "clerk"})
    path, events = f"/v1/sessions/{session_id}", Events()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(client.post, f"{path}/messages", json={"input": word}))
        await read_session(client, path, events, cut)
    yield
    await read_session(client, path, events, MAX_EVENTS)
    shown = {}
    for name, data in events.grown:
        if name == "growing":
            shown[data["reply_id"]] = data["text"]
        elif name == "token":
            text = shown.get(data["reply_id"], "")
            assert data["begin"] <= len(text)
            shown[data["reply_id"]] = text[: data["begin"]] + data["text"]
    yield [(number, name, data.get("text")) for number, name, data in events.found]


async def read_session(client, path, events, cut):
    """Read the stream of a session until its message has ended, or until `cut` events have arrived."""
    count, headers = 0, {"last-event-id": events.last} if events.last else {}
    if events.has("ended"):
        return
    async with client.stream("GET", f"{path}/events", headers=headers) as response:
        async for piece in response.aiter_text():
            events.feed(piece)
            count += piece.count("data:")
            if events.has("ended") or count >= cut:
                return


async def responses(client, session_id, word, cut):
    """The Responses API, and `starting_after`."""
    body = {"model": "clerk", "input": word, "stream": True}
    events = datas(await read(client, "POST", "/openai/v1/responses", cut, json=body))
    yield
    if events[-1]["type"] != "response.completed":
        path = f"/openai/v1/responses/{events[0]['response']['id']}"
        query = {"stream": "true", "starting_after": events[-1]["sequence_number"]}
        events += datas(await read(client, "GET", path, params=query))
    numbers = [each["sequence_number"] for each in events]
    assert numbers == sorted(set(numbers))
    events = joined(events, "response.output_text.delta", "delta")
    yield [(each["type"], each.get("output_index"), each.get("delta"), each.get("text")) for each in events]


async def ag_ui(client, session_id, word, cut):
    """AG-UI with the same run id and the same state of the client."""
    messages = [{"id": "u", "role": "user", "content": word}]
    body = {"threadId": session_id, "runId": "r1", "messages": messages}
    apply_ag_ui(messages, datas(await read(client, "POST", "/agui/clerk", cut, json=body)))
    yield
    if cut < MAX_EVENTS:
        apply_ag_ui(messages, datas(await read(client, "POST", "/agui/clerk", json=body)))
    yield [
        (each["role"], each["content"], [call["function"]["arguments"] for call in each.get("toolCalls", ())])
        for each in messages
    ]


def apply_ag_ui(messages, events):  # noqa: C901 - one case for each kind of event
    """Apply events to the messages of a client as `@ag-ui/client` does: text is appended to a message with the same id."""

    def message(message_id, role):
        found = next((each for each in messages if each["id"] == message_id), None)
        if found is None:
            found = {"id": message_id, "role": role, "content": ""}
            messages.append(found)
        return found

    for event in events:
        match event["type"]:
            case "MESSAGES_SNAPSHOT":
                messages[:] = event["messages"]
            case "TEXT_MESSAGE_START":
                message(event["messageId"], "assistant")
            case "TEXT_MESSAGE_CONTENT":
                message(event["messageId"], "assistant")["content"] += event["delta"]
            case "TOOL_CALL_START":
                owner = message(event.get("parentMessageId", event["toolCallId"]), "assistant")
                calls = owner.setdefault("toolCalls", [])
                if all(each["id"] != event["toolCallId"] for each in calls):
                    calls.append(
                        {
                            "id": event["toolCallId"],
                            "type": "function",
                            "function": {"name": "add", "arguments": ""},
                        }
                    )
            case "TOOL_CALL_ARGS":
                calls = [call for each in messages for call in each.get("toolCalls", ())]
                (call,) = [each for each in calls if each["id"] == event["toolCallId"]]
                call["function"]["arguments"] += event["delta"]
            case "TOOL_CALL_RESULT":
                messages.append(
                    {
                        "id": event["messageId"],
                        "role": "tool",
                        "toolCallId": event["toolCallId"],
                        "content": event["content"],
                    }
                )  # fmt: skip


async def vercel(client, session_id, word, cut):
    """The Vercel AI SDK replays the unfinished turn; after its end, the same request gives the turn again."""
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": word}]}
    body = {"id": session_id, "messages": [message], "trigger": "submit-message"}
    events = await read(client, "POST", "/vercel/clerk", cut, json=body)
    yield
    if cut < MAX_EVENTS:
        events = await read(client, "GET", f"/vercel/clerk/{session_id}/stream")
        events = events or await read(client, "POST", "/vercel/clerk", json=body)
    assert events[-1]["data"] == "[DONE]"
    found = joined(datas(events), "text-delta", "delta")
    yield [(each["type"], each.get("delta"), each.get("output"), each.get("messageId")) for each in found]


async def a2a(client, session_id, word, cut):
    """A2A, and `SubscribeToTask`, which starts with the task, or `GetTask` after the end of the task."""
    message = {"messageId": "m1", "contextId": session_id, "role": "ROLE_USER", "parts": [{"text": word}]}
    request = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": message}}
    events = datas(await read(client, "POST", "/a2a/clerk", cut, json=request, headers=A2A))
    task = events[0]["result"]["task"]
    yield
    if cut < MAX_EVENTS:
        request = {**request, "method": "SubscribeToTask", "params": {"id": task["id"]}}
        response = await client.post("/a2a/clerk", json=request, headers=A2A)
        if response.headers["content-type"].startswith("text/event-stream"):
            frames = response.text.split("\n\n")[:-1]
            events = datas([parse(each) for each in frames if "data:" in each])
        else:
            assert response.json()["error"]["data"][0]["reason"] == "UNSUPPORTED_OPERATION"
            request = {**request, "method": "GetTask"}
            response = await client.post("/a2a/clerk", json=request, headers=A2A)
            events = [{"result": {"task": response.json()["result"]}}]
    state, text = "", ""
    for event in (each["result"] for each in events):
        for artifact in event.get("task", {}).get("artifacts", ()):
            text = artifact["parts"][0]["text"]
        if "artifactUpdate" in event:
            update = event["artifactUpdate"]
            before = text if update.get("append") else ""
            text = before + "".join(each["text"] for each in update["artifact"]["parts"])
        status = event.get("task", event.get("statusUpdate", {})).get("status")
        state = status["state"] if status else state
    yield [state, text]


PROTOCOL_CLIENTS = (native, session_events, responses, ag_ui, vercel, a2a)
"""Generators that stop when the connection breaks, then reconnect and yield what the client has received."""


async def follow_all(follow, client, session_id, word, cut):
    """Return what a client has received in the end whose connection breaks after `cut` events."""
    _, received = [each async for each in follow(client, session_id, word, cut)]
    return received


@pytest.mark.parametrize("word", ["hello", "add"])
@pytest.mark.parametrize("follow", PROTOCOL_CLIENTS)
async def test_stream_cut_after_any_event_is_complete_after_reconnection(client, follow, word):
    """The connection breaks after each event of a turn. After the reconnection no event is missing or repeated."""
    whole = await follow_all(follow, client, "whole", word, MAX_EVENTS)
    found = {}

    async def cut_after(number):
        found[number] = await follow_all(follow, client, f"cut-{number}", word, number)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(1, 16):
                nursery.start_soon(cut_after, number)
    assert found == dict.fromkeys(range(1, 16), whole)


async def test_client_with_a_part_of_another_run_is_rejected(client):
    """A new run needs a user message at the end. The messages of a client that has no such run are invalid."""
    messages = [
        {"id": "u", "role": "user", "content": "hello"},
        {"id": "a", "role": "assistant", "content": "x"},
    ]
    body = {"threadId": "t1", "runId": "r1", "messages": messages}
    response = await client.post("/agui/clerk", json=body)
    assert response.status_code == 422
    assert (await client.get("/v1/sessions/t1")).status_code == 404


A2A_MESSAGE = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "wait"}]}
STREAMS = {
    "chat completions": (
        "/openai/v1/chat/completions",
        {"model": "clerk", "messages": [{"role": "user", "content": "wait"}], "stream": True},
    ),
    "responses": ("/openai/v1/responses", {"model": "clerk", "input": "wait", "stream": True}),
    "ag_ui": (
        "/agui/clerk",
        {"threadId": "t", "runId": "r", "messages": [{"id": "u", "role": "user", "content": "wait"}]},
    ),
    "vercel": (
        "/vercel/clerk",
        {"id": "v", "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "wait"}]}]},
    ),
    "a2a": (
        "/a2a/clerk",
        {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": A2A_MESSAGE}},
    ),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_proxy_that_cuts_idle_connections_does_not_cut_a_stream(client, name, monkeypatch):
    """While the model does not write, keep-alives arrive within the idle time of the proxy. The answer arrives whole."""
    monkeypatch.setattr(runs_of_protocol_requests, "ALIVE_INTERVAL_SECONDS", 0.2)
    path, body = STREAMS[name]
    text = ""
    async with client.stream("POST", path, json=body, headers=A2A, timeout=0.7) as response:
        async for piece in response.aiter_text():
            text += piece
    assert text.count(": alive") >= 3
    assert "me. " in text


@pytest.fixture
def start(tmp_path, commands, no_keys):
    """Return a function that kills the running server process, and starts one on the same port with the same journal."""
    (tmp_path / "team.py").write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from tests.interop.test_resumption import Slow, add\n"
        "from actgent import BareAgent\n"
        'clerk = BareAgent("clerk", llm=Slow(pause=0.1), tools=[add], max_concurrent_sessions=20)\n'
    )
    token, known = new_token("ada", owner="ada", scopes=("chat",))
    write_tokens(tmp_path / "tokens.toml", [known])
    options = ["--journal", "agents.db", "--tokens", "tokens.toml"]
    with open_processes() as running:

        def starting(port="0"):
            for process in running:
                process.kill()
                process.wait()
            command = ["actgent", "serve", "team.py", "--bind", f"127.0.0.1:{port}", *options]
            output = (tmp_path / "errors.txt").open("ab")
            with output:
                process = commands.popen(command, stdout=subprocess.PIPE, stderr=output, cwd=tmp_path)
            running.append(process)
            return until(process.stdout, r":(\d+)/v1"), token

        yield starting


async def test_streams_are_complete_after_a_kill_of_the_server(start):
    """The server is killed in the middle of a turn, and restarted. Each client reconnects, and has all of the turn."""
    port, token = await trio.to_thread.run_sync(start)
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
        expected, received = {}, {}
        async with trio.open_nursery() as nursery:
            for follow in PROTOCOL_CLIENTS:
                nursery.start_soon(follow_into, expected, follow, client)
        begun = [follow(client, f"killed-{follow.__name__}", "add", 7) for follow in PROTOCOL_CLIENTS]
        async with trio.open_nursery() as nursery:
            for each in begun:
                nursery.start_soon(anext, each)
        await trio.to_thread.run_sync(start, port)
        for follow, each in zip(PROTOCOL_CLIENTS, begun, strict=True):
            received[follow] = await anext(each)
            await each.aclose()
    assert received == expected


async def follow_into(found, follow, client):
    found[follow] = await follow_all(follow, client, f"whole-{follow.__name__}", "add", MAX_EVENTS)
