"""`RunSteps`: the tool that executes the steps of a run, each as a task of another agent, as soon as its dependencies have ended.

The tool may run again after a crash. Ended steps are in the state of the session, and the tasks of other steps are found in the
journal by their ids.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import trio

from actgent.agents.session import Session, context_of, services_of
from actgent.errors import ActgentError, Fenced, JournalError, ToolError
from actgent.errors.safe_error_texts import model_error_text
from actgent.journal.record_types import TaskOutcomeRecord, TurnOptions, task_message_id
from actgent.limits_and_schedules.limits import WEEK_SECONDS
from actgent.runtime.delegation.task_delegation import Delegation
from actgent.runtime.waits_between_sessions import add_untrusted_sources
from actgent.sessions.session_context import SessionContext
from actgent.state.session_state import Store
from actgent.tools.outputs.result_text import to_result_text, to_text
from actgent.tools.tool_interface import Effect, Tool, ToolContext

from .dependency_graph import Graph, GraphStep
from .pipeline_results import INPUTS, ROUNDS, STEPS, StepResult, results_in, status_of, values_in
from .start_and_rerun_commands import command_changes
from .step_output_references import NoValue, fill


@attrs.frozen
class RunStep:
    """Decision of `decide_step` to run a step."""

    filled_message: Any
    """Message for the agent, as text or data, with all references replaced."""


def decide_step(
    step: GraphStep, before: Sequence[str], inputs: Mapping[str, Any], results: Mapping[str, StepResult]
) -> RunStep | StepResult:
    """Decide whether a step of a pipeline runs, after all steps in `before` have ended.

    Return `RunStep` with the message for the step's agent, or the result of a step that does not run.

    A step is skipped if an earlier step failed, its condition is false, or a required input was skipped. It
    fails if a value is missing. The same inputs and results always give the same decision, so a run can
    resume after a crash.
    """
    for name in before:
        other = results[name]
        if other.status == "failed":
            return _skipped_result(step, f"step {name!r} failed: {other.reason}", cause=name)
        if other.cause:
            return _skipped_result(
                step, f"step {name!r} was skipped, as {other.cause!r} failed", cause=other.cause
            )
    values = values_in(inputs, results)
    try:
        if step.when is not None and not step.when.holds(values):
            return _skipped_result(step, f"the condition is false: {step.when}")
        missing = next(
            (r.name for r in step.read if _is_skipped(r.name, results) and not r.is_optional), None
        )
        if missing is not None:
            return _skipped_result(step, f"it reads the output of step {missing!r}, which was skipped")
        return RunStep(fill(step.template, values))
    except NoValue as error:
        return StepResult(name=step.name, status="failed", reason=str(error))


def _is_skipped(name: str, results: Mapping[str, StepResult]) -> bool:
    return name in results and results[name].status == "skipped"


def _skipped_result(step: GraphStep, reason: str, *, cause: str = "") -> StepResult:
    return StepResult(name=step.name, status="skipped", reason=reason, cause=cause)


RUN_STEPS = "run_steps"
MAX_RUN_SECONDS = 520 * WEEK_SECONDS
"""Maximum seconds of a run; use `Limits(seconds=...)` for a shorter limit."""
ANSWER_SEPARATOR = "\n\n"
"""Separator of the summary and the answer in the result of the tool."""
_MAX_REASON_CHARS = 200
AnswerOf = Callable[[Mapping[str, StepResult]], Any]
"""Function that returns the answer of a run from the results of its steps, or None."""
_NOT_RETRIED = ("interrupted", "stopped")
"""Failure kinds that a caller requested. A step with such a failure is not retried."""


class RunSteps(Tool):
    """Tool of a pipeline's session that runs the pending steps which the newest message requests."""

    name = RUN_STEPS
    description = "Run the steps of the pipeline that are due."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"order": {"type": "string", "description": "The message to the run."}},
        "required": ["order"],
        "additionalProperties": False,
    }
    effect: Effect = "idempotent"
    """`idempotent`: tasks that were started before are found by the ids of their sessions."""
    sinks = ()  # the tasks of the steps carry the labels
    timeout = MAX_RUN_SECONDS

    def __init__(self, graph: Graph, agents: Mapping[str, str], *, stops: bool, answer: AnswerOf) -> None:
        """Create the tool for the steps in `graph`.

        Args:
            graph: Steps of the pipeline.
            agents: Name of the agent of each step.
            stops: True if a failed step stops all others.
            answer: Function that returns the answer of a run from the results of its steps.
        """
        self._graph = graph
        self.agents = agents
        self._stops = stops
        self._answer = answer

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        session = context.session
        if not isinstance(session, Session):
            raise ToolError(
                "run_steps works only in a session of a pipeline: start a run with Pipeline.process()"
            )
        state = session.state
        changes = command_changes(state.snapshot, context.idempotency_key, arguments["order"], self._graph)
        if changes:
            state.dispatch(changes)
        run = _Run(
            graph=self._graph,
            agents=self.agents,
            stops=self._stops,
            context=context,
            caller=context_of(session),
            delegation=services_of(session).delegation,
            state=state,
        )
        await run.all()
        answer = self._answer(run.results)
        return (
            run.summary() if answer is None else f"{run.summary()}{ANSWER_SEPARATOR}{to_result_text(answer)}"
        )


