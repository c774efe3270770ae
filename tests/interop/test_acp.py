"""ACP: sessions, prompts, permissions, cancellation and errors, over streams in memory."""

import base64
import json
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from actgent import (
    ApprovalRequired,
    BareAgent,
    ScriptedLLM,
    Text,
    ToolCall,
    ToolContext,
    ToolResult,
    open_runtime,
    tool,
)
from actgent.errors import JournalError
from actgent.interop.acp.client_session import UpdateEncoder
from actgent.interop.acp.json_rpc import JSONRPCConnection
from actgent.interop.line_reader import MAX_LINE_BYTES
from actgent.interop.run_events import TextDelta, TextDiscarded
from actgent.llm.model_interface import ModelResponse
from actgent.runtime.subscriptions.session_follower import SessionFollower

from .acp_client import CWD, Refused, check, connected, selecting
from .conftest import make_agents, runs


@pytest.fixture
async def clerk():
    runs["pay"] = 0
    async with open_runtime(journal="memory:") as runtime:
        yield runtime, await runtime.start(make_agents()[0])


@pytest.fixture
async def client(clerk):
    async with connected(*clerk) as opened:
        yield opened


def slow_agent(**options):
    """An agent that streams its answer slowly in many chunks."""
    return BareAgent("slow", llm=ScriptedLLM(lambda _: "word " * 1000, chunk=5, chunk_delay=0.05), **options)


async def test_initialize_answers_with_version_1(client):
    found = await client.ask("initialize", protocolVersion=7, clientInfo={"name": "x", "version": "1"})
    assert found["protocolVersion"] == 1
    assert found["agentCapabilities"]["loadSession"] is True
    assert set(found["agentCapabilities"]["sessionCapabilities"]) == {"list", "resume", "close", "delete"}
    assert found["authMethods"] == []


async def test_prompt_streams_the_answer(client):
    session_id = await client.new()
    result = await client.prompt(session_id, "hello")
    assert result["stopReason"] == "end_turn"
    assert result["usage"] == {"inputTokens": 12, "outputTokens": 5, "totalTokens": 17}
    assert client.text() == "you said: hello"
    last = client.lines[-1]
    assert last["result"] == result, "the response follows all updates"


async def test_partial_text_is_streamed():
    agent = slow_agent()
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(agent)
        async with connected(runtime, agent) as client:
            session_id = await client.new()
            prompt = await client.start_prompt(session_id, "hello")
            await client.until(lambda _: len(client.updates("agent_message_chunk")) >= 2)
            await client.send(method="session/cancel", params={"sessionId": session_id})
            assert (await client.result(prompt))["stopReason"] == "cancelled"
            assert len({each["messageId"] for each in client.updates("agent_message_chunk")}) == 1
            assert 0 < len(client.text()) < 5000


async def test_tool_calls_have_arguments_and_results(client):
    session_id = await client.new()
    await client.prompt(session_id, "please add")
    calls = client.updates("tool_call")
    assert [each["rawInput"] for each in calls] == [{"a": 0, "b": 3}, {"a": 1, "b": 3}]
    results = {each["toolCallId"]: each for each in client.updates("tool_call_update")}
    texts = [results[each["toolCallId"]]["content"][0]["content"]["text"] for each in calls]
    assert texts == ["3", "4"]
    assert {each["status"] for each in results.values()} == {"completed"}
    assert client.text() == "I add. The result is in."


@pytest.mark.parametrize(("option", "count"), [("allow", 1), ("reject", 0)])
async def test_permission_decides_whether_the_tool_runs(client, caplog, option, count):
    client.decide = selecting(option)
    session_id = await client.new()
    assert (await client.prompt(session_id, "please pay"))["stopReason"] == "end_turn"
    request = (await client.permission())["params"]
    assert request["toolCall"]["rawInput"] == {"euros": 3}
    assert [each["kind"] for each in request["options"]] == ["allow_once", "reject_once"]
    assert runs["pay"] == count
    assert client.text() == "The result is in."
    assert not caplog.records, "a client of ACP counts as one that shows approvals"


