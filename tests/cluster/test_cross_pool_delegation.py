"""Delegation to agents of other pools: calls, budgets of the parent, cancellation, and cycles."""

import json
import math
from contextlib import asynccontextmanager

import pytest
import trio

from actgent import (
    Approve,
    BareAgent,
    ConfigurationError,
    DeadlockDetected,
    LimitReached,
    Limits,
    NotRunning,
    Pipeline,
    PipelineStep,
    PoolAgent,
    RemoteError,
    ScriptedLLM,
    ToolCall,
    ToolResult,
    open_runtime,
    tool,
)
from actgent.client.transport_interface import ConnectionLost
from actgent.cluster.pool_operations import release
from actgent.errors import Fenced
from actgent.journal.record_types import UsageRecord
from actgent.limits_and_schedules.budget import spent_in
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Message, Sender, Text, Usage
from actgent.runtime.delegation.tasks_between_cluster_pools import PoolTask
from tests.clusters import Cluster, open_balancer, open_cluster


@asynccontextmanager
async def open_pools():
    """Yield the clusters of two pools with one journal."""
    async with open_cluster() as editors, open_balancer() as balancer:
        yield editors, Cluster(f"{editors.pool}-w", editors.journal, balancer)


@asynccontextmanager
async def node(cluster, *agents):
    """Yield a node of the requesting pool after it serves all partitions.

    Requests for sessions of another node would wait for that.
    """
    async with cluster.node(*agents) as runtime:
        with trio.fail_after(120):
            while not await owns_all(runtime):  # noqa: ASYNC110 - no event signals this state
                await trio.sleep(0.02)
            yield runtime


async def until(is_so):
    while not is_so():  # noqa: ASYNC110 - a callback changes this state
        await trio.sleep(0.02)


async def closed(runtime):
    """Wait until no writer session is open."""
    is_open = True
    while is_open:
        await trio.sleep(0.02)
        is_open = any(each.state != "closed" for each in await runtime.sessions(agent="writer"))


async def owns_all(runtime):
    try:
        for number in range(200):
            runtime.journal.epoch_of(f"any-{number}")
    except Fenced:
        return False
    return True


def said(chat):
    """Return the result of the last tool call, or the text of the last message."""
    last = chat.messages[-1]
    results = [part for part in last.parts if isinstance(part, ToolResult)]
    return results[0] if results else "".join(part.text for part in last.parts if isinstance(part, Text))


def delegating(name, tools, **options):
    """Return an agent that passes each message to its only tool, and answers with the result."""

    def answer(chat):
        last = said(chat)
        if isinstance(last, ToolResult):
            return f"{name} got {last.error or last.content}"
        if last.startswith("Task "):
            return last
        return ToolCall(chat.tools[0].name, {"task": last})

    return BareAgent(name, llm=ScriptedLLM(answer), tools=tools, **options)


def writing(*, calls=None, wait=None):
    """Return an agent that answers each message with `written: ` and the message."""

    async def answer(chat):
        if calls is not None:
            calls.append(said(chat))
        if wait is not None:
            await wait.wait()
        return ModelResponse(
            parts=(Text(f"written: {said(chat)}"),), usage=Usage(input_tokens=7, output_tokens=5)
        )

    return BareAgent("writer", llm=ScriptedLLM(answer))


async def paid_usage(runtime, session, agent):
    """Return the usage that the budget of a session has paid, according to the journal."""
    records = (await runtime.read_session(session.id, agent=agent))[1]
    return spent_in([each for each in records if isinstance(each, UsageRecord) and not each.turn])


async def test_agent_of_another_pool_is_used_like_a_local_one():
    """The agent handles a run, a tool call, a delegated task and a pipeline step, each once.

    Its capabilities can be found.
    """
    calls = []
    async with open_pools() as (editors, writers), writers.node(writing(calls=calls)):
        writer = PoolAgent("writer", pool=writers.pool, capabilities="writes poems")
        editor = delegating("editor", [writer.as_tool()])
        pipeline = Pipeline("issue", steps=[PipelineStep("text", agent=writer, message="{topic}")])
        async with node(editors, editor, pipeline) as runtime:
            assert (await writer.run("a letter")).text == "written: a letter"
            assert (await editor.run("a poem")).text == "editor got written: a poem"
            session, received = await editor.create_session("ada"), []
            session.on_conversation(lambda reply: received.append(reply.text))
            await session.delegate(writer.name, "a novel")
            await until(lambda: received)
            assert "written: a novel" in received[0]
            assert (await pipeline.process({"topic": "rain"})).text == "written: rain"
            assert [card.name for card in runtime.agents.find("poems")] == [writer.name]
            assert writer.as_tool().name == "writer"
    assert calls == ["a letter", "a poem", "a novel", "rain"]


