"""`StepsAgent`: runs, streams and conversations. Numbers are the cases of its specification."""

import json
from collections import Counter

import attrs
import pytest
import trio
import trio.testing

from actgent import (
    ConfigurationError,
    Failure,
    LimitReached,
    Limits,
    NotAuthorized,
    ParseError,
    Reply,
    ScriptedLLM,
    StepsAgent,
    Token,
    ToolCall,
    ToolResult,
    UsageError,
    open_runtime,
    tool,
)
from actgent.agents.steps.stream_events import (
    FinalEvent,
    PlanEvent,
    StepEvent,
    StepsEvent,
    StreamEnd,
    StreamStart,
    ToolExecutionEvent,
    ToolResultsEvent,
)
from actgent.agents.steps.streamed_run_state import AgentAnswer, StepState, ToolExecution
from actgent.agents.steps.turn_event_conversion import PartialStep, TurnEventConverter
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Text
from actgent.protocols.steps_protocol import PLAN_KEY


@tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    return a * b


@tool
def divide(a: int, b: int) -> float:
    """Divide two numbers."""
    if b == 0:
        raise ValueError("Division by zero")
    return a / b


TOOLS = [add, multiply, divide]
PLAN = json.dumps({"plan": ["Add the numbers", "Say the sum"]})
FINAL = json.dumps({"final_answer": "The sum of 5 and 3 is 8", "thought": "easy"})


def call(name, *, id_="call_1", **parameters):
    return {"id": id_, "tool_name": name, "parameters": parameters}


def step(*calls, thought="hm"):
    return json.dumps({"tool_thought": thought, "tool_calls": calls})


STEP = step(call("add", a=5, b=3))
NATIVE = [Text("I add them."), ToolCall("add", {"a": 5, "b": 3})]


def make(*script, chunk=7, **options):
    llm = ScriptedLLM(list(script), chunk=chunk)
    return StepsAgent("tutor", llm=llm, tools=TOOLS, **options), llm


async def events_of(agent, content="5 + 3?", **options):
    async with agent.stream(content, **options) as events:
        return [event async for event in events]


async def states_of(agent, content="5 + 3?"):
    """The answer object after each change, and a copy of each of its states."""
    async with agent.stream_state(content) as answers:
        return zip(*[(answer, attrs.asdict(answer)) async for answer in answers], strict=True)


def kinds(events, *types):
    return [event for event in events if isinstance(event, types)]


def whole(events, kind):
    return [event for event in events if isinstance(event, kind) and event.complete]


# --- run -----------------------------------------------------------------------------------------


async def test_limits_bound_one_run_of_a_conversation():
    """A plan is one call. The next run has the agent's limits again."""
    agent, llm = make(PLAN, PLAN, STEP, FINAL)
    async with agent:
        talk = await agent.open_conversation()
        with pytest.raises(LimitReached, match="1 model calls"):
            await talk.run("5 + 3?", limits=Limits(model_calls=1))
        assert len(llm.chats) == 1
        assert str(await talk.run("5 + 3?")) == "The sum of 5 and 3 is 8"


async def test_run_gives_the_final_answer():
    """23: the text of the final answer; the history is user, assistant."""
    agent, llm = make(FINAL)
    async with agent:
        talk = await agent.open_conversation("ada")
        assert str(await talk.run("5 + 3?")) == "The sum of 5 and 3 is 8"
        assert [message.sender.kind for message in talk.history] == ["user", "assistant"]
    assert len(llm.chats) == 1


@pytest.mark.parametrize("taken", [STEP, NATIVE])
async def test_run_takes_steps(taken):
    """24: a step is a model call, as text or native, and the next request has its result."""
    agent, llm = make(taken, FINAL)
    async with agent:
        assert str(await agent.run("5 + 3?")) == "The sum of 5 and 3 is 8"
    assert len(llm.chats) == 2
    part = llm.chats[1].messages[-2].parts[0]
    assert (part.content if isinstance(part, ToolResult) else part.text).endswith("8")


