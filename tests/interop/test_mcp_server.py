"""Agents as MCP tools: calls, sessions, approvals, repeated calls and owners, with the MCP SDK client in this process."""

import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from actgent import BareAgent, ScriptedLLM, ToolCall, ToolResult, open_runtime, tool
from actgent.errors import ApprovalRequired, ConfigurationError, JournalError
from actgent.journal.in_memory_journal import MemoryJournal

mcp = pytest.importorskip("mcp", reason="pip install 'actgent[mcp]'")
types = pytest.importorskip("mcp_types")

from actgent.interop.line_reader import MAX_LINE_BYTES  # noqa: E402 - after the extra
from actgent.interop.mcp import make_mcp_server, serve_mcp  # noqa: E402 - a module of an extra
from actgent.interop.mcp.agent_server import MESSAGE_ID  # noqa: E402

from .conftest import make_agents, runs  # noqa: E402

MODES = ("legacy", "2026-07-28")
ACTGENT = str(Path(sys.executable).with_name("actgent"))


@pytest.fixture
async def runtime():
    runs["pay"] = 0
    async with open_runtime(journal="memory:") as runtime:
        for agent in make_agents():
            await runtime.start(agent)
        yield runtime


def answering(action, content=None, seen=None):
    async def elicit(_context, params):
        await trio.lowlevel.checkpoint()
        if seen is not None:
            seen.append(params)
        return types.ElicitResult(action=action, content=content)

    return elicit


@asynccontextmanager
async def connected(runtime, mode="2026-07-28", owner="ada", **options):
    server = make_mcp_server(runtime, owner_of=lambda _: owner)
    with runtime.showing_approvals():
        async with mcp.Client(server, mode=mode, **options) as client:
            yield client


def text_of(result):
    return "".join(each.text for each in result.content)


async def ask(client, message, **arguments):
    with trio.fail_after(60):
        return await client.call_tool("clerk", {"message": message, **arguments})


async def sessions_of(runtime):
    return [each for each in await runtime.sessions() if not each.closed]


@pytest.mark.parametrize("mode", MODES)
async def test_each_agent_is_a_tool(runtime, mode):
    async with connected(runtime, mode) as client:
        found = await client.list_tools()
    assert [each.name for each in found.tools] == ["clerk", "gpt-5-clerk"]
    assert found.tools[0].input_schema["required"] == ["message"]
    if mode != "legacy":
        assert (found.ttl_ms, found.cache_scope) == (60_000, "private")


@pytest.mark.parametrize("mode", MODES)
async def test_call_without_a_session_ends_its_session(runtime, mode):
    async with connected(runtime, mode) as client:
        result = await ask(client, "hello")
    assert (text_of(result), result.is_error) == ("you said: hello", False)
    assert await sessions_of(runtime) == []


async def test_named_session_continues(runtime, chats):
    async with connected(runtime) as client:
        await ask(client, "hello", session_id="talk")
        await ask(client, "again", session_id="talk")
    assert len(chats[-1].messages) == len(chats[0].messages) + 2
    (session,) = await sessions_of(runtime)
    assert (session.session_id, session.owner) == ("talk", "ada")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("answer", "count"),
    [(("accept", {"approve": True}), 1), (("accept", {"approve": False}), 0), (("decline", None), 0)],
)
async def test_approval_is_requested_by_a_form(runtime, caplog, mode, answer, count):
    seen = []
    async with connected(runtime, mode, elicitation_callback=answering(*answer, seen)) as client:
        result = await ask(client, "please pay")
    assert (text_of(result), result.is_error) == ("The result is in.", False)
    assert runs["pay"] == count
    assert [each.message for each in seen] == ["Really pay?"]
    assert await sessions_of(runtime) == []
    assert not [each for each in caplog.records if each.name.startswith("actgent")]


@pytest.mark.parametrize("mode", MODES)
async def test_undecided_approval_is_an_error_and_stays_open_in_a_named_session(runtime, mode):
    async with connected(runtime, mode, elicitation_callback=answering("cancel")) as client:
        result = await ask(client, "please pay", session_id="talk")
        assert result.is_error
        assert "Really pay?" in text_of(result)
        assert len(await runtime.approvals()) == 1
        assert (await ask(client, "please pay")).is_error
    assert [each.session_id for each in await sessions_of(runtime)] == ["talk"]
    assert runs["pay"] == 0


