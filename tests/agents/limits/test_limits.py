"""Limits of a turn, of a session, and of their child sessions."""

import attrs
import pytest
import trio

from actgent import (
    BareAgent,
    ConfigurationError,
    Failure,
    LimitReached,
    Limits,
    PriceUnknown,
    RateLimited,
    RouterAgent,
    ScriptedLLM,
    Text,
    ToolCall,
    Usage,
    open_runtime,
    tool,
)
from actgent.events import LimitMet, MessageAccepted
from actgent.limits_and_schedules.limits import FORMS
from actgent.llm.model_interface import ModelResponse
from actgent.tools.schemas.schema_validation import compile_schema


@tool(thread=False)
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def said(text="fine", *, tokens=(0, 0), calls=(), cost=0.0, stop=None):
    """Return an answer with a usage."""
    return ModelResponse(
        parts=(*(ToolCall(name, arguments) for name, arguments in calls), *([Text(text)] if text else [])),
        stop=stop or ("tool_calls" if calls else "end"),
        usage=Usage(input_tokens=tokens[0], output_tokens=tokens[1], cost=cost),
    )


class Priced(ScriptedLLM):
    """Takes a dollar for a thousand tokens."""

    def price_of(self, usage):
        return (usage.input_tokens + usage.output_tokens) / 1000


def crowd(count, worker="worker"):
    """Return the answer that asks several agents at once, and then a final one."""
    return [said("", calls=[(worker, {"task": f"part {n}"}) for n in range(count)]), "all done"]


def worker(answer="done", *, delay=0, **options):
    llm = ScriptedLLM(lambda _: answer, keep=None, delay=delay)
    return BareAgent("worker", llm=llm, goal="work", **options)


def limit_of(failure):
    return failure.error.field, failure.error.value, failure.error.agent


# --- shared down -----------------------------------------------------------------------------


async def test_64_parallel_children_with_a_limit_of_5_calls_take_exactly_5(listen, autojump_clock):
    """The lead's call is one of the five. The other children and the lead's next call fail with the lead's limit."""
    help_ = worker(delay=1)
    llm = ScriptedLLM(crowd(64))
    async with BareAgent("lead", llm=llm, tools=[help_.as_tool()], limits=Limits(model_calls=5)) as lead:
        session = await lead.create_session("ada", "go")
        received = listen(session)
        await session.wait_idle()
    assert len(llm.chats) + len(help_._models.named["default"].chats) == 5
    results = received[:-1]
    assert [result.status for result in results].count("success") == 4
    refused = [result.error for result in results if result.status == "error"]
    assert all(
        "5 model calls (used: 1 model call" in error and "reserved by running calls: 4)" in error
        for error in refused
    )
    assert limit_of(received[-1]) == ("model_calls", 5, "lead")
    assert received[-1].error.used["model_calls"] == 5


@pytest.mark.parametrize("depth", [1, 2, 5])
async def test_budget_covers_any_number_of_nested_agents(depth):
    """Each agent asks the next; the innermost reaches the outermost's limit."""
    models = []

    def again(name):
        calls = iter(range(1000))
        model = ScriptedLLM(lambda _: ToolCall(name, {"task": f"go {next(calls)}"}), keep=None)
        models.append(model)
        return model

    count = iter(range(1000))
    last = ScriptedLLM(lambda _: ToolCall("add", {"a": next(count), "b": 1}), keep=None)
    agent = BareAgent("last", llm=last, tools=[add], goal="work", limits=Limits(max_repeated_calls=1000))
    for level in range(depth):
        agent = BareAgent(
            f"a{level}", llm=again(agent.name), tools=[agent.as_tool()], goal="ask",
            limits=Limits(model_calls=10) if level == depth - 1 else None,
        )  # fmt: skip
    async with agent:
        with pytest.raises(LimitReached) as caught:
            await agent.run("go")
    assert (caught.value.field, caught.value.agent) == ("model_calls", agent.name)
    assert sum(len(model.chats) for model in [*models, last]) == 10