async def test_run_plans_first():
    """25: plan, step and final answer are three calls; the session's state has the plan."""
    agent, llm = make(PLAN, STEP, FINAL)
    async with agent:
        talk = await agent.open_conversation()
        await talk.run("5 + 3?")
        assert talk.session.state[PLAN_KEY] == "Add the numbers\nSay the sum"
    assert len(llm.chats) == 3
    assert len({chat.system for chat in llm.chats}) == 1


async def test_run_ends_at_its_limit():
    """26: exactly `max_iterations` calls of the model, then an error, and no answer that was none."""
    script = [step(call("add", a=i, b=i)) for i in range(9)]
    agent, llm = make(*script, max_iterations=3)
    async with agent:
        with pytest.raises(LimitReached, match="3 model calls") as caught:
            await agent.run("go")
    assert caught.value.value == 3
    assert len(llm.chats) == 3
    assert "last answer" in llm.chats[2].messages[-1].parts[0].text


async def test_repeated_plans_end_at_the_limit():
    agent, llm = make(*[PLAN] * 4, max_iterations=4)
    async with agent:
        with pytest.raises(LimitReached):
            await agent.run("go")
    assert len(llm.chats) == 4


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (call("multiply", a=7, b=3), "Success: 21"),
        (call("nope"), "not found"),
        (call("divide", a=1, b=0), "Division by zero"),
        ({"tool_name": "add", "parameters": [1, 2]}, "Error"),
    ],
)
async def test_results_and_errors_go_to_the_model(asked, told):
    """27, 38, 16: the model reads results and errors of tools; the loop continues."""
    agent, llm = make(step(asked), FINAL)
    async with agent:
        assert (await agent.run("go")).text
    results = llm.chats[1].messages[-2].parts[0].text
    assert results.startswith(f"Tool results:\n\n[{asked['tool_name']}] (ID: ")
    assert told in results


async def test_case_38_unknown_key_is_an_error():
    """38: the model reads the name of the key."""
    ran = []

    @tool
    def divide(a: int, b: int) -> int:
        """Divide."""
        ran.append((a, b))
        return a // b

    llm = ScriptedLLM([step(call("divide", a=1, b=2, zoom=3)), step(call("divide", a=6, b=3)), FINAL])
    async with StepsAgent("a", llm=llm, tools=[divide]) as agent:
        assert (await agent.run("go")).text
    assert "zoom" in llm.chats[1].messages[-2].parts[0].text.split("(ID: ")[1]
    assert ran == [(6, 3)]


async def test_a_result_that_begins_with_error_is_no_failure():
    """Weakness 5: only a raised exception is an error."""

    @tool
    def search(text: str) -> str:
        """Search the log."""
        return f"Errors are rare: {text}"

    llm = ScriptedLLM([step(call("search", text="x")), FINAL])
    async with StepsAgent("a", llm=llm, tools=[search]) as agent:
        events = await events_of(agent)
    assert [result.status for result in kinds(events, ToolResult)] == ["success"]


async def test_invalid_answers_are_retried_and_then_fail():
    """9: a truncated answer is never shown; the model reads it twice, and then the run fails."""
    agent, llm = make('{"final_answer": "The su', FINAL)
    async with agent:
        assert str(await agent.run("go")) == "The sum of 5 and 3 is 8"
    assert "truncated" in llm.chats[1].messages[-2].parts[0].text
    agent, llm = make(*['{"final_answer": "The su'] * 3)
    async with agent:
        with pytest.raises(ParseError):
            await agent.run("go")
    assert len(llm.chats) == 3


async def test_a_failing_model_is_no_answer():
    """Weakness 3: an error of the model client is raised and never becomes an answer."""
    agent, _ = make(NotAuthorized("no"), NotAuthorized("no"))
    async with agent:
        with pytest.raises(NotAuthorized):
            await agent.run("go")
        (failure,) = await events_of(agent)
    assert failure.kind == "model"


@pytest.mark.parametrize(
    ("output", "answer", "value"),
    [(int, 8, 8), (int, "8", 8), (dict[str, int], {"sum": 8}, {"sum": 8}), (list[str], ["a"], ["a"])],
)
async def test_output_is_a_declared_type(output, answer, value):
    """14: the final answer is a value of the declared type, after any steps."""
    agent, _ = make(PLAN, STEP, json.dumps({"final_answer": answer}), output=output)
    async with agent:
        assert (await agent.run("5 + 3?")).data == value


