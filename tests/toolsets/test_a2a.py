"""A2A agents as tools, against the gateway and against a scripted server."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from actgent import (
    BareAgent,
    ModelError,
    ScriptedLLM,
    Text,
    ToolCall,
    ToolResult,
    delegation_tools,
    open_runtime,
)
from actgent.approvals import Approve
from actgent.errors import ConfigurationError, ToolError
from actgent.interop import A2AProtocol
from actgent.journal.record_types import MessageAcceptedRecord
from actgent.journal.session_list_queries import SessionFilter
from actgent.messages import traceparent
from actgent.toolsets.a2a import A2AAgent, A2AModel
from actgent.toolsets.http.api_credentials import Bearer
from tests.interop.conftest import make_agents, runs, seen as chats
from tests.web.conftest import open_served


@pytest.fixture
async def served():
    runs["pay"] = 0
    async with open_served(agents=make_agents(), protocols=[A2AProtocol()]) as opened:
        yield opened


def connect(served, token="ada", **options):
    return A2AAgent(
        "clerk",
        f"{served.gateway.url}/a2a/clerk",
        auth=Bearer(served.tokens[token]),
        allow=["127.0.0.1"],
        **options,
    )


async def tasks_of(served):
    async with served.client() as client:
        listed = await client.get("/a2a/clerk/v1/tasks", headers={"a2a-version": "1.0"})
        return listed.json()["tasks"]


async def test_answer_continues_its_conversation(served):
    chats.clear()
    tool = connect(served)
    first = await tool.run({"message": "hello"})
    text, _, context_id = first.rpartition("\n(context_id: ")
    assert text == "you said: hello"
    await tool.run({"message": "again", "context_id": context_id.rstrip(")")})
    assert len(chats[-1].messages) == 3


async def test_failed_task_is_an_error(served):
    with pytest.raises(ToolError, match="failed"):
        await connect(served).run({"message": "please fail"})


async def test_rejected_request_is_an_error(served):
    with pytest.raises(ToolError, match="401"):
        await A2AAgent("clerk", f"{served.gateway.url}/a2a/clerk", allow=["127.0.0.1"]).run({"message": "x"})
    with pytest.raises(ToolError, match="404"):
        await A2AAgent("clerk", f"{served.gateway.url}/a2a/unknown", allow=["127.0.0.1"]).run(
            {"message": "x"}
        )


async def test_private_address_is_blocked_without_allow(served):
    with pytest.raises(ToolError, match=r"127\.0\.0\.1"):
        await A2AAgent("clerk", f"{served.gateway.url}/a2a/clerk").run({"message": "x"})


def ask_once(chat):
    """Call the tool with the user's text, then repeat its result."""
    last = chat.messages[-1]
    if results := [part for part in last.parts if isinstance(part, ToolResult)]:
        return f"result: {results[0].text}"
    text = "".join(part.text for part in last.parts if isinstance(part, Text))
    return ToolCall("clerk", {"message": text})


async def test_question_of_the_remote_agent_is_an_approval(served):
    async with open_runtime(journal="memory:") as runtime:
        agent = BareAgent("boss", llm=ScriptedLLM(ask_once), tools=[connect(served)])
        await runtime.start(agent)
        session = await agent.create_session("ada")
        await session.chat("please pay")
        with trio.fail_after(30):
            while not session.approvals:  # noqa: ASYNC110 - the session has no event for it
                await trio.sleep(0.01)
            (asked,) = session.approvals
            assert asked.question == "Really pay?"
            await session.answer(asked, Approve(content={"answer": "approve"}))
            await session.wait_idle()
        assert "The result is in." in session.history[-1].text
    assert runs["pay"] == 1
    (task,) = await tasks_of(served)
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_answers_of_the_agent_reach_the_model_as_untrusted_text(served):
    seen = []

    def look(chat):
        seen.append(chat)
        return ask_once(chat)

    async with open_runtime() as runtime:
        agent = BareAgent("boss", llm=ScriptedLLM(look), tools=[connect(served)])
        await runtime.start(agent)
        await agent.run("hello")
    (result,) = [part for part in seen[-1].messages[-1].parts if isinstance(part, ToolResult)]
    assert "you said: hello" in result.text
    assert result.text != "you said: hello"