async def test_other_requests_are_answered_while_a_permission_is_open(client):
    session_id = await client.new()
    prompt = await client.start_prompt(session_id, "please pay")
    request = await client.permission()
    other = await client.new()
    assert (await client.prompt(other, "hello"))["stopReason"] == "end_turn"
    await client.send(id=request["id"], result={"outcome": {"outcome": "selected", "optionId": "allow"}})
    assert (await client.result(prompt))["stopReason"] == "end_turn"


async def test_cancelled_permission_leaves_the_call_open_for_the_next_prompt(client, clerk):
    session_id = await client.new()
    prompt = await client.start_prompt(session_id, "please pay")
    request = await client.permission()
    await client.send(id=request["id"], result={"outcome": {"outcome": "cancelled"}})
    assert (await client.result(prompt))["stopReason"] == "cancelled"
    runtime, _ = clerk
    assert len(await runtime.approvals()) == 1
    client.decide = selecting("allow")
    assert (await client.prompt(session_id, "hello"))["stopReason"] == "end_turn"
    assert runs["pay"] == 1
    assert client.text() == "The result is in.you said: hello"


async def test_cancelled_permission_with_an_option_is_no_approval(client):
    """Only the outcome `selected` decides."""
    session_id = await client.new()
    prompt = await client.start_prompt(session_id, "please pay")
    request = await client.permission()
    await client.send(id=request["id"], result={"outcome": {"outcome": "cancelled", "optionId": "allow"}})
    assert (await client.result(prompt))["stopReason"] == "cancelled"
    assert runs["pay"] == 0


async def test_cancellation_during_a_permission_ends_the_turn(client, clerk):
    session_id = await client.new()
    prompt = await client.start_prompt(session_id, "please pay")
    request = await client.permission()
    await client.send(method="session/cancel", params={"sessionId": session_id})
    await client.send(id=request["id"], result={"outcome": {"outcome": "cancelled"}})
    assert (await client.result(prompt))["stopReason"] == "cancelled"
    assert (await client.prompt(session_id, "hello"))["stopReason"] == "end_turn"
    assert runs["pay"] == 0
    assert await clerk[0].approvals() == ()


@pytest.mark.parametrize("form", ["session/cancel", "$/cancel_request"])
async def test_immediate_cancellation_finds_its_prompt(client, form):
    session_id = await client.new()
    prompt = await client.start_prompt(session_id, "please pay")
    params = {"sessionId": session_id} if form == "session/cancel" else {"requestId": prompt}
    await client.send(method=form, params=params)
    assert (await client.result(prompt))["stopReason"] == "cancelled"
    assert runs["pay"] == 0


async def test_two_prompts_at_once_are_answered_in_their_order(client):
    session_id = await client.new()
    prompts = [await client.start_prompt(session_id, f"number {number}") for number in range(5)]
    for prompt in prompts:
        assert (await client.result(prompt))["stopReason"] == "end_turn"
    assert client.text() == "".join(f"you said: number {number}" for number in range(5))


async def test_cancellation_reaches_waiting_prompts():
    agent = slow_agent()
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(agent)
        async with connected(runtime, agent) as client:
            session_id = await client.new()
            prompts = [await client.start_prompt(session_id, "hello") for _ in range(3)]
            await client.until(lambda _: client.updates("agent_message_chunk"))
            await client.send(method="session/cancel", params={"sessionId": session_id})
            for prompt in prompts:
                assert (await client.result(prompt))["stopReason"] == "cancelled"


async def test_loaded_session_shows_its_history_and_continues(clerk):
    async with connected(*clerk) as client:
        session_id = await client.new()
        await client.prompt(session_id, "please add")
    async with connected(*clerk) as client:
        with pytest.raises(Refused) as refused:
            await client.prompt(session_id, "hello")
        assert refused.value.code == -32002
        await client.load(session_id)
        assert client.text("user_message_chunk") == "please add"
        assert client.text() == "I add. The result is in."
        assert len(client.updates("tool_call")) == 2
        assert [each["status"] for each in client.updates("tool_call_update")] == ["completed"] * 2
        await client.prompt(session_id, "hello")
        assert client.text() == "I add. The result is in.you said: hello"