async def test_output_type_applies_in_the_other_pool():
    """The request includes the output type, and the answer has that type."""

    def answer(chat):
        return json.dumps({"title": "Rain"})

    form = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
    there = BareAgent("writer", llm=ScriptedLLM(answer))
    async with open_pools() as (editors, writers), writers.node(there):
        writer = PoolAgent("writer", pool=writers.pool)
        pipeline = Pipeline("issue", steps=[PipelineStep("text", agent=writer, message="go", output=form)])
        async with node(editors, pipeline):
            assert (await pipeline.process()).data == {"title": "Rain"}


async def test_budgets_are_exact_over_pools():
    """The unused grant returns after each outcome. The other pool does not exceed the grant."""
    async with open_pools() as (editors, writers), writers.node(writing()):
        writer = PoolAgent("writer", pool=writers.pool)
        editor = delegating("editor", [writer.as_tool()])
        async with node(editors, editor) as runtime:
            session = await editor.create_session("ada", limits=Limits(model_calls=9, tokens=100_000))
            for _ in range(2):
                await editor.run("a poem", session=session)
            taken = await paid_usage(runtime, session, "editor")
            assert (taken.model_calls, taken.tool_calls) == (6, 2)
            assert taken.tokens >= 24
            await editor.run("a poem", session=session)
            with pytest.raises(LimitReached):
                await editor.run("a poem", session=session)
            assert (await paid_usage(runtime, session, "editor")).model_calls == 9


async def test_other_pool_does_not_exceed_the_grant():
    """The task reaches its limit in the other pool and fails. The parent gets the limit in the error."""

    def answer(chat):
        last = said(chat)
        count = 0 if not isinstance(last, ToolResult) else int(last.content)
        return ToolCall("count", {"number": count + 1})

    @tool
    def count(number: int) -> int:
        """Count."""
        return number

    greedy = BareAgent("writer", llm=ScriptedLLM(answer), tools=[count])
    async with open_pools() as (editors, writers), writers.node(greedy):
        writer = PoolAgent("writer", pool=writers.pool, limits=Limits(model_calls=3))
        editor = delegating("editor", [writer.as_tool()])
        async with node(editors, editor) as runtime:
            session = await editor.create_session("ada", limits=Limits(model_calls=20))
            text = (await editor.run("count", session=session)).text
            assert "failed (limit)" in text
            assert "3 model calls" in text
            assert (await paid_usage(runtime, session, "editor")).model_calls == 5


async def test_task_without_budget_is_not_sent():
    """The task is rejected before the other pool receives it."""
    calls = []
    async with open_pools() as (editors, writers), writers.node(writing(calls=calls)):
        writer = PoolAgent("writer", pool=writers.pool)
        editor = delegating("editor", [writer.as_tool()])
        async with node(editors, editor):
            session = await editor.create_session("ada", limits=Limits(model_calls=1))
            with pytest.raises(LimitReached):
                await editor.run("a poem", session=session)
    assert calls == []


async def test_parent_stops_its_task_in_the_other_pool():
    """An interrupt, a closed session and a cancelled task end the session in the other pool.

    The unused budget returns.
    """
    calls, never = [], trio.Event()
    async with open_pools() as (editors, writers), writers.node(writing(calls=calls, wait=never)) as there:
        writer = PoolAgent("writer", pool=writers.pool)
        editor = delegating("editor", [writer.as_tool()])
        async with node(editors, editor) as runtime:
            session = await editor.create_session("ada", limits=Limits(model_calls=100))
            for number, stop in enumerate((session.interrupt, session.aclose), 1):
                await session.chat("a poem")
                await until(lambda count=number: len(calls) == count)
                await stop()
                await closed(there)
            taken = await paid_usage(runtime, session, "editor")
            assert taken.model_calls == 4  # two model calls of the editor, and two that were interrupted
            session = await editor.create_session("ada")
            task = await session.delegate(writer.name, "a novel")
            await until(lambda: len(calls) == 3)
            assert await session.cancel_task(task)
            await closed(there)


