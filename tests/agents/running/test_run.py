"""`agent.run` and `agent.stream`: one answer, waited for or read along."""

import dataclasses
import json

import attrs
import pytest
import trio

from actgent import (
    BareAgent,
    ConfigurationError,
    EmptyAnswer,
    Failure,
    Image,
    LimitReached,
    ModelError,
    NotAuthorized,
    ParseError,
    ReActAgent,
    Reply,
    ScriptedLLM,
    SimpleAgent,
    Stopped,
    ToolCall,
    tool,
)
from actgent.llm.model_interface import ModelResponse


@attrs.frozen
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass(frozen=True)
class City:
    name: str
    people: int


@tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


async def test_run_returns_the_reply_and_closes_its_session(make):
    """Each run has a new session, which is removed at the end."""
    agent, llm = make("one", "two")
    async with agent:
        reply = await agent.run("a")
        assert isinstance(reply, Reply)
        assert str(reply) == "one"
        assert str(await agent.run("b")) == "two"
        assert agent._opener.running.sessions == {}
    assert [len(chat.messages) for chat in llm.chats] == [1, 1]


async def test_run_in_a_session_continues_its_conversation(make, listen):
    """The model sees the history, and handlers receive the answer."""
    agent, llm = make("one", "two")
    async with agent:
        session = await agent.create_session("ada", "a")
        received = listen(session)
        await session.wait_idle()
        reply = await agent.run("b", session=session)
        assert received[1] is reply
        assert session.status == "idle"
    assert len(llm.chats[1].messages) == 3


@pytest.mark.parametrize("error", [NotAuthorized("no"), ZeroDivisionError("x")])
async def test_run_raises_the_error_of_the_failure(make, error):
    """It is the exception that handlers get. An exception of the model client is its cause."""
    agent, _ = make(error)
    async with agent:
        with pytest.raises(ModelError) as caught:
            await agent.run("a")
        assert error in (caught.value, caught.value.__cause__)
        assert agent._opener.running.sessions == {}


async def test_run_raises_for_limits_and_bad_answers(make):
    """Limits and invalid answers of the model raise errors."""
    agent, _ = make(lambda _: ToolCall("add", {"a": 1, "b": 1}), tools=[add])
    async with agent:
        with pytest.raises(LimitReached):
            await agent.run("a")
    agent, _ = make(*[ModelResponse(parts=())] * 3)
    async with agent:
        with pytest.raises(EmptyAnswer):
            await agent.run("a")


@pytest.mark.parametrize("kind", [BareAgent, SimpleAgent])
async def test_an_image_alone_is_an_answer(kind):
    """Such an answer has no text, and its image is in the history."""
    image = Image(media_type="image/png", data=b"png")
    async with kind("painter", llm=ScriptedLLM([[image], ["", image]])) as agent:
        session = await agent.create_session("ada")
        for _ in range(2):
            reply = await agent.run("paint", session=session)
            assert (reply.text, reply.data) == ("", None)
            assert session.history[-1].parts[-1] == image


async def test_an_image_alone_is_no_structured_answer():
    image = Image(media_type="image/png", data=b"png")
    async with BareAgent("painter", llm=ScriptedLLM([[image]] * 3), output={"type": "object"}) as agent:
        with pytest.raises(ParseError):
            await agent.run("paint")


