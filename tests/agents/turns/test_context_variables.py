"""Each turn runs with the context variables of its sender."""

import contextvars
import gc
import weakref
from functools import partial

import pytest
import trio
import trio.testing

from actgent import (
    BareAgent,
    ConfigurationError,
    NotSerializable,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    WouldDeadlock,
    open_runtime,
    tool,
)
from actgent.approvals import Approve, Reject
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.messages import traceparent

TENANT = contextvars.ContextVar("TENANT", default="nobody")


@tool
async def read_file() -> str:
    """Read a file of the tenant."""
    await trio.sleep(0.01)
    return TENANT.get()


@tool
def read_in_thread() -> str:
    """Read a file of the tenant, in a thread."""
    return TENANT.get()


@tool(approval=True)
async def delete_all() -> str:
    """Delete all files of the tenant."""
    return TENANT.get()


TOOLS = [read_file, read_in_thread, delete_all]


def calls(name):
    """Return a model that calls one tool, and then answers with the result and the sender."""

    def answer(chat):
        if chat.messages[-1].role == "tool":
            return f"{chat.messages[-1].parts[0].content} by {TENANT.get()}"
        return ToolCall(name, {})

    return ScriptedLLM(answer)


def last_text(chat):
    return getattr(chat.messages[-1].parts[-1], "text", "")


def agent_that(calls_tool, **options):
    return BareAgent("a", llm=calls(calls_tool), tools=TOOLS, **options)


async def say_as(tenant, session, text="go", **options):
    """Send a message as a tenant, in a separate task."""

    async def say():
        TENANT.set(tenant)
        await session.chat(text, **options)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(say)


def hear(session):
    """Record the tenant that tools, model and handlers of a session see."""
    received = []
    session.on_tool_result(lambda result: received.append(result.content))
    session.on_conversation(lambda reply: received.append(f"{reply.text}, told {TENANT.get()}"))
    session.on_exception(lambda failure: received.append(f"{failure.kind} told {TENANT.get()}"))
    return received


@pytest.mark.parametrize("name", ["read_file", "read_in_thread"])
@pytest.mark.parametrize("journal", [None, "memory:"])
async def test_tools_see_the_variables_of_the_sender(name, journal):
    """This holds at any concurrency, and with lent slots."""
    received, sessions = {}, []
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(agent_that(name, max_concurrent_sessions=2))
        for tenant in ("ada", "bob", "eve", "mallory", "zoe"):
            session = await agent.create_session(tenant)
            received[tenant] = hear(session)
            await say_as(tenant, session)
            await say_as(tenant, session)
            sessions.append(session)
        for session in sessions:
            await session.wait_idle()
    for tenant, log in received.items():
        assert log == [tenant, f"{tenant} by {tenant}, told {tenant}"] * 2


async def test_context_variables_of_two_tenants_stay_separate(autojump_clock):
    """This also holds if one message interrupts the other, or was queued after it."""
    async with agent_that("read_file") as agent:
        session = await agent.create_session("room")
        received = hear(session)
        await say_as("ada", session)
        await say_as("bob", session)
        await say_as("eve", session, priority="URGENT")
        await session.wait_idle()
    assert received[-4:] == ["eve", "eve by eve, told eve", "bob", "bob by bob, told bob"]
    assert "interrupted told ada" in received


async def test_collected_messages_run_with_the_variables_of_the_last_sender(autojump_clock):
    async with agent_that("read_file") as agent:
        session = await agent.create_session("room", on_busy="collect")
        received = hear(session)
        for tenant in ("ada", "bob", "eve"):
            await say_as(tenant, session)
        await session.wait_idle()
    assert received == ["ada", "ada by ada, told ada", "eve", "eve by eve, told eve"]


@pytest.mark.parametrize("journal", [None, "memory:"])
@pytest.mark.parametrize(("decision", "told"), [(Approve(), "ada"), (Reject(), "")])
async def test_approved_tool_runs_with_the_sender_context(decision, told, journal, autojump_clock):
    """The context variables of the approver are not used."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(agent_that("delete_all"))
        session = await agent.create_session("ada")
        received = hear(session)
        await say_as("ada", session)
        await session.wait_idle()

        async def approve():
            TENANT.set("ADMIN")
            await session.answer(session.approvals[0], decision)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(approve)
        await session.wait_idle()
    assert received[0] == told
    assert received[1].endswith("by ada, told ada")


async def test_messages_that_are_dropped_fail_in_the_variables_of_their_senders(autojump_clock):
    """The variables of the task that drops them, closes the session, or exits the block are not used."""
    async with agent_that("read_file", grace=0) as agent:
        dropped, closed, left = [await agent.create_session("room") for _ in range(3)]
        logs = [hear(each) for each in (dropped, closed, left)]
        for session in (dropped, closed, left):
            for tenant in ("ada", "bob", "eve"):
                await say_as(tenant, session)

        async def stop():
            TENANT.set("ADMIN")
            await dropped.interrupt(drop_queued=True)
            await closed.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop)
        TENANT.set("ADMIN")
    for log, kind in zip(logs, ["interrupted", "stopped", "stopped"], strict=True):
        assert [each.split()[-1] for each in log if each.startswith(kind)][-2:] == ["bob", "eve"]
        assert "ADMIN" not in " ".join(log)


async def test_delegated_turns_run_with_the_sender_context(autojump_clock):
    """The turn of the child session and the report to its parent have the sender's context variables."""
    worker = BareAgent("worker", llm=calls("read_file"), tools=TOOLS, max_concurrent_sessions=1)

    @tool
    async def hand_on(context: ToolContext) -> str:
        """Delegate a task."""
        await context.session.delegate("worker", "work")
        return (await worker.run("ask")).text

    script = ScriptedLLM(
        lambda chat: ToolCall("hand_on", {}) if last_text(chat) == "go" else f"as {TENANT.get()}"
    )
    async with open_runtime() as runtime:
        lead = await runtime.start(BareAgent("lead", llm=script, tools=[hand_on]))
        await runtime.start(worker)
        received = {}
        async with trio.open_nursery() as nursery:
            for tenant in ("ada", "bob", "eve"):
                session = await lead.create_session(tenant)
                received[tenant] = hear(session)
                nursery.start_soon(partial(say_as, tenant, session))
    for tenant, log in received.items():
        assert log[0] == f"{tenant} by {tenant}"
        assert log[1:] == [f"as {tenant}, told {tenant}"] * 2


