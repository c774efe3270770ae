"""Runs of pipelines: messages of steps, outputs, failures, limits, retries and restarts."""

import json
import time
from functools import partial
from typing import TypedDict

import attrs
import pytest
import trio

from actgent import (
    Approve,
    BareAgent,
    ConfigurationError,
    GoalAgent,
    Interrupted,
    LimitReached,
    Limits,
    Pipeline,
    PipelineStep,
    ScriptedLLM,
    SessionNotFound,
    ToolCall,
    ToolContext,
    When,
    WrongOwner,
    open_runtime,
    tool,
)


@attrs.frozen
class Article:
    title: str
    words: int


class Found(TypedDict):
    url: str
    score: float


def asked(chat):
    """Return the first message of the session."""
    return chat.messages[0].parts[0].text


def agent(name, script=None, **options):
    """Return an agent whose model answers `script(message)`. Without a script it repeats the message."""
    answers = script or (lambda text: f"<{text}>")
    delay = options.pop("delay", 0)
    llm = ScriptedLLM(lambda chat: answers(asked(chat)), delay=delay)
    return BareAgent(name, llm=llm, **options)


def told(each):
    """Return the messages that an agent received, over all its sessions."""
    return [asked(chat) for chat in each._models.named["default"].chats]


FINDER = {"url": "http://a", "score": 0.7}


def failing(times, answer="fine"):
    """Return a script that raises an error `times` times and then answers."""
    left = [times]

    def say(text):
        left[0] -= 1
        if left[0] >= 0:
            raise ConnectionError("no way")
        return answer

    return say


def statuses(result):
    return {name: each.status for name, each in result.steps.items()}


# --- messages and outputs of steps -------------------------------------------------------------


async def test_steps_read_inputs_and_outputs_of_other_steps():
    """Inserted values keep their types, and outputs have the types that `output=` declares."""
    finder = agent("finder", lambda _: json.dumps(FINDER))
    writer = agent("writer", lambda text: json.dumps({"title": text, "words": 3}))
    report = Pipeline(
        "report",
        steps=[
            PipelineStep("find", agent=finder, message="Find {topic}", output=Found),
            PipelineStep(
                "write", agent=writer, message={"to": "{find.url}", "score": "{find.score}"}, output=Article
            ),
        ],
    )
    async with report:
        result = await report.process({"topic": "tea"})
    assert told(finder) == ["Find tea"]
    assert told(writer) == ['{"to": "http://a", "score": 0.7}']
    assert result.status == "success"
    assert result.outputs == {"find": FINDER, "write": Article('{"to": "http://a", "score": 0.7}', 3)}
    assert result.data == result.outputs["write"]
    assert json.loads(str(result)) == {"title": '{"to": "http://a", "score": 0.7}', "words": 3}


async def test_pipeline_answer_is_the_named_step_or_the_last_steps():
    """Without `answer=` the result is an object of the last steps, without skipped steps."""
    steps = [
        PipelineStep("a", agent=(one := agent("one")), message="x"),
        PipelineStep("b", agent=one, message="{a}"),
        PipelineStep("c", agent=one, message="no {a}", when=When.empty("a")),
        PipelineStep("d", agent=one, message="also {a}"),
    ]
    last, named = Pipeline("p", steps=steps), Pipeline("q", steps=steps, answer="a")
    async with open_runtime() as runtime:
        await runtime.start(last)
        await runtime.start(named)
        assert (await last.process()).data == {"b": "<<x>>", "d": "<also <x>>"}
        assert (await named.process()).data == "<x>"


async def test_the_output_type_of_an_agent_is_that_of_its_step():
    """A step without `output=` returns a value of `Agent(output=...)`."""
    writer = agent("writer", lambda _: '{"title": "Tea", "words": 3}', output=Article)
    async with Pipeline("p", steps=[PipelineStep("write", agent=writer, message="Write.")]) as pipeline:
        result = await pipeline.process({})
    assert result.outputs["write"] == Article(title="Tea", words=3)


async def test_a_failed_run_prints_its_reason():
    """`str(result)` of a run without an answer is the status with the reason of the first failed step."""
    steps = [PipelineStep("write", agent=agent("writer", failing(9)), message="Write.")]
    async with Pipeline("p", steps=steps) as pipeline:
        result = await pipeline.process({})
    assert str(result).startswith("partial: step 'write' failed: ")
    assert result.steps["write"].reason in str(result)