async def test_task_cancelled_before_its_arrival_never_begins():
    """A cancellation before the request closes the session before it opens.

    A cancellation after the request gets the answer. Both requests can be repeated.
    """
    calls = []
    async with (
        open_pools() as (editors, writers),
        writers.node(writing(calls=calls)),
        node(editors, PoolAgent("writer", pool=writers.pool)) as runtime,
    ):
        mine = Message(session_id="x", sender=Sender("ada"), parts="a poem")
        value = {"agent": "writer", "asker": "p/a/s", "owner": "a@p", "message": mine}
        late, early = [PoolTask(session_id=each, **value) for each in ("late", "early")]
        links = runtime.delegation.pools
        for _ in range(2):
            assert (await links.cancel(writers.pool, late)).answered.failed == "stopped"
            assert (await links.ask(writers.pool, late, retry_timeout=5)).answered.failed == "stopped"
        for _ in range(2):
            assert (await links.ask(writers.pool, early, retry_timeout=5)).answered.text == "written: a poem"
            assert (await links.cancel(writers.pool, early)).answered.text == "written: a poem"
    assert calls == ["a poem"]


class Faulty:
    """A connection to another pool that loses its first responses, or all of them."""

    def __init__(self, way, losses=math.inf):
        self.way, self.losses, self.tries = way, losses, 0
        self.directory = way.directory

    async def exchange(self, request, **options):
        if request.http_request.verb == "CANCEL":
            self.tries += 1
            if self.tries <= self.losses:
                await trio.lowlevel.checkpoint()
                raise ConnectionLost("the answer is lost", was_sent=False)
        return await self.way.exchange(request, **options)


def make_faulty(runtime, pool, **losses):
    links = runtime.delegation.pools
    links._known[pool] = Faulty(links._known[pool], **losses)


async def test_lost_stop_of_a_task_is_resent():
    """The cancellation is repeated until the other pool confirms it.

    The stopped turn does not wait for the confirmation.
    """
    calls, never = [], trio.Event()
    async with open_pools() as (editors, writers), writers.node(writing(calls=calls, wait=never)) as there:
        writer = PoolAgent("writer", pool=writers.pool)
        editor, received = delegating("editor", [writer.as_tool()]), []
        writer.on_session(received.append)
        async with node(editors, editor) as runtime:
            session = await editor.create_session("ada")
            await session.chat("a poem")
            await until(lambda: calls)
            make_faulty(runtime, writers.pool, losses=3)
            await session.interrupt()
            await closed(there)
            assert len(received) == 1  # one session for the task: the cancellation opens no session


async def test_unsent_stop_of_a_task_is_sent_by_the_next_node():
    """The stop is in the journal. The first node ends before the other pool receives it, and the next node sends it."""
    calls, never = [], trio.Event()

    def asking(told):
        writer = PoolAgent("writer", pool=writers.pool, grace=0.1)
        writer.on_session(lambda session: told.append(session.id))
        return delegating("editor", [writer.as_tool()])

    async with open_pools() as (editors, writers), writers.node(writing(calls=calls, wait=never)) as there:
        ids = []
        editor = asking(ids)
        async with node(editors, editor) as runtime:
            session = await editor.create_session("ada", session_id="s")
            await session.chat("a poem")
            await until(lambda: calls)
            make_faulty(runtime, writers.pool)
            await session.interrupt()
            await session.wait_idle()
        (task,) = await there.sessions(agent="writer")
        assert task.state != "closed"
        async with node(editors, asking(ids)) as runtime:
            await closed(there)
            asked = f"writer@{writers.pool}"
            while len(await runtime.sessions(agent=asked)) > 1:  # noqa: ASYNC110 - a callback changes this state
                await trio.sleep(0.02)
    assert calls == ["a poem"]
    assert len(set(ids)) == 1


async def test_deadline_applies_in_the_other_pool():
    """A task whose deadline has passed ends in the other pool, and its parent gets the error."""
    never = trio.Event()
    async with open_pools() as (editors, writers), writers.node(writing(wait=never)) as there:
        writer = PoolAgent("writer", pool=writers.pool, deadline=1.0)
        async with node(editors, writer):
            with pytest.raises(RemoteError, match="within 1"):
                await writer.run("a poem")
            assert [each.state for each in await there.sessions(agent="writer")] == ["closed"]