async def test_turn_started_by_a_tool_is_separate_from_the_turn_of_the_tool(autojump_clock):
    """Each turn has separate rules about waits that would block it."""
    errors = []

    @tool
    async def stir(context: ToolContext) -> str:
        """Start a turn in the other session, and wait."""
        await other.chat("wait")
        await trio.sleep(1)
        return "stirred"

    async def wait_for_first(_):
        try:
            await first.wait_idle()
        except WouldDeadlock as error:
            errors.append(error)

    def script(chat):
        return ToolCall("stir", {}) if last_text(chat) == "stir" else "ok"

    async with BareAgent("a", llm=ScriptedLLM(script), tools=[stir]) as agent:
        first, other = await agent.create_session("ada"), await agent.create_session("bob")
        other.on_conversation(wait_for_first)
        await first.chat("stir")
        await first.wait_idle()
        await other.wait_idle()
    assert errors == []


async def test_a_parked_worker_releases_the_context_of_a_sender():
    """Values that a request stored in a variable are freed with the request."""

    class Request:
        pass

    box = contextvars.ContextVar("box", default=None)
    async with BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True)) as agent:
        session = await agent.create_session("ada")

        async def ask():
            request = Request()
            box.set(request)
            await session.chat("hi")
            return weakref.ref(request)

        refs = []

        async def keep():
            refs.append(await ask())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep)
        await session.wait_idle()
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        assert refs[0]() is None


# --- what a journal keeps --------------------------------------------------------------------

ROLE = contextvars.ContextVar("ROLE", default=None)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def what_is_seen():
    """The registered variable, one that is not, and the trace."""
    return [TENANT.get(), ROLE.get(), traceparent.get()]


def watcher(seen, *, hangs=True):
    """Return an agent whose model records the variables that it sees, or blocks on request."""

    async def answer(chat):
        if hangs and last_text(chat) == "hang":
            await trio.sleep_forever()
        seen.append(what_is_seen())
        return "ok"

    return BareAgent("a", llm=ScriptedLLM(answer), grace=0)


async def as_nobody(fn):
    await fn()


async def as_ada(fn):
    """Do something as ada, in a trace, in a task of one's own."""

    async def do():
        TENANT.set("ada")
        ROLE.set("admin")
        traceparent.set(TRACE)
        await fn()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(do)


@pytest.mark.parametrize("waits", ["in its turn", "queued", "for its time"])
async def test_restored_message_has_registered_variables(waits, autojump_clock):
    """Other variables have the values of the resuming program, not of the caller that opens the session."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal, context=[TENANT]) as runtime:
            agent = await runtime.start(watcher([]))
            session = await agent.create_session("ada", session_id="s")
            if waits == "for its time":
                await as_ada(partial(session.schedule, "hello", after=100))
            else:
                await (as_ada if waits == "in its turn" else as_nobody)(partial(session.chat, "hang"))
            if waits == "queued":
                await as_ada(partial(session.chat, "hello"))
        seen = []
        async with open_runtime(journal=journal, context=[TENANT]) as runtime:
            token = TENANT.set("mallory")
            agent = await runtime.start(watcher(seen, hangs=False))
            await agent.open_session("s")
            TENANT.reset(token)
            await trio.sleep(200)
    assert seen[-1] == ["ada", None, TRACE]
    assert seen[:-1] == [["nobody", None, None]] * (waits == "queued")


async def test_approved_call_after_a_restart_runs_with_the_sender_context():
    """The approver opens the session, but its context variables are not used."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal, context=[TENANT]) as runtime:
            agent = await runtime.start(agent_that("delete_all"))
            session = await agent.create_session("ada", session_id="s")
            await say_as("ada", session)
            await session.wait_idle()
        async with open_runtime(journal=journal, context=[TENANT]) as runtime:
            agent = await runtime.start(agent_that("delete_all"))
            received = []
            agent.on_session(lambda session: received.append(hear(session)))

            async def approve():
                TENANT.set("ADMIN")
                (approval,) = await agent.approvals()
                await agent.answer(approval, Approve())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(approve)
            await (await agent.open_session("s")).wait_idle()
    assert received == [["ada", "ada by ada, told ada"]]