@pytest.mark.parametrize(
    ("output", "text", "value"),
    [
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (City, 'Here: ```json\n{"name": "Ulm", "people": 126000}\n```', City("Ulm", 126000)),
        (int, "42", 42),
        (list[int], "[1, 2]", [1, 2]),
        (
            {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
            '{"x": 1}',
            {"x": 1},
        ),
    ],
)
@pytest.mark.parametrize("on_agent", [True, False])
async def test_output_is_a_value_of_the_declared_type(make, output, text, value, on_agent):
    """The type or schema is an option of the agent or of one run. The value is the data of the reply."""
    agent, llm = make(text, **({"output": output} if on_agent else {}))
    async with agent:
        reply = await agent.run("a", **({} if on_agent else {"output": output}))
    assert reply.data == value
    assert llm.chats[0].response_format is not None


@pytest.mark.parametrize(
    ("kind", "envelope"),
    [
        (SimpleAgent, {"messageType": "DIRECT_RESPONSE", "content": {"x": 1, "y": 2}}),
        (
            ReActAgent,
            {
                "primary_action": {
                    "response_purpose": "DIRECT_RESPONSE",
                    "response_description": "a point",
                    "response_content": {"x": 1, "y": 2},
                }
            },
        ),
    ],
)
async def test_output_in_the_envelope_of_a_protocol(make, kind, envelope):
    """The value is found at the protocol's position for it, also after tool calls."""
    agent, _ = make(ToolCall("add", {"a": 1, "b": 1}), json.dumps(envelope), kind=kind, tools=[add])
    async with agent:
        assert (await agent.run("a", output=Point)).data == Point(1, 2)


async def test_invalid_output_of_a_run_is_retried(make):
    """The model reads the position of the mistake two times; then the run ends with a parse error."""
    agent, llm = make('{"x": "one"}', '{"x": 1}', *['{"y": 1}'] * 3)
    async with agent:
        assert (await agent.run("a", output=Point)).data == Point(1)
        assert "x" in llm.chats[1].messages[-2].parts[0].text
        with pytest.raises(ParseError):
            await agent.run("a", output=Point)


async def test_temperature_and_max_tokens_reach_the_model(make):
    """Zero is a valid temperature; options of a run take precedence over the agent's."""
    agent, llm = make(lambda _: "x", temperature=0, max_tokens=100)
    async with agent:
        await agent.run("a")
        await agent.run("a", temperature=0.5, max_tokens=7)
        await agent.run("a")
    assert [(c.temperature, c.max_tokens) for c in llm.chats] == [(0, 100), (0.5, 7), (0, 100)]


async def test_run_option_of_zero_precedes_the_agents_option(make):
    agent, llm = make("x", temperature=1)
    async with agent:
        await agent.run("a", temperature=0)
    assert llm.chats[0].temperature == 0


async def test_concurrent_runs_do_not_mix(make):
    """Each run gets its own answer."""
    agent, _ = make(lambda chat: chat.messages[-1].parts[0].text.upper())
    answers = {}

    async def ask(text):
        answers[text] = str(await agent.run(text))

    async with agent, trio.open_nursery() as nursery:
        for text in ("a", "b", "c"):
            nursery.start_soon(ask, text)
    assert answers == {"a": "A", "b": "B", "c": "C"}


async def test_run_raises_stopped_when_the_block_exits(autojump_clock):
    """The caller does not wait forever."""
    caught = []

    async def ask(agent):
        with pytest.raises(Stopped) as error:
            await agent.run("a")
        caught.append(error)

    async with trio.open_nursery() as nursery:  # noqa: SIM117 - it outlives the agent
        async with BareAgent("a", llm=ScriptedLLM(["x"], delay=1000), grace=1) as agent:
            nursery.start_soon(ask, agent)
            await trio.sleep(0.5)
    assert len(caught) == 1


async def test_stream_yields_typed_events_in_order():
    """The events are tokens, the tool's result, tokens and the reply. Then the stream ends."""
    llm = ScriptedLLM([ToolCall("add", {"a": 2, "b": 3}), "It is 5."], chunk=4)
    async with BareAgent("a", llm=llm, tools=[add]) as agent, agent.stream("2 + 3?") as events:
        seen = [event async for event in events]
    assert [type(event).__name__ for event in seen] == ["ToolResult", "Token", "Token", "Reply"]
    assert seen[-1].text == "It is 5."
    assert seen[1].reply_id == seen[-1].id


async def test_stream_ends_with_the_failure(make):
    """A failure is an event, not an exception."""
    agent, _ = make(NotAuthorized("no"))
    async with agent, agent.stream("a") as events:
        (failure,) = [event async for event in events]
    assert isinstance(failure, Failure)
    assert failure.kind == "model"


async def test_leaving_a_stream_early_stops_its_turn(autojump_clock, listen):
    """No model call follows, and the session continues."""
    llm = ScriptedLLM(["a long story", "fine"], chunk=1, chunk_delay=1)
    async with BareAgent("a", llm=llm) as agent:
        session = await agent.create_session("ada")
        received = listen(session)
        async with agent.stream("tell", session=session) as events:
            await events.receive()
            await events.receive()
        await session.wait_idle()
        assert trio.current_time() < 3
        assert [item.kind for item in received] == ["interrupted"]
        assert session.history[-1].cut
        assert str(await agent.run("again", session=session)) == "fine"


async def test_exception_in_a_stream_block_is_raised_unchanged(autojump_clock):
    """The turn is stopped."""
    async with BareAgent("a", llm=ScriptedLLM(["a long story"], chunk=1, chunk_delay=1)) as agent:
        with pytest.raises(LookupError):  # noqa: PT012 - a block is the subject
            async with agent.stream("tell") as events:
                await events.receive()
                raise LookupError
        await trio.testing.wait_all_tasks_blocked()
        assert agent._opener.running.sessions == {}


async def test_an_unread_stream_does_not_block_the_agent(autojump_clock):
    """A long answer waits in an unread stream, and is dropped when the block is left."""
    async with BareAgent("a", llm=ScriptedLLM(["x" * 1000], chunk=1)) as agent:
        async with agent.stream("tell"):
            await trio.sleep(5)
        await trio.testing.wait_all_tasks_blocked()
        assert agent._opener.running.sessions == {}


async def test_invalid_output_type_is_rejected_before_the_model_call(make):
    agent, llm = make("x")
    async with agent:
        with pytest.raises(ConfigurationError):
            await agent.run("a", output=object())
    assert llm.chats == []