async def test_unknown_pool_or_agent_is_a_clear_error():
    """Cases: an agent that the pool does not host, a pool without nodes, and a process without a cluster."""
    async with open_pools() as (editors, writers), writers.node(writing()):
        painter = PoolAgent("painter", pool=writers.pool)
        lost = PoolAgent("writer", pool="nobody-hosts-this", retry_timeout=0.5)
        async with node(editors, painter, lost):
            with pytest.raises(
                RemoteError, match=r"no agent 'painter' runs in pool .*: its agents are 'writer'"
            ):
                await painter.run("a picture")
            with pytest.raises(
                NotRunning, match="no node of pool 'nobody-hosts-this' has ever run in this database"
            ):
                await lost.run("a poem")
    async with open_runtime() as runtime:
        with pytest.raises(ConfigurationError, match="cluster="):
            await runtime.start(PoolAgent("writer", pool="writers"))


async def test_nesting_limit_applies_across_pools():
    """The limit for nested agents counts across pools as in one process."""
    async with open_pools() as (editors, writers):
        to_editor = PoolAgent("editor", pool=editors.pool)
        to_writer = PoolAgent("writer", pool=writers.pool)
        writer = delegating("writer", [to_editor.as_tool()])
        editor = delegating("editor", [to_writer.as_tool()], limits=Limits(depth=3))
        async with writers.node(writer), node(editors, editor):
            text = (await editor.run("a poem")).text
            assert (text.count("editor got"), text.count("writer got")) == (2, 2)
            assert "levels of agents" in text


async def test_wait_cycle_across_pools_raises_an_error():
    """Each task carries the chain of waiting sessions."""
    async with open_pools() as (editors, writers):
        to_editor = PoolAgent("editor", pool=editors.pool)
        to_writer = PoolAgent("writer", pool=writers.pool)
        found = []

        @tool
        async def ask_first(task: str) -> str:
            """Ask the session that began it all."""
            session = await editor.open_session("first")
            try:
                return (await editor.run(task, session=session)).text
            except DeadlockDetected as error:
                found.append(error.path)
                raise

        writer = delegating("writer", [to_editor.as_tool()])

        def answer(chat):
            last = said(chat)
            if isinstance(last, ToolResult):
                return f"got {last.error or last.content}"
            return ToolCall("writer" if last == "begin" else "ask_first", {"task": "go"})

        editor = BareAgent("editor", llm=ScriptedLLM(answer), tools=[to_writer.as_tool(), ask_first])
        async with writers.node(writer), node(editors, editor):
            session = await editor.create_session("ada", session_id="first")
            await editor.run("begin", session=session)
            assert any("/first" in each for each in found[0])
            assert len(found) == 1


async def test_task_cannot_use_a_session_of_another_owner():
    """The task is rejected, and the session is unchanged."""
    async with open_pools() as (editors, writers), writers.node(writing()) as there:
        writer = PoolAgent("writer", pool=writers.pool)
        async with node(editors, writer) as runtime:
            async with writers.connect() as client:
                await client.agent("writer").create_session("eve", session_id="hers")
            mine = Message(session_id="x", sender=Sender("ada"), parts="read it")
            task = PoolTask(session_id="hers", agent="writer", asker="p/a/s", owner="a@p", message=mine)
            for verb in (
                runtime.delegation.pools.cancel(writers.pool, task),
                runtime.delegation.pools.ask(writers.pool, task, retry_timeout=5),
            ):
                assert "another session" in (await verb).refused
            session = await there.agents.agent("writer").open_session("hers", owner="eve")
            assert session.status == "idle"


async def test_agent_name_is_hosted_by_one_pool_of_a_schema():
    """A second pool that hosts the name is rejected and starts no agent.

    Pools with separate schemas may share a name.
    """
    async with open_pools() as (editors, writers), editors.node(writing()) as here:
        await here.start(PoolAgent("reader", pool="readers"))
        for agent, name in ((writing(), "writer"), (PoolAgent("reader", pool="readers"), "reader@readers")):
            with pytest.raises(ConfigurationError, match="give each pool a schema") as refused:
                async with writers.node(BareAgent("other", llm=ScriptedLLM(["x"])), agent):
                    pytest.fail("two pools host it")
            assert f"agent '{name}' of this database is hosted by pool '{editors.pool}'" in str(refused.value)
        async with editors.node(writing()), open_cluster() as apart, apart.node(writing()) as there:
            assert "writer" in there.agents