async def test_child_session_may_have_tighter_limits():
    """The tighter limit applies, and the error names its session."""
    count = iter(range(1000))
    busy = ScriptedLLM(lambda _: ToolCall("add", {"a": next(count), "b": 1}), keep=None)
    child = BareAgent("child", llm=busy, tools=[add], goal="work", limits=Limits(model_calls=2))
    llm = ScriptedLLM(crowd(1, "child"))
    async with BareAgent("lead", llm=llm, tools=[child.as_tool()], limits=Limits(model_calls=10)) as lead:
        session = await lead.create_session("ada")
        assert str(await lead.run("go", session=session)) == "all done"
        result = session.history[2].tool_results[0]
    assert "2 model calls" in result.error
    assert "'child'" in result.error
    assert len(busy.chats) == 2


async def test_ask_in_a_handler_uses_the_budget_of_the_turn():
    """A turn pays for all agents that are asked within it."""
    answers = worker()
    lead = BareAgent("lead", llm=ScriptedLLM(["one", "two"]), limits=Limits(model_calls=2))
    async with open_runtime() as runtime:
        await runtime.start(answers)
        await runtime.start(lead)
        session = await lead.create_session("ada")
        outcomes = []

        @session.on_conversation
        async def ask(_):
            for _ in range(2):
                try:
                    outcomes.append(str(await answers.ref.ask("help")))
                except LimitReached as error:
                    outcomes.append(error.agent)

        await session.chat("go")
        await session.wait_idle()
        assert outcomes == ["done", "lead"]
        await session.chat("go on")  # a new turn has a budget of its own
        await session.wait_idle()
        assert outcomes == ["done", "lead"] * 2


async def test_routed_agent_uses_the_budget_of_the_turn():
    """The routed agent's second call exceeds the limit of the router's turn."""
    count = iter(range(1000))
    busy = ScriptedLLM(lambda _: ToolCall("add", {"a": next(count), "b": 1}), keep=None)
    clerk = BareAgent("clerk", llm=busy, tools=[add], goal="bill")
    route = ScriptedLLM(['{"top_level_intent": "ACTION", "second_level_intent": "BILL"}'])
    desk = RouterAgent("desk", llm=route, routes={"BILL": clerk}, limits=Limits(model_calls=3))
    async with desk:
        with pytest.raises(LimitReached) as caught:
            await desk.run("my bill, please")
    assert (caught.value.agent, len(busy.chats)) == ("desk", 2)


async def test_independent_conversation_is_not_charged_to_the_turn():
    """A message without a waiting caller starts an independent conversation if its session is not a child session."""
    other = worker()
    lead = BareAgent("lead", llm=ScriptedLLM(["one"]), limits=Limits(model_calls=1))
    async with open_runtime() as runtime:
        await runtime.start(other)
        await runtime.start(lead)
        apart = await other.create_session("ada")
        session = await lead.create_session("ada")

        @session.on_conversation
        async def tell(_):
            await other.ref.tell("work")
            await apart.chat("work")

        await session.chat("go")
        await session.wait_idle()
        await apart.wait_idle()
        assert str(apart.history[-1].text) == "done"
    assert len(other._models.named["default"].chats) == 2


async def test_the_default_of_25_calls_is_not_shared():
    """A lead without limits may ask 64 agents, each with 25 calls."""
    help_ = worker()
    async with BareAgent("lead", llm=ScriptedLLM(crowd(64)), tools=[help_.as_tool()]) as lead:
        assert str(await lead.run("go")) == "all done"
    assert len(help_._models.named["default"].chats) == 64


# --- sessions --------------------------------------------------------------------------------


