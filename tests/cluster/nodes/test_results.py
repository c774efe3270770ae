"""Results of runs whose session moved to another node, or lived there from the beginning."""

from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from actgent import (
    LLM,
    Approve,
    BareAgent,
    ConfigurationError,
    ModelResponse,
    Pipeline,
    PipelineStep,
    PlanAgent,
    RemoteSession,
    Suspended,
    Text,
    ToolCall,
    Usage,
    tool,
)

from .pairs import PATIENCE, drain, wait_balanced

ADDS = ToolCall("add", {"a": 1, "b": 2})
DEPLOYS = ToolCall("deploy", {"place": "mars"})


@attrs.frozen
class Sum:
    """The answer type of the planner."""

    value: int


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool(approval=True, effect="once")
def deploy(place: str) -> str:
    """Deploy to a place."""
    return f"deployed to {place}"


@attrs.define(eq=False)
class Adder(LLM):
    """A model that calls the tools of `wants` and answers from the results.

    It waits for `may_go` at the call `holds`.
    """

    name = "adder"
    wants: tuple = (ADDS,)
    holds: str = ""
    """The call that waits: `first`, or `last` for the call after the tool result."""
    asked: int = 0
    is_asked: trio.Event = attrs.field(factory=trio.Event)
    may_go: trio.Event = attrs.field(factory=trio.Event)

    async def complete(self, chat, on_text=None):
        self.asked += 1
        text, last = str([each.parts for each in chat.messages]), str(chat.messages[-1].parts)
        is_last = "Now answer" in last or ("ToolResult" in text and "Plan how to answer" not in last)
        if self.holds == ("last" if is_last else "first"):
            self.is_asked.set()
            await self.may_go.wait()
        await trio.lowlevel.checkpoint()
        usage = Usage(input_tokens=2, output_tokens=1)
        if not is_last and self.wants:
            return ModelResponse(parts=self.wants, stop="tool_use", usage=usage)
        return ModelResponse(parts=(Text('{"value": 3}'),), usage=usage)


@pytest.fixture
def two_nodes(open_cluster, monkeypatch):
    """Return `two_nodes(make)`, a context manager that yields a cluster, its nodes, agents and models.

    `make(model)` returns the agent of a node. The model of the first node waits.
    """
    monkeypatch.setattr("actgent.cluster.cluster_node.LEAVE_GRACE_SECONDS", 0.2)

    @asynccontextmanager
    async def opened(make, **options):
        models = Adder(holds="last", **options), Adder(**options)
        agents = [make(model) for model in models]
        with trio.fail_after(PATIENCE):
            async with (
                open_cluster() as cluster,
                cluster.node(agents[0], node="one") as one,
                cluster.node(agents[1], node="two") as two,
            ):
                await wait_balanced(one, two)
                yield cluster, (one, two), agents, models

    return opened


def make_planner(model, **options):
    return PlanAgent("planner", llm=model, tools=[add, deploy], output=Sum, **options)


async def come(results, process, *given, **options):
    results.append(await process(*given, **options))


@pytest.mark.parametrize("value", [{}, {"temperature": 0.5, "metadata": {"a": 1}, "sender": "bo"}])
async def test_plan_result_is_complete_after_a_move(two_nodes, value):
    """The result has value, plan, calls and usage, and the turn keeps its options."""
    async with two_nodes(make_planner) as (cluster, (one, _), (planner, _), (model, _)):
        session, results = await planner.create_session("ada"), []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: come(results, planner.process, "1 + 2?", session=session, **value))
            nursery.start_soon(lambda: come(results, planner.process, "1 + 2?", **value))
            await model.is_asked.wait()
            await drain(cluster, one)
        for result in results:
            assert (result.status, result.data, result.error) == ("success", Sum(3), None)
            assert (result.model_calls, result.tool_calls, result.usage.input_tokens) == (2, 1, 4)
            assert result.turn_id
        there = await planner.open_session(session.id)
        assert isinstance(there, RemoteSession)
        messages = [each for each in await there.history() if each.sender.kind == "user"]
        assert [each.metadata for each in messages] == [value.get("metadata", {})]
        [closed] = [each for each in results if each.session_id != session.id]
        view = await one.rebuild(closed.session_id)
        assert [each.text for each in view.history if each.sender.kind == "user"] == ["1 + 2?"]