async def test_agent_can_move_to_another_pool_with_its_sessions():
    """The other pool can host the agent after no node of the old pool hosts it and an operator has released it."""
    async with open_pools() as (editors, writers):
        async with editors.node(writing()), editors.connect() as client:
            session = await client.agent("writer").create_session("ada", session_id="s1")
            await session.chat("a poem")
            await session.wait_idle()
            with pytest.raises(ConfigurationError, match="is hosted by"):
                await release(editors.journal, editors.pool, "writer")
        with pytest.raises(ConfigurationError, match="hosts no agent 'wroter'"):
            await release(editors.journal, editors.pool, "wroter")
        await release(editors.journal, editors.pool, "writer")
        async with writers.node(writing()), writers.connect() as client:
            session = await client.agent("writer").open_session("s1")
            assert (await client.agent("writer").run("more", session=session)).text == "written: more"
            assert (await session.messages()).total == 4
        with pytest.raises(ConfigurationError, match="is hosted by pool"):
            async with editors.node(writing()):
                pytest.fail("two pools host it")


async def test_usage_of_a_pool_task_counts_for_its_parent():
    """The usage counts in the answer, the parent session and its ancestors, also after a restart and after a failure."""

    @tool
    def look(place: str) -> str:
        """Look at a place."""
        return place

    def looking(chat):
        call = ToolCall("look", {"place": "here"})
        return ModelResponse(parts=(call,), stop="tool_use", usage=Usage(input_tokens=7, output_tokens=5))

    greedy = BareAgent("greedy", llm=ScriptedLLM(looking), tools=[look])
    async with open_pools() as (editors, writers), writers.node(writing(), greedy):
        writer = PoolAgent("writer", pool=writers.pool)
        other = PoolAgent("greedy", pool=writers.pool, limits=Limits(model_calls=1))
        editor, chief = delegating("editor", [writer.as_tool()]), delegating("chief", [other.as_tool()])
        async with node(editors, editor, chief):
            failing = await chief.create_session("ada")
            assert "failed (limit)" in (await chief.run("a poem", session=failing)).text
            assert failing.usage.children == Usage(input_tokens=7, output_tokens=5)
            reply = await writer.run("a letter")
            assert (reply.usage.total.input_tokens, reply.usage.total.output_tokens) == (7, 5)
            session = await editor.create_session("ada", session_id="s1")
            await editor.run("a poem", session=session)
            assert session.usage.children == Usage(input_tokens=7, output_tokens=5)
            own = session.usage.total.input_tokens - 7
        writer = PoolAgent("writer", pool=writers.pool)
        editor = delegating("editor", [writer.as_tool()])
        async with node(editors, editor):
            session = await editor.open_session("s1")
            assert session.usage.children == Usage(input_tokens=7, output_tokens=5)
            assert session.usage.total.input_tokens == own + 7


async def test_approvals_of_a_pool_task_are_decided_in_its_pool():
    """Clients and nodes of that pool list and decide them; the parent's pool does not. The parent session waits."""

    @tool(approval=True)
    def publish(text: str) -> str:
        """Publish a text."""
        return f"published {text}"

    def publishing(chat):
        last = said(chat)
        return last.content if isinstance(last, ToolResult) else ToolCall("publish", {"text": last})

    there = BareAgent("writer", llm=ScriptedLLM(publishing), tools=[publish])
    async with open_pools() as (editors, writers), writers.node(there) as other, writers.connect() as client:
        writer = PoolAgent("writer", pool=writers.pool)
        editor = delegating("editor", [writer.as_tool()])
        async with node(editors, editor) as runtime, trio.open_nursery() as nursery:
            session, answers = await editor.create_session("ada"), []
            session.on_conversation(lambda reply: answers.append(reply.text))
            nursery.start_soon(session.chat, "a poem")
            while not (found := await client.approvals()):  # noqa: ASYNC110 - the state is in the database
                await trio.sleep(0.05)
            assert [each.id for each in await other.approvals()] == [found[0].id]
            assert (session.approvals, await runtime.approvals()) == ((), ())
            assert (await client.agent("writer").resume({found[0].id: Approve()})).text == "published a poem"
            await until(lambda: answers)
            assert answers == ["editor got published a poem"]
            await closed(other)
            (task,) = await other.sessions(agent="writer")
            assert (task.state, task.owner) == ("closed", f"editor@{editors.pool}")
            assert (await runtime.sessions(agent=writer.name))[0].state == "closed"
