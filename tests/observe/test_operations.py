"""Spans of rejected calls, plans, pipelines, memories and embeddings."""

import json

import pytest
import trio

from actgent import (
    Approve,
    BareAgent,
    LongTermMemory,
    Pipeline,
    PipelineStep,
    PlanAgent,
    Reject,
    ScriptedLLM,
    ToolCall,
    open_runtime,
    tool,
)
from actgent.journal.record_types import AgentMessageRecord, CallFinishedRecord
from actgent.observe.opentelemetry_tracing import SCHEMA_URL


@tool(approval=True, effect="once")
async def pay(to: str) -> str:
    """Pay."""
    return "paid"


@pytest.mark.parametrize(
    ("call", "name"),
    [(ToolCall("canary", {}), "unknown"), (ToolCall("pay", {"to": 1}), "pay")],
    ids=["unknown tool", "invalid arguments"],
)
async def test_rejected_call_has_a_span(recorder, call, name):
    """The name of an unknown tool is text of the model, so no span has it.

    The metric of durations does not count the call.
    """
    agent = BareAgent("clerk", llm=ScriptedLLM([call, "ok"]), tools=[pay])
    async with open_runtime(telemetry=recorder.telemetry()) as runtime:
        await runtime.start(agent)
        await agent.run("go")
    assert recorder.tree() == [
        "send clerk",
        "  invoke_agent clerk",
        "    chat scripted",
        f"    execute_tool {name} !refused",
        "    chat scripted",
    ]
    (span,) = recorder.of("execute_tool")
    assert span.attributes["gen_ai.tool.name"] == name
    assert span.attributes["actgent.tool.status"] == "refused"
    assert "canary" not in "".join(each.to_json() for each in recorder.spans)
    assert "gen_ai.execute_tool.duration" not in recorder.metrics()


@pytest.mark.parametrize("count", [1, 3])
async def test_times_of_a_result_are_those_of_its_span(recorder, count):
    """The recorded times are read inside of the span, also if several calls of an answer overlap. A rejected call has none."""

    @tool(effect="pure")
    async def nap(seconds: float) -> str:
        await trio.sleep(seconds)
        return "slept"

    calls = [ToolCall("nap", {"seconds": number / 50}, f"c{number}") for number in range(count)]
    script = [[*calls, ToolCall("canary", {}, "wrong")], "ok"]
    agent = BareAgent("clerk", llm=ScriptedLLM(script), tools=[nap])
    results = {}
    async with open_runtime(telemetry=recorder.telemetry(), journal="memory:") as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada", "go")
        await session.wait_idle()
        for record in await runtime.journal.load(session.id):
            if isinstance(record, AgentMessageRecord):
                results |= {each.call_id: each for each in record.message.tool_results}
            elif isinstance(record, CallFinishedRecord):
                results[record.result.call_id] = record.result
    spans = {span.attributes["gen_ai.tool.call.id"]: span for span in recorder.of("execute_tool")}
    for call in calls:
        result, span = results[call.id], spans[call.id]
        times = [span.start_time / 1e9, result.started_at, result.ended_at, span.end_time / 1e9]
        assert times == sorted(times)
    assert (results["wrong"].started_at, results["wrong"].ended_at) == (0.0, 0.0)


async def test_each_tool_span_links_to_the_request_that_decided(recorder):
    """Two requests decide two approvals. One call runs, and the other one is rejected."""
    script = [[ToolCall("pay", {"to": "ada"}, "c1"), ToolCall("pay", {"to": "bob"}, "c2")], "ok"]
    agent = BareAgent("clerk", llm=ScriptedLLM(script), tools=[pay])
    tracer = recorder.tracers.get_tracer("program")
    async with open_runtime(telemetry=recorder.telemetry()) as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada", "go")
        await session.wait_idle()
        for approval, answer in zip(session.approvals, (Approve(), Reject("no")), strict=True):
            with tracer.start_as_current_span(f"decide {type(answer).__name__}"):
                await session.answer(approval, answer)
        await session.wait_idle()
    recorder.check()
    spans = {span.attributes["gen_ai.tool.call.id"]: span for span in recorder.of("execute_tool")}
    ids = {span.name: span.context.span_id for span in recorder.of("decide")}
    assert [link.context.span_id for link in spans["c1"].links] == [ids["decide Approve"]]
    assert [link.context.span_id for link in spans["c2"].links] == [ids["decide Reject"]]
    assert (spans["c1"].attributes["actgent.tool.status"], spans["c2"].attributes["error.type"]) == (
        "success",
        "refused",
    )
    assert {link.context.span_id for link in recorder.of("invoke_agent")[1].links} >= set(ids.values())


async def test_the_planning_call_is_inside_a_plan_span(recorder):
    """The calls that execute the plan are outside that span."""
    plan = {"intent": "answer", "plan": "one item", "todoList": [{"id": "1", "description": "look"}]}
    item = {"content": "found", "nextStepDecision": "complete_item"}
    agent = PlanAgent("planner", llm=ScriptedLLM([json.dumps(plan), json.dumps(item), "All done."]))
    async with open_runtime(telemetry=recorder.telemetry()) as runtime:
        await runtime.start(agent)
        assert (await agent.run("go")).text == "All done."
    assert recorder.tree() == [
        "send planner",
        "  invoke_agent planner",
        "    plan planner",
        "      chat scripted",
        "    chat scripted",
        "    chat scripted",
    ]
    (span,) = recorder.of("plan")
    assert span.attributes["gen_ai.operation.name"] == "plan"
    assert span.attributes["gen_ai.agent.name"] == "planner"