@pytest.mark.parametrize("mode", MODES)
async def test_client_without_forms_gets_an_error(runtime, mode):
    async with connected(runtime, mode) as client:
        result = await ask(client, "please pay")
    assert result.is_error
    assert await sessions_of(runtime) == []
    assert runs["pay"] == 0


async def start_payment(client):
    """Call the agent, and return the question and the state."""
    found = await client.session.call_tool("clerk", {"message": "please pay"}, allow_input_required=True)
    assert found.result_type == "input_required"
    (key,) = found.input_requests
    return key, found.request_state


async def continue_payment(client, responses, state, message="please pay"):
    return await client.session.call_tool(
        "clerk",
        {"message": message},
        input_responses=responses,
        request_state=state,
        allow_input_required=True,
    )


APPROVED = {"action": "accept", "content": {"approve": True}}


async def test_repeated_answer_runs_the_tool_once_and_gives_the_same_result(runtime):
    async with connected(runtime, elicitation_callback=answering("decline")) as client:
        key, state = await start_payment(client)
        responses = {key: types.ElicitResult(**APPROVED)}
        for _ in range(3):
            assert text_of(await continue_payment(client, responses, state)) == "The result is in."
    assert runs["pay"] == 1


async def test_missing_answer_is_requested_again(runtime):
    async with connected(runtime, elicitation_callback=answering("decline")) as client:
        key, state = await start_payment(client)
        again = await continue_payment(client, {}, state)
        assert [*again.input_requests] == [key]
    assert runs["pay"] == 0


async def test_altered_state_is_rejected(runtime):
    async with connected(runtime, elicitation_callback=answering("decline")) as client:
        key, state = await start_payment(client)
        responses = {key: types.ElicitResult(**APPROVED)}
        for wrong in (state[:-2] + ("AA" if state[-2:] != "AA" else "BB"), state + "=", "x", ""):
            with pytest.raises(mcp.MCPError):
                await continue_payment(client, responses, wrong)
        with pytest.raises(mcp.MCPError):  # the state belongs to other arguments
            await continue_payment(client, responses, state, message="hello")
    assert runs["pay"] == 0


async def test_state_of_another_owner_is_rejected(runtime):
    owner = ["ada"]
    server = make_mcp_server(runtime, owner_of=lambda _: owner[0])
    async with mcp.Client(server, mode="2026-07-28", elicitation_callback=answering("decline")) as client:
        key, state = await start_payment(client)
        owner[0] = "bob"
        with pytest.raises(mcp.MCPError):
            await continue_payment(client, {key: types.ElicitResult(**APPROVED)}, state)
    assert runs["pay"] == 0


async def test_session_of_another_owner_looks_like_none(runtime):
    async with connected(runtime) as client:
        await ask(client, "secret-canary", session_id="talk")
    async with connected(runtime, owner="bob") as client:
        result = await ask(client, "hello", session_id="talk")
    assert result.is_error
    assert "secret-canary" not in str(result)
    assert "ada" not in str(result)


async def test_client_that_may_not_decide_cannot_approve(runtime):
    server = make_mcp_server(runtime, may_decide=lambda _: False)
    approve = answering("accept", {"approve": True})
    async with mcp.Client(server, mode="2026-07-28", elicitation_callback=approve) as client:
        assert (await ask(client, "please pay")).is_error
    assert runs["pay"] == 0


@pytest.mark.parametrize("session_id", ["talk", ""])
async def test_equal_calls_at_once_are_one_turn(runtime, chats, session_id):
    texts = []

    async def call(client):
        arguments = {"message": "hello", **({"session_id": session_id} if session_id else {})}
        result = await client.call_tool("clerk", arguments, meta={MESSAGE_ID: "m1"})
        texts.append(text_of(result))

    async with connected(runtime) as client:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(call, client)
            await call(client)  # a repeated call after the first one has ended
    assert texts == ["you said: hello"] * 21
    assert len(chats) == 1


async def test_cancelled_call_without_a_session_is_stopped(runtime):
    agent = BareAgent("slow", llm=ScriptedLLM(["late"], delay=30, repeat=True))
    await runtime.start(agent)
    async with connected(runtime) as client:
        with trio.move_on_after(1):
            await client.call_tool("slow", {"message": "hello"})
        with trio.move_on_after(1):
            await client.call_tool("slow", {"message": "hello", "session_id": "talk"})
        with trio.fail_after(20):
            while [each.session_id for each in await sessions_of(runtime)] != ["talk"]:  # noqa: ASYNC110 - no event signals this state
                await trio.sleep(0.05)
        session = await agent.open_session("talk")
        assert session.status != "idle"