async def test_invalid_output_of_steps_is_retried():
    agent, llm = make('{"final_answer": "eight"}', '{"final_answer": 8}')
    async with agent:
        assert (await agent.run("5 + 3?", output=int)).data == 8
    assert len(llm.chats) == 2


@pytest.mark.parametrize(
    "wrong",
    ['{"plan": 5}', '{"tool_calls": "add"}', '{"tool_calls": [{"name": "add"}]}', '{"final_answer": null}'],
)
async def test_invalid_step_is_not_accepted_as_output(wrong):
    """The model is asked again after an invalid plan or step, even if any object is a valid answer."""
    agent, llm = make(wrong, '{"final_answer": {"sum": 8}}', output=dict)
    async with agent:
        assert (await agent.run("5 + 3?")).data == {"sum": 8}
    assert "could not be used" in llm.chats[1].messages[-2].parts[0].text


async def test_output_without_an_envelope_is_an_answer():
    """A model may omit the envelope; no provider is asked to enforce the output schema on plans and steps."""
    agent, llm = make(PLAN, '{"sum": 8}', output=dict[str, int])
    async with agent:
        assert (await agent.run("5 + 3?")).data == {"sum": 8}
    assert [chat.response_format for chat in llm.chats] == [None, None]


async def test_rejected_calls_emit_no_start():
    """A model that repeats itself is stopped, and its last requested call never began."""
    again = step(call("add", a=1, b=1))
    agent, _ = make(*[again] * 4)
    async with agent:
        events = await events_of(agent)
    runs = [event.status for event in kinds(events, ToolExecutionEvent)]
    assert runs == ["started", "completed"] * 3
    assert len(kinds(events, ToolResult)) == 4
    assert len(whole(events, StepEvent)) == 4


# --- stream --------------------------------------------------------------------------------------


async def test_stream_of_a_final_answer():
    """29: one start, tokens, one end, then exactly one whole final answer; all of declared types."""
    agent, _ = make(FINAL)
    async with agent:
        events = await events_of(agent)
    assert all(isinstance(event, StepsEvent | Token | Reply) for event in events)
    (start,), (end,), (final,) = (
        kinds(events, StreamStart),
        kinds(events, StreamEnd),
        whole(events, FinalEvent),
    )
    (reply,) = kinds(events, Reply)
    assert events[0] is start
    assert events[-3:] == [end, final, reply]
    assert (final.text, final.thought, final.step_id) == (reply.text, "easy", reply.id)
    assert "".join(token.text for token in kinds(events, Token)) == reply.text
    assert {event.step_id for event in kinds(events, StepsEvent)} == {reply.id}


async def test_stream_of_a_plan():
    """29: one whole plan event, its partial ones growing, none of it a token."""
    agent, _ = make(PLAN, FINAL)
    async with agent:
        events = await events_of(agent)
    (plan,) = whole(events, PlanEvent)
    assert plan.plan == "Add the numbers\nSay the sum"
    partial = [event for event in kinds(events, PlanEvent) if not event.complete]
    assert len(partial) > 2
    assert all(plan.plan.startswith(event.plan) for event in partial)
    assert plan.step_id != whole(events, FinalEvent)[0].step_id


@pytest.mark.parametrize("taken", [STEP, NATIVE])
async def test_stream_of_a_step(taken):
    """29: one whole step event, its tool's start and end, and its results, before the next model call."""
    agent, _ = make(taken, FINAL)
    async with agent:
        events = await events_of(agent)
    (done,) = whole(events, StepEvent)
    started, completed = kinds(events, ToolExecutionEvent)
    (results,) = kinds(events, ToolResultsEvent)
    assert [started.status, completed.status] == ["started", "completed"]
    assert started.tool_call_id == completed.tool_call_id == done.calls[0].id == f"{done.step_id}/0"
    assert completed.result.content == results.results[0].content == "8"
    order = [events.index(event) for event in (done, started, completed, results)]
    assert order == sorted(order)
    assert {event.step_id for event in (started, completed, results)} == {done.step_id}
    assert done.thought == ("hm" if taken is STEP else "I add them.")