async def test_independent_steps_run_concurrently(autojump_clock):
    """A step starts when the steps that it needs are done, and does not wait for others."""
    slow, fast = agent("slow", delay=100), agent("fast", delay=10)
    steps = [
        PipelineStep("long", agent=slow, message="x"),
        *(PipelineStep(f"s{n}", agent=fast, message="y") for n in range(5)),
        PipelineStep("next", agent=fast, message="{s0}{s4}"),
        PipelineStep("end", agent=fast, message="{next}{long}"),
    ]
    async with Pipeline("p", steps=steps) as pipeline:
        began, ended = trio.current_time(), {}
        session = await pipeline.create_session("ada")
        session.state.subscribe(
            lambda state: ended.update(
                {name: trio.current_time() - began for name in state.get("steps", {}) if name not in ended}
            )
        )
        await pipeline.run("{}", session=session)
    assert {name: round(at) for name, at in ended.items()} == {
        **{f"s{n}": 10 for n in range(5)},
        "next": 20,
        "long": 100,
        "end": 110,
    }


async def test_step_after_two_branches_reads_the_branch_that_ran():
    """A step after two exclusive branches reads the output of the branch that ran."""
    one = agent("one", lambda text: json.dumps({"n": 4}) if text == "count" else f"<{text}>")
    steps = [
        PipelineStep("count", agent=one, message="count", output={"type": "object"}),
        PipelineStep("many", agent=one, message="many", when=When.greater("count.n", 3)),
        PipelineStep("few", agent=one, message="few", when=~When.greater("count.n", 3)),
        PipelineStep("reads", agent=one, message="{few}"),
        PipelineStep("after", agent=one, message="after", after="few"),
        PipelineStep("end", agent=one, message="{many?}{few?}"),
    ]
    async with Pipeline("p", steps=steps, answer="end") as pipeline:
        result = await pipeline.process()
    assert result.data == "<<many>>"
    assert result.status == "success"
    assert result.steps["few"].reason == "the condition is false: not (count.n > 3)"
    assert result.steps["reads"].reason == "it reads the output of step 'few', which was skipped"
    assert statuses(result)["after"] == "done"


async def test_a_missing_output_fails_the_step_that_reads_it():
    """A step that reads a missing output fails before its agent is called, with the path as the reason."""
    one = agent("one", lambda _: '{"a": 1}')
    steps = [
        PipelineStep("a", agent=one, message="x", output={"type": "object"}),
        PipelineStep("b", agent=one, message="{a.url}"),
        PipelineStep("c", agent=one, message="y", when=When.greater("a.a", "text")),
    ]
    async with Pipeline("p", steps=steps) as pipeline:
        result = await pipeline.process()
    assert (result.steps["b"].status, result.steps["b"].reason) == (
        "failed",
        "the value a.url does not exist: check the name of the step or input, and the keys after it",
    )
    assert result.steps["c"].reason.startswith("greater: a.a is a number")
    assert told(one) == ["x"]


# --- failures ----------------------------------------------------------------------------------


async def test_a_failure_skips_only_dependent_steps():
    """Direct and indirect dependents of a failed step are skipped with that step as the cause. Other steps run."""
    bad, one = agent("bad", failing(9)), agent("one")
    steps = [
        PipelineStep("a", agent=bad, message="x"),
        PipelineStep("b", agent=one, message="{a}"),
        PipelineStep("c", agent=one, message="{b?}"),
        PipelineStep("other", agent=one, message="y"),
        PipelineStep("last", agent=one, message="{other}"),
    ]
    async with Pipeline("p", steps=steps, answer="last") as pipeline:
        result = await pipeline.process()
    assert statuses(result) == {
        "a": "failed",
        "b": "skipped",
        "c": "skipped",
        "other": "done",
        "last": "done",
    }
    assert (result.status, result.data) == ("partial", "<<y>>")
    assert result.steps["a"].reason == "scripted: its client raised ConnectionError"
    assert (result.steps["b"].cause, result.steps["c"].cause) == ("a", "a")
    assert "step 'b' was skipped, as 'a' failed" in result.steps["c"].reason


