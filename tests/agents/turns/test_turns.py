"""A turn: from a message to its last outcome, with tools, repairs, limits and all the ways it may fail."""

import gc

import pytest
import trio

from actgent import (
    BareAgent,
    ConfigurationError,
    Event,
    Failure,
    Instruction,
    Label,
    Labelled,
    LimitReached,
    Limits,
    ModelError,
    ModelTimeout,
    NotAuthorized,
    RateLimited,
    ReActAgent,
    Reply,
    ScriptedLLM,
    SimpleAgent,
    StreamInterrupted,
    ToolCall,
    ToolResult,
    open_runtime,
    tool,
)
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Text, Thinking, Usage
from actgent.testing import assert_valid_transcript


@tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool(parallel=True)
async def slow(seconds: float) -> str:
    """Wait."""
    await trio.sleep(seconds)
    return f"waited {seconds}"


@tool
def create(name: str) -> str:
    """Create something."""
    return f"created {name}"


def said(text, **options):
    return ModelResponse(parts=(Text(text),) if text else (), **options)


def simple(kind, content):
    import json

    return json.dumps({"messageType": kind, "content": content})


def kinds(heard):
    return [getattr(item, "kind", type(item).__name__) for item in heard]


def last_text(chat):
    return "".join(part.text for part in chat.messages[-1].parts if isinstance(part, Text))


# --- tools ---------------------------------------------------------------------------------


async def test_a_tool_runs_and_its_result_comes_back_before_the_answer(make, listen):
    """The order is the call, its result for the handlers, the next model call with both, and the answer."""
    order = []
    agent, llm = make(
        ToolCall("add", {"a": 2, "b": 3}), lambda _: order.append("asked again") or "It is 5.", tools=[add]
    )
    async with agent:
        session = await agent.create_session("ada", "2 + 3?")
        session.on_tool_result(lambda result: order.append(result.content))
        received = listen(session)
        await session.wait_idle()
    assert order == ["5", "asked again"]
    result, reply = received
    assert (result.tool_name, result.status, result.error) == ("add", "success", None)
    assert str(reply) == "It is 5."
    assert [m.role for m in llm.chats[1].messages] == ["user", "assistant", "tool"]
    assert llm.chats[1].messages[2].parts[0].call_id == llm.chats[1].messages[1].parts[0].id
    assert_valid_transcript(llm.chats[1])


async def test_results_come_in_the_order_of_the_calls_when_all_have_ended(autojump_clock, listen):
    """Calls take different times. A failed call has a result as well, and never an exception."""
    calls = [
        ToolCall("slow", {"seconds": 3}),
        ToolCall("nowhere", {}),
        ToolCall("slow", {"seconds": 1}),
        ToolCall("add", {"a": 1, "b": "x"}),
    ]
    llm = ScriptedLLM([calls, "done"])
    times = []
    async with BareAgent("a", llm=llm, tools=[slow, add]) as agent:
        session = await agent.create_session("ada", "go")
        session.on_tool_result(lambda _: times.append(trio.current_time()))
        received = listen(session)
        await session.wait_idle()
    assert times == [3.0] * 4
    assert [item.status for item in received[:-1]] == ["success", "error", "success", "error"]
    assert [item.tool_name for item in received[:-1]] == ["slow", "nowhere", "slow", "add"]
    assert str(received[-1]) == "done"
    assert_valid_transcript(llm.chats[-1])


async def test_text_with_native_calls_is_recorded_but_not_an_answer(make, listen):
    """The text is the model's commentary: it is recorded and streamed only."""
    agent, _ = make(["Let me add.", ToolCall("add", {"a": 1, "b": 1})], "2", tools=[add])
    async with agent:
        session = await agent.create_session("ada", "1 + 1?")
        received = listen(session, tokens=True)
        await session.wait_idle()
    assert [type(item).__name__ for item in received] == ["Token", "ToolResult", "Token", "Reply"]
    assert received[0].text == "Let me add."
    assert session.history[1].text == "Let me add."
    assert received[2].reply_id == received[3].id


async def test_repeated_call_ids_are_made_unique(make, listen):
    """Some models count from `call_1` in each answer; the transcript stays valid."""
    call = ToolCall("add", {"a": 1, "b": 1}, provider_id="call_1")
    other = ToolCall("add", {"a": 2, "b": 2}, provider_id="call_1")
    agent, llm = make([call, other], call, "done", tools=[add])
    async with agent:
        session = await agent.create_session("ada", "go")
        received = listen(session)
        await session.wait_idle()
    assert len({item.call_id for item in received[:-1]}) == 3
    assert_valid_transcript(llm.chats[-1])