@pytest.mark.parametrize(("effect", "state"), [("once", "CANCELED"), ("idempotent", "COMPLETED")])
async def test_cancelled_call_cancels_the_task_unless_it_is_repeatable(effect, state):
    started, gate = trio.Event(), trio.Event()

    async def wait(_chat):
        started.set()
        await gate.wait()
        return "done"

    agent = BareAgent("clerk", llm=ScriptedLLM([wait]))
    async with open_served(agents=[agent], protocols=[A2AProtocol()]) as served:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connect(served, effect=effect).run, {"message": "hello"})
                await started.wait()
                counts = served.gateway.app.context.metrics.requests
                while counts["/a2a/{agent}", 200] < 2:  # noqa: ASYNC110 - the second request polls the task
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
            gate.set()
            while (found := (await tasks_of(served))[0]["status"]["state"]) == "TASK_STATE_WORKING":  # noqa: ASYNC110 - the task has no event for it
                await trio.sleep(0.01)
        assert found == f"TASK_STATE_{state}"


async def test_arguments_of_a_remote_agent_are_checked():
    for url in ("ftp://example.com", "https://user:word@example.com", ""):
        with pytest.raises(ConfigurationError, match="url="):
            A2AAgent("clerk", url)
    with pytest.raises(ConfigurationError, match="auth"):
        A2AAgent("clerk", "https://example.com", auth="token")


def play(server, *results, url="", binding="JSONRPC"):
    """Let a server serve a card and answer each request with the next result."""
    waiting = list(results)
    interface = {"url": url or f"{server.url}/rpc", "protocolBinding": binding, "protocolVersion": "1.0"}

    def answer(request):
        is_card = request["path"].endswith("agent-card.json")
        body = {"supportedInterfaces": [interface]} if is_card else waiting.pop(0)
        return 200, {"Content-Type": "application/json"}, json.dumps(body).encode()

    server.answer = answer
    return A2AAgent("other", server.url, auth=Bearer("secret-token"), allow=["127.0.0.1"])


def task(state, **more):
    status = {"state": f"TASK_STATE_{state}", "message": {"parts": [{"text": "the note"}]}}
    return {"id": "t1", "contextId": "c1", "status": status, **more}


async def test_message_instead_of_a_task_is_the_answer(server):
    tool = play(server, {"result": {"message": {"parts": [{"text": "hello"}, {"data": {"count": 1}}]}}})
    assert await tool.run({"message": "x"}) == 'hello\n{"count":1}'
    sent = json.loads(server.requests[-1]["body"])
    assert sent["params"]["message"]["parts"] == [{"text": "x"}]
    assert server.requests[-1]["headers"]["a2a-version"] == "1.0"


async def test_running_task_is_polled_to_its_end(server):
    parts = [
        {"raw": "iVBORw0KGgo=", "mediaType": "image/png"},
        {"url": "https://example.com/a", "filename": "a"},
    ]
    done = task("COMPLETED", artifacts=[{"artifactId": "a", "parts": parts}])
    tool = play(
        server, {"result": {"task": task("SUBMITTED")}}, {"result": task("WORKING")}, {"result": done}
    )
    image, *texts = await tool.run({"message": "x"})
    assert image.media_type == "image/png"
    assert texts == ["(file a: https://example.com/a)", "(context_id: c1)"]
    assert [json.loads(each["body"])["method"] for each in server.requests[1:]] == [
        "SendMessage",
        "GetTask",
        "GetTask",
    ]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"error": {"code": -32602, "message": "no such thing"}}, "no such thing"),
        ({"result": {"task": task("REJECTED")}}, "rejected: the note"),
        ({"result": {"task": task("AUTH_REQUIRED")}}, "auth required"),
        ({"result": {"task": task("INPUT_REQUIRED")}}, "the note"),
        ({"result": {"task": {"status": 5}}}, "lacks the object .status"),
        ({"result": {}}, "lacks the object .message"),
        ({"result": 5}, "lacks the object .result"),
        ([], "must be a JSON object"),
    ],
)
async def test_other_results_of_a_remote_agent_are_errors(server, result, expected):
    with pytest.raises(ToolError, match=expected):
        await play(server, result).run({"message": "x"})


