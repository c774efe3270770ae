"""A task that a tool or handler starts in a nursery of the program belongs to the turn, so its messages have the turn's sources."""

import functools
from contextlib import asynccontextmanager

import pytest
import trio

from actgent import BareAgent, Label, ScriptedLLM, StepsAgent, ToolCall, UsageError, open_runtime, tool

from .isolating_program import Program
from .outer_tool import OuterTool
from .test_boundaries import PAY, TEXT, page, reader, sink  # noqa: F401 - sink is a fixture
from .test_other_sessions import mail

FETCH = ToolCall("fetch", {})


async def _run(payer):
    await payer.run(TEXT)


async def _chat(payer):
    session = await payer.create_session("ada")
    await session.chat(TEXT)
    await session.wait_idle()


async def _schedule(payer):
    session = await payer.create_session("ada")
    await session.schedule(TEXT, after=0.01)
    await trio.sleep(0.05)
    await session.wait_idle()


async def _change_state(payer):
    session = await payer.create_session("ada")
    session.state.dispatch([("note", TEXT)])
    await payer.run("pay", session=session)


async def _set_prompt(payer):
    await payer.run("pay", session=await payer.create_session("ada", prompt=TEXT))


async def _run_by_thread(payer):
    await trio.to_thread.run_sync(trio.from_thread.run, payer.run, TEXT)


WAYS = {
    "run": _run,
    "chat": _chat,
    "schedule": _schedule,
    "state": _change_state,
    "prompt": _set_prompt,
    "thread": _run_by_thread,
}


class Tasks:
    """Tasks in a nursery of the program, which continue if the event `turn_ended` is set."""

    def __init__(self, nursery, *, is_late):
        self._nursery, self.turn_ended = nursery, trio.Event()
        self.done = trio.Event()
        if not is_late:
            self.turn_ended.set()

    async def start(self, fn, *args):
        """Start a task. If the turn is running, wait until the task has ended."""

        async def work():
            await self.turn_ended.wait()
            await fn(*args)
            self.done.set()

        self._nursery.start_soon(work)
        if self.turn_ended.is_set():
            await self.done.wait()

    async def join(self):
        self.turn_ended.set()
        await self.done.wait()


