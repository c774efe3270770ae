"""Tools of the caller for one turn: offers, calls, results, rejection, crashes, and their display to the caller."""

import json
import signal
import sys
from pathlib import Path

import pytest
import trio

from actgent import (
    ApprovalRequest,
    Approve,
    BareAgent,
    ConfigurationError,
    Limits,
    Reject,
    Respond,
    ScriptedLLM,
    Suspended,
    Text,
    ToolCall,
    ToolResult,
    UsageError,
    open_runtime,
    tool,
)
from actgent.llm.model_interface import ModelResponse

LOCATE = {
    "name": "locate",
    "description": "Return the position of the user.",
    "parameters": {"type": "object", "properties": {"digits": {"type": "integer"}}, "required": ["digits"]},
}
ROOT = Path(__file__).parents[3]
PAINT = {"name": "paint", "description": "Paint the window."}
offers = []
"""Names of the tools in each model request."""


@tool(approval=ApprovalRequest("Really?"))
async def pay() -> str:
    """Pay."""
    await trio.lowlevel.checkpoint()
    return "paid"


def answer(chat):
    """Call the tools that the last message names; after their results, repeat the results."""
    offers.append([each.name for each in chat.tools if each.name != "read_result"])
    last = chat.messages[-1]
    results = [part.text for part in last.parts if isinstance(part, ToolResult)]
    if results:
        return ModelResponse(parts=(Text(" | ".join(results)),))
    words = "".join(part.text for part in last.parts if isinstance(part, Text)).split()
    calls = [ToolCall(name, {"digits": 2} if name == "locate" else {}) for name in words if name != "hello"]
    return (
        ModelResponse(parts=tuple(calls), stop="tool_calls")
        if calls
        else ModelResponse(parts=(Text("hello"),))
    )


@pytest.fixture
def clerk():
    offers.clear()
    return BareAgent("clerk", llm=ScriptedLLM(answer), tools=[pay])


async def started(runtime, agent):
    await runtime.start(agent)
    return await agent.create_session("ada", session_id="s1")


@pytest.mark.parametrize("journal", [None, "memory:"])
async def test_result_of_the_caller_goes_to_the_model(clerk, journal):
    async with open_runtime(journal=journal) as runtime:
        session = await started(runtime, clerk)
        await session.chat("locate", tools=[LOCATE])
        await session.wait_idle()
        assert session.status == "suspended"
        (call,) = session.caller_calls
        assert (call.tool_name, call.arguments, call.for_caller) == ("locate", {"digits": 2}, True)
        await session.answer(call, Respond({"lat": 52.5}))
        await session.wait_idle()
        assert session.history[-1].text == '{"lat": 52.5}'
        assert session.caller_calls == ()
        assert offers == [["pay", "locate"], ["pay", "locate"]]


async def test_caller_calls_are_not_listed_as_approvals(clerk, caplog):
    received = []
    async with open_runtime(journal="memory:") as runtime:
        session = await started(runtime, clerk)
        session.on_approval(received.append)
        await session.chat("locate pay", tools=[LOCATE])
        await session.wait_idle()
        (approval,) = session.approvals
        assert approval.tool_name == "pay"
        assert await clerk.approvals() == (approval,)
        assert await runtime.approvals() == (approval,)
        assert received == [approval]
        assert [each.tool_name for each in session.caller_calls] == ["locate"]
        await session.answer(approval, Approve())
        await session.answer(session.caller_calls[0], Respond("here"))
        await session.wait_idle()
        assert session.history[-1].text == "here | paid"
    assert "waits for an approval" not in caplog.text


async def test_only_results_and_rejections_decide_a_call(clerk):
    async with open_runtime() as runtime:
        session = await started(runtime, clerk)
        await session.chat("locate", tools=[LOCATE])
        await session.wait_idle()
        (call,) = session.caller_calls
        with pytest.raises(
            UsageError, match="the caller runs the tool 'locate': decide with Respond or Reject"
        ):
            await session.answer(call, Approve())
        await session.answer(call, Reject("no sensor"))
        await session.wait_idle()
        assert session.history[-1].text == "Error: the caller did not run it: no sensor"


async def test_tools_belong_to_one_turn(clerk):
    async with open_runtime(journal="memory:") as runtime:
        session = await started(runtime, clerk)
        for offered, text in (([LOCATE], "locate"), ([PAINT], "paint"), (None, "hello")):
            await session.chat(text, tools=offered)
            await session.wait_idle()
            for call in session.caller_calls:
                await session.answer(call, Respond(call.tool_name))
            await session.wait_idle()
        texts = [each.text for each in session.history if each.sender.kind == "assistant" and each.text]
        assert texts == ["locate", "paint", "hello"]
        assert offers == [*[["pay", "locate"]] * 2, *[["pay", "paint"]] * 2, ["pay"]]
        await session.chat("locate")  # the tool was offered for an earlier turn only
        await session.wait_idle()
        assert session.caller_calls == ()
        assert "not found" in session.history[-1].text


