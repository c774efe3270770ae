"""`run_tasks`: carries out the tasks of a goal's plan, one after the other, by the agent's other tools."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from actgent.errors import LimitReached, ParseError, ToolError
from actgent.protocols.goal import (
    RUN_TASKS,
    TASKS_SCHEMA,
    PlannedTask,
    References,
    kept_tasks,
    read_tasks,
    tasks_in,
    tasks_reason,
    told_tasks,
    turn_of,
)
from actgent.support.strict_json import loads
from actgent.tools.base import CallsTools, Effect, Tool, ToolContext


class TaskRunner(Tool):
    """Carries out tasks in their order; one that fails is tried again, and those that need it are left.

    Each call is one of the tool itself, with its approval, limits and timeout, and is made once also where this runs again
    after a crash.
    """

    name = RUN_TASKS
    description = (
        "Carry out tasks in their order, each by one of the other tools. args may refer to what came of earlier tasks of this "
        'goal, as in "{{tasks.0.output.results.0.url}}".'
    )
    parameters = TASKS_SCHEMA
    effect: Effect = "idempotent"
    alone = True
    calls_tools = True
    timeout = 3600.0

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        others, session = context.tools, context.session
        if others is None or session is None:
            raise ToolError("tasks are carried out by an agent's other tools: there is none here")
        if reason := tasks_reason(arguments["tasks"]):
            raise ToolError(reason)
        others.begun_at()  # what earlier plans kept for a repetition is not needed any more
        turn = turn_of(session.history)
        before = tasks_in(context.state, turn)
        done = list(before)
        for task in read_tasks(arguments["tasks"], before):
            context.progress(len(done) - len(before), len(arguments["tasks"]), task.description)
            done.append(await _carried_out(task, done, others))
        context.state.dispatch(kept_tasks(turn, done), once=context.effect_key)
        return told_tasks(done[len(before) :], len(before))


async def _carried_out(task: PlannedTask, before: Sequence[PlannedTask], others: CallsTools) -> PlannedTask:
    """Return a task with what came of it."""
    references = References(before)
    arguments = references.resolve(dict(task.tool_args))
    if not task.tool_name:
        return attrs.evolve(task, failure_reason="it names no tool: do it in the next decisions")
    if references.unmet:
        needed = references.unmet[0]
        why = f"it needs what {needed.id} gives, which is {needed.status}"
        return attrs.evolve(task, status=needed.status, failure_reason=why)
    if task.tool_name not in others.names():
        return attrs.evolve(task, status="failed", failure_reason=f"there is no tool {task.tool_name!r}")
    return await _tried(task, arguments, others)


async def _tried(task: PlannedTask, arguments: Mapping[str, Any], others: CallsTools) -> PlannedTask:
    """Call a task's tool until it succeeds, or has failed too often, or nobody knows what it did."""
    failed = attrs.evolve(task, status="failed")
    for attempts in range(1, task.max_retries + 2):
        try:
            result = await others.call(task.tool_name, arguments)
        except LimitReached as error:
            return attrs.evolve(failed, failure_reason=str(error))
        if result.error is None:
            return attrs.evolve(task, status="completed", attempts=attempts, result=_decoded(result.content))
        failed = attrs.evolve(failed, attempts=attempts, failure_reason=result.error)
        if result.status != "error":  # it may have taken effect
            break
    return failed


def _decoded(content: str) -> Any:
    try:
        return loads(content)
    except ParseError:
        return content
