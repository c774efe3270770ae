"""For any model answers, an accepted message gets a reply or one Failure, and the transcript stays valid."""

import functools
from collections import Counter

import trio
import trio.testing
from hypothesis import given, settings, strategies as st

from actgent import (
    BareAgent,
    Failure,
    InboxFull,
    Instruction,
    Limits,
    NotAuthorized,
    ReActAgent,
    Reply,
    RouterAgent,
    ScriptedLLM,
    SimpleAgent,
    StreamInterrupted,
    ToolCall,
    ToolError,
    ToolResult,
    tool,
)
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Text, Thinking
from actgent.testing import check_transcript

KINDS = (BareAgent, SimpleAgent, ReActAgent, RouterAgent)


@tool(thread=False)
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool
async def slow(seconds: float) -> str:
    """Wait."""
    await trio.sleep(seconds)
    return "waited"


@tool(thread=False)
def fail() -> str:
    """Fail."""
    raise ToolError("as it does")


@tool(thread=False)
def create(name: str) -> str:
    """Create something."""
    return name


numbers = st.integers(0, 2)
calls = st.one_of(
    st.builds(lambda a, b: ToolCall("add", {"a": a, "b": b}, provider_id="call_1"), numbers, numbers),
    st.builds(lambda s: ToolCall("slow", {"seconds": s}), st.sampled_from([0.5, 100])),
    st.sampled_from(
        [
            ToolCall("fail", {}),
            ToolCall("nowhere", {"x": 1}),
            ToolCall("create", {"name": "x"}),
            ToolCall("add", "{broken"),
            ToolCall("add", {"a": "x"}, provider_id=""),
        ]
    ),
)
words = st.sampled_from(
    [
        "",
        " ",
        "hello",
        "null",
        "{}",
        "[1, 2]",
        '{"messageType": "DIRECT_RESPONSE", "content": "hi"}',
        '{"messageType": "TOOL_INVOCATION", "content": {"name": "add", "parameters": {"a": 1, "b": 1}}}',
        '{"messageType": "creation", "content": {"name": "Bob"}}',
        '{"messageType": "zzz", "content": 1}',
        '{"messageType": "DIRECT_RES',
        '{"top_level_intent": "CONVERSATION", "response": "hi"}',
        '{"primary_action": {"response_purpose": "DIRECT_RESPONSE", "response_description": "d", "response_content": {}}}',
        '{"primary_action": {"response_purpose": "TOOL_INVOCATION", "response_content": {"name": "fail"}}}',
        '[{"id": "1", "type": "function", "function": {"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}}]',
    ]
)
parts = st.one_of(words.map(Text), calls, st.just(Thinking("hm", "scripted")))
stops = st.sampled_from(["end", "end", "end", "end", "length", "refusal", "filter", "pause"])
answers = st.builds(
    lambda parts, stop: ModelResponse(parts=tuple(parts), stop=stop), st.lists(parts, max_size=4), stops
)
errors = st.sampled_from([NotAuthorized("no"), StreamInterrupted("half"), KeyError("a bug")])
entries = st.one_of(answers, answers, answers, errors)


async def _talk(kind, script, *, chats, streams):
    """Send messages to an agent whose model repeats a script. Return the model, the session, the accepted ids and the deliveries."""
    instructions = [Instruction("creation", "", {"name": "<name>"}, tool="create")]
    llm = ScriptedLLM(script, repeat=True, chunk=7, delay=0.1)
    agent = kind(
        "a",
        llm=llm,
        tools=[add, slow, fail, create],
        instructions=instructions,
        limits=Limits(model_calls=8, tool_timeout=10),
        session_inbox_capacity=3,
    )
    received, accepted = [], []
    async with agent:
        session = await agent.create_session("ada")
        for register in (session.on_conversation, session.on_exception, session.on_tool_result):
            register(received.append)
        if streams:
            session.on_token(lambda _: None)
        session.on_event(lambda _: 1 / 0)
        for number in range(chats):
            try:
                accepted.append(await session.chat(f"message {number}", enqueue_timeout=0.01))
            except InboxFull:
                await trio.sleep(1)
        with trio.fail_after(100_000):
            await session.wait_idle()
        assert session.status == "idle"
    return llm, session, accepted, received


def _check(llm, session, accepted, heard, *, pauses):
    for chat in llm.chats:
        # Only a paused answer is sent back as the last message.
        problems = check_transcript(chat)
        assert [p for p in problems if not (pauses and "prefill" in p)] == []
    record = session.history
    asked = [call.id for message in record if not message.cut for call in message.tool_calls if call.native]
    told = Counter(result.call_id for message in record for result in message.tool_results)
    assert all(told[call] == 1 for call in asked)
    assert len(told) == sum(told.values())
    assert [item.call_id for item in heard if isinstance(item, ToolResult)] == [
        result.call_id for message in record for result in message.tool_results
    ]
    failed = Counter(
        item.message_id for item in heard if isinstance(item, Failure) and item.kind != "handler"
    )
    assert set(failed.values()) <= {1}
    assert set(failed) <= set(accepted)
    messages = [message.id for message in record if message.sender.name == "ada"]
    assert messages == accepted
    ids = {item.id for item in heard if isinstance(item, Reply)}
    answered = {message.correlation_id for message in record if message.id in ids}
    for message_id in accepted:
        ended = (message_id in failed) + (message_id in answered)
        assert ended >= 1 or _has_structure(record, message_id)


def _has_structure(record, message_id):
    """Return whether the turn of a message ended with an event or a route, which also count as answers."""
    texts = [message.text for message in record if message.correlation_id == message_id]
    return any('"messageType"' in text or '"top_level_intent"' in text for text in texts)


@settings(max_examples=150)
@given(
    kind=st.sampled_from(KINDS),
    script=st.lists(entries, min_size=1, max_size=8),
    chats=st.integers(1, 6),
    streams=st.booleans(),
)
def test_every_chat_that_was_accepted_ends_once(kind, script, chats, streams):
    """Each accepted message ends once, for any sequence of answers, calls, errors and malformed texts."""
    talk = functools.partial(_talk, kind, script, chats=chats, streams=streams)
    pauses = any(getattr(entry, "stop", None) == "pause" for entry in script)
    _check(*trio.run(talk, clock=trio.testing.MockClock(autojump_threshold=0)), pauses=pauses)