@attrs.define(eq=False, kw_only=True)
class _Run:
    """Execution of a pipeline's pending steps in one call of the tool `run_steps`."""

    graph: Graph
    agents: Mapping[str, str]
    stops: bool
    context: ToolContext
    caller: SessionContext
    delegation: Delegation
    state: Store
    results: dict[str, StepResult] = attrs.field(init=False)
    ended: dict[str, trio.Event] = attrs.field(init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    """Cancel scope of all running steps. It is cancelled when a failed step stops the others."""

    def __attrs_post_init__(self) -> None:
        self.results = results_in(self.state, tuple(self.graph.steps))
        self.ended = {name: trio.Event() for name in self.graph.steps}

    async def all(self) -> None:
        """Run all steps that have not ended. Each step starts after the steps on which it depends."""
        for each in self.results.values():
            if each.status != "pending":
                self.ended[each.name].set()
                self._stop_after_failure(each)
        with self.scope:
            async with trio.open_nursery() as nursery:
                for name, event in self.ended.items():
                    if not event.is_set():
                        nursery.start_soon(self._finish_step, self.graph.steps[name])
        if self.scope.cancelled_caught or self.scope.cancel_called:
            self._skip_pending()

    async def _finish_step(self, step: GraphStep) -> None:
        before = self.graph.before(step.name)
        for name in before:
            await self.ended[name].wait()
        decided = decide_step(step, before, self.state.get(INPUTS) or {}, self.results)
        self._record(
            await self._run_with_retries(step, decided.filled_message)
            if isinstance(decided, RunStep)
            else decided
        )

    def _record(self, result: StepResult) -> None:
        """Store the result of a step in the session state, report the progress, and wake the steps that depend on this step.

        If the step failed and the pipeline stops at failures, stop the run.
        """
        self.results[result.name] = result
        self.state.dispatch((STEPS, {result.name: result.to_data()}))
        self.ended[result.name].set()
        done = sum(event.is_set() for event in self.ended.values())
        self.context.progress(done, len(self.ended), f"{result.name}: {result.status}")
        self._stop_after_failure(result)

    def _stop_after_failure(self, result: StepResult) -> None:
        if self.stops and result.status == "failed":
            self.scope.cancel()

    def _skip_pending(self) -> None:
        """Mark all steps that have not ended as skipped, because a step failed."""
        failed = next(each for each in self.results.values() if each.status == "failed")
        for name, event in self.ended.items():
            if not event.is_set():
                reason = f"the run stopped because step {failed.name!r} failed"
                self._record(StepResult(name=name, status="skipped", reason=reason, cause=failed.name))

    # --- steps ------------------------------------------------------------------------------

    async def _run_with_retries(self, step: GraphStep, prompt: Any) -> StepResult:
        """Send `prompt` to the agent of a step, retry a failed step at most `step.retries` times, and return the last result.

        Failures that a caller requested, such as an interrupt, are not retried.
        """
        # Ids of tasks change with each rerun of the step, and stay equal after a crash.
        number = (self.state.get(ROUNDS) or {}).get(step.name, 1)
        task = f"task/{step.name}" if number == 1 else f"task/{step.name}@{number}"
        for tried in range(step.retries + 1):
            task_id = f"{task}/{tried}" if tried else task
            result, kind = await self._run_once(step, to_text(prompt), task_id)
            if result.status == "done" or kind in _NOT_RETRIED:
                break
        return attrs.evolve(result, tries=tried + 1)

    async def _run_once(self, step: GraphStep, prompt: str, task_id: str) -> tuple[StepResult, str]:
        """Run one attempt of a step as the task `task_id`. Return the result of the step and the kind of its failure.

        The kind is empty after success. Errors of the task become a failed result.

        Raises:
            Fenced, JournalError: The journal cannot record the run.
        """
        try:
            answered = await self._ask(step, prompt, task_id)
            session_id = answered.message_id.removesuffix(task_message_id(""))
            result, kind = _to_step_result(step, answered)
            return attrs.evolve(result, session_id=session_id), kind
        except (Fenced, JournalError):
            raise
        except ActgentError as error:
            return StepResult(name=step.name, status="failed", reason=model_error_text(error)), ""

    async def _ask(self, step: GraphStep, prompt: str, task_id: str) -> TaskOutcomeRecord:
        form = None
        if step.output is not None:
            form = TurnOptions(output=step.output.schema_text, output_name=step.output.name)
        answered = await self.delegation.ask_once(
            self.delegation.agents.opener(self.agents[step.name]),
            self.caller,
            prompt,
            key=f"{self.caller.scope}/%{task_id}",
            name=f"{self.caller.id}/{task_id}",
            deadline=math.inf if step.timeout is None else step.timeout,
            form=form,
        )
        add_untrusted_sources(self.caller, answered.origin)  # later steps may get this output
        return answered

    def summary(self) -> str:
        """Return the status of the run, and of each step with the reason of a failure or skip, as lines of text."""
        lines = [
            f"{each.name}: {each.status}" + (f" ({_one_line(each.reason)})" if each.reason else "")
            for each in self.results.values()
        ]
        return "\n".join([status_of(self.results), *lines])


def _one_line(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= _MAX_REASON_CHARS else f"{line[:_MAX_REASON_CHARS]}…"


def _to_step_result(step: GraphStep, answered: TaskOutcomeRecord) -> tuple[StepResult, str]:
    """Convert the outcome of a step's task to the result of the step, and return it with the kind of the failure.

    The kind is empty after success. An incomplete answer counts as a failure.
    """
    if answered.failed is not None:
        return StepResult(name=step.name, status="failed", reason=answered.text), answered.failed
    if answered.shortfall:
        reason = f"the answer is {answered.shortfall}: {answered.text}"
        return StepResult(name=step.name, status="failed", reason=reason), answered.shortfall
    output = json.loads(answered.text) if answered.is_json else answered.text
    return StepResult(name=step.name, status="done", output=output), ""