async def test_failure_stops_other_steps_with_on_failure_stop(autojump_clock):
    """With `on_failure="stop"` running steps are stopped and others skipped. A retry runs all of them."""
    bad, slow = agent("bad", failing(1), delay=1), agent("slow", delay=100)
    steps = [
        PipelineStep("a", agent=bad, message="x"),
        PipelineStep("slow", agent=slow, message="y"),
        PipelineStep("next", agent=slow, message="{slow}"),
    ]
    async with Pipeline("p", steps=steps, on_failure="stop") as pipeline:
        began = trio.current_time()
        result = await pipeline.process(session_id="r")
        assert trio.current_time() - began < 2
        assert slow._opener.running.sessions == {}
        again = await pipeline.retry("r")
    assert statuses(result) == {"a": "failed", "slow": "skipped", "next": "skipped"}
    assert set(statuses(again).values()) == {"done"}
    assert result.steps["slow"].reason == "the run stopped because step 'a' failed"
    assert result.status == "partial"


async def test_a_step_is_tried_again():
    """A failed step is retried up to `retries` times, each time in a new session."""
    async with Pipeline(
        "p",
        steps=[
            PipelineStep("a", agent=agent("two", failing(2)), message="x", retries=2),
            PipelineStep("b", agent=agent("three", failing(3)), message="x", retries=2),
        ],
    ) as pipeline:
        result = await pipeline.process(session_id="r")
    assert statuses(result) == {"a": "done", "b": "failed"}
    assert [(each.tries, each.session_id) for each in result.steps.values()] == [
        (3, "r/task/a/2"),
        (3, "r/task/b/2"),
    ]


async def test_step_timeout_applies_to_each_attempt(autojump_clock):
    """The timeout of a step applies to each attempt."""
    waits = iter([50, 50, 1])

    async def answer(_):
        await trio.sleep(next(waits))
        return "at last"

    slow = BareAgent("slow", llm=ScriptedLLM(answer))
    async with Pipeline(
        "p", steps=[PipelineStep("a", agent=slow, message="x", timeout=10, retries=2)]
    ) as pipeline:
        began = trio.current_time()
        result = await pipeline.process()
        assert 21 <= trio.current_time() - began < 22
    assert (result.data, result.steps["a"].tries) == ("at last", 3)


async def test_a_goal_that_is_not_achieved_has_failed():
    """A goal step that is not achieved fails, and its dependents are skipped."""
    plan = '{"action": "plan", "params": {"steps": ["look"]}}'
    pipeline = Pipeline(
        "p",
        steps=[PipelineStep("find", goal="Find {topic}"), PipelineStep("next", goal="About {find}")],
        llm=ScriptedLLM([plan], repeat=True),
    )
    async with pipeline:
        result = await pipeline.process({"topic": "tea"}, limits=Limits(model_calls=60))
    assert statuses(result) == {"find": "failed", "next": "skipped"}
    assert result.steps["find"].reason.startswith("the answer is ")
    assert isinstance(pipeline._extra_companions[0], GoalAgent)


async def test_a_step_stopped_by_a_user_is_not_retried():
    """A step that a user interrupts fails at once, although it has retries left."""
    reached, one = trio.Event(), agent("one")

    async def wait(_):
        reached.set()
        await trio.sleep_forever()

    slow = BareAgent("slow", llm=ScriptedLLM(wait))
    steps = [PipelineStep("a", agent=slow, message="x", retries=5), PipelineStep("b", agent=one, message="y")]
    async with Pipeline("p", steps=steps) as pipeline, trio.open_nursery() as nursery:
        results = []

        async def run():
            results.append(await pipeline.process(session_id="r"))

        nursery.start_soon(run)
        await reached.wait()
        with trio.fail_after(60):
            await (await slow.open_session("r/task/a")).interrupt("not this one")
            await (await pipeline.open_session("r")).wait_idle()
    assert statuses(results[0]) == {"a": "failed", "b": "done"}
    assert results[0].steps["a"].tries == 1
    assert "not this one" in results[0].steps["a"].reason


# --- limits ------------------------------------------------------------------------------------


async def test_limits_of_a_run_cover_its_steps():
    """The steps share the limits of their run. A retry has new limits."""
    one = agent("one")
    steps = [
        PipelineStep(f"s{n}", agent=one, message="x", after=[f"s{n - 1}"] if n else []) for n in range(6)
    ]
    async with Pipeline("p", steps=steps) as pipeline:
        result = await pipeline.process(session_id="r", limits=Limits(model_calls=4))
        assert len(told(one)) == 3
        assert result.status in ("partial", "error")
        assert list(statuses(result).values())[:3] == ["done"] * 3
        assert any("limit of 4 model calls" in each.reason for each in result.steps.values()) or isinstance(
            result.error, LimitReached
        )
        result = await pipeline.retry("r", limits=Limits(model_calls=20))
    assert set(statuses(result).values()) == {"done"}
    assert len(told(one)) == 6