@asynccontextmanager
async def opened_tasks(*, is_late):
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            yield Tasks(nursery, is_late=is_late)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_late", [False, True], ids=["in turn", "after turn"])
@pytest.mark.parametrize("isolates", [False, True], ids=["show", "isolate"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_task_of_an_untrusted_tool(sink, way, isolates, is_late):  # noqa: F811
    """Messages, schedules, prompts and state changes of the task have the tool as a source."""
    payer = sink.agent([PAY, "ok"], name="payer")

    @tool(untrusted=True, sinks=())
    async def fetch() -> str:
        """Read a page, and start a task that passes its text on."""
        await tasks.start(WAYS[way], payer)
        return "ok"

    if isolates:
        agent = Program([FETCH, "ok"], fetch).agent
    else:
        agent = BareAgent("caller", llm=ScriptedLLM([FETCH, "ok"]), tools=[fetch])
    async with opened_tasks(is_late=is_late) as tasks, open_runtime() as runtime:
        await runtime.start(payer)
        await runtime.start(agent)
        await agent.run("go", session=await agent.create_session("ada"))
        await tasks.join()
    sink.assert_asked("fetch")


@pytest.mark.parametrize("isolates", [False, True], ids=["show", "isolate"])
async def test_a_task_that_reads_other_sessions_after_its_turn(sink, isolates):  # noqa: F811
    """The task passes the sources of the answers on. The session of its turn does not get them."""
    payer, helper = sink.agent([PAY, "ok"], name="payer"), reader()
    mailer = BareAgent("mailer", llm=ScriptedLLM([ToolCall("mail", {}), "ok"]), tools=[mail])
    others = []

    async def relay():
        await payer.run(str([len((await each.messages()).messages) for each in others]))

    @tool(effect="idempotent", sinks=())
    async def fetch() -> str:
        """Start a task."""
        await tasks.start(relay)
        return "ok"

    if isolates:
        agent = Program([FETCH, "ok"], fetch).agent
    else:
        agent = BareAgent("caller", llm=ScriptedLLM([FETCH, "ok"]), tools=[fetch])
    async with opened_tasks(is_late=True) as tasks, open_runtime() as runtime:
        for each in (payer, helper, mailer, agent):
            await runtime.start(each)
        for each in (mailer, helper):
            others.append(await each.create_session("ada"))
            await each.run("read", session=others[-1])
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
        await tasks.join()
        assert session.label == Label()
    sink.assert_asked("page", "mail")


async def test_a_task_that_has_the_result_of_a_nested_call(sink):  # noqa: F811
    """After the turn of an isolating agent, messages of the task have the sources of the nested calls of its tool."""
    payer = sink.agent([PAY, "ok"], name="payer")

    class Outer(OuterTool):
        async def execute(self, arguments, context):
            await context.tools.call("page", {})
            await tasks.start(_run, payer)
            return "ok"

    agent = Program([ToolCall("outer", {}), "ok"], Outer()).agent
    async with opened_tasks(is_late=True) as tasks, payer, agent:
        await agent.run("go", session=await agent.create_session("ada"))
        await tasks.join()
    sink.assert_asked("page")


async def test_a_result_that_a_task_has_read(sink):  # noqa: F811
    """A tool that waits for the answer that its task reads makes its own session untrusted."""
    helper = reader()

    async def read():
        await helper.run("read")

    @tool(effect="pure")
    async def fetch() -> str:
        """Start a task, and wait for it."""
        await tasks.start(read)
        return "ok"

    async with opened_tasks(is_late=False) as tasks, open_runtime() as runtime:
        await runtime.start(helper)
        agent = await runtime.start(sink.agent([FETCH, PAY, "ok"], tools=[fetch]))
        await agent.run("go", session=await agent.create_session("ada"))
    sink.assert_asked("page")


async def test_a_late_change_of_the_own_session(sink):  # noqa: F811
    """A task that changes the state of its own session after the turn adds the sources that it has read since then."""
    helper, found = reader(), []

    async def store():
        await helper.run("read")
        found[0].state.dispatch([("note", TEXT)])

    @tool(effect="idempotent", sinks=())
    async def fetch() -> str:
        """Start a task."""
        await tasks.start(store)
        return "ok"

    async with opened_tasks(is_late=True) as tasks, open_runtime() as runtime:
        await runtime.start(helper)
        agent = await runtime.start(sink.agent([FETCH, "ok", PAY, "ok"], tools=[fetch]))
        found.append(await agent.create_session("ada"))
        await agent.run("go", session=found[0])
        await tasks.join()
        await agent.run("pay", session=found[0])
    sink.assert_asked("page")


async def test_a_late_system_prompt_of_the_own_session():
    """A task that sets the prompt of its own session after the turn adds the sources that it has read since then."""
    helper, steps = reader(), StepsAgent("steps", llm=ScriptedLLM(["ok"]))

    async def write():
        await helper.run("read")
        talk.set_system_prompt(TEXT)

    async with opened_tasks(is_late=True) as tasks, helper, steps:
        talk = await steps.open_conversation("ada")
        talk.session.on_conversation(lambda _: tasks.start(write))
        await talk.run("go")
        assert talk.session.label == Label()
        await tasks.join()
        assert talk.session.label == Label({"page"})


async def test_a_task_of_a_handler(sink):  # noqa: F811
    """Messages of a task that a handler has started have the sources of the turn."""
    payer = sink.agent([PAY, "ok"], name="payer")
    async with opened_tasks(is_late=True) as tasks, open_runtime() as runtime:
        await runtime.start(payer)
        agent = await runtime.start(reader())
        session = await agent.create_session("ada")
        session.on_conversation(lambda _: tasks.start(_run, payer))
        await agent.run("go", session=session)
        await tasks.join()
    sink.assert_asked("page")


async def test_a_task_of_a_handler_of_a_withheld_answer(sink):  # noqa: F811
    """The handler has read the withheld values in the answer, so its task keeps their sources."""
    payer = sink.agent([PAY, "ok"], name="payer")
    agent = Program([ToolCall("page", {}), "It says @r1"]).agent
    async with opened_tasks(is_late=True) as tasks, payer, agent:
        session = await agent.create_session("ada")
        session.on_conversation(lambda _: tasks.start(_run, payer))
        await agent.run("go", session=session)
        await tasks.join()
    sink.assert_asked("page")


async def test_a_task_of_a_trusted_session(sink):  # noqa: F811
    """A worker that a tool of a trusted session has started sends trusted messages."""
    payer = sink.agent([PAY, "ok"], name="payer")

    @tool(sinks=())
    async def fetch() -> str:
        """Start a task."""
        await tasks.start(_run, payer)
        return "ok"

    agent = BareAgent("caller", llm=ScriptedLLM([FETCH, "ok"]), tools=[fetch])
    async with opened_tasks(is_late=True) as tasks, payer, agent:
        await agent.run("go", session=await agent.create_session("ada"))
        await tasks.join()
    assert (sink.paid, sink.asked) == (["mallory"], [])


async def test_a_task_cannot_lift():
    """A task of a tool cannot trust a source, also after its turn."""
    errors = []

    async def lift(session):
        try:
            await session.lift("page", by="mallory")
        except UsageError as error:
            errors.append(str(error))

    @tool(sinks=())
    async def fetch() -> str:
        """Start a task."""
        await tasks.start(functools.partial(lift, session))
        return "ok"

    script = [ToolCall("page", {}), FETCH, "ok"]
    agent = BareAgent("caller", llm=ScriptedLLM(script), tools=[page, fetch])
    async with opened_tasks(is_late=True) as tasks, agent:
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
        await tasks.join()
        assert session.label == Label({"page"})
    assert "tool or handler" in errors[0]
