"""Rules for each protocol over HTTP: foreign error texts, sessions of other owners, and repeated messages."""

import json
from functools import partial

import attrs
import pytest

from .conftest import runs
from .test_ag_ui import asked as ag_ui_run
from .test_mcp_http import ACCEPT
from .test_vercel import asked as vercel_chat

CANARY = "secret-canary"


def chat_completion(text, message_id="m1", session_id="s1", *, stream=False):
    body = {"model": "clerk", "messages": [{"role": "user", "content": text}], "stream": stream}
    headers = {"x-session-id": session_id, "idempotency-key": message_id}
    return "/openai/v1/chat/completions", body, headers


def response(text, message_id="m1", session_id="s1", *, stream=False):
    body = {
        "model": "clerk", "input": text, "stream": stream, "previous_response_id": f"resp_{session_id}_x",
    }  # fmt: skip
    return "/openai/v1/responses", body, {"idempotency-key": message_id}


def ag_ui(text, message_id="m1", session_id="s1"):
    return "/agui/clerk", ag_ui_run(text, message_id, session_id), {}


def vercel(text, message_id="m1", session_id="s1"):
    return "/vercel/clerk", vercel_chat(text, message_id, session_id), {}


def mcp(text, message_id="m1", session_id="s1"):
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
        "actgent/messageId": message_id,
    }
    arguments = {"message": text, "session_id": session_id}
    params = {"name": "clerk", "arguments": arguments, "_meta": meta}
    headers = {
        **ACCEPT, "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "clerk",
    }  # fmt: skip
    return "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, headers


PROTOCOLS = {
    "chat completion": chat_completion,
    "streamed chat completion": partial(chat_completion, stream=True),
    "response": response,
    "streamed response": partial(response, stream=True),
    "ag-ui": ag_ui,
    "vercel": vercel,
    "mcp": mcp,
}
each_protocol = pytest.mark.parametrize("name", PROTOCOLS)


@attrs.frozen
class Asker:
    """Sends messages by one protocol."""

    served: object
    name: str

    async def __call__(self, text, *ids, token="ada"):
        address, body, headers = PROTOCOLS[self.name](text, *ids)
        async with self.served.client(token) as client:
            return await client.post(address, json=body, headers=headers)

    async def sent(self, session_id="s1"):
        """Return the texts of the user's messages in a session of the owner ada."""
        async with self.served.client() as client:
            found = (await client.get(f"/v1/sessions/{session_id}/messages?roles=user")).json()
        return [each["parts"][0]["text"] for each in found["items"]]


@pytest.fixture
async def ask(served, name):
    """Return an `Asker` of the tested protocol for an existing session of the owner ada."""
    async with served.client() as client:
        made = await client.put("/v1/sessions/s1", json={"agent": "clerk"})
        assert made.status_code == 201, made.text
    return Asker(served, name)


def refuses(found):
    """Return True if the response is an error. A failed call of a tool is a result in MCP."""
    return found.status_code in (400, 404) or '"isError":true' in found.text.replace(" ", "")


@each_protocol
@pytest.mark.parametrize("text", ["please break", "please fail"])
async def test_error_text_of_a_tool_or_model_is_hidden(ask, served, text):
    """The token may send messages, and has no scope `journal`.

    A token with only the scope `read` sees no more.
    """
    found = await ask(text, token="chatter")
    assert found.text
    assert CANARY not in found.text
    again = await ask(text, token="chatter")  # the repeated run is read from the journal
    assert CANARY not in again.text
    async with served.client("watcher") as client:
        for address in (
            "/v1/sessions/s1/messages",
            "/openai/v1/responses/resp_s1_m1",
            "/vercel/clerk/s1/stream",
        ):
            assert CANARY not in (await client.get(address)).text


@each_protocol
async def test_session_of_another_owner_looks_like_none(ask):
    assert "you said: hello" in answer_of(await ask(f"hello {CANARY}"))
    found = await ask("hello", "m2", token="bob")
    assert refuses(found), found.text
    repeated = await ask(f"hello {CANARY}", token="bob")  # the same message id as that of ada
    assert refuses(repeated), repeated.text
    for each in (found, repeated):
        assert "you said" not in answer_of(each)
        assert "ada" not in each.text
    assert await ask.sent() == [f"hello {CANARY}"]


def answer_of(found):
    """Return the text of the answer from a stream or a document."""
    pieces = []
    for line in found.text.splitlines():
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            delta = event.get("delta", "")
            pieces += [delta if isinstance(delta, str) else ""]
            pieces += [each.get("delta", {}).get("content") or "" for each in event.get("choices", ())]
    return "".join(pieces) or found.text


@each_protocol
async def test_repeated_message_is_answered_once(ask, chats):
    first, second = [answer_of(await ask("hello")) for _ in range(2)]
    assert "you said: hello" in first
    assert "you said: hello" in second
    assert len(chats) == 1
    assert await ask.sent() == ["hello"]


@each_protocol
async def test_approval_of_another_owner_is_not_decided(served, name, ask):
    """The id of an approval grants nothing: the decision needs a token of its owner."""
    await ask("please pay")
    async with served.client() as client:
        (approval,) = (await client.get("/v1/approvals")).json()["items"]
    approval_id = approval["id"]
    item = {"type": "mcp_approval_response", "approval_request_id": approval_id, "approve": True}
    resume = [{"interruptId": approval_id, "status": "resolved", "payload": {"approved": True}}]
    part = {
        "type": "dynamic-tool", "toolCallId": approval["call_id"], "state": "approval-responded",
        "approval": {"id": approval_id, "approved": True},
    }  # fmt: skip
    chat = {"id": "s1", "messages": [{"id": "m1-answer", "role": "assistant", "parts": [part]}]}
    tried = [
        ("/openai/v1/responses", {"model": "clerk", "input": [item]}),
        ("/agui/clerk", {"threadId": "s1", "runId": "r2", "resume": resume}),
        ("/vercel/clerk", chat),
    ]
    async with served.client("bob") as client:
        for address, body in tried:
            assert (await client.post(address, json=body)).status_code in (400, 404)
    assert runs["pay"] == 0