async def test_credentials_are_not_sent_to_an_interface_at_another_origin(server, elsewhere):
    with pytest.raises(ToolError, match="another origin"):
        await play(server, url=f"{elsewhere.url}/rpc").run({"message": "x"})
    assert elsewhere.requests == []
    with pytest.raises(ToolError, match="must name a JSON-RPC interface"):
        await play(server, binding="GRPC").run({"message": "x"})


async def test_agent_of_the_sdk_answers_and_asks():
    """The server of `a2a-sdk`, which runs on asyncio in a process."""
    command = [sys.executable, str(Path(__file__).with_name("a2a_sdk_server.py"))]
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            process = await nursery.start(
                partial(trio.run_process, command, stdout=subprocess.PIPE, check=False)
            )
            url = (await process.stdout.receive_some()).decode().strip()
            tool = A2AAgent("echo", url, allow=["127.0.0.1"])
            answer = await tool.run({"message": "hello"})
            with pytest.raises(ToolError, match="Which city"):
                await tool.run({"message": "ask"})
            process.kill()
    assert answer.startswith("echo: hello\n(context_id: ")


# --- as a registered agent --------------------------------------------------------------


def forwarding(served, **options):
    tool = connect(served, **options)
    return BareAgent("clerk", llm=A2AModel(tool), tools=[tool])


def delegate_once(chat):
    """Delegate the user's text to the clerk, then repeat the report."""
    last = chat.messages[-1]
    if results := [part for part in last.parts if isinstance(part, ToolResult)]:
        return f"report: {results[0].content}"
    text = "".join(part.text for part in last.parts if isinstance(part, Text))
    if "you said" in text:
        return "noted"
    return ToolCall("delegate_to_agent", {"agent": "clerk", "task": text})


async def test_remote_agent_keeps_its_conversation_in_a_session(served):
    chats.clear()
    async with forwarding(served) as agent:
        session = await agent.create_session("ada")
        assert (await agent.run("hello", session=session)).text == "you said: hello"
        assert (await agent.run("again", session=session)).text == "you said: again"
        assert len(chats[-1].messages) == 3
        with pytest.raises(ModelError, match="failed"):
            await agent.run("please fail")


async def test_task_is_delegated_to_a_remote_agent(served):
    async with open_runtime(journal="memory:") as runtime:
        boss = BareAgent("boss", llm=ScriptedLLM(delegate_once), tools=delegation_tools(allowed=["clerk"]))
        await runtime.start(forwarding(served))
        await runtime.start(boss)
        assert (await boss.run("hello")).text == "report: you said: hello"
        session, was_told = await boss.create_session("ada"), trio.Event()
        session.on_conversation(lambda _: was_told.set())
        await session.delegate("clerk", "good day")
        with trio.fail_after(30):
            await was_told.wait()
        assert session.history[-1].text == "noted"
        assert "you said: good day" in session.history[-2].text
    assert len(await tasks_of(served)) == 2


async def test_question_of_a_delegated_task_is_answered(served):
    async with open_runtime(journal="memory:") as runtime:
        agent = forwarding(served)
        await runtime.start(agent)
        session = await agent.create_session("ada")
        await session.chat("please pay")
        with trio.fail_after(30):
            await session.wait_idle()
            (asked,) = session.approvals
            assert asked.question == "Really pay?"
            await session.answer(asked.id, Approve(content={"answer": "approve"}))
            await session.wait_idle()
        assert session.history[-1].text == "The result is in."
    assert runs["pay"] == 1


async def test_remote_agent_model_needs_its_tool(served):
    with pytest.raises(ConfigurationError, match="A2AAgent"):
        A2AModel("clerk")
    async with BareAgent("clerk", llm=A2AModel(connect(served))) as agent:
        with pytest.raises(ModelError, match="must also have its remote agent"):
            await agent.run("hello")


async def test_calls_belong_to_the_trace_of_the_caller(served):
    """The remote agent's messages have the trace of the turn that called it."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with forwarding(served) as agent:
        token = traceparent.set(trace)
        try:
            await agent.run("hello")
        finally:
            traceparent.reset(token)
    (session,) = await served.runtime.journal.page(SessionFilter(agent="clerk"))
    records = await served.runtime.journal.load(session.session_id, agent="clerk")
    (accepted,) = [each for each in records if isinstance(each, MessageAcceptedRecord)]
    assert accepted.message.traceparent == trace