async def test_session_limit_covers_all_turns_and_children(listen):
    """The tree makes three calls in all, by any of its sessions."""
    agent = BareAgent("a", llm=ScriptedLLM(lambda _: "fine", keep=None))
    async with agent:
        parent = await agent.create_session("ada", limits=Limits(model_calls=3))
        child = await agent.create_session("ada", parent=parent)
        grandchild = await agent.create_session("ada", parent=child)
        received = [listen(each) for each in (parent, child, grandchild)]
        for each in (parent, child, grandchild, parent, child):
            await each.chat("hello")
            await each.wait_idle()
        assert dict(parent.budget.left) == {"model_calls": 0}
        assert dict(grandchild.budget.left) == {"model_calls": 0}
        assert agent._models.resolve()["default"].chats.__len__() == 3
    failures = [item for each in received for item in each if isinstance(item, Failure)]
    assert [limit_of(failure) for failure in failures] == [("model_calls", 3, "a")] * 2
    assert {failure.error.session_id for failure in failures} == {parent.id}
    assert all("session" in str(failure.error) for failure in failures)


async def test_account_reached_on_two_paths_is_charged_once():
    """A child of a bounded session that is asked within its parent's turn takes one call, not two."""
    agent = BareAgent("a", llm=ScriptedLLM(lambda _: "fine", keep=None))
    async with agent:
        parent = await agent.create_session("ada", limits=Limits(model_calls=10))
        child = await agent.create_session("ada", parent=parent)

        @parent.on_conversation
        async def ask(_):
            await agent.run("help", session=child)

        await parent.chat("go")
        await parent.wait_idle()
        assert dict(parent.budget.left) == {"model_calls": 8}


async def test_run_limits_replace_the_agent_limits():
    """`run(limits=...)` applies to that turn only."""
    count = iter(range(1000))
    llm = ScriptedLLM(lambda _: ToolCall("add", {"a": next(count), "b": 1}), keep=None)
    async with BareAgent("a", llm=llm, tools=[add], limits=Limits(model_calls=4)) as agent:
        for limits, calls in ((Limits(model_calls=2), 2), (None, 4), (Limits(tool_calls=7), 8)):
            before = len(llm.chats)
            with pytest.raises(LimitReached):
                await agent.run("go", limits=limits)
            assert len(llm.chats) - before == calls
        with pytest.raises(ConfigurationError, match="limits="):
            await agent.run("go", limits={"model_calls": 3})
        with pytest.raises(ConfigurationError, match="limits="):
            await agent.create_session("ada", limits=3)


# --- each kind -------------------------------------------------------------------------------


async def test_tool_calls_of_one_answer_run_all_or_none(listen):
    """Two answers with two calls each fit into five; the third does not, and runs none."""
    count = iter(range(1000))
    ran = []

    @tool(thread=False)
    def note(n: int) -> int:
        """Note a number."""
        ran.append(n)
        return n

    llm = ScriptedLLM(lambda _: [ToolCall("note", {"n": next(count)}) for _ in range(2)])
    async with BareAgent("a", llm=llm, tools=[note], limits=Limits(tool_calls=5)) as agent:
        session = await agent.create_session("ada", "go")
        received = listen(session)
        await session.wait_idle()
    assert ran == [0, 1, 2, 3]
    assert [item.status for item in received[:-1]] == ["success"] * 4 + ["cancelled"] * 2
    assert (received[-1].kind, limit_of(received[-1])) == ("limit", ("tool_calls", 5, "a"))
    assert received[-1].error.used == {"model_calls": 3, "tool_calls": 4}


async def test_tokens_are_reserved_before_and_counted_after(listen):
    """A call whose prompt exceeds the remainder is rejected. After a call its actual usage counts, not the estimate."""
    count = iter(range(1000))
    llm = ScriptedLLM(
        lambda _: said("", tokens=(300, 100), calls=[("add", {"a": next(count), "b": 1})]), keep=None
    )
    async with BareAgent("a", llm=llm, tools=[add], limits=Limits(tokens=1000)) as agent:
        session = await agent.create_session("ada", "go")
        received = listen(session)
        await session.wait_idle()
    assert limit_of(received[-1]) == ("tokens", 1000, "a")
    assert (received[-1].error.used["tokens"], len(llm.chats)) == (800, 2)