async def test_resumed_session_continues_without_its_history(clerk):
    async with connected(*clerk) as client:
        session_id = await client.new()
        await client.prompt(session_id, "hello")
    async with connected(*clerk) as client:
        await client.ask("session/resume", sessionId=session_id, cwd=CWD)
        assert client.updates() == []
        await client.prompt(session_id, "again")
        assert client.text() == "you said: again"


async def test_open_permission_is_requested_again_by_the_next_client(clerk):
    async with connected(*clerk) as client:
        session_id = await client.new()
        await client.start_prompt(session_id, "please pay")
        await client.permission()
    async with connected(*clerk, decide=selecting("allow")) as client:
        await client.ask("session/resume", sessionId=session_id, cwd=CWD)
        await client.until(lambda _: client.text() == "The result is in.")
    assert runs["pay"] == 1


async def test_session_list_has_titles_folders_and_pages(client, clerk):
    for number in range(60):
        await client.prompt(await client.new(), f"title {number}")
    await client.new()  # a session without a message is not listed
    first = await client.ask("session/list", cwd=CWD)
    second = await client.ask("session/list", cursor=first["nextCursor"])
    titles = [each["title"] for each in (*first["sessions"], *second["sessions"])]
    assert sorted(titles) == sorted(f"title {number}" for number in range(60))
    assert {each["cwd"] for each in first["sessions"]} == {CWD}
    assert "nextCursor" not in second
    assert (await client.ask("session/list", cwd="/elsewhere"))["sessions"] == []


async def test_sessions_of_other_owners_are_unknown(client, clerk):
    _, agent = clerk
    other = await agent.create_session("bob", "secret-canary")
    await other.wait_idle()
    assert (await client.ask("session/list"))["sessions"] == []
    for method in ("session/load", "session/resume", "session/delete", "session/close"):
        with pytest.raises(Refused) as refused:
            await client.ask(method, sessionId=other.id, cwd=CWD, mcpServers=[])
        with pytest.raises(Refused) as unknown:
            await client.ask(method, sessionId="x", cwd=CWD, mcpServers=[])
        assert refused.value.code == unknown.value.code == -32002
        assert refused.value.text.replace(other.id, "x") == unknown.value.text


async def test_closed_session_stops_and_can_be_loaded_again():
    agent = slow_agent()
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(agent)
        async with connected(runtime, agent) as client:
            session_id = await client.new()
            prompt = await client.start_prompt(session_id, "hello")
            await client.until(lambda _: client.updates("agent_message_chunk"))
            await client.ask("session/close", sessionId=session_id)
            assert (await client.result(prompt))["stopReason"] == "cancelled"
            with pytest.raises(Refused):
                await client.prompt(session_id, "hello")
            await client.load(session_id)
            assert client.text("user_message_chunk") == "hello"


async def test_deleted_acp_session_is_unknown(client):
    session_id = await client.new()
    await client.prompt(session_id, "hello")
    await client.ask("session/delete", sessionId=session_id)
    assert (await client.ask("session/list"))["sessions"] == []
    with pytest.raises(Refused):
        await client.load(session_id)


# --- content -----------------------------------------------------------------------------


async def test_images_and_resources_become_parts_of_the_message(client, chats):
    data = base64.b64encode(b"picture").decode()
    blocks = [
        {"type": "text", "text": ""},  # ignored
        {"type": "text", "text": "look"},
        {"type": "image", "mimeType": "image/png", "data": data},
        {"type": "resource_link", "name": "plan", "uri": "file:///plan.md"},
        {
            "type": "resource",
            "resource": {"uri": "file:///a.txt", "text": "content", "mimeType": "text/plain"},
        },
        {
            "type": "resource",
            "resource": {"uri": "file:///b.pdf", "blob": data, "mimeType": "application/pdf"},
        },
    ]
    session_id = await client.new()
    await client.ask("session/prompt", sessionId=session_id, prompt=blocks)
    text, image, link, resource, file = chats[-1].messages[-1].parts
    assert (text.text, link.text) == ("look", "plan: file:///plan.md")
    assert (image.media_type, image.data) == ("image/png", b"picture")
    assert resource.text == "The file file:///a.txt:\n\ncontent"
    assert (file.media_type, file.data, file.name) == ("application/pdf", b"picture", "b.pdf")