async def test_a_run_of_a_pipeline_is_a_workflow(recorder):
    """The turns of the step agents are child spans of the workflow."""
    writer = BareAgent("writer", llm=ScriptedLLM(["text"]))
    pipeline = Pipeline("report", steps=[PipelineStep("write", agent=writer, message="go")])
    async with open_runtime(telemetry=recorder.telemetry()) as runtime:
        await runtime.start(pipeline)
        result = await pipeline.process()
    assert result.status == "success"
    recorder.check()
    (run,) = recorder.of("invoke_workflow")
    assert run.name == "invoke_workflow report"
    assert run.attributes["gen_ai.operation.name"] == "invoke_workflow"
    assert run.attributes["gen_ai.workflow.name"] == run.attributes["gen_ai.agent.name"] == "report"
    (step,) = recorder.of("invoke_agent writer")
    assert step.context.trace_id == run.context.trace_id
    agents = {
        point.attributes["gen_ai.agent.name"] for point in recorder.metrics()["gen_ai.invoke_agent.duration"]
    }
    assert agents == {"report", "writer"}


async def test_memory_operations_and_embeddings_of_a_turn_have_spans(recorder):
    """The spans have numbers and ids, but no texts. Operations outside of a turn have no spans."""

    def embed(texts):
        return [[1.0, 0.0, 2.0] for _ in texts]

    async with LongTermMemory(embed=embed) as memories:

        @tool
        async def work() -> str:
            """Work."""
            made = await memories.remember("canary likes tea", owner="ada")
            await memories.recall("canary tea", owner="ada")
            newer = await memories.update(made.id, "canary likes coffee", owner="ada")
            await memories.forget(newer.id, owner="ada")
            return newer.id

        await memories.remember("outside", owner="ada")
        agent = BareAgent("clerk", llm=ScriptedLLM([ToolCall("work", {}), "ok"]), tools=[work])
        async with open_runtime(telemetry=recorder.telemetry()) as runtime:
            await runtime.start(agent)
            await agent.run("go")
    assert recorder.tree()[3:-1] == [
        "    execute_tool work",
        "      create_memory",
        "        embeddings",
        "      search_memory",
        "        embeddings",
        "      update_memory",
        "        embeddings",
        "      delete_memory",
    ]
    (made,) = recorder.of("create_memory")
    assert made.attributes["gen_ai.memory.record.count"] == 1
    assert made.attributes["gen_ai.memory.record.id"]
    assert made.kind.name == "CLIENT"
    assert {span.attributes["gen_ai.embeddings.dimension.count"] for span in recorder.of("embeddings")} == {3}
    assert "canary" not in "".join(span.to_json() for span in recorder.spans)
    operations = {
        point.attributes["gen_ai.operation.name"]
        for point in recorder.metrics()["gen_ai.client.operation.duration"]
    }
    assert operations == {"chat", "embeddings"}


async def test_failed_embeddings_are_an_error_of_their_span(recorder):
    """The memory operation itself succeeds with a search by words only."""

    def embed(texts):
        raise OSError("down")

    async with LongTermMemory(embed=embed) as memories:

        @tool
        async def work() -> str:
            """Work."""
            return str(len(await memories.recall("tea", owner="ada")))

        agent = BareAgent("clerk", llm=ScriptedLLM([ToolCall("work", {}), "ok"]), tools=[work])
        async with open_runtime(telemetry=recorder.telemetry(content=True)) as runtime:
            await runtime.start(agent)
            await agent.run("go")
    (search,) = recorder.of("search_memory")
    (embeddings,) = recorder.of("embeddings")
    assert embeddings.attributes["error.type"] == "OSError"
    assert "error.type" not in search.attributes
    assert search.attributes["gen_ai.memory.query.text"] == "tea"


async def test_scope_has_version_and_schema_and_buckets_fit_small_counts(recorder):
    """Two calls and three calls fall into different buckets."""
    agent = BareAgent("clerk", llm=ScriptedLLM(["ok"]))
    async with open_runtime(telemetry=recorder.telemetry()) as runtime:
        await runtime.start(agent)
        await agent.run("go")
    (span,) = recorder.of("chat")
    scope = span.instrumentation_scope
    assert (scope.name, scope.version, scope.schema_url) == ("actgent", "0.1.0", SCHEMA_URL)
    metrics = recorder.metrics()
    (calls,) = metrics["gen_ai.invoke_agent.inference_calls"]
    assert calls.explicit_bounds == (1, 2, 4, 8, 16, 32, 64, 128)
    (turn,) = metrics["gen_ai.invoke_agent.duration"]
    assert turn.explicit_bounds[:3] == (0.1, 0.2, 0.4)
