"""A crash at every write of a plan of tasks: the next start reaches the same result and makes no call twice."""

import itertools
import json

import trio

from actgent import GoalAgent, ScriptedLLM, ToolContext, open_runtime, tool
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.protocols.goal.goal_progress import progress_in
from actgent.protocols.goal.task_plan import tasks_in
from actgent.testing import CrashingJournal

TASKS = [
    {"description": "order a", "tool": "order", "args": {"what": "a"}},
    {"description": "fail", "tool": "fail", "args": {}, "max_retries": 1},
    {"description": "order b", "tool": "order", "args": {"what": "{{tasks.0.output.number}} b"}},
]
PLAN = json.dumps({"action": "plan", "params": {"tasks": TASKS}})
ACHIEVED = json.dumps({"action": "evaluate", "params": {"achieved": True, "answer": "done"}})


def worker(effects):
    """Return an agent whose shop knows the earlier orders."""

    @tool(effect="idempotent")
    async def order(what: str, context: ToolContext) -> dict[str, int]:
        """Order something."""
        effects.setdefault(context.idempotency_key, what)
        return {"number": 7}

    @tool(effect="idempotent")
    async def fail() -> str:
        """Fail."""
        raise RuntimeError("no")

    def answer(chat):
        return ACHIEVED if any("run_tasks" in str(message.parts) for message in chat.messages) else PLAN

    return GoalAgent("worker", llm=ScriptedLLM(answer), tools=[order, fail], tasks=True)


async def live(journal, effects):
    """Run one process to its end and return the results of the tasks."""
    async with open_runtime(journal=journal) as runtime:
        agent = worker(effects)
        await runtime.start(agent)
        session = await agent.ensure_session("ada", session_id="s")
        if not session.history:
            await session.chat("order", message_id="m")
        await session.wait_idle()
        progress = progress_in(session.state)
        tasks = tasks_in(session.state, progress.turn)
        return progress.status, [(each.id, each.status, each.attempts, each.result) for each in tasks]


async def die(inner, effects, writes):
    """Run a process that ends at its n-th write. Return whether it reached that write."""
    dying = CrashingJournal(inner, writes)

    async def run(task_status):
        await live(dying, effects)
        task_status.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, nursery.cancel_scope)
        await dying.died.wait()
        nursery.cancel_scope.cancel()
    return dying.is_dead


async def test_tasks_run_once_after_a_crash_at_each_write():
    """The run ends as without a crash."""
    effects = {}
    async with MemoryJournal().running() as journal:
        expected = await live(journal, effects)
    assert (expected[0], list(effects.values())) == ("completed", ["a", "7 b"])
    assert [status for _, status, _, _ in expected[1]] == ["completed", "failed", "completed"]
    for writes in itertools.count(1):
        effects = {}
        async with MemoryJournal().running() as inner:
            has_died = await die(inner, effects, writes)
            assert await live(inner, effects) == expected, writes
        assert sorted(effects.values()) == ["7 b", "a"], writes
        if not has_died:
            break
    assert writes > 8