@pytest.mark.parametrize(
    "block",
    [
        {"type": "audio", "mimeType": "audio/wav", "data": "AAAA"},
        {"type": "image", "mimeType": "image/png", "data": "not base64!"},
        {"type": "text"},
        {"type": "text", "text": ""},
        {"type": "resource", "resource": {"uri": "file:///x"}},
        "text",
    ],
)
async def test_wrong_content_is_rejected(client, block):
    session_id = await client.new()
    with pytest.raises(Refused) as refused:
        await client.ask("session/prompt", sessionId=session_id, prompt=[block])
    assert refused.value.code == -32602


def test_replacement_of_void_text_is_a_new_message():
    encoder = UpdateEncoder()
    events = [
        TextDelta(reply_id="a1", text="wrong"),
        TextDiscarded(reply_id="a1"),
        TextDelta(reply_id="a1", text="right"),
        TextDelta(reply_id="a1", text="!"),
    ]
    first, second, third = [update for event in events for update in encoder.encode(event)]
    assert first["messageId"] == "a1"
    assert second["messageId"] == third["messageId"] != "a1"
    assert second["_meta"] == {"actgent": {"voided": "a1"}}
    assert "_meta" not in third


# --- forms -------------------------------------------------------------------------------


FORM = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}


@tool
async def book(context: ToolContext) -> str:
    """Book a day."""
    await trio.lowlevel.checkpoint()
    if context.approval is None:
        raise ApprovalRequired("Which day?", form=FORM, again=True)
    return f"booked {context.approval.content['day']}"


@pytest.fixture
async def booking():
    """Yield a client of an agent that asks with a form."""

    def script(chat):
        has_result = any(isinstance(part, ToolResult) for part in chat.messages[-1].parts)
        return "done" if has_result else ToolCall("book", {})

    agent = BareAgent("clerk", llm=ScriptedLLM(script), tools=[book])
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(agent)
        async with connected(runtime, agent) as client:
            yield client


@pytest.mark.parametrize(("action", "status"), [("accept", "completed"), ("decline", "failed")])
async def test_form_is_filled_in_by_clients_that_show_forms(booking, action, status):
    async def decide(params):
        await trio.lowlevel.checkpoint()
        assert params["requestedSchema"] == FORM
        return {"action": action, **({"content": {"day": "Monday"}} if action == "accept" else {})}

    booking.decide = decide
    await booking.ask("initialize", protocolVersion=1, clientCapabilities={"elicitation": {"form": {}}})
    assert (await booking.prompt(await booking.new(), "book"))["stopReason"] == "end_turn"
    (update,) = booking.updates("tool_call_update")
    assert update["status"] == status
    assert ("booked Monday" in str(update)) == (action == "accept")


async def test_form_with_required_fields_can_only_be_rejected_by_a_permission(booking):
    booking.decide = selecting("reject")
    assert (await booking.prompt(await booking.new(), "book"))["stopReason"] == "end_turn"
    options = (await booking.permission())["params"]["options"]
    assert [each["kind"] for each in options] == ["reject_once"]


# --- errors ------------------------------------------------------------------------------


async def test_error_of_a_tool_hides_its_text(client):
    await client.prompt(await client.new(), "please break")
    (update,) = client.updates("tool_call_update")
    assert update["status"] == "failed"
    assert "RuntimeError" in update["content"][0]["content"]["text"]
    assert "secret-canary" not in str(client.lines)


async def test_failed_turn_is_an_error_without_its_text(client):
    with pytest.raises(Refused) as refused:
        await client.prompt(await client.new(), "please fail")
    assert refused.value.code == -32603
    assert "secret-canary" not in str(client.lines)