async def test_run_result_has_the_usage():
    """The usage of a run counts the model calls of its steps. The pipeline itself makes none."""
    one = agent("one")
    async with Pipeline(
        "p", steps=[PipelineStep("a", agent=one, message="x")], limits=Limits(cost=1.0)
    ) as pipeline:
        result = await pipeline.process()
    assert result.usage.cost == 0
    assert result.status == "partial"
    assert "price" in result.steps["a"].reason


# --- runs by their ids -------------------------------------------------------------------------


async def test_run_with_an_id_runs_once():
    """Concurrent and later calls with the same id get the result of one run. Other inputs and other owners are rejected."""
    one = agent("one")
    pipeline = Pipeline("p", steps=[PipelineStep("a", agent=one, message="{x}")])
    async with pipeline:
        results = []

        async def run():
            results.append(await pipeline.process({"x": "1"}, session_id="r", owner="ada"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            nursery.start_soon(run)
        again = await pipeline.process(session_id="r", owner="ada")
        assert [each.data for each in (*results, again, await pipeline.result("r"))] == ["<1>"] * 4
        assert told(one) == ["1"]
        with pytest.raises(ConfigurationError, match="was started with other inputs"):
            await pipeline.process({"x": "2"}, session_id="r", owner="ada")
        with pytest.raises(WrongOwner):
            await pipeline.process({"x": "1"}, session_id="r", owner="eve")
        with pytest.raises(SessionNotFound):
            await pipeline.result("other")


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({}, "the input 'x' is missing"),
        ({"x": 1, "yy": 2}, "no step reads the input 'yy'"),
        ({"y": 2}, "'x' is missing"),
    ],
)
async def test_invalid_inputs_are_rejected_before_a_step_runs(inputs, expected):
    """Invalid inputs raise an error before a step runs, and the same id can then be used with valid inputs."""
    one = agent("one")
    async with Pipeline("p", steps=[PipelineStep("a", agent=one, message="{x} {y?}")]) as pipeline:
        for session_id in ("r", None):
            with pytest.raises(ConfigurationError, match=expected):
                await pipeline.process(inputs, session_id=session_id)
        assert told(one) == []
        assert (await pipeline.process({"x": 1}, session_id="r")).data == "<1 >"


async def test_a_run_is_cancelled_with_all_its_steps(autojump_clock):
    """Cancelling the caller or interrupting the run's session stops all steps."""
    slow, fast = agent("slow", delay=100), agent("fast", delay=1)
    steps = [
        PipelineStep("quick", agent=fast, message="x"),
        *(PipelineStep(f"s{n}", agent=slow, message="{quick}") for n in range(3)),
    ]
    async with Pipeline("p", steps=steps) as pipeline:
        with trio.move_on_after(50):
            await pipeline.process(session_id="mine")
        await (await pipeline.open_session("mine")).wait_idle()
        assert slow._opener.running.sessions == {}
        async with trio.open_nursery() as nursery:
            results = []

            async def run():
                results.append(await pipeline.process(session_id="theirs"))

            nursery.start_soon(run)
            await trio.sleep(50)
            await (await pipeline.open_session("theirs")).interrupt("enough")
        assert slow._opener.running.sessions == {}
        assert results[0].status == "cancelled"
        assert isinstance(results[0].error, Interrupted)
        assert statuses(results[0]) == {"quick": "done", "s0": "pending", "s1": "pending", "s2": "pending"}
        again = await pipeline.retry("theirs")
    assert set(statuses(again).values()) == {"done"}
    assert told(fast) == ["x", "x"]
    assert again.steps["s0"].session_id == "theirs/task/s0@2"


