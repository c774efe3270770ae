"""The steps of a run, at work: each is a task for another agent, begun as soon as those before it are over.

The tool that does this may run again after a crash: a step that has ended stands in the session's state, and the task of
any other is found by its id, at work or over, since tasks are kept by the journal.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import trio

from actgent.agents.session import Session, context_of, services_of
from actgent.control.limits import WEEK
from actgent.errors import ActgentError, Fenced, JournalError, ToolError
from actgent.errors.wording import safe_words
from actgent.journal.records import Answered, TurnOptions, message_id_of
from actgent.runtime.delegation.giving import Delegation
from actgent.sessions.context import SessionContext
from actgent.state.store import Store
from actgent.tools.base import Effect, Tool, ToolContext
from actgent.tools.outputs.results import to_result_text, to_text

from .decisions import Go, decide_step
from .graph import Graph, GraphStep
from .orders import begin_order
from .outcomes import INPUTS, ROUNDS, STEPS, StepResult, results_in, status_of

RUN_STEPS = "run_steps"
LONGEST_RUN = 520 * WEEK
"""Seconds after which the steps of a run end at the latest; `Limits(seconds=...)` says less."""
BEHIND = "\n\n"
"""What stands between the words about the steps and the answer, in the result of the tool."""
_LONGEST_REASON = 200
AnswerOf = Callable[[Mapping[str, StepResult]], Any]
"""The answer of a run by the results of its steps; None where there is none."""
_FINAL = ("interrupted", "stopped")
"""Kinds of failures that somebody wanted: they are not tried again."""


class RunSteps(Tool):
    """Runs the steps of a pipeline that are due, by what a message says."""

    name = RUN_STEPS
    description = "Run the steps of the pipeline that are due."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"order": {"type": "string", "description": "What the run was told."}},
        "required": ["order"],
        "additionalProperties": False,
    }
    effect: Effect = "idempotent"
    """A step that was begun before is found by the id of its session."""
    timeout = LONGEST_RUN

    def __init__(self, graph: Graph, agents: Mapping[str, str], *, stops: bool, answer: AnswerOf) -> None:
        """Args: `agents` are the names of the steps' agents; `stops` is whether a failure ends all other steps."""
        self._graph = graph
        self._agents = agents
        self._stops = stops
        self._answer = answer

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        session = context.session
        if not isinstance(session, Session):
            raise ToolError("a pipeline runs in a session")
        state = session.state
        changes = begin_order(state.snapshot, context.effect_key, arguments["order"], self._graph)
        if changes:
            state.dispatch(changes)
        run = _Run(
            graph=self._graph,
            agents=self._agents,
            stops=self._stops,
            context=context,
            asker=context_of(session),
            delegation=services_of(session).delegation,
            state=state,
        )
        await run.all()
        answer = self._answer(run.results)
        return run.summary() if answer is None else f"{run.summary()}{BEHIND}{to_result_text(answer)}"


