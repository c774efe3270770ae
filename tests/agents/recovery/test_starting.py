"""Agents that start one after the other, while the journal has turns that call agents which start later."""

import logging

import pytest
import trio
import trio.testing

from actgent import (
    BareAgent,
    Message,
    NotRunning,
    ScriptedLLM,
    Sender,
    Text,
    ToolCall,
    ToolContext,
    delegation_tools,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry
from actgent.journal.record_types import MessageAcceptedRecord, SessionCreatedRecord

ASK = ToolCall("delegate_to_agent", {"agent": "beta", "task": "help"})


def worker(name="beta"):
    return BareAgent(name, llm=ScriptedLLM(["helped"], repeat=True))


def told(chat):
    """Return the result of the tool as an answer."""
    last = chat.messages[-1]
    return last.parts[0].text if last.role == "tool" else [ASK]


def caller(answer=told, **options):
    options.setdefault("tools", delegation_tools())
    return BareAgent("alpha", llm=ScriptedLLM(answer), **options)


async def leave_unfinished(journal, *agents):
    """A process that ends in the middle of each agent's session, named as the agent."""
    with trio.CancelScope() as scope:

        async def hang(chat):
            await trio.sleep_forever()

        async with open_runtime(journal=journal) as runtime:
            for name in agents:
                agent = await runtime.start(BareAgent(name, llm=ScriptedLLM(hang)))
                await agent.create_session("ada", "go", session_id=f"of {name}")
            scope.cancel()
            await trio.sleep_forever()


async def leave_from_before(journal, agent):
    """Leave an unfinished session of an agent whose name is from before names had to be printable."""
    opened = SessionCreatedRecord(owner=Sender("ada"), created_at=0.0)
    message = Message(session_id="old", sender=Sender("ada"), parts=(Text("go"),))
    entry = Entry(session_id="old", agent=agent, records=(opened, MessageAcceptedRecord(message=message)))
    await journal.commit(entry, epoch=await journal.acquire())


async def answers_of(agent):
    session = await agent.open_session("of alpha")
    await session.wait_idle()
    return session.history[-1].text


async def test_a_recovered_turn_waits_for_an_agent_that_is_started_later(autojump_clock):
    """The call is answered as soon as the agent starts, without code in the program."""
    async with MemoryJournal().running() as journal:
        await leave_unfinished(journal, "alpha")
        async with open_runtime(journal=journal) as runtime:
            alpha = await runtime.start(caller())
            await trio.sleep(5)
            began = trio.current_time()
            await runtime.start(worker())
            assert await answers_of(alpha) == "helped"
            assert trio.current_time() == began


async def test_sessions_resume_after_the_block_of_starts(autojump_clock):
    """No turn runs before the end of the block, however long the starts take."""
    seen = []

    def answer(chat):
        seen.append(chat)
        return told(chat)

    async with MemoryJournal().running() as journal:
        await leave_unfinished(journal, "alpha")
        async with open_runtime(journal=journal) as runtime:
            async with runtime.starting():
                alpha = await runtime.start(caller(answer))
                await trio.sleep(100)
                assert not seen
                await runtime.start(worker())
            assert await answers_of(alpha) == "helped"


async def test_call_of_a_missing_agent_fails_when_the_runtime_is_ready(autojump_clock):
    """The call fails at `ready`, without any further wait."""
    async with MemoryJournal().running() as journal:
        await leave_unfinished(journal, "alpha")
        async with open_runtime(journal=journal) as runtime:
            alpha = await runtime.start(caller())
            await trio.sleep(1)
            began = trio.current_time()
            await runtime.ready()
            assert "agent 'beta' does not exist" in await answers_of(alpha)
            assert trio.current_time() == began


async def test_call_of_a_missing_agent_fails_ten_seconds_after_the_last_start(autojump_clock):
    """In a new session it fails at once."""
    async with MemoryJournal().running() as journal:
        await leave_unfinished(journal, "alpha")
        async with open_runtime(journal=journal) as runtime:
            began = trio.current_time()
            alpha = await runtime.start(caller())
            assert "agent 'beta' does not exist" in str(await alpha.run("go"))
            assert trio.current_time() == began
            assert "agent 'beta' does not exist" in await answers_of(alpha)
            assert 9 < trio.current_time() - began < 11


async def test_find_agents_includes_agents_started_later(autojump_clock):
    """A recovered turn finds all agents, not only those that started first."""
    find = ToolCall("find_agents", {})

    def answer(chat):
        last = chat.messages[-1]
        return last.parts[0].text if last.role == "tool" else [find]

    async with MemoryJournal().running() as journal:
        await leave_unfinished(journal, "alpha")
        async with open_runtime(journal=journal) as runtime:
            alpha = await runtime.start(caller(answer))
            await trio.testing.wait_all_tasks_blocked()
            await runtime.start(worker())
            await runtime.ready()
            assert "beta" in await answers_of(alpha)


@pytest.mark.parametrize("way", ["run", "delegate", "ask"])
async def test_tool_waits_for_the_start_of_the_agent_it_calls(autojump_clock, way):
    """The program's own tool may have the agent instead of its name."""
    beta = worker()

    @tool
    async def call(context: ToolContext) -> str:
        """Call beta."""
        if way == "delegate":
            return await context.session.delegate("beta", "help", task_id="t")
        return str(await (beta.run("help") if way == "run" else beta.ref.ask("help")))

    def answer(chat):
        last = chat.messages[-1]
        return last.parts[0].text if last.role == "tool" else [ToolCall("call", {})]

    async with MemoryJournal().running() as journal:
        await leave_unfinished(journal, "alpha")
        async with open_runtime(journal=journal) as runtime:
            alpha = await runtime.start(caller(answer, tools=[call]))
            await trio.testing.wait_all_tasks_blocked()
            await runtime.start(beta)
            session = await alpha.open_session("of alpha")
            await session.wait_idle()
            results = [result for message in session.history for result in message.tool_results]
    assert {result.status for result in results} == {"success"}


async def test_call_outside_of_recovered_turns_does_not_wait():
    """Outside of turns from the journal, a call of an agent that does not run is rejected at once."""
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(caller())
        with pytest.raises(NotRunning):
            await worker().run("help")


@pytest.mark.parametrize("ending", ["ready", "starting", "grace"])
async def test_missing_agents_with_waiting_sessions_are_logged(autojump_clock, caplog, ending):
    """Each missing agent is logged once with the number of its sessions. Running agents are not logged."""
    async with MemoryJournal().running() as journal:
        await leave_unfinished(journal, "alpha", "beta")
        await leave_from_before(journal, "gam\nma")
        async with open_runtime(journal=journal) as runtime:
            if ending == "starting":
                async with runtime.starting():
                    await runtime.start(worker("alpha"))
            else:
                await runtime.start(worker("alpha"))
            if ending == "ready":
                await runtime.ready()
            await trio.sleep(20)
            await runtime.ready()
    log_lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(log_lines) == 1
    assert "'beta' (1), 'gam\\nma' (1)" in log_lines[0]
    assert "alpha" not in log_lines[0]