async def test_a_run_resumes_from_any_step():
    """A retry of a step keeps the earlier outputs and runs the step and its dependents in new sessions."""
    count = iter(range(100))
    one = agent("one", lambda text: f"{text}{next(count)}")
    steps = [
        PipelineStep("a", agent=one, message="a"),
        PipelineStep("b", agent=one, message="b"),
        PipelineStep("c", agent=one, message="{b}c"),
        PipelineStep("d", agent=one, message="{c}{a}"),
    ]
    async with Pipeline("p", steps=steps) as pipeline:
        first = await pipeline.process(session_id="r")
        second = await pipeline.retry("r", "c")
        third = await pipeline.retry("r", "a", "b")
        with pytest.raises(ConfigurationError, match="the pipeline has no step 'x'"):
            await pipeline.retry("r", "x")
        nothing = await pipeline.retry("r")
    assert first.outputs["a"] == second.outputs["a"] != third.outputs["a"]
    assert first.outputs["b"] == second.outputs["b"] != third.outputs["b"]
    assert first.outputs["c"] != second.outputs["c"]
    assert [each.steps["d"].session_id for each in (first, second, third, nothing)] == [
        "r/task/d",
        "r/task/d@2",
        "r/task/d@3",
        "r/task/d@3",
    ]
    assert nothing.outputs == third.outputs
    assert next(count) == 4 + 2 + 4


async def test_a_failed_step_succeeds_after_a_resume():
    """A retry without names runs the failed and the skipped dependent steps. Steps with a false condition stay skipped."""
    one, bad = agent("one"), agent("bad", failing(1))
    steps = [
        PipelineStep("a", agent=one, message="a"),
        PipelineStep("b", agent=bad, message="{a}"),
        PipelineStep("c", agent=one, message="{b}"),
        PipelineStep("never", agent=one, message="{a}", when=When.empty("a")),
    ]
    async with Pipeline("p", steps=steps, answer="c") as pipeline:
        assert (await pipeline.process(session_id="r")).status == "partial"
        result = await pipeline.retry("r")
    assert (result.status, result.data) == ("success", "<fine>")
    assert told(one) == ["a", "fine"]


# --- pipelines as agents -----------------------------------------------------------------------


async def test_a_pipeline_is_a_step_of_another():
    """An inner pipeline gets its inputs as an object and returns its answer as a value."""
    one = agent("one", lambda text: json.dumps({"n": int(text) + 1}))
    inner = Pipeline(
        "inner", steps=[PipelineStep("add", agent=one, message="{n}", output={"type": "object"})]
    )
    outer = Pipeline(
        "outer",
        steps=[
            PipelineStep("first", agent=inner, message={"n": 1}),
            PipelineStep("second", agent=inner, message={"n": "{first.n}"}),
        ],
    )
    async with outer:
        result = await outer.process(session_id="r")
    assert result.data == {"n": 3}
    assert told(one) == ["1", "2"]


async def test_a_failed_pipeline_is_a_failed_step():
    """A step whose inner pipeline ends with a partial result fails."""
    inner = Pipeline(
        "inner",
        steps=[
            PipelineStep("a", agent=agent("bad", failing(9)), message="x"),
            PipelineStep("b", agent=agent("one"), message="y"),
        ],
    )
    async with Pipeline("outer", steps=[PipelineStep("all", agent=inner, message="go")]) as outer:
        result = await outer.process()
    assert result.steps["all"].status == "failed"
    assert result.steps["all"].reason.startswith("the answer is partial: ")


async def test_a_pipeline_is_a_tool_and_answers_messages():
    """A pipeline with one input accepts plain text. An invalid message is answered with an explanation."""
    one = agent("one")
    inner = Pipeline("inner", steps=[PipelineStep("a", agent=one, message="about {topic}")], goal="write")
    boss = BareAgent(
        "boss", llm=ScriptedLLM([ToolCall("inner", {"task": "tea"}), "done"]), tools=[inner.as_tool()]
    )
    async with open_runtime() as runtime:
        await runtime.start(boss)
        session = await boss.create_session("ada")
        results = []
        session.on_tool_result(results.append)
        await boss.run("go", session=session)
        assert [each.content for each in results] == ["<about tea>"]
        talk = await inner.create_session("ada")
        assert str(await inner.run('{"tpic": 1}', session=talk)).startswith("the input 'topic' is missing")
        assert str(await inner.run("coffee", session=talk)) == "<about coffee>"
        assert "this run has started already" in str(await inner.run("milk", session=talk))
        assert "the pipeline has no step 'b'" in str(await inner.run('{"from": ["b"]}', session=talk))
        assert str(await inner.run('{"from": ["a"]}', session=talk)) == "<about coffee>"
    assert told(one) == ["about tea", "about coffee", "about coffee"]