async def test_a_tool_call_in_text_gets_its_result_as_user_text(make, listen):
    """The model of a text protocol reads results as text, and the handlers receive them as results."""
    agent, llm = make(
        simple("TOOL_INVOCATION", {"name": "add", "parameters": {"a": 2, "b": 2}}),
        simple("DIRECT_RESPONSE", "4"),
        kind=SimpleAgent,
        tools=[add],
    )
    async with agent:
        session = await agent.create_session("ada", "2 + 2?")
        received = listen(session)
        await session.wait_idle()
    assert [(type(item).__name__, getattr(item, "content", None)) for item in received] == [
        ("ToolResult", "4"),
        ("Reply", None),
    ]
    assert [m.role for m in llm.chats[1].messages] == ["user", "assistant", "user"]
    assert "4" in last_text(llm.chats[1])
    assert_valid_transcript(llm.chats[1])


async def test_mapped_instruction_emits_its_event_and_text_and_runs_its_tool(make, listen):
    """The tool is in no function list, and cannot be called by name."""
    agent, llm = make(
        ToolCall("create", {"name": "by name"}),
        simple("creation", {"name": "Bob", "text": "Creating Bob."}),
        simple("DIRECT_RESPONSE", "done"),
        kind=SimpleAgent,
        tools=[add, create],
        instructions=[Instruction("creation", "Creates.", {"name": "<name>"}, tool="create")],
    )
    async with agent:
        session = await agent.create_session("ada", "make Bob")
        received = listen(session)
        await session.wait_idle()
    assert [spec.name for spec in llm.chats[0].tools] == ["add", "read_result"]
    refused, event, text, result, reply = received
    assert (refused.status, "not found" in refused.error) == ("error", True)
    assert isinstance(event, Event)
    assert (event.name, event.data["name"]) == ("creation", "Bob")
    assert (isinstance(text, Reply), str(text), text.message_type) == (True, "Creating Bob.", "creation")
    assert isinstance(result, ToolResult)
    assert result.tool_name == "create"
    assert str(reply) == "done"


async def test_an_instruction_without_a_tool_is_an_event(make, listen):
    """A structure without text is an event and ends the turn."""
    agent, _ = make(
        simple("order", {"dish": "soup"}),
        kind=SimpleAgent,
        instructions=[Instruction("order", "", {"dish": "<>"})],
    )
    async with agent:
        session = await agent.create_session("ada", "soup, please")
        received = listen(session)
        await session.wait_idle()
    assert [(type(item), item.name, item.data) for item in received] == [(Event, "order", {"dish": "soup"})]


# --- limits --------------------------------------------------------------------------------


async def test_turn_makes_at_most_25_model_calls(listen):
    """The 26th is a failure of kind limit, and the next message is answered on a valid transcript."""
    count = iter(range(1000))
    llm = ScriptedLLM(lambda _: ToolCall("add", {"a": next(count), "b": 1}))
    async with BareAgent("a", llm=llm, tools=[add]) as agent:
        session = await agent.create_session("ada", "go")
        received = listen(session)
        await session.wait_idle()
        assert len(llm.chats) == 25
        assert kinds(received) == ["ToolResult"] * 25 + ["limit"]
        assert isinstance(received[-1].error, LimitReached)
        llm._script = [said("fine")]
        await session.chat("and now?")
        await session.wait_idle()
    assert str(received[-1]) == "fine"
    assert_valid_transcript(llm.chats[-1])


async def test_three_identical_calls_in_a_row_are_the_limit(make, listen):
    """The fourth does not run. Its result is `cancelled`, and the failure names the tool."""
    agent, llm = make(lambda _: ToolCall("add", {"a": 1, "b": 1}), tools=[add])
    async with agent:
        session = await agent.create_session("ada", "go")
        received = listen(session)
        await session.wait_idle()
        assert [item.status for item in received[:-1]] == ["success"] * 3 + ["cancelled"]
        assert (received[-1].kind, "add" in str(received[-1].error)) == ("limit", True)
        llm._script = [said("fine")]
        await session.chat("and now?")
        await session.wait_idle()
    assert_valid_transcript(llm.chats[-1])


async def test_calls_that_differ_between_are_no_repetition(make, listen):
    """Only equal calls in a row count, and each turn starts at zero."""
    one, two = ToolCall("add", {"a": 1, "b": 1}), ToolCall("add", {"a": 1, "b": 2})
    agent, _ = make(one, one, one, two, one, one, one, "done", one, "done", tools=[add])
    async with agent:
        session = await agent.create_session("ada", "go")
        received = listen(session)
        await session.wait_idle()
        await session.chat("more")
        await session.wait_idle()
    assert kinds(received).count("Reply") == 2
    assert "limit" not in kinds(received)