@asynccontextmanager
async def held_agent(runtime):
    """Yield the event for which the tool of an agent waits."""
    release = trio.Event()

    @tool(effect="pure")
    async def hold() -> str:
        """Wait."""
        await release.wait()
        return "released"

    def script(chat):
        results = [part for part in chat.messages[-1].parts if isinstance(part, ToolResult)]
        return results[0].content if results else ToolCall("hold", {})

    await runtime.start(BareAgent("holder", llm=ScriptedLLM(script), tools=[hold]))
    yield release


async def test_reader_that_leaves_does_not_stop_the_call_of_another_one(runtime):
    """One of three equal concurrent calls is cancelled.

    The other calls get the answer, and the session ends.
    """
    texts = []

    async def call(client, cancelled):
        with cancelled:
            result = await client.call_tool("holder", {"message": "hello"}, meta={MESSAGE_ID: "m1"})
            texts.append(text_of(result))

    async with held_agent(runtime) as release, connected(runtime) as client:
        scopes = [trio.CancelScope() for _ in range(3)]
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for scope in scopes:
                    nursery.start_soon(call, client, scope)
                    await trio.testing.wait_all_tasks_blocked()
                scopes[0].cancel()
                await trio.testing.wait_all_tasks_blocked()
                release.set()
        assert texts == ["released"] * 2
        assert await sessions_of(runtime) == []


async def test_call_stops_after_its_last_reader(runtime):
    async def call(client, cancelled):
        with cancelled:
            await client.call_tool("holder", {"message": "hello"}, meta={MESSAGE_ID: "m1"})

    async with held_agent(runtime), connected(runtime) as client:
        scopes = [trio.CancelScope() for _ in range(2)]
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for scope in scopes:
                    nursery.start_soon(call, client, scope)
                    await trio.testing.wait_all_tasks_blocked()
                for scope in scopes:
                    scope.cancel()
            while await sessions_of(runtime):  # noqa: ASYNC110 - no event signals this state
                await trio.sleep(0.05)
        result = await client.call_tool("holder", {"message": "hello"}, meta={MESSAGE_ID: "m1"})
        assert result.is_error


@pytest.mark.parametrize("kind", ["approval", "tool of the caller"])
async def test_message_to_a_session_that_waits_is_an_error(kind):
    tools = [{"name": "locate", "description": "Position.", "parameters": {"type": "object"}}]
    agent = make_agents()[0]
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada", session_id="talk")
        if kind == "approval":
            await session.chat("please pay")
        else:
            await session.chat("where am I?", tools=tools)
        await session.wait_idle()
        async with connected(runtime) as client:
            result = await ask(client, "hello", session_id="talk")
        assert [each.text for each in session.history if each.text == "hello"] == []
    assert result.is_error
    assert ("pay" if kind == "approval" else "locate") in text_of(result)


async def test_message_that_is_not_accepted_leaves_no_session(runtime):
    small = BareAgent("small", llm=ScriptedLLM(["yes"], repeat=True), message_bytes=100)
    await runtime.start(small)
    async with connected(runtime) as client:
        result = await client.call_tool("small", {"message": "x" * 200}, meta={MESSAGE_ID: "m1"})
        assert result.is_error
        assert not await runtime.sessions()
        result = await client.call_tool("small", {"message": "hello"}, meta={MESSAGE_ID: "m1"})
        assert text_of(result) == "yes"  # the id is free


async def test_error_of_the_journal_omits_its_path(caplog):
    class Broken(MemoryJournal):
        is_broken = False

        async def head(self, agent, session_id):
            if self.is_broken:
                raise JournalError("cannot read /srv/secret-canary/journal.db")
            return await super().head(agent, session_id)

    async with Broken().running() as journal, open_runtime(journal=journal) as runtime:
        await runtime.start(make_agents()[0])
        async with connected(runtime) as client:
            journal.is_broken = True
            result = await ask(client, "hello", session_id="talk")
            journal.is_broken = False
    assert result.is_error
    assert "secret-canary" not in str(result)
    assert "secret-canary" in caplog.text


