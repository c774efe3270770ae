"""A user's own protocol runs through the same core: a pair of template and classifier, and one of two stages."""

import json

from actgent import Agent, BareAgent, Event, LimitReached, Route, ScriptedLLM, ToolCall, ToolResult, tool
from actgent.errors import ParseError
from actgent.messages import Text
from actgent.protocols.protocol_interface import (
    CallTools,
    Continue,
    Fail,
    Finish,
    Protocol,
    Request,
    SendReply,
    UpdateState,
)
from actgent.testing import assert_valid_transcript


class Shouting(Protocol):
    """A classifier that requires capital letters and retries other answers."""

    name = "shouting"
    template = "You are {{ profile.name }}, {{ profile.role }}. SHOUT."

    def read(self, answer, view):
        text = answer.text
        return [SendReply(text=text)] if text.isupper() else [Fail(ParseError("it does not shout", text))]


class Drafting(Protocol):
    """Two stages: a plan by a strong model, then the answer by the default one, from another prompt."""

    name = "drafting"
    template = "You are {{ profile.name }}."

    def __init__(self, note="", tail="Write the answer from the plan."):
        self.note, self.tail = note, tail

    def request(self, view):
        if view.stage is None:
            return Request(tail="Plan first, as a JSON list.", model="planner")
        return Request(tail=self.tail)

    def read(self, answer, view):
        if view.stage is not None:
            return [SendReply(text=answer.text, data=view.state["plan"])]
        try:
            plan = json.loads(answer.text)
        except ValueError as error:
            raise ParseError("the plan is no JSON", answer.text) from error
        return [UpdateState(lambda _: ("plan", plan)), Continue("write", self.note)]


class Everything(Protocol):
    """All outcomes at once, in the wrong order."""

    name = "everything"
    template = "x"

    def read(self, answer, view):
        if view.stage == "end":
            return [SendReply(text="end"), Finish()]
        return [
            SendReply(text="words"),
            CallTools([ToolCall("look", {}, native=False)], "end"),
            Route(action="elsewhere"),
            Event(name="thing", data=1),
            UpdateState(lambda _: ("seen", True)),
        ]


class Torn(Protocol):
    """A protocol whose answers continue in pieces."""

    name = "torn"
    template = "x"

    def read(self, answer, view):
        if view.stage is not None:
            return [SendReply(text=view.stage)]
        return [
            Continue("without"),
            CallTools([ToolCall("look", {}, native=False)], "first"),
            CallTools([ToolCall("look", {}, native=False), ToolCall("look", {}, native=False)], "last"),
            *([Finish()] if answer.text == "stop" else ()),
        ]


class Endless(Protocol):
    """A protocol that never ends its turn."""

    name = "endless"
    template = "x"
    max_iterations = 4

    def read(self, answer, view):
        return [Continue("on", "Go on.")]


@tool
def look() -> str:
    """Look."""
    return "seen"


async def test_custom_template_and_classifier_form_a_protocol(make, listen):
    """Its template is the system prompt, its classifier reads answers, and its errors cause retries."""
    agent, llm = make("hello", "HELLO", kind=Agent, protocol=Shouting(), role="loud")
    async with agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session)
        await session.wait_idle()
    assert [str(item) for item in received] == ["HELLO"]
    assert llm.chats[0].system == "You are tutor, loud. SHOUT."
    assert "it does not shout" in llm.chats[1].messages[-1].parts[0].text


async def test_two_stages_are_two_model_calls_of_one_turn(listen):
    """Each stage has its own prompt at the end and its own model. The state passes between them."""
    planner, writer = ScriptedLLM(['["a", "b"]']), ScriptedLLM(["A and B."])
    agent = Agent("author", llm=writer, models={"planner": planner}, protocol=Drafting())
    async with agent:
        session = await agent.create_session("ada", "write")
        received = listen(session)
        await session.wait_idle()
        assert session.state["plan"] == ["a", "b"]
    (reply,) = received
    assert (reply.text, reply.data) == ("A and B.", ["a", "b"])
    assert planner.chats[0].messages[-1].parts == (Text("Plan first, as a JSON list."),)
    assert writer.chats[0].messages[-1].parts == (Text("Write the answer from the plan."),)
    assert planner.chats[0].system == writer.chats[0].system
    assert [m.sender.kind for m in session.history if m.text] == ["user", "assistant", "assistant"]
    for chat in (*planner.chats, *writer.chats):
        assert_valid_transcript(chat)