@pytest.mark.parametrize(
    "bad",
    [
        {"model_calls": 0},
        {"max_repeated_calls": 0},
        {"output_retries": -1},
        {"model_timeout": 0},
        {"tool_timeout": -1},
        {"model_calls": "5"},
        {"output_retries": True},
        {"tool_timeout": "soon"},
        {"model_timeout": float("nan")},
        {"result_characters": 0},
    ],
)
def test_invalid_limits_are_rejected(bad):
    """The error names the limit."""
    with pytest.raises(ConfigurationError, match=next(iter(bad))):
        Limits(**bad)


# --- repairs -------------------------------------------------------------------------------


async def test_invalid_answer_is_retried_with_the_error(make, listen):
    """The model reads the error, and handlers receive only the valid answer."""
    agent, llm = make("no JSON", simple("greeting", "hi"), simple("DIRECT_RESPONSE", "hi"), kind=SimpleAgent)
    async with agent:
        session = await agent.create_session("ada", "hello")
        received = listen(session)
        await session.wait_idle()
    assert [str(item) for item in received] == ["hi"]
    assert "Unknown messageType: greeting" in last_text(llm.chats[2])
    assert "JSON" in last_text(llm.chats[1])
    for chat in llm.chats:
        assert_valid_transcript(chat)


@pytest.mark.parametrize(
    ("bad", "kind", "agent_kind"),
    [
        ("no JSON", "parse", SimpleAgent),
        ("", "empty", BareAgent),
        (" \n", "empty", ReActAgent),
        ("{}", "parse", ReActAgent),
    ],
)
async def test_the_turn_fails_after_two_output_retries(make, listen, bad, kind, agent_kind):
    """Three invalid answers in a row end the turn with the text of the last; the session continues."""
    agent, llm = make(*[said(bad)] * 3, said("no JSON") if kind == "parse" else said(""), kind=agent_kind)
    async with agent:
        session = await agent.create_session("ada", "hello")
        received = listen(session)
        await session.wait_idle()
        (failure,) = received
        assert isinstance(failure, Failure)
        assert (failure.kind, failure.raw, len(llm.chats)) == (kind, bad if kind == "parse" else "", 3)
        assert failure.message_id == session.history[0].id
        await session.chat("again")
        await session.wait_idle()
    for chat in llm.chats:
        assert_valid_transcript(chat)


async def test_valid_answer_resets_the_output_retries(make, listen):
    """The limit counts invalid answers in a row."""
    call = simple("TOOL_INVOCATION", {"name": "add", "parameters": {"a": 1, "b": 1}})
    agent, _ = make("x", "x", call, "x", "x", simple("DIRECT_RESPONSE", "2"), kind=SimpleAgent, tools=[add])
    async with agent:
        session = await agent.create_session("ada", "1 + 1?")
        received = listen(session)
        await session.wait_idle()
    assert kinds(received) == ["ToolResult", "Reply"]


async def test_output_retries_is_a_limit(make, listen):
    """`output_retries=0` never retries."""
    agent, llm = make("x", kind=SimpleAgent, limits=Limits(output_retries=0))
    async with agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session)
        await session.wait_idle()
    assert (kinds(received), len(llm.chats)) == (["parse"], 1)


# --- answers that are none -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "kind"), [("refusal", "refusal"), ("filter", "filter"), ("length", "length")]
)
@pytest.mark.parametrize("text", ["I can", ""])
async def test_truncated_answer_is_a_failure(make, listen, stop, kind, text):
    """It is not retried and never shown as an answer; the next message is answered."""
    agent, llm = make(said(text, stop=stop), "fine")
    async with agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session)
        await session.wait_idle()
        await session.chat("again")
        await session.wait_idle()
    assert kinds(received) == [kind, "Reply"]
    assert received[0].raw == text
    assert_valid_transcript(llm.chats[-1])


@pytest.mark.parametrize("stop", ["length", "refusal", "filter"])
async def test_calls_of_a_truncated_answer_never_run(make, listen, stop):
    """A truncated call may lack arguments."""
    answer = ModelResponse(parts=(Text("I will"), ToolCall("add", {"a": 1, "b": 1})), stop=stop)
    agent, llm = make(answer, "fine", tools=[add])
    async with agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session)
        await session.wait_idle()
        await session.chat("again")
        await session.wait_idle()
    assert not [item for item in received if isinstance(item, ToolResult) and item.status == "success"]
    assert_valid_transcript(llm.chats[-1])