async def test_progress_names_the_running_tools(runtime):
    steps = []

    async def progress(done, _total, message):
        await trio.lowlevel.checkpoint()
        steps.append((done, message))

    async with connected(runtime, "legacy") as client:
        await client.call_tool("clerk", {"message": "please add"}, progress_callback=progress)
        with trio.fail_after(20):
            while len(steps) < 2:  # noqa: ASYNC110 - no event signals this state
                await trio.sleep(0.01)
    assert steps == [(1, "clerk runs add"), (2, "clerk runs add")]


@pytest.mark.parametrize("text", ["please fail", "please break"])
async def test_error_texts_of_tools_are_not_sent(runtime, text):
    async with connected(runtime) as client:
        result = await ask(client, text)
    assert "secret-canary" not in str(result)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"message": ""},
        {"message": 1},
        {"message": "x", "session_id": "a/b"},
        {"message": "x", "files": []},
    ],
)
async def test_wrong_arguments_are_an_error_that_the_model_of_the_client_can_read(runtime, arguments):
    async with connected(runtime) as client:
        assert (await client.call_tool("clerk", arguments)).is_error
        assert await sessions_of(runtime) == []
        with pytest.raises(mcp.MCPError, match="Unknown tool"):
            await client.call_tool("nobody", {"message": "x"})


async def test_question_with_a_form_is_answered_by_its_value():
    @tool
    async def choose() -> str:
        """Choose a colour."""
        await trio.lowlevel.checkpoint()
        raise ApprovalRequired("Which colour?", form={"enum": ["red", "blue"]})

    def script(chat):
        results = [part for part in chat.messages[-1].parts if isinstance(part, ToolResult)]
        return f"it is {results[0].content}" if results else ToolCall("choose", {})

    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(BareAgent("clerk", llm=ScriptedLLM(script), tools=[choose]))
        seen = []
        async with connected(
            runtime, elicitation_callback=answering("accept", {"answer": "blue"}, seen)
        ) as client:
            assert text_of(await ask(client, "choose")) == "it is blue"
    assert seen[0].requested_schema["properties"]["answer"]["enum"] == ["red", "blue"]


async def test_runtime_without_a_journal_is_rejected():
    async with open_runtime() as runtime:
        with pytest.raises(ConfigurationError, match="requires a journal"):
            make_mcp_server(runtime)


# --- the command -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_command_serves_an_agent_over_its_standard_streams(tmp_path, mode):
    (tmp_path / "clerk.py").write_text(
        "from actgent import BareAgent, ScriptedLLM\n"
        "print('noise')\n"
        "clerk = BareAgent('clerk', llm=ScriptedLLM(lambda chat: 'good day'))\n",
        encoding="utf-8",
    )
    parameters = mcp.StdioServerParameters(command=ACTGENT, args=["mcp", "serve", "clerk.py"], cwd=tmp_path)
    with trio.fail_after(120):
        async with mcp.Client(parameters, mode="auto" if mode != "legacy" else mode) as client:
            assert client.session.protocol_version == ("2025-11-25" if mode == "legacy" else mode)
            assert text_of(await ask(client, "hello")) == "good day"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b'"method": "ping", "params": {"x": "cut \\ud83d"}}', None),
        (b'"method": "ping", "params": {"x": "\xff"}}', None),
        (b'"method": "ping", "params": ' + b"[" * 2000, types.PARSE_ERROR),
        (b'"method": 5}', types.PARSE_ERROR),
        (b'"method": "ping", "params": {"x": "' + b"x" * MAX_LINE_BYTES + b'"}}', types.PARSE_ERROR),
    ],
    ids=["surrogate", "UTF-8", "depth", "method", "length"],
)
async def test_invalid_line_has_a_response(runtime, line, code):
    """A client that sent a request waits for a response with its id."""
    to_server, server_in = trio.testing.memory_stream_one_way_pair()
    server_out, from_server = trio.testing.memory_stream_one_way_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_mcp, runtime, server_in, server_out)
        nursery.start_soon(to_server.send_all, b'{"jsonrpc": "2.0", "id": 7, ' + line + b"\n")
        received = b""
        with trio.fail_after(60):
            while not received.endswith(b"\n"):
                received += await from_server.receive_some()
        nursery.cancel_scope.cancel()
    response = json.loads(received)
    assert (response["id"], response.get("error", {}).get("code")) == (7, code)