async def test_step_waits_for_an_approval(autojump_clock):
    """A pending approval blocks its own step only."""

    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    payer = BareAgent("payer", llm=ScriptedLLM([ToolCall("pay", {}), "it is paid"]), tools=[pay])
    steps = [
        PipelineStep("pay", agent=payer, message="pay"),
        PipelineStep("other", agent=agent("one"), message="x"),
    ]
    async with open_runtime() as runtime, trio.open_nursery() as nursery:
        pipeline = await runtime.start(Pipeline("p", steps=steps))
        results = []

        async def run():
            results.append(await pipeline.process(session_id="r"))

        nursery.start_soon(run)
        await trio.sleep(1)
        (waiting,) = await runtime.approvals()
        assert statuses(await pipeline.result("r")) == {"pay": "pending", "other": "done"}
        await payer.answer(waiting, Approve())
    assert results[0].outputs == {"pay": "it is paid", "other": "<x>"}


async def test_tools_of_steps_find_the_deps_of_the_pipeline():
    """Tools of a step's agent get the `deps` of the pipeline."""

    @tool
    async def look(context: ToolContext[str]) -> str:
        """Look."""
        return context.deps

    looker = BareAgent("looker", llm=ScriptedLLM([ToolCall("look", {}), "looked"]), tools=[look])
    found = []
    looker.on_session(lambda session: session.on_tool_result(lambda result: found.append(result.content)))
    pipeline = Pipeline("p", steps=[PipelineStep("a", agent=looker, message="x")], deps="the shop")
    async with pipeline:
        assert (await pipeline.process()).data == "looked"
    assert found == ["the shop"]


# --- restarts ----------------------------------------------------------------------------------


async def test_a_run_resumes_in_the_next_process(tmp_path):
    """After a crash finished steps are not repeated, and a running step continues in its session with its output schema."""
    url, calls, formats = f"sqlite:///{tmp_path}/journal.db", [], []

    def make(stuck=None):
        async def answer(chat):
            calls.append(asked(chat))
            formats.append(chat.response_format is not None)
            if stuck is not None and asked(chat).startswith("slow"):
                stuck.set()
                await trio.sleep_forever()
            return json.dumps({"url": asked(chat), "score": 1})

        one = BareAgent("one", llm=ScriptedLLM(answer))
        steps = [
            PipelineStep("a", agent=one, message="quick", output=Found),
            PipelineStep("b", agent=one, message="slow {a.score}", output=Found),
            PipelineStep("c", agent=one, message="{b.url}", output=Found),
        ]
        return Pipeline("p", steps=steps, grace=0)

    for _ in range(2):  # two processes that each die during step b
        stuck = trio.Event()
        with trio.CancelScope() as process:
            async with open_runtime(journal=url) as runtime, trio.open_nursery() as nursery:
                pipeline = await runtime.start(make(stuck))
                nursery.start_soon(partial(pipeline.process, {}, session_id="r"))
                with trio.fail_after(30):
                    await stuck.wait()
                process.cancel()
    async with open_runtime(journal=url) as runtime:
        pipeline = await runtime.start(make())
        with trio.fail_after(30):
            result = await pipeline.process(session_id="r")
        heads = await runtime.journal.children("p", "r")
    assert result.outputs["c"] == {"url": "slow 1", "score": 1.0}
    assert calls == ["quick", "slow 1", "slow 1", "slow 1", "slow 1"]
    assert all(formats)
    assert sorted(head.session_id for head in heads) == ["r/task/a", "r/task/b", "r/task/c"]


async def test_step_timeout_continues_after_a_restart(tmp_path, autojump_clock, monkeypatch):
    """A restart 30 seconds after the start of a step leaves 30 of its 60 seconds."""
    url = f"sqlite:///{tmp_path}/journal.db"

    def make():
        slow = agent("slow", delay=100)
        step = PipelineStep("a", agent=slow, message="x", timeout=60)
        return Pipeline("p", steps=[step], grace=0)

    with trio.move_on_after(40):
        async with open_runtime(journal=url) as runtime:
            pipeline = await runtime.start(make())
            await pipeline.process(session_id="r")
    later = time.time() + 30
    monkeypatch.setattr(time, "time", lambda: later)  # the clock of the second process
    async with open_runtime(journal=url) as runtime:
        pipeline = await runtime.start(make())
        began = trio.current_time()
        result = await pipeline.process(session_id="r")
        assert trio.current_time() - began < 35
    assert result.steps["a"].reason == "agent 'slow' did not answer within 60 s"