async def test_paused_answer_is_continued(make, listen):
    """The model receives its partial answer and continues."""
    agent, llm = make(said("Looking", stop="pause"), "done")
    async with agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session)
        await session.wait_idle()
    assert [str(item) for item in received] == ["done"]
    assert llm.chats[1].messages[-1].parts == (Text("Looking"),)


async def test_calls_of_a_paused_answer_run(make, listen):
    """Each call has its result before the next model call, whatever else the provider reports."""
    agent, llm = make(
        ModelResponse(parts=(ToolCall("add", {"a": 1, "b": 1}),), stop="pause"), "2", tools=[add]
    )
    async with agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session)
        await session.wait_idle()
    assert kinds(received) == ["ToolResult", "Reply"]
    assert_valid_transcript(llm.chats[-1])


async def test_an_answer_of_thoughts_alone_is_empty(make, listen):
    """Thinking is not shown to users; the next request is valid for providers."""
    thoughts = ModelResponse(parts=(Thinking("hm", "scripted"),))
    agent, llm = make(thoughts, "done")
    async with agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session)
        await session.wait_idle()
    assert [str(item) for item in received] == ["done"]
    assert [m.role for m in llm.chats[1].messages if m.role == "assistant"] == []


async def test_usage_of_a_reply_counts_all_calls_of_its_turn(make, listen):
    """This includes calls after tools and output retries."""
    usage = Usage(input_tokens=5, output_tokens=1)
    call = ModelResponse(parts=(ToolCall("add", {"a": 1, "b": 1}),), stop="tool_calls", usage=usage)
    agent, _ = make(call, said("", usage=usage), said("2", usage=usage), tools=[add])
    async with agent:
        session = await agent.create_session("ada", "1 + 1?")
        received = listen(session)
        await session.wait_idle()
    assert received[-1].usage == usage + usage + usage == session.usage


# --- errors of the model -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotAuthorized("no", status=401), "model"),
        (RateLimited("later", retry_after=3), "model"),
        (StreamInterrupted("half"), "model"),
        (ZeroDivisionError("a bug"), "model"),
    ],
)
async def test_model_exception_fails_the_turn_only(make, listen, error, kind):
    """The failure has the error itself. An exception of the model client is the cause of a ModelError."""
    agent, llm = make(error, "fine")
    async with agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session)
        await session.wait_idle()
        await session.chat("again")
        await session.wait_idle()
    failed = received[0].error
    assert (received[0].kind, failed.__cause__ if failed.client_error else failed) == (kind, error)
    assert isinstance(failed, ModelError)
    assert str(received[1]) == "fine"
    assert_valid_transcript(llm.chats[-1])


async def test_model_call_times_out_after_120_seconds(autojump_clock, listen):
    """It raises `ModelTimeout`, and the received text is kept as cut."""
    llm = ScriptedLLM(["slow and steady"], chunk=5, chunk_delay=100)
    async with BareAgent("a", llm=llm) as agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session, tokens=True)
        await session.wait_idle()
    assert trio.current_time() == pytest.approx(120)
    assert isinstance(received[-1].error, ModelTimeout)
    assert received[-1].kind == "model"
    assert (session.history[-1].text, session.history[-1].cut) == ("slow and s", True)


async def test_failed_turn_does_not_affect_other_sessions(make, listen):
    agent, _ = make(lambda chat: 1 / 0 if "bad" in last_text(chat) else "ok")
    async with agent:
        good, bad = await agent.create_session("ada", "good"), await agent.create_session("bob", "bad")
        received, failed = listen(good), listen(bad)
        await good.wait_idle()
        await bad.wait_idle()
    assert (kinds(received), kinds(failed)) == (["Reply"], ["model"])


@tool
async def look_up(word: str) -> str | Labelled:
    """Look a word up. The result has a label, which the conversion to text removes."""
    return Labelled(word.upper(), Label())


@pytest.mark.parametrize("journal", [None, "memory:"])
async def test_ended_turns_are_freed_by_reference_counting(journal):
    """The turns have tools, waiting callers, and a handler that fails."""

    def answer(chat):
        return "done" if chat.messages[-1].role == "tool" else ToolCall("look_up", {"word": "actor"})

    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(answer), tools=[look_up]))
        session = await agent.create_session("ada")

        async def some():
            for _ in range(3):
                await session.chat("hi")
                await session.wait_idle()
                assert (await agent.run("hi", session=session)).text == "done"

        await some()  # what only the first of them makes
        gc.collect()
        gc.disable()
        try:
            await some()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = {type(each).__name__ for each in gc.garbage}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert left & {"Turn", "Context", "TurnFuture", "Message", "QueuedMessage"} == set()