async def test_stage_without_text_ends_with_a_user_message(listen):
    """Without notice and tail the request must not end with the model's own text, which would be a prefill."""
    llm = ScriptedLLM(['["a"]', "A."])
    async with Agent("author", llm=llm, protocol=Drafting(tail="")) as agent:
        session = await agent.create_session("ada", "write")
        received = listen(session)
        await session.wait_idle()
    assert str(received[0]) == "A."
    assert_valid_transcript(llm.chats[1])


async def test_retry_stays_in_its_stage(listen):
    """An invalid plan is requested again, with the error."""
    planner, writer = ScriptedLLM(["no plan", '["a"]']), ScriptedLLM(["A."])
    async with Agent("author", llm=writer, models={"planner": planner}, protocol=Drafting()) as agent:
        assert (await agent.run("write")).data == ["a"]
    assert any("no JSON" in part.text for m in planner.chats[1].messages for part in m.parts)


async def test_conflicting_outcomes_have_an_order(make, listen):
    """All tools, at the stage of the last ones, precede a continuation without tools. An end precedes all."""
    for said, expected in (("go", ["seen", "seen", "seen", "last"]), ("stop", [])):
        agent, _ = make(said, "y", kind=Agent, protocol=Torn(), tools=[look])
        async with agent:
            session = await agent.create_session("ada", "hi")
            received = listen(session)
            await session.wait_idle()
        assert [str(item.text) for item in received] == expected


async def test_outcomes_are_applied_in_a_fixed_order(make, listen):
    """The order is state, events, routing, conversation and tools, for any order of the protocol's outcomes."""
    seen = []
    agent, _ = make("x", "y", kind=Agent, protocol=Everything(), tools=[look])
    async with agent:
        session = await agent.create_session("ada", "hi")
        session.on_event(lambda _: seen.append(session.state.get("seen")))
        received = listen(session)
        await session.wait_idle()
    assert [type(item).__name__ for item in received] == ["Event", "Route", "Reply", "ToolResult", "Reply"]
    assert seen == [True]
    assert len({item.id for item in received}) == 5


async def test_the_iteration_limit_of_a_protocol_replaces_the_agents(make, listen):
    """After four calls the turn is a failure of the kind limit."""
    agent, llm = make(lambda _: "x", kind=Agent, protocol=Endless())
    async with agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session)
        await session.wait_idle()
    assert len(llm.chats) == 4
    assert isinstance(received[0].error, LimitReached)


async def test_exception_of_a_protocol_fails_only_its_turn(make, listen):
    """The failure has the kind internal."""

    class Broken(Shouting):
        def read(self, answer, view):
            raise KeyError(answer.text)

    agent, _ = make("x", "y", kind=Agent, protocol=Broken())
    async with agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session)
        await session.wait_idle()
        await session.chat("again")
        await session.wait_idle()
    assert [item.kind for item in received] == ["internal", "internal"]


async def test_native_calls_are_read_before_any_text_in_every_protocol(make, listen):
    """Protocols do not receive native calls."""
    agent, _ = make(["whatever", ToolCall("look", {})], "DONE", kind=Agent, protocol=Shouting(), tools=[look])
    async with agent:
        session = await agent.create_session("ada", "hi")
        received = listen(session)
        await session.wait_idle()
    assert isinstance(received[0], ToolResult)
    assert str(received[1]) == "DONE"


async def test_unknown_model_role_uses_the_default_model(listen):
    """A protocol may request a model role that the agent does not have."""
    llm = ScriptedLLM(['["a"]', "A."])
    async with BareAgent("author", llm=llm, protocol=Drafting()) as agent:
        assert str(await agent.run("write")) == "A."