async def test_wrong_arguments_go_back_to_the_model(clerk):
    strict = {**LOCATE, "parameters": {"type": "object", "properties": {"digits": {"type": "string"}}}}
    async with open_runtime() as runtime:
        session = await started(runtime, clerk)
        await session.chat("locate", tools=[strict])
        await session.wait_idle()
        assert session.caller_calls == ()
        assert "digits" in session.history[-1].text


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ([{**LOCATE, "name": "pay"}], "the agent already has a tool 'pay'"),
        ([LOCATE, LOCATE], "two tools have the name 'locate'"),
        ([{**LOCATE, "name": "no spaces"}], "must have 1 to 64 of the characters"),
        ([{**LOCATE, "parameters": {"type": "array"}}], "locate"),
        ([{**LOCATE, "strange": 1}], "a ToolSpec or"),
        ([{**PAINT, "name": f"t{number}"} for number in range(129)], "must have at most 128 tools"),
        ("locate", "a list of tools"),
    ],
)
async def test_invalid_tools_are_refused(clerk, wrong, expected):
    async with open_runtime(journal="memory:") as runtime:
        session = await started(runtime, clerk)
        with pytest.raises(ConfigurationError, match=expected):
            await session.chat("hello", tools=wrong)
        with pytest.raises(ConfigurationError, match=expected):
            await clerk.run("hello", session=session, tools=wrong)
        assert session.history == ()


async def test_run_raises_suspended_and_resume_sends_the_result(clerk):
    async with open_runtime() as runtime:
        session = await started(runtime, clerk)
        with pytest.raises(Suspended) as waiting:
            await clerk.run("locate", session=session, tools=[LOCATE])
        assert waiting.value.ids == tuple(each.id for each in session.caller_calls)
        reply = await clerk.resume({each.id: Respond("here") for each in session.caller_calls})
        assert reply.text == "here"


async def test_stream_delivers_the_call(clerk):
    async with open_runtime() as runtime:
        session = await started(runtime, clerk)
        async with clerk.stream("locate", session=session, tools=[LOCATE]) as deliveries:
            received = [each async for each in deliveries]
        assert [each.tool_name for each in received if getattr(each, "for_caller", False)] == ["locate"]


async def test_call_without_result_expires(clerk, autojump_clock):
    slow = BareAgent("slow", llm=ScriptedLLM(answer), limits=Limits(approval_timeout=5))
    async with open_runtime() as runtime:
        session = await started(runtime, slow)
        await session.chat("locate", tools=[LOCATE])
        await session.wait_idle()
        await trio.sleep(6)
        await session.wait_idle()
        assert session.history[-1].text == "Error: the caller sent no result in time"


async def test_agent_approval_precedes_the_caller_call(clerk):
    careful = BareAgent("careful", llm=ScriptedLLM(answer), approval=lambda *_: True)
    async with open_runtime(journal="memory:") as runtime:
        session = await started(runtime, careful)
        await session.chat("locate", tools=[LOCATE])
        await session.wait_idle()
        assert session.caller_calls == ()
        await session.answer(session.approvals[0], Approve())
        await session.wait_idle()
        assert session.approvals == ()
        await session.answer(session.caller_calls[0], Respond("here"))
        await session.wait_idle()
        assert session.history[-1].text == "here"


LIFE = """
import json, os, signal, sys
sys.path.insert(0, {root!r})
import trio
from actgent import BareAgent, Respond, open_runtime, ScriptedLLM
from tests.agents.approvals.test_caller_tools import LOCATE, answer, pay

async def main():
    async with open_runtime(journal=sys.argv[1]) as runtime:
        clerk = BareAgent("clerk", llm=ScriptedLLM(answer), tools=[pay])
        await runtime.start(clerk)
        is_new = sys.argv[2] == "ask"
        session = await (clerk.create_session("ada", session_id="s1") if is_new else clerk.open_session("s1"))
        if is_new:
            await session.chat("locate", message_id="m1", tools=[LOCATE])
            await session.wait_idle()
        if sys.argv[2] == "answer":
            await session.answer(session.caller_calls[0], Respond("here"))
            await session.wait_idle()
        calls = [[each.id, each.tool_name, dict(each.arguments)] for each in session.caller_calls]
        print(json.dumps([session.status, calls, session.history[-1].text]), flush=True)
        if sys.argv[2] != "answer":
            os.kill(os.getpid(), signal.SIGKILL)

trio.run(main)
"""


def live(process_server, journal, what):
    command = [sys.executable, "-c", LIFE.format(root=str(ROOT)), journal, what]
    done = process_server.run(command, capture_output=True, timeout=60)
    assert done.returncode == (0 if what == "answer" else -signal.SIGKILL), done.stderr
    return json.loads(done.stdout)


def test_call_survives_a_kill(process_server, tmp_path):
    journal = f"sqlite:///{tmp_path}/agents.db"
    asked = live(process_server, journal, "ask")
    looked = live(process_server, journal, "look")
    assert looked[:2] == asked[:2]
    assert asked[0] == "suspended"
    assert live(process_server, journal, "answer") == ["idle", [], "here"]