@attrs.define(eq=False, kw_only=True)
class _Run:
    """One call of the tool."""

    graph: Graph
    agents: Mapping[str, str]
    stops: bool
    context: ToolContext
    asker: SessionContext
    delegation: Delegation
    state: Store
    results: dict[str, StepResult] = attrs.field(init=False)
    over: dict[str, trio.Event] = attrs.field(init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    """Cancelled when a failure is to stop the rest."""

    def __attrs_post_init__(self) -> None:
        self.results = results_in(self.state, tuple(self.graph.steps))
        self.over = {name: trio.Event() for name in self.graph.steps}

    async def all(self) -> None:
        """Run what has not ended, each step as soon as those before it have."""
        for each in self.results.values():
            if each.status != "pending":
                self.over[each.name].set()
                self._heed(each)
        with self.scope:
            async with trio.open_nursery() as nursery:
                for name, event in self.over.items():
                    if not event.is_set():
                        nursery.start_soon(self._settle, self.graph.steps[name])
        if self.scope.cancelled_caught or self.scope.cancel_called:
            self._leave_out()

    async def _settle(self, step: GraphStep) -> None:
        before = self.graph.before(step.name)
        for name in before:
            await self.over[name].wait()
        decided = decide_step(step, before, self.state.get(INPUTS) or {}, self.results)
        self._note(await self._work(step, decided.said) if isinstance(decided, Go) else decided)

    def _note(self, result: StepResult) -> None:
        """Write what a step came to, and let those go on that wait for it."""
        self.results[result.name] = result
        self.state.dispatch((STEPS, {result.name: result.to_data()}))
        self.over[result.name].set()
        done = sum(event.is_set() for event in self.over.values())
        self.context.progress(done, len(self.over), f"{result.name}: {result.status}")
        self._heed(result)

    def _heed(self, result: StepResult) -> None:
        if self.stops and result.status == "failed":
            self.scope.cancel()

    def _leave_out(self) -> None:
        """Skip what did not run any more, or was stopped, because a step failed."""
        failed = next(each for each in self.results.values() if each.status == "failed")
        for name, event in self.over.items():
            if not event.is_set():
                reason = f"the run stopped, as step {failed.name!r} failed"
                self._note(StepResult(name=name, status="skipped", reason=reason, cause=failed.name))

    # --- one step ------------------------------------------------------------------------------

    async def _work(self, step: GraphStep, said: Any) -> StepResult:
        """Have the step's agent do it, again where it fails and may be tried again."""
        task = self._task_of(step)
        for tried in range(step.retries + 1):
            task_id = f"{task}/{tried}" if tried else task
            result, kind = await self._try(step, to_text(said), task_id)
            if result.status == "done" or kind in _FINAL:
                break
        return attrs.evolve(result, tries=tried + 1)

    async def _try(self, step: GraphStep, said: str, task_id: str) -> tuple[StepResult, str]:
        """What one try comes to, and the kind of its failure."""
        try:
            answered = await self._ask(step, said, task_id)
            session_id = answered.message_id.removesuffix(message_id_of(""))
            result, kind = _read(step, answered)
            return attrs.evolve(result, session_id=session_id), kind
        except (Fenced, JournalError):
            raise
        except ActgentError as error:
            return StepResult(name=step.name, status="failed", reason=safe_words(error)), ""

    def _task_of(self, step: GraphStep) -> str:
        """What the ids of the step's sessions begin with: others in each round, the same whenever this one runs again."""
        number = (self.state.get(ROUNDS) or {}).get(step.name, 1)
        return f"task/{step.name}" if number == 1 else f"task/{step.name}@{number}"

    async def _ask(self, step: GraphStep, said: str, task_id: str) -> Answered:
        form = None
        if step.output is not None:
            form = TurnOptions(output=step.output.form, output_name=step.output.name)
        return await self.delegation.ask_once(
            self.delegation.agents.opener(self.agents[step.name]),
            self.asker,
            said,
            key=f"{self.asker.scope}/%{task_id}",
            name=f"{self.asker.id}/{task_id}",
            deadline=math.inf if step.timeout is None else step.timeout,
            form=form,
        )

    def summary(self) -> str:
        """What the run came to, for whoever reads its record."""
        lines = [
            f"{each.name}: {each.status}" + (f" ({_in_a_line(each.reason)})" if each.reason else "")
            for each in self.results.values()
        ]
        return "\n".join([status_of(self.results), *lines])


def _in_a_line(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}…"


def _read(step: GraphStep, answered: Answered) -> tuple[StepResult, str]:
    """What an answer means for its step, and the kind of its failure."""
    if answered.failed is not None:
        return StepResult(name=step.name, status="failed", reason=answered.text), answered.failed
    if answered.shortfall:
        reason = f"the answer is {answered.shortfall}: {answered.text}"
        return StepResult(name=step.name, status="failed", reason=reason), answered.shortfall
    output = json.loads(answered.text) if answered.is_json else answered.text
    return StepResult(name=step.name, status="done", output=output), ""