async def test_an_answer_is_limited_to_the_remaining_budget():
    """`max_tokens` is reduced to the remainder; a truncated answer ends the turn with the limit, not with `length`."""
    llm = ScriptedLLM([said("half an answ", tokens=(10, 40), stop="length")])
    async with BareAgent("a", llm=llm, max_tokens=500, limits=Limits(tokens=100)) as agent:
        with pytest.raises(LimitReached) as caught:
            await agent.run("go")
    assert caught.value.field == "tokens"
    assert 16 <= llm.chats[0].max_tokens < 100


async def test_a_model_without_usage_is_charged_by_the_estimate():
    """Otherwise a provider without usage would be free."""
    count = iter(range(1000))
    llm = ScriptedLLM(lambda _: ToolCall("add", {"a": next(count), "b": 1}), keep=None)
    async with BareAgent("a", llm=llm, tools=[add], max_tokens=100, limits=Limits(tokens=1000)) as agent:
        with pytest.raises(LimitReached) as caught:
            await agent.run("go")
    assert 0 < len(llm.chats) < 10
    assert caught.value.used["tokens"] <= 1000


async def test_token_limit_includes_prompt_overhead_of_the_provider():
    """The second call does not start if a prompt as long as the first one would exceed the limit."""
    llm = ScriptedLLM(lambda _: said("fine", tokens=(600, 10)), keep=None)
    async with BareAgent("a", llm=llm, max_tokens=20) as agent:
        session = await agent.create_session("ada", limits=Limits(tokens=1000))
        await agent.run("go", session=session)
        with pytest.raises(LimitReached):
            await agent.run("go", session=session)
        assert len(llm.chats) == 1
        assert session.budget.left["tokens"] == 390


async def test_rejected_model_call_costs_no_tokens():
    """A 429 counts as a call only."""
    llm = ScriptedLLM([RateLimited("later"), said("fine", tokens=(10, 5))])
    async with BareAgent("a", llm=llm, limits=Limits(tokens=1000)) as agent:
        session = await agent.create_session("ada", limits=Limits(tokens=1000, model_calls=2))
        with pytest.raises(RateLimited):
            await agent.run("go", session=session)
        assert dict(session.budget.left) == {"model_calls": 1, "tokens": 1000}
        await agent.run("go", session=session)
        assert dict(session.budget.left) == {"model_calls": 0, "tokens": 985}


async def test_a_cancelled_call_counts_with_its_estimate_and_frees_the_rest(autojump_clock):
    """The provider may bill up to the estimate. The session continues with the remainder."""

    async def slow(_):
        await trio.sleep(10)
        return "never"

    llm = ScriptedLLM([slow, said("fine", tokens=(10, 5))])
    async with BareAgent("a", llm=llm, max_tokens=100) as agent:
        session = await agent.create_session("ada", limits=Limits(tokens=1000))
        with trio.move_on_after(1):
            await agent.run("go", session=session)
        await session.wait_idle()
        (account,) = session.budget.accounts
        assert 100 < account.spent.tokens < 200
        assert account.reserved.tokens == 0
        await agent.run("go", session=session)
        assert account.left["tokens"] == 1000 - account.spent.tokens


async def test_parallel_children_wait_for_reserved_tokens(autojump_clock):
    """64 children, of which only few fit at once by their estimates, all get their small answers."""

    async def answer(_):
        await trio.sleep(0.1)
        return said("done", tokens=(20, 5))

    help_ = BareAgent("worker", llm=ScriptedLLM(answer, keep=None), goal="work", max_tokens=1000)
    lead = BareAgent(
        "lead", llm=ScriptedLLM(crowd(64)), tools=[help_.as_tool()], max_tokens=1000, limits=Limits(tokens=60_000)
    )  # fmt: skip
    async with lead:
        session = await lead.create_session("ada")
        assert str(await lead.run("go", session=session)) == "all done"
    assert len(help_._models.named["default"].chats) == 64