async def test_a_tool_starts_before_it_runs():
    """A reader receives the start of a tool while it runs, also for native calls."""
    received, release = [], trio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        await release.wait()
        return "done"

    llm = ScriptedLLM([ToolCall("wait", {}), FINAL])
    async with StepsAgent("a", llm=llm, tools=[wait]) as agent, agent.stream("go") as events:
        async for event in events:
            received.append(event)
            if isinstance(event, ToolExecutionEvent):
                release.set()
    assert [event.status for event in kinds(received, ToolExecutionEvent)] == ["started", "completed"]


async def test_repeated_call_ids_stay_separate():
    """34, weakness 8: models repeat their ids, also within a step."""
    agent, _ = make(
        step(call("add", a=5, b=3), call("multiply", a=2, b=2)), step(call("add", a=1, b=1)), FINAL
    )
    async with agent:
        events = await events_of(agent)
    counted = Counter(event.tool_call_id for event in kinds(events, ToolExecutionEvent))
    assert list(counted.values()) == [2, 2, 2]
    assert len({result.call_id for result in kinds(events, ToolResult)}) == 3


async def test_malformed_answer_emits_no_step():
    """Malformed answers emit only a start and an end event."""
    agent, _ = make('{"tool_calls": [{"tool_name": ""}]}', '{"plan": null}', FINAL)
    async with agent:
        events = await events_of(agent)
    assert len(kinds(events, StreamStart)) == len(kinds(events, StreamEnd)) == 3
    assert kinds(events, ToolExecutionEvent) == whole(events, StepEvent) == whole(events, PlanEvent) == []
    assert len(whole(events, FinalEvent)) == 1


async def test_failed_run_emits_no_final_answer():
    """The failure is the last event."""
    agent, _ = make(step(call("add", a=1, b=1)), max_iterations=1)
    async with agent:
        events = await events_of(agent)
    assert whole(events, FinalEvent) == kinds(events, Reply) == []
    assert isinstance(events[-1], Failure)


async def test_stream_emits_calls_after_they_are_recorded(autojump_clock):
    """A slow journal delays the event. After a crash, the model is therefore not asked again for an emitted call."""

    class Slow(MemoryJournal):
        async def commit(self, entry, *, epoch):
            await trio.sleep(1)
            await super().commit(entry, epoch=epoch)

    known = {}
    async with Slow().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(make(STEP, FINAL)[0])
        session = await agent.create_session("ada", session_id="s")
        async with agent.stream("5 + 3?", session=session) as events:
            async for event in events:
                written = repr(await journal.load("s", agent="tutor"))
                if isinstance(event, ToolExecutionEvent):
                    known[event.status] = "tool_name" in written
    assert known == {"started": True, "completed": True}


async def test_run_and_handlers_need_no_stream(listen):
    """Weakness 11: handlers receive tool results and answers without streaming too."""
    agent, _ = make(PLAN, STEP, FINAL)
    async with agent:
        session = await agent.create_session("ada", "5 + 3?")
        received = listen(session)
        await session.wait_idle()
    assert [type(delivery) for delivery in received] == [ToolResult, Reply]


async def test_leaving_a_stream_early_stops_the_run():
    """No work continues without a reader."""
    agent, llm = make(PLAN, STEP, FINAL)
    async with agent, agent.stream("go") as events:
        async for event in events:
            if isinstance(event, PlanEvent):
                break
    assert len(llm.chats) == 1


async def test_streams_side_by_side_do_not_mix():
    """Each reader receives only events of its own run."""

    def answer(chat):
        return json.dumps({"final_answer": chat.messages[0].parts[0].text * 9})

    received = {}
    async with StepsAgent("a", llm=ScriptedLLM(answer, chunk=1)) as agent:

        async def listen(word):
            received[word] = await events_of(agent, word)

        async with trio.open_nursery() as nursery:
            for word in "abc":
                nursery.start_soon(listen, word)
    for word, events in received.items():
        assert {event.text.strip(word) for event in kinds(events, FinalEvent, Token, Reply)} == {""}
        assert len({event.step_id for event in kinds(events, StepsEvent)}) == 1