async def test_a_scheduled_message_has_the_context_of_its_caller(autojump_clock):
    """It has all variables while the process lives."""
    seen = []
    async with open_runtime() as runtime:
        agent = await runtime.start(watcher(seen))
        session = await agent.create_session("ada")
        await as_ada(lambda: session.schedule("hello", cron="*/5 * * * *"))
        await trio.sleep(700)
    assert len(seen) >= 2
    assert seen == [["ada", "admin", TRACE]] * len(seen)


async def test_unregistered_stored_variables_are_ignored(caplog, autojump_clock):
    """The log names each variable once."""
    seen = []
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal, context=[TENANT]) as runtime:
            agent = await runtime.start(watcher([]))
            session = await agent.create_session("ada", session_id="s")
            for text in ("hang", "hello", "hello"):
                await as_ada(partial(session.chat, text))
        async with open_runtime(journal=journal, context=[ROLE]) as runtime:
            agent = await runtime.start(watcher(seen, hangs=False))
            await (await agent.open_session("s")).wait_idle()
    assert seen == [["nobody", None, TRACE]] * 3
    log_lines = [
        record.getMessage()
        for record in caplog.records
        if record.name == "actgent.sessions.context_variable_propagation"
    ]
    assert len(log_lines) == 1
    assert "'TENANT', which is not registered" in log_lines[0]


@pytest.mark.parametrize("value", [object(), "x" * 5000])
async def test_unserializable_variable_values_are_rejected(value):
    """The error precedes the acceptance and names the variable. Without a journal any value is accepted."""
    async with (
        open_runtime(journal="memory:", context=[TENANT]) as runtime,
        BareAgent("b", llm=ScriptedLLM(["ok"])) as private,
    ):
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["ok"])))
        session = await agent.create_session("ada")
        token = TENANT.set(value)
        with pytest.raises(NotSerializable, match="TENANT"):
            await session.chat("hi")
        with pytest.raises(NotSerializable, match="TENANT"):
            await session.schedule("hi", after=5)
        assert (await private.run("hi")).text == "ok"
        TENANT.reset(token)
        assert (await agent.run("hi", session=session)).text == "ok"


@pytest.mark.parametrize("journal", [None, "memory:"])
@pytest.mark.parametrize("value", [object(), "x" * 5000])
async def test_task_that_sets_an_unserializable_value_is_reported(value, journal, caplog, autojump_clock):
    """Its agent continues, and the parent gets the result; the log names the variable."""

    async def work(chat):
        TENANT.set(value)
        return "42"

    async with open_runtime(journal=journal, context=[TENANT]) as runtime:
        await runtime.start(BareAgent("worker", llm=ScriptedLLM(work)))
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["thanks"])))
        session = await agent.create_session("ada")
        await session.delegate("worker", "work", task_id="t")
        await session.wait_idle()
    assert [message.text for message in session.history] == [
        "Task t was done by agent 'worker':\n42",
        "thanks",
    ]
    log_lines = {record.getMessage() for record in caplog.records}
    assert any("without the context variable 'TENANT'" in each for each in log_lines)
    assert not any("failed and restarts" in each for each in log_lines)


@pytest.mark.parametrize("journal", [None, "memory:"])
async def test_a_schedule_fires_after_its_sender_changed_a_value(journal, autojump_clock):
    """A list that was short when the schedule was set is too long when it fires, so the message has no list."""
    value = ["ada"]
    async with open_runtime(journal=journal, context=[TENANT]) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["ok"])))
        session = await agent.create_session("ada")
        token = TENANT.set(value)
        await session.schedule("hello", after=5)
        TENANT.reset(token)
        value.append(object())
        await trio.sleep(10)
        await session.wait_idle()
        assert [message.text for message in session.history] == ["Running scheduled task: hello", "ok"]


@pytest.mark.parametrize("wrong", [["TENANT"], [TENANT, contextvars.ContextVar("TENANT")]])
async def test_only_context_variables_of_different_names_are_registered(wrong):
    """Otherwise the runtime raises when it is opened."""
    with pytest.raises(ConfigurationError, match="context="):
        async with open_runtime(context=wrong):
            pass


@pytest.mark.parametrize("value", [None, "", "00-" + "0" * 40, TRACE + "\n", 5, "x" * 10_000])
async def test_invalid_traceparent_is_ignored(value):
    """As the standard requires, the receiver starts a new trace."""
    async with BareAgent("a", llm=ScriptedLLM(["ok"])) as agent:
        session = await agent.create_session("ada")
        token = traceparent.set(value)
        await session.chat("hi")
        traceparent.reset(token)
        await session.wait_idle()
        assert session.history[0].traceparent is None