async def test_cost_is_bounded_by_the_price_of_the_model():
    """Each answer costs 0.4 dollars; a dollar pays two, and not the prompt of a third."""
    count = iter(range(1000))
    llm = Priced(
        lambda _: said("", tokens=(300, 100), calls=[("add", {"a": next(count), "b": 1})]), keep=None
    )
    async with BareAgent("a", llm=llm, tools=[add], max_tokens=50, limits=Limits(cost=1)) as agent:
        with pytest.raises(LimitReached) as caught:
            await agent.run("go")
    assert (caught.value.field, len(llm.chats)) == ("cost", 2)
    assert caught.value.used["cost"] == pytest.approx(0.8)
    assert "US dollars" in str(caught.value)


async def test_a_cost_reported_by_the_provider_replaces_the_price_table():
    """The cost in the usage is counted."""
    llm = Priced(lambda _: said("fine", tokens=(10, 10), cost=0.3), keep=None)
    async with BareAgent("a", llm=llm, max_tokens=50) as agent:
        session = await agent.create_session("ada", limits=Limits(cost=1))
        await agent.run("go", session=session)
        assert session.budget.left["cost"] == pytest.approx(0.7)


async def test_model_without_a_price_is_rejected_under_a_cost_limit(listen):
    """Its calls would be free. The error names the model and the remedy."""
    llm = ScriptedLLM(["fine"], name="mystery")
    async with BareAgent("a", llm=llm, limits=Limits(cost=1)) as agent:
        session = await agent.create_session("ada", "go")
        received = listen(session)
        await session.wait_idle()
    assert (received[-1].kind, type(received[-1].error)) == ("limit", PriceUnknown)
    assert "mystery" in str(received[-1].error)
    assert "price=" in str(received[-1].error)
    assert len(llm.chats) == 0


async def test_seconds_limit_stops_running_work(autojump_clock, listen):
    """The limit stops a model call, a tool, and an agent that the turn waits for."""

    @tool
    async def dawdle() -> str:
        """Take long."""
        await trio.sleep(50)
        return "at last"

    async def slow(_):
        await trio.sleep(50)
        return "at last"

    patient = BareAgent("patient", llm=ScriptedLLM(slow, keep=None), goal="wait")
    for script in ([slow], [ToolCall("dawdle", {})], [ToolCall("patient", {"task": "wait"})]):
        tools = [dawdle, patient.as_tool()]
        async with BareAgent("a", llm=ScriptedLLM(script), tools=tools, limits=Limits(seconds=7)) as agent:
            started = trio.current_time()
            session = await agent.create_session("ada", "go")
            received = listen(session)
            await session.wait_idle()
            assert trio.current_time() - started == pytest.approx(7)
        assert (received[-1].kind, limit_of(received[-1])) == ("limit", ("seconds", 7, "a"))
        assert received[-1].error.used["seconds"] == pytest.approx(7)


async def test_seconds_of_a_session_add_up_over_its_turns(autojump_clock):
    """Idle time does not count, and a child that is asked counts once."""

    async def slow(_):
        await trio.sleep(3)
        return "fine"

    async with BareAgent("a", llm=ScriptedLLM(slow, keep=None)) as agent:
        session = await agent.create_session("ada", limits=Limits(seconds=10))
        child = await agent.create_session("ada", parent=session)
        await agent.run("go", session=session)
        await trio.sleep(100)
        assert session.budget.left["seconds"] == pytest.approx(7)

        @session.on_conversation
        async def ask(_):
            await agent.run("help", session=child)

        await session.chat("go")
        await session.wait_idle()
        assert session.budget.left["seconds"] == pytest.approx(1)
        with pytest.raises(LimitReached) as caught:
            await agent.run("go", session=session)
        assert session.budget.left["seconds"] == pytest.approx(0)
        with pytest.raises(LimitReached):
            await agent.run("go", session=session)
    assert caught.value.field == "seconds"
    assert caught.value.is_session


