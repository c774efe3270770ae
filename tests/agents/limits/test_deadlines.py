"""The deadline of a model call from any source, and calls of a Fallback before it."""

import math

import pytest
import trio

from actgent import (
    LLM,
    BareAgent,
    FallbackModel,
    Limits,
    OpenAI,
    Pipeline,
    PipelineStep,
    RateLimited,
    ScriptedLLM,
    ToolCall,
    open_runtime,
    tool,
)
from actgent.approvals import Approve
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Message, Sender, Text
from actgent.runtime.delegation.tasks_between_cluster_pools import PoolTask, PoolTasks
from actgent.testing import ErrorStatus, open_provider


@tool(timeout=90)
async def nap() -> str:
    """Sleep for ten seconds."""
    await trio.sleep(10)
    return "slept"


class Watchful(LLM):
    """Keeps how many seconds each of its calls has."""

    name = "watchful"

    def __init__(self, *calls):
        self.seconds = []
        self.calls = list(calls)

    async def complete(self, chat, *, on_text=None):
        await trio.lowlevel.checkpoint()
        self.seconds.append(round(chat.deadline - trio.current_time(), 1))
        if self.calls:
            return ModelResponse(parts=(ToolCall(self.calls.pop(0), {}),), stop="tool_calls")
        return ModelResponse(parts=(Text("ok"),))


async def test_retry_after_beyond_the_deadline_starts_the_fallback(no_keys, autojump_clock):
    """Retry-After is 100 s and the deadline four seconds. The call fails at once, and the second model answers."""
    async with open_provider(lambda _: ErrorStatus(429, retry_after=100)) as provider:
        llm = OpenAI("gpt", base_url=provider.base_url, api_key="sk-aaaaaaaaaaa")
        chain = FallbackModel(llm, ScriptedLLM(["from the second model"], repeat=True))
        limits = Limits(model_timeout=4)
        async with (
            BareAgent("a", llm=llm, limits=limits) as alone,
            BareAgent("b", llm=chain, limits=limits) as both,
        ):
            started = trio.current_time()
            for _ in range(2):
                with pytest.raises(RateLimited):
                    await alone.run("hello")
                assert (await both.run("hello")).text == "from the second model"
            assert trio.current_time() - started < 1
        await llm.aclose()


async def test_a_hanging_model_times_out(autojump_clock):
    """The next model of the chain answers before the turn's time is over."""
    chain = FallbackModel(ScriptedLLM(["late"], delay=100), ScriptedLLM(["in time"]))
    async with BareAgent("a", llm=chain, limits=Limits(model_timeout=4)) as agent:
        assert (await agent.run("hello")).text == "in time"


async def test_earliest_deadline_applies(autojump_clock):
    """The deadlines are the model's timeout, the turn's seconds, and limits of waiting callers (scope, ask, tool)."""
    model = Watchful()
    inner = BareAgent("inner", llm=model, limits=Limits(model_timeout=100))
    outer = BareAgent(
        "outer",
        llm=ScriptedLLM(
            lambda chat: "ok" if chat.messages[-1].role == "tool" else ToolCall("middle", {"task": "x"})
        ),
        tools=[],
        limits=Limits(tool_timeout=50),
    )

    @tool(timeout=40)
    async def ask() -> str:
        """Ask."""
        return (await inner.run("hello")).text

    middle = BareAgent(
        "middle",
        llm=ScriptedLLM(lambda chat: "ok" if chat.messages[-1].role == "tool" else ToolCall("ask", {})),
        tools=[ask],
    )
    outer.tools.add(middle.as_tool())
    async with open_runtime() as runtime:
        await runtime.start(inner)
        await runtime.start(middle)
        await runtime.start(outer)
        session = await inner.create_session("ada", "hello")
        await session.wait_idle()
        await inner.run("hello")
        await inner.run("hello", limits=Limits(model_timeout=100, seconds=70))
        with trio.move_on_after(60):
            await inner.run("hello")
        await inner.ref.ask("hello", deadline=30)
        await middle.run("go")
        await outer.run("go")
        with trio.move_on_after(20):
            await outer.run("go")
    assert model.seconds == [100, 100, 70, 60, 30, 40, 40, 20]


@pytest.mark.parametrize("journal", [None, "memory:"])
async def test_first_model_call_of_a_task_has_the_deadline_of_its_parent(journal, autojump_clock):
    """The deadline is the earliest of the tool timeout, the parent turn's limit and the deadline of the delegated task."""
    model = Watchful()
    inner = BareAgent("inner", llm=model, limits=Limits(model_timeout=100))

    def outer(name, **limits):
        answer = lambda chat: "ok" if chat.messages[-1].role == "tool" else ToolCall("inner", {"task": "x"})  # noqa: E731
        return BareAgent(name, llm=ScriptedLLM(answer), tools=[inner.as_tool()], limits=Limits(**limits))

    async with open_runtime(journal=journal) as runtime:
        await runtime.start(inner)
        await (await runtime.start(outer("timed", tool_timeout=40))).run("go")
        await (await runtime.start(outer("short", seconds=30))).run("go")
        session = await (await runtime.start(BareAgent("lead", llm=ScriptedLLM(["ok"])))).create_session(
            "ada"
        )
        await session.delegate("inner", "work", task_id="t", deadline=20)
        await session.wait_idle()
    assert model.seconds == [40, 30, 20]


