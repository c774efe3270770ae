"""`run_tasks`: a tool that executes the tasks of a plan with the agent's other tools, one after the other."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from actgent.errors import LimitReached, ParseError, ToolError
from actgent.protocols.goal import (
    RUN_TASKS,
    TASKS_SCHEMA,
    PlannedTask,
    References,
    read_tasks,
    tasks_change,
    tasks_for_model,
    tasks_in,
    tasks_reason,
    turn_of,
)
from actgent.support.strict_json import loads
from actgent.tools.tool_interface import Effect, NestedToolCalls, Tool, ToolContext


class TaskRunner(Tool):
    """Tool that executes tasks in order. A failed task is retried, and tasks that depend on it are skipped.

    Each call is subject to the approval, limits and timeout of the called tool. A call that succeeded is not repeated when the
    tool runs again after a crash.
    """

    name = RUN_TASKS
    description = (
        "Carry out tasks in their order, each by one of the other tools. args may refer to what came of earlier tasks of this "
        'goal, as in "{{tasks.0.output.results.0.url}}".'
    )
    parameters = TASKS_SCHEMA
    effect: Effect = "idempotent"
    sinks = ()  # each nested call is checked
    keeps_references = True
    exclusive = True
    calls_tools = True
    timeout = 3600.0

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        others, session = context.tools, context.session
        if others is None or session is None:
            raise ToolError("run_tasks needs the tools of an agent")
        if reason := tasks_reason(arguments["tasks"]):
            raise ToolError(reason)
        others.first_started_at()  # results of earlier plans are not needed for a repetition any more
        turn = turn_of(session.history)
        before = tasks_in(context.state, turn)
        done = list(before)
        for task in read_tasks(arguments["tasks"], before):
            context.progress(len(done) - len(before), len(arguments["tasks"]), task.description)
            done.append(await _run_task(task, done, others))
        context.state.dispatch(tasks_change(turn, done), once=context.idempotency_key)
        return tasks_for_model(done[len(before) :], len(before))


async def _run_task(task: PlannedTask, before: Sequence[PlannedTask], others: NestedToolCalls) -> PlannedTask:
    """Run a task of a plan with the tool that it names, and return the task with its outcome.

    A task without a tool stays pending. A task whose referenced results are missing gets the status of the
    missing task.
    """
    references = References(before)
    arguments = references.resolve(dict(task.tool_args))
    if not task.tool_name:
        return attrs.evolve(task, failure_reason="the task has no tool: do it in the next decisions")
    if references.unmet:
        needed = references.unmet[0]
        why = f"the task needs the result of {needed.id}, which is {needed.status}"
        return attrs.evolve(task, status=needed.status, failure_reason=why)
    if task.tool_name not in others.names():
        return attrs.evolve(task, status="failed", failure_reason=f"there is no tool {task.tool_name!r}")
    return await _call_with_retries(task, arguments, others)


async def _call_with_retries(
    task: PlannedTask, arguments: Mapping[str, Any], others: NestedToolCalls
) -> PlannedTask:
    """Call the tool of a task until the call succeeds, or `max_retries` retries have failed.

    Return the task with its outcome.

    A reached limit fails the task. A call whose effect is unknown is not repeated.
    """
    failed = attrs.evolve(task, status="failed")
    for attempts in range(1, task.max_retries + 2):
        try:
            result = await others.call(task.tool_name, arguments)
        except LimitReached as error:
            return attrs.evolve(failed, failure_reason=str(error))
        if result.error is None:
            return attrs.evolve(task, status="completed", attempts=attempts, result=_decode(result.content))
        failed = attrs.evolve(failed, attempts=attempts, failure_reason=result.error)
        if result.status != "error":  # any other status: the task may have had an effect
            break
    return failed


def _decode(content: str) -> Any:
    try:
        return loads(content)
    except ParseError:
        return content