# --- what is told ----------------------------------------------------------------------------


async def test_an_observer_receives_the_reached_limit():
    """The event has the name of the limit and its owner."""
    async with open_runtime() as runtime, runtime.events() as events:
        agent = await runtime.start(
            BareAgent("a", llm=ScriptedLLM(["one", "two"]), limits=Limits(model_calls=9))
        )
        session = await agent.create_session("ada", limits=Limits(model_calls=1))
        await agent.run("go", session=session)
        with pytest.raises(LimitReached):
            await agent.run("go", session=session)
        seen = []
        while not any(isinstance(event, LimitMet) for event in seen):
            seen.append(events.receive_nowait())
    turns = [event.turn for event in seen if isinstance(event, MessageAccepted)]
    assert attrs.asdict(seen[-1], filter=attrs.filters.exclude("at")) == {
        "turn": turns[-1],
        "agent": "a",
        "session_id": session.id,
        "limit": "model_calls",
        "value": 1,
        "owner_agent": "a",
        "owner_session_id": session.id,
    }


async def test_budget_of_a_running_turn_can_be_read():
    """`session.budget.left` is the minimum over all budgets that the turn uses."""
    seen = []

    async with BareAgent("a", llm=ScriptedLLM(["one", "two"]), limits=Limits(model_calls=3)) as agent:
        session = await agent.create_session("ada", limits=Limits(model_calls=9, tool_calls=4))
        session.on_conversation(lambda _: seen.append(dict(session.budget.left)))
        await agent.run("go", session=session)
        assert seen == [{"model_calls": 2, "tool_calls": 4}]
        assert dict(session.budget.left) == {"model_calls": 8, "tool_calls": 4}
        assert (await agent.create_session("ada")).budget is None


@pytest.mark.parametrize("name", FORMS)
def test_each_bound_is_the_same_in_code_and_in_files(name):
    """`Limits` accepts exactly the values of its JSON Schema, and None for optional ones."""
    form = compile_schema(FORMS[name], owner=name)
    for value in (-1, 0, 0.001, 0.5, 1, 1.5, 2, True, "1", [1]):
        if form.reason(value) is None:
            assert getattr(Limits(**{name: value}), name) == value
        else:
            with pytest.raises(ConfigurationError, match=rf"Limits\({name}="):
                Limits(**{name: value})
    if getattr(Limits(), name) is None:
        assert getattr(Limits(**{name: None}), name) is None
    else:
        with pytest.raises(ConfigurationError):
            Limits(**{name: None})


def test_limit_error_has_the_usage_and_the_remedy():
    """The error has a text for readers and attributes for programs."""
    error = LimitReached(
        "tokens", 5000, field="tokens", used={"model_calls": 3, "tokens": 5012}, agent="lead", session_id="s"
    )
    assert str(error) == (
        "the turn reached its limit of 5,000 tokens (used: 3 model calls, 5,012 tokens): "
        "raise Limits(tokens=...) of agent 'lead' if that is too low"
    )
    error = LimitReached("US dollars", 0.5, field="cost", agent="lead", session_id="s", is_session=True)
    assert str(error) == (
        "the session reached its limit of 0.5 US dollars: "
        "raise Limits(cost=...) of session 's' of agent 'lead' if that is too low"
    )
    error = LimitReached("model calls", 5, field="model_calls", used={"model_calls": 1}, reserved=4)
    assert str(error) == (
        "the turn reached its limit of 5 model calls (used: 1 model call; reserved by running calls: 4): "
        "raise Limits(model_calls=...) if that is too low"
    )