async def test_the_timeout_of_a_stream_counts(autojump_clock):
    """The deadline of a stream reader applies. A reader without one leaves the model's own timeout."""
    model = Watchful()
    async with BareAgent("a", llm=model, limits=Limits(model_timeout=100)) as agent:
        for timeout in (30, 200, None):
            async with agent.stream("hello", timeout=timeout) as deliveries:
                async for _ in deliveries:
                    pass
    assert model.seconds == [30, 100, 100]


async def test_a_deadline_is_paused_while_an_approval_is_pending(autojump_clock):
    """After the decision, the next model call has the remainder of the time before the approval."""

    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    model = Watchful("pay")
    clerk = BareAgent("clerk", llm=model, tools=[pay])

    @tool(timeout=20)
    async def ask() -> str:
        """Ask."""
        await trio.sleep(5)
        return (await clerk.run("pay")).text

    asker = BareAgent("asker", llm=ScriptedLLM([ToolCall("ask", {}), "done"]), tools=[ask])
    async with open_runtime() as runtime:
        await runtime.start(clerk)
        await runtime.start(asker)
        session = await asker.create_session("ada", "go")
        await trio.sleep(1000)
        (approval,) = await clerk.approvals()
        await clerk.answer(approval, Approve())
        await session.wait_idle()
    assert model.seconds == [15, 15]


async def test_latest_deadline_of_several_callers_applies(autojump_clock):
    """The call continues for an operator whose deadline is later than that of the first caller."""

    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    model = Watchful("pay")
    clerk = BareAgent("clerk", llm=model, tools=[pay])

    @tool(timeout=20)
    async def ask() -> str:
        """Ask."""
        return (await clerk.run("pay")).text

    asker = BareAgent("asker", llm=ScriptedLLM([ToolCall("ask", {}), "done"]), tools=[ask])
    async with open_runtime() as runtime:
        await runtime.start(clerk)
        await runtime.start(asker)
        session = await asker.create_session("ada", "go")
        await trio.sleep(5)
        (approval,) = await clerk.approvals()
        with trio.move_on_after(90):
            await clerk.resume({approval.id: Approve()})
        await session.wait_idle()
    assert model.seconds == [20, 90]


async def test_task_keeps_its_remaining_time_after_a_restart(autojump_clock):
    async with MemoryJournal().running() as journal:
        for life in range(2):
            model = Watchful(*[] if life else ["nap"])
            inner = BareAgent("inner", llm=model, tools=[nap], limits=Limits(model_timeout=100))
            lead = BareAgent("lead", llm=ScriptedLLM(["ok"]))
            with trio.move_on_after(math.inf if life else 4):
                async with open_runtime(journal=journal) as runtime:
                    runtime.clock._opened_at = 1e9 + trio.current_time()  # one clock for all lives
                    await runtime.start(lead)
                    await runtime.start(inner)
                    session = await lead.ensure_session("ada", "s")
                    if not life:
                        await session.delegate("inner", "work", task_id="t", deadline=30)
                        await trio.sleep_forever()
                    await trio.sleep(20)
            assert model.seconds == ([20] if life else [30])
            await trio.sleep(6 * (not life))


async def test_task_of_another_pool_has_the_deadline_of_its_caller(autojump_clock):
    model = Watchful()
    inner = BareAgent("inner", llm=model, limits=Limits(model_timeout=100))
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(inner)
        message = Message(session_id="x", sender=Sender("ada"), parts="work")
        ends = runtime.clock.steady() + 20
        task = PoolTask(
            session_id="t",
            agent="inner",
            asker="p/a/s",
            owner="a@p",
            message=message,
            deadline=ends,
            seconds=20,
        )
        await PoolTasks(runtime.delegation.agents, "q").answer(task, wait=50)
    assert model.seconds == [20]


async def test_delegated_task_has_the_deadline_of_the_waiting_step(autojump_clock):
    """The session delegated the task earlier, under the step's task id."""
    model = Watchful("nap")
    inner = BareAgent("inner", llm=model, tools=[nap], limits=Limits(model_timeout=100))
    pipeline = Pipeline("p", steps=[PipelineStep("a", agent=inner, message="go")], limits=Limits(seconds=40))
    async with open_runtime() as runtime:
        await runtime.start(inner)
        await runtime.start(pipeline)
        session = await pipeline.create_session("ada", session_id="s")
        await session.delegate("inner", "go", task_id="s/task/a")
        await pipeline.process(session_id="s", owner="ada")
    assert model.seconds == [100, 30]


async def test_each_model_call_of_a_task_has_the_remaining_time_of_its_step(autojump_clock):
    """The remainder counts, although the deadline is known before a caller waits."""
    model = Watchful("nap")
    inner = BareAgent("inner", llm=model, tools=[nap], limits=Limits(model_timeout=100))
    pipeline = Pipeline("p", steps=[PipelineStep("a", agent=inner, message="go", timeout=20)])
    async with open_runtime() as runtime:
        await runtime.start(inner)
        await runtime.start(pipeline)
        await pipeline.process(owner="ada")
    assert model.seconds == [20, 10]
