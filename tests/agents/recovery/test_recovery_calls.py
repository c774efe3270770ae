"""Tool calls across a crash: which calls had begun, and which results are written."""

import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import AgentMessageRecord, CallFinishedRecord, CallsStartedRecord
from actgent.testing import CrashingJournal

CALLS = ("first", "alone", "last", "unheard_of")


def make_agent(begun, results):
    """An agent that calls `first`, `alone`, which is a barrier, `last`, and a tool that there is not."""

    def one_of(name, **options):
        async def run() -> str:
            """Have an effect, and end some time later."""
            begun.append(name)
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            return f"{name} done"

        return tool(run, name=name, **options)

    def answer(chat):
        if chat.messages[-1].role == "tool":
            return "done"
        return [ToolCall(name, {}) for name in CALLS]

    agent = BareAgent(
        "a",
        llm=ScriptedLLM(answer, keep=0),
        tools=[one_of("first"), one_of("alone", exclusive=True), one_of("last")],
    )
    agent.on_session(lambda session: session.on_tool_result(results.append))
    return agent


async def _live(journal, agent, *, until):
    """A life that ends with the event."""
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def run():
            async with open_runtime(journal=journal) as runtime:
                await runtime.start(agent)
                session = await agent.create_session("ada", "go", session_id="s")
                await session.wait_idle()

        with trio.move_on_after(1):
            await until.wait()
        nursery.cancel_scope.cancel()


async def test_a_call_that_never_began_is_run_after_a_crash(autojump_clock):
    """A crash at any write runs no call twice. Only a call that was about to begin is `outcome_unknown`."""
    unknown = set()
    for writes in range(1, 60):
        started = []
        async with MemoryJournal().running() as journal:
            dying = CrashingJournal(journal, writes)
            await _live(dying, make_agent(started, []), until=dying.died)
            if not dying.is_dead:
                break
            before, results = list(started), []
            async with open_runtime(journal=journal) as runtime:
                await runtime.start(make_agent(started, results))
        told = {result.tool_name: result.status for result in results}
        assert len(started) == len(set(started)), (writes, started)
        doubtful = {name for name, status in told.items() if status == "outcome_unknown"}
        assert doubtful <= {*before[-1:], CALLS[len(before)]}, (writes, before, told)
        unknown |= doubtful
    assert writes > 5
    assert unknown


async def test_each_stage_is_written_before_its_calls_start(autojump_clock):
    """Each stage has one write with its calls that may have an effect. Unknown tools have no effect."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(make_agent([], []))
            session = await agent.create_session("ada", "go", session_id="s")
            await session.wait_idle()
            names = {call.id: call.name for message in session.history for call in message.tool_calls}
        records = await journal.load("s")
    started = [record.call_ids for record in records if isinstance(record, CallsStartedRecord)]
    assert [[names[call_id] for call_id in ids] for ids in started] == [["first"], ["alone"], ["last"]]


async def test_results_are_stored_once(tmp_path):
    """Several large results take their size in the file, and are at their positions when it is read."""
    size = 50_000

    @tool
    def look(page: int) -> str:
        """Look a page up."""
        return str(page) * size

    def answer(chat):
        pages = [ToolCall("look", {"page": page}) for page in range(5)]
        return "done" if chat.messages[-1].role == "tool" else pages

    url = f"sqlite:///{tmp_path}/journal.db"
    async with open_journal(url) as journal:
        await journal.acquire()
    empty = (tmp_path / "journal.db").stat().st_size
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(answer, keep=0), tools=[look]))
        session = await agent.create_session("ada", "go", session_id="s")
        await session.wait_idle()
        history = session.history
    assert (tmp_path / "journal.db").stat().st_size - empty < 5 * size * 1.1
    async with open_journal(url) as journal:
        await journal.acquire()
        records = await journal.load("s")
    received = [record.message for record in records if isinstance(record, AgentMessageRecord)]
    assert received == list(history[1:])
    assert len([record for record in records if isinstance(record, CallFinishedRecord)]) == 5