async def test_an_interrupted_step_ends_its_tools():
    """A stopped tool is reported as failed, then the run as failed, and no completion is reported."""

    @tool
    async def wait() -> None:
        """Wait."""
        await trio.sleep_forever()

    llm = ScriptedLLM([step(call("wait"))])
    events = []
    async with StepsAgent("a", llm=llm, tools=[wait]) as agent:
        talk = await agent.open_conversation()
        async with talk.stream("go") as stream:
            async for event in stream:
                events.append(event)
                if isinstance(event, ToolExecutionEvent) and event.status == "started":
                    await trio.testing.wait_all_tasks_blocked()
                    await talk.session.interrupt("enough")
    assert [event.status for event in kinds(events, ToolExecutionEvent)] == ["started", "failed"]
    assert events[-1].kind == "interrupted"


async def test_typed_output_in_a_stream():
    """The whole final event carries the value."""
    agent, _ = make('{"final_answer": {"sum": 8}}')
    async with agent:
        events = await events_of(agent, output=dict[str, int])
    (final,) = whole(events, FinalEvent)
    assert final.data == {"sum": 8}


# --- the growing step ----------------------------------------------------------------------------


def grow(text, size=1):
    growing = PartialStep("s")
    pieces = (text[index : index + size] for index in range(0, len(text), size))
    return [event for piece in pieces if (event := growing.add(piece)) is not None]


def test_partial_plan_is_recognized_by_its_first_characters():
    """31: the plan is not complete."""
    assert PartialStep("s").add('{"plan": "') == PlanEvent(step_id="s", plan="", complete=False)


@pytest.mark.parametrize("text", ["not json at all", "", "{", '{"mood": "good"}', "null", "[1]"])
def test_partial_text_of_unknown_kind_emits_no_event(text):
    assert grow(text) == []


def test_partial_call_is_emitted_when_its_name_is_complete():
    """31."""
    growing = PartialStep("s")
    assert growing.add('{"tool_calls": [{"id": "1", "tool_name"').calls == ()
    assert growing.add(': "ad') is None
    (shown,) = growing.add('d", "parameters": {"a": 1').calls
    assert (shown.name, shown.arguments, shown.id) == ("add", {"a": 1}, "s/0")


@pytest.mark.parametrize(
    "text", ['{"final_answer": "The answer is 42"}', '```json\n{"final_answer": "The answer is 42"}']
)
def test_partial_final_answer_grows_by_characters(text):
    """32, 33: each character of an open fence or plain text gives a growing event.

    None is complete, and none is repeated.
    """
    events = grow(text)
    assert [event.text for event in events] == ["The answer is 42"[:n] for n in range(17)]
    assert not any(event.complete for event in events)


def test_kind_is_decided_once():
    """33: the first recognized kind stays the kind of the partial events."""
    assert {
        type(event) for event in grow('{"plan": "add", "tool_calls": [{"tool_name": "add", "x": 1}]}')
    } == {PlanEvent}
    assert {type(event) for event in grow('{"final_answer": "a", "plan": "b"}')} == {FinalEvent}


def test_empty_members_do_not_decide_the_kind():
    """Some models write all members each time, including empty ones."""
    events = grow('{"plan": "", "tool_calls": [], "final_answer": "42"}')
    assert events[-1] == FinalEvent(step_id="s", text="42", complete=False)
    assert not any(getattr(event, "plan", "") or getattr(event, "calls", ()) for event in events)


def test_a_new_attempt_restarts_the_stream():
    """Text of a retried answer is dropped."""
    growing = PartialStep("s")
    growing.add('{"plan": "a')
    assert growing.add('{"final_answer": "b', 1) == FinalEvent(step_id="s", text="b", complete=False)