@pytest.mark.parametrize(
    ("stop", "reason"), [("length", "max_tokens"), ("refusal", "refusal"), ("filter", "refusal")]
)
async def test_stop_reasons_of_the_model_are_mapped(stop, reason):
    agent = BareAgent("clerk", llm=ScriptedLLM(lambda _: ModelResponse(parts=(Text("no"),), stop=stop)))
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(agent)
        async with connected(runtime, agent) as client:
            assert (await client.prompt(await client.new(), "hello"))["stopReason"] == reason


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{not json", -32700),
        (b"\xff\xfe", -32700),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "x", "params": ' + b"[" * 2000, -32700),
        (b'{"jsonrpc": "2.0", "id": 7, "result": ', -32700),
        (b"[1, 2]", -32600),
        (b'{"jsonrpc": "2.0", "id": 7}', -32600),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "initialize"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "session/fork"}', -32601),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "session/new", "params": [1]}', -32602),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "session/new", "params": {"cwd": "relative"}}', -32602),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "session/list", "params": {"cursor": "x"}}', -32602),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "authenticate", "params": {"methodId": "x"}}', -32602),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "session/prompt", "params": {"sessionId": "x"}}', -32002),
    ],
)
async def test_wrong_lines_are_answered_and_reading_continues(client, line, code):
    await client.send_raw(b"\n" + line + b"\n")
    message = await client.until(lambda each: "error" in each)
    assert message["error"]["code"] == code
    assert message["id"] == (7 if b'"id": 7' in line and b"result" not in line else None)
    assert await client.new()


@pytest.mark.parametrize("text", [b"cut \\ud83d", b"cut \xff"])
async def test_text_with_an_invalid_character_is_read(client, text):
    """JavaScript may cut a surrogate pair. Without a response, the editor would wait forever."""
    session_id = await client.new()
    client.methods[7] = "session/prompt"
    params = (
        f'{{"sessionId": "{session_id}", "prompt": [{{"type": "text", "text": "'.encode() + text + b'"}]}'
    )
    await client.send_raw(
        b'\xef\xbb\xbf{"jsonrpc": "2.0", "id": 7, "method": "session/prompt", "params": ' + params + b"}\n"
    )
    assert (await client.result(7))["stopReason"] == "end_turn"
    assert client.text() == "you said: cut \ufffd"


async def test_unknown_notifications_and_responses_are_ignored(client):
    await client.send(method="unknown/thing", params={})
    await client.send(method="session/cancel", params={"sessionId": "unknown"})
    await client.send(id=999, result={})
    assert await client.new()
    assert not [each for each in client.lines if "error" in each]


async def test_longer_line_than_the_limit_is_rejected(client):
    session_id = await client.new()
    head = '{"jsonrpc": "2.0", "method": "unknown", "params": {"text": "'
    fits = (head + "x" * (MAX_LINE_BYTES - len(head) - 3) + '"}}\n').encode()
    await client.send_raw(fits)
    assert (await client.prompt(session_id, "hello"))["stopReason"] == "end_turn"
    assert not [each for each in client.lines if "error" in each]
    with trio.fail_after(60):
        await client.send_raw(b"x" + fits)
        await client.send_raw(fits.replace(b'"method"', b'"id": "a", "method"'))
    message, other = [
        await client.until(lambda each, wanted=wanted: "error" in each and each["id"] == wanted)
        for wanted in (None, "a")
    ]
    assert message["error"]["code"] == other["error"]["code"] == -32600
    assert (await client.prompt(session_id, "again"))["stopReason"] == "end_turn"


async def test_mcp_servers_of_the_client_are_rejected(client):
    server = {"name": "x", "command": "/bin/x", "args": [], "env": []}
    with pytest.raises(Refused) as refused:
        await client.ask("session/new", cwd=CWD, mcpServers=[server])
    assert refused.value.code == -32602
    assert "mcp_config.json" in refused.value.text