async def test_plan_is_processed_at_the_owner_of_its_session(two_nodes):
    """`process` works for a session of another node.

    A suspended plan stays open, and this node can decide its approval.
    """
    async with two_nodes(make_planner, wants=(DEPLOYS,)) as (_, (_, two), (planner, other), (model, _)):
        model.may_go.set()
        session = await planner.create_session("ada", session_id=two.journal.new_session_id())
        assert isinstance(session, RemoteSession)
        result = await planner.process("deploy", session=session)
        assert (result.status, type(result.error)) == ("suspended", Suspended)
        assert result.turn_id
        reply = await planner.resume({result.error.ids[0]: Approve()})
        assert reply.data == Sum(3)
        again = await other.process("what?", session=await other.open_session(session.id))
        assert (again.status, again.data) == ("suspended", None)
        with pytest.raises(ConfigurationError, match="temperature: this cannot be sent"):
            await planner.process("x", session=session, temperature=0.5)


async def test_plan_suspended_on_another_node_stays_open(two_nodes):
    """The new session moved before the model requested the approval. `process` does not close the session."""
    wants = (ADDS,)
    async with two_nodes(make_planner, wants=wants) as (cluster, (one, _), (planner, _), models):
        models[0].holds, models[1].wants = "first", (DEPLOYS,)
        results = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(come, results, planner.process, "1 + 2?")
            await models[0].is_asked.wait()
            await drain(cluster, one)
        [result] = results
        assert (result.status, type(result.error)) == ("suspended", Suspended)
        reply = await planner.resume({result.error.ids[0]: Approve()})
        assert reply.data == Sum(3)


async def test_a_typed_answer_stays_typed_in_streams_of_other_nodes(two_nodes):
    """The output type of an agent applies to its answers at each node."""
    async with two_nodes(make_planner) as (_, (_, two), (planner, _), (model, _)):
        model.may_go.set()
        session = await planner.create_session("ada", session_id=two.journal.new_session_id())
        assert (await planner.run("1 + 2?", session=session)).data == Sum(3)
        async with planner.stream("1 + 2?", session=session) as deliveries:
            assert [each async for each in deliveries][-1].data == Sum(3)


def make_pipeline(model):
    worker = BareAgent("worker", llm=model, tools=[add])
    steps = [
        PipelineStep("first", agent=worker, message="add {text}", output=Sum),
        PipelineStep("second", agent=worker, message="go on with {first.value}", output=Sum),
    ]
    return Pipeline("line", steps=steps)


async def test_pipeline_run_is_complete_after_a_move(two_nodes):
    """The run can be joined, inspected and retried at any node. No step runs twice."""
    async with two_nodes(make_pipeline) as (cluster, (one, two), (line, other), (model, _)):
        results, session_id = [], one.journal.new_session_id()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: come(results, line.process, {"text": "1 + 2"}, session_id=session_id))
            nursery.start_soon(lambda: come(results, line.process, {"text": "1 + 2"}))
            await model.is_asked.wait()
            await drain(cluster, one)
        for result in results:
            assert (result.status, result.steps["second"].output) == ("success", Sum(3))
            assert result.inputs == {"text": "1 + 2"}
        for node, line_there in ((one, line), (two, other)):
            assert not node.journal.owns(session_id) or node is two
            assert (await line_there.result(session_id)).steps["first"].output == Sum(3)
            assert (await line_there.process(session_id=session_id)).status == "success"
            with pytest.raises(ConfigurationError, match="was started with other inputs"):
                await line_there.process({"text": "2 + 2"}, session_id=session_id)
        assert (await line.retry(session_id, "second")).status == "success"
        never = await two_id(line, two)
        with pytest.raises(ConfigurationError, match="was never started"):
            await line.retry(never)


async def two_id(agent, runtime):
    """Return a session id of another node."""
    session = await agent.create_session("user", session_id=runtime.journal.new_session_id())
    assert isinstance(session, RemoteSession)
    return session.id


async def test_resume_returns_the_answer_after_a_move(two_nodes):
    """`resume`, and `run` with options, wait for a session that moves while its model answers."""
    async with two_nodes(make_planner, wants=(DEPLOYS,)) as (cluster, (one, _), (planner, _), (model, other)):
        waits = await planner.process("deploy", session=await planner.create_session("ada"))
        results = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(come, results, planner.resume, {waits.error.ids[0]: Approve()})
            await model.is_asked.wait()
            model.holds = "first"
            model.wants = other.wants = (ADDS,)
            nursery.start_soon(lambda: come(results, planner.run, "1 + 2?", temperature=0.5, sender="bo"))
            while model.asked < 3:  # noqa: ASYNC110 - only a counter of the model changes
                await trio.sleep(0.01)
            await drain(cluster, one)
        assert [each.data for each in results] == [Sum(3)] * 2