def test_steps_do_not_mix():
    """33: two steps have two buffers, and deliveries that belong to no step pass through."""
    converter = TurnEventConverter()
    converter.grow("s1", '{"plan": "a', 0)
    assert converter.grow("s2", '{"final_answer": "b', 0) == [
        StreamStart(step_id="s2"),
        FinalEvent(step_id="s2", text="b", complete=False),
    ]
    result = ToolResult(call_id="c", tool_name="t")
    assert converter.deliver(result) == [result]


@pytest.mark.parametrize("stop", ["length", "refusal", "filter", "pause"])
def test_truncated_or_refused_answer_is_no_step(stop):
    assert TurnEventConverter().end("s", ModelResponse(parts=(Text(STEP),), stop=stop)) == []


# --- the answer as one object --------------------------------------------------------------------


async def test_stream_state_is_updated_after_each_change():
    """30: the same object is passed after each change. At the end it has query, steps and answer."""
    agent, _ = make(PLAN, STEP, FINAL)
    async with agent:
        answers, states = await states_of(agent)
    assert len({id(answer) for answer in answers}) == 1
    answer = answers[-1]
    assert (answer.query, answer.text, answer.is_complete) == ("5 + 3?", "The sum of 5 and 3 is 8", True)
    assert [state.step_type for state in answer.steps] == ["plan", "execution", "final"]
    assert [state.step_number for state in answer.steps] == [1, 2, 3]
    assert answer.steps[0].plan == "Add the numbers\nSay the sum"
    (execution,) = answer.steps[1].tool_executions
    assert (execution.tool_name, execution.parameters) == ("add", {"a": 5, "b": 3})
    assert (execution.status, execution.result) == ("completed", "8")
    assert all(state.is_complete for state in answer.steps)
    assert [state["is_complete"] for state in states] == [False] * (len(states) - 1) + [True]


async def test_partial_states_are_marked_incomplete():
    agent, _ = make(PLAN, FINAL)
    async with agent:
        _, states = await states_of(agent)
    growing = [state["steps"][0] for state in states if len(state["steps"]) == 1]
    assert [step["is_complete"] for step in growing] == [False] * (len(growing) - 1) + [True]
    answers = [state["steps"][1]["answer"] for state in states if len(state["steps"]) == 2]
    assert answers == sorted(answers, key=len)


async def test_state_of_a_failed_run_is_not_complete():
    """A failed tool keeps its error."""
    agent, _ = make(step(call("divide", a=1, b=0)), max_iterations=1)
    async with agent:
        answers, _ = await states_of(agent)
    (execution,) = answers[-1].steps[0].tool_executions
    assert (execution.status, execution.error) == ("failed", "ValueError: Division by zero")
    assert not answers[-1].is_complete
    assert isinstance(answers[-1].failure.error, LimitReached)


def progress(how, *, call_id="s/0", step_id="s", **result):
    of_tool = ToolResult(call_id="c", tool_name="add", **result) if result else None
    return ToolExecutionEvent(
        step_id=step_id, tool_call_id=call_id, tool_name="add", status=how, result=of_tool
    )


TAKEN = StepEvent(step_id="s", calls=(ToolCall("add", {"a": 1}, "s/0"),))


@pytest.mark.parametrize(
    "events",
    [
        (TAKEN, progress("started"), progress("completed", content="8")),
        (progress("started"), TAKEN, progress("completed", content="8")),
        (progress("started"), progress("completed", content="8"), TAKEN),
        (TAKEN, TAKEN, progress("started"), TAKEN, progress("completed", content="8"), TAKEN),
    ],
)
def test_each_call_has_one_execution(events):
    """34: in any order of events the execution has parameters and result."""
    answer = AgentAnswer("q")
    for event in events:
        assert answer.apply(event)
    expected = ToolExecution("s/0", "add", {"a": 1}, "completed", "8")
    assert answer.steps == [StepState("s", 1, "execution", tool_executions=[expected])]