def test_schema_models_reject_unknown_fields():
    pytest.importorskip("acp", reason="pip install 'actgent[dev]'")
    check("PromptResponse", {"stopReason": "end_turn"})
    with pytest.raises(Exception, match="stopReason"):
        check("PromptResponse", {"stopReason": "unknown"})
    with pytest.raises(AssertionError):
        check("PromptResponse", {"stopReason": "end_turn", "unknown": 1})


# --- lines and followers -------------------------------------------------------------------


class NarrowStream(trio.abc.SendStream):
    """A stream that writes the first ten bytes of a line, and the rest after an event."""

    def __init__(self):
        self.data = bytearray()
        self.begun, self.go_on, self.is_closed = trio.Event(), trio.Event(), False

    async def send_all(self, data):
        self.data += data[:10]
        self.begun.set()
        await self.go_on.wait()
        if self.is_closed:
            raise trio.ClosedResourceError
        self.data += data[10:]

    async def wait_send_all_might_not_block(self):
        await trio.lowlevel.checkpoint()

    async def aclose(self):
        self.is_closed = True
        self.go_on.set()
        await trio.lowlevel.checkpoint()


async def test_cancelled_sender_does_not_cut_its_line():
    to_agent, agent_in = trio.testing.memory_stream_one_way_pair()
    stream = NarrowStream()
    connection = JSONRPCConnection(agent_in, stream, handlers={}, notification_handlers={})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        await trio.testing.wait_all_tasks_blocked()
        scope = trio.CancelScope()

        async def send():
            with scope:
                await connection.notify("session/update", {"text": "x" * 100})

        nursery.start_soon(send)
        await stream.begun.wait()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        stream.go_on.set()
        await connection.notify("session/update", {"text": "y"})
        await to_agent.aclose()
    lines = [json.loads(line) for line in stream.data.splitlines()]
    assert [each["params"]["text"] for each in lines] == ["x" * 100, "y"]


async def test_unread_line_does_not_block_the_end(autojump_clock):
    to_agent, agent_in = trio.testing.memory_stream_one_way_pair()
    stream = NarrowStream()
    connection = JSONRPCConnection(agent_in, stream, handlers={}, notification_handlers={})
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(connection.notify, "session/update", {"text": "x" * 100})
            await stream.begun.wait()
            await to_agent.aclose()
    assert stream.is_closed


async def test_session_that_cannot_be_followed_is_loaded_again(client, monkeypatch):
    session_id = await client.new()
    assert (await client.prompt(session_id, "hello"))["stopReason"] == "end_turn"
    receive, has_failed = SessionFollower.receive, trio.Event()

    async def fail_once(follower):
        if has_failed.is_set():
            return await receive(follower)
        await receive(follower)
        has_failed.set()
        raise JournalError("cannot read /srv/secret-canary/journal.db")

    monkeypatch.setattr(SessionFollower, "receive", fail_once)
    with pytest.raises(Refused) as refused:
        await client.prompt(session_id, "first")
    assert "secret-canary" not in refused.value.text
    with pytest.raises(Refused, match="send session/load") as refused:
        await client.prompt(session_id, "second")
    await client.load(session_id)
    assert (await client.prompt(session_id, "third"))["stopReason"] == "end_turn"
    assert client.text().endswith("you said: third")


async def test_failed_journal_is_the_error_of_the_request(client, monkeypatch):
    session_id = await client.new()
    await client.ask("session/close", sessionId=session_id)

    @asynccontextmanager
    async def fail(*_arguments, **_options):
        await trio.lowlevel.checkpoint()
        raise JournalError("cannot read /srv/secret-canary/journal.db")
        yield

    with monkeypatch.context() as patched:
        patched.setattr("actgent.interop.acp.client_session.follow_session", fail)
        with pytest.raises(Refused) as refused:
            await client.load(session_id)
    assert "JournalError" in refused.value.text
    assert "secret-canary" not in refused.value.text
    await client.load(session_id)
    assert (await client.prompt(session_id, "hello"))["stopReason"] == "end_turn"