def test_executions_do_not_mix():
    """34: two tools, and one id in two steps, have separate executions. A failed one keeps its error."""
    answer = AgentAnswer("q")
    for event in (
        progress("started"),
        progress("started", call_id="s/1"),
        progress("failed", call_id="s/1", status="error", error="no"),
        progress("started", step_id="t"),
    ):
        answer.apply(event)
    assert [[e.status for e in state.tool_executions] for state in answer.steps] == [
        ["started", "failed"],
        ["started"],
    ]
    assert answer.steps[0].tool_executions[1].error == "no"


# --- conversations -------------------------------------------------------------------------------


async def test_a_conversation_remembers_until_reset():
    """28: requests have the earlier messages until the reset."""
    agent, llm = make(FINAL, FINAL, FINAL)
    async with agent:
        talk = await agent.open_conversation("ada")
        await talk.run("a")
        await talk.run("b")
        former = talk.history
        await talk.reset()
        assert talk.history == ()
        assert len(former) == 4
        async with talk.stream_state("c") as answers:
            assert [answer async for answer in answers][-1].is_complete
        assert talk.session.owner.name == "ada"
    assert [len(chat.messages) for chat in llm.chats] == [2, 4, 2]


async def test_added_messages_keep_their_order():
    """28: added messages are part of the history in order, and cause no answer."""
    agent, llm = make(FINAL)
    async with agent:
        talk = await agent.open_conversation()
        talk.add_message("user", "I am Ada.")
        talk.add_message("assistant", "Hello Ada.")
        talk.add_message("system", "Be short.")
        async with talk.stream("Who am I?") as events:
            assert [event async for event in events]
        assert [message.text for message in talk.history][:4] == [
            "I am Ada.",
            "Hello Ada.",
            "Be short.",
            "Who am I?",
        ]
    assert [message.role for message in llm.chats[0].messages] == [
        "user",
        "assistant",
        "user",
        "user",
        "user",
    ]


@pytest.mark.parametrize(("role", "text"), [("tool", "x"), ("user", " "), ("owner", "x")])
async def test_invalid_messages_cannot_be_added(role, text):
    """Another role or a missing text raises immediately."""
    agent, _ = make(FINAL)
    async with agent:
        talk = await agent.open_conversation()
        with pytest.raises(ConfigurationError):
            talk.add_message(role, text)


async def test_message_cannot_be_added_during_a_run():
    """The message would be between calls and their results."""
    agent, _ = make(PLAN, FINAL)
    async with agent:
        talk = await agent.open_conversation()
        async with talk.stream("go") as events:
            await events.receive()
            with pytest.raises(UsageError, match="working"):
                talk.add_message("user", "x")


async def test_system_prompt_of_a_conversation():
    """A new description of the agent keeps the rules for its answers, also after a reset; other sessions keep theirs."""
    agent, llm = make(FINAL, FINAL, FINAL, body="You are kind.")
    async with agent:
        talk = await agent.open_conversation()
        talk.set_system_prompt("You are {{ brief }}.")
        await talk.run("a")
        await talk.reset()
        await talk.run("b")
        await agent.run("c")
    assert llm.chats[0].system == llm.chats[1].system
    assert "You are {{ brief }}." in llm.chats[0].system
    assert "You are kind." not in llm.chats[0].system
    assert '"final_answer"' in llm.chats[0].system
    assert llm.chats[2].system == agent.system_prompt


async def test_settings_change_while_it_runs():
    """28: timezone and answer format count from the next call on; tools can be added and removed."""
    agent, llm = make(FINAL, FINAL)
    async with agent:
        agent.set_timezone("Asia/Tokyo")
        agent.set_final_answer_format("a limerick")
        with pytest.raises(ValueError, match="Nope"):
            agent.set_timezone("Nope")
        await agent.run("a")
        agent.tools.remove("add")
        await agent.run("b")
    tail = llm.chats[0].messages[-1].parts[0].text
    assert "(Asia/Tokyo)" in tail
    assert "a limerick" in tail
    assert [len(chat.tools) for chat in llm.chats] == [4, 3]
    assert "add" not in [spec.name for spec in llm.chats[1].tools]


def test_steps_agent_rejects_another_protocol():
    with pytest.raises(ConfigurationError, match="protocol"):
        make(FINAL, protocol=object())
