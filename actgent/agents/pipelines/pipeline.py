"""`Pipeline`: steps over agents with dependencies, as one agent whose runs are sessions."""

from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.agents.goal import GoalAgent
from actgent.agents.options import Tools
from actgent.agents.runs import view_session
from actgent.agents.session import Session
from actgent.control.limits import Limits
from actgent.errors import (
    ActgentError,
    AlreadyAnswered,
    ConfigurationError,
    DeadlineExceeded,
    Interrupted,
    LimitReached,
    SessionNotFound,
    WrongOwner,
    nearest,
)
from actgent.llm.base import LLM
from actgent.llm.settings import LLMSettings
from actgent.messages import NO_USAGE, Sender, Usage
from actgent.protocols.base import Say
from actgent.state.reducers import merge
from actgent.tools.outputs.results import to_text

from . import drawing, files
from .graph import Graph
from .orders import FROM, input_refusal
from .outcomes import INPUTS, ROUNDS, STEPS, PipelineResult, RunStatus, StepResult, results_in, status_of
from .running import RunSteps
from .scheduler import PipelineProtocol, Scheduler
from .step import PipelineStep

OnFailure = Literal["continue", "stop"]
BEGINNING = "run"
"""The id of the first message of a run: a repetition joins it."""
_CLOSING = 5.0
"""Seconds to close the session of a run without an id, also when it is cancelled."""


class Pipeline(Agent[Any, Any]):
    """Steps over agents: side by side where they may be, one after the other where they have to.

    A run is a session of the pipeline, each step a task for its agent in a child session. With a journal a run goes on
    after a crash where it was, and no step that has ended runs again. Limits of a run cover all of its steps.

    Args:
        name: What it is called.
        steps: The steps; see `PipelineStep`.
        inputs: The names of what a run is given; None: what steps read and no step is called.
        answer: The step whose output is the answer; None: the last steps, of several an object by their names.
        on_failure: What a failed step does to those that do not need it: they go on (`continue`), or are stopped (`stop`).
        llm: The model of steps that have a goal and no agent.
        tools: The tools of those.
        goal: What the pipeline is there for, for agents that have it as a tool.
        limits: The bounds of a run, with all of its steps.
        sessions: How many runs go on side by side.
        deps: What tools of its steps find in `ToolContext.deps`.
        grace: Seconds to end what is accepted when the block is left.

    Raises:
        ConfigurationError: the steps cannot run: an unknown name, a circle, a step that can never run, a wrong reference.
    """

    def __init__(
        self,
        name: str,
        *,
        steps: Iterable[PipelineStep],
        inputs: Iterable[str] | None = None,
        answer: str | None = None,
        on_failure: OnFailure = "continue",
        llm: LLM | LLMSettings | str | None = None,
        tools: Tools = (),
        goal: str = "",
        limits: Limits | None = None,
        sessions: int = 100,
        deps: Any = None,
        grace: float = 10.0,
    ) -> None:
        written = tuple(steps)
        self._graph = _checked_graph(name, written, None if inputs is None else tuple(inputs))
        self._steps = {step.name: step for step in written}
        self.on_failure = on_failure
        if on_failure not in ("continue", "stop"):
            raise ConfigurationError(f"on_failure= is 'continue' or 'stop', not {on_failure!r:.100}")
        if answer is not None and answer not in self._graph.steps:
            raise ConfigurationError(
                f"answer={answer!r} is no step: {nearest(str(answer), self._graph.steps)}"
            )
        self._answer = answer
        agents = _agents_of(name, written, llm, tools)
        self._agents = {step: agent.name for step, agent in agents.items()}
        super().__init__(
            name,
            llm=Scheduler(),
            goal=goal,
            protocol=PipelineProtocol(self._say),
            tools=[RunSteps(self._graph, self._agents, stops=on_failure == "stop", answer=self._data)],
            reducers={STEPS: merge, ROUNDS: merge},
            limits=limits,
            sessions=sessions,
            deps=deps,
            grace=grace,
        )
        for agent in dict.fromkeys(agents.values()):
            self.accompany(agent)

    @property
    def steps(self) -> Mapping[str, PipelineStep]:
        """The steps by their names."""
        return self._steps

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of what a run has to be given."""
        return self._graph.read_inputs

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The names of the steps in groups: those of one need only steps of groups before it."""
        return self._graph.groups

    # --- runs --------------------------------------------------------------------------------

    async def process(  # type: ignore[override] # a run has inputs by names, and its own result
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        session_id: str | None = None,
        owner: Sender | str = "user",
        limits: Limits | None = None,
    ) -> PipelineResult:
        """Run the steps, and return what they came to; what fails in one is in the result.

        With a `session_id` a run of that id that is there is joined, or its result returned: no step runs twice. Without one,
        the run's session is closed at its end. A cancelled call stops the run, if nobody else waits for it.

        Args:
            inputs: Values of JSON by their names; None where the run is there.
            session_id: The id of the run, to look at it, go on with it after a crash, and to `retry` it.
            owner: Whose run it is.
            limits: Bounds of this run and all its steps, in place of the pipeline's.

        Raises:
            ConfigurationError: an input is missing, no step reads it, or the run of this id has others.
            WrongOwner: the run of this id is another owner's.
            NotRunning: the pipeline's block is not open.
        """
        given = dict(inputs or {})
        if session_id is None:
            self._check_inputs(given)
            session = await self.create_session(owner)
            try:
                return await self._process(session, given, limits)
            finally:
                with trio.move_on_after(_CLOSING, shield=True):
                    await session.aclose()
        session = await self._begun(session_id, owner, inputs)
        return await self._process(session, given, limits)

    async def _begun(
        self, session_id: str, owner: Sender | str, inputs: Mapping[str, Any] | None
    ) -> Session[Any]:
        """The session of a run; a new one where there is none, and the inputs are those that it needs."""
        try:
            session = await self.open_session(session_id, owner=owner)
        except WrongOwner:
            raise
        except SessionNotFound:
            self._check_inputs(inputs or {})
            return await self.ensure_session(owner, session_id)
        view = await view_session(await self._await_opener(), session)
        known = view.state.get(INPUTS)
        if known is None and view.status == "idle" and not view.history:
            self._check_inputs(inputs or {})
        if known is not None and inputs is not None and known != inputs:
            raise ConfigurationError(f"run {session_id!r} was begun with other inputs: {known!r:.200}")
        return session

    async def retry(self, session_id: str, *from_steps: str, limits: Limits | None = None) -> PipelineResult:
        """Go on with a run that has ended: some steps and all that come after them run again, in new sessions.

        Without names these are the steps that failed or never ran. What other steps gave is kept. A run that is at work
        ends first.

        Raises:
            ConfigurationError: there is no such step, or the run was never begun.
            SessionNotFound: there is no such run.
        """
        for name in from_steps:
            if name not in self.steps:
                raise ConfigurationError(f"there is no step {name!r}: {nearest(name, self.steps)}")
        session = await self.open_session(session_id)
        view = await view_session(await self._await_opener(), session)
        if INPUTS not in view.state and view.status == "idle":
            raise ConfigurationError(f"run {session_id!r} was never begun: `process` begins it")
        said = to_text({FROM: list(from_steps)} if from_steps else {})
        return await self._result(session, self.run(said, session=session, limits=limits))

    async def result(self, session_id: str) -> PipelineResult:
        """Look at a run: what its steps came to so far.

        Raises:
            SessionNotFound: there is no such run.
        """
        view = await view_session(await self._await_opener(), await self.open_session(session_id))
        return self.result_in(view.state, session_id, usage=view.usage)

    def _check_inputs(self, given: Mapping[str, Any]) -> None:
        if reason := input_refusal(given, self._graph):
            raise ConfigurationError(f"pipeline {self.name!r}: {reason}")

    async def _process(
        self, session: Session[Any], given: Mapping[str, Any], limits: Limits | None
    ) -> PipelineResult:
        said = self.run(to_text(given), session=session, message_id=BEGINNING, limits=limits)
        return await self._result(session, said)

    async def _result(self, session: Session[Any], run: Awaitable[object]) -> PipelineResult:
        """Wait for a run, and return what it came to."""
        error: ActgentError | None = None
        try:
            await run
        except AlreadyAnswered:
            await session.wait_idle()
        except (Interrupted, LimitReached, DeadlineExceeded) as raised:
            error = raised
        view = await view_session(await self._await_opener(), session)
        return self.result_in(view.state, session.id, usage=view.usage, error=error)

    def result_in(
        self,
        state: Mapping[str, Any],
        session_id: str,
        *,
        usage: Usage = NO_USAGE,
        error: ActgentError | None = None,
    ) -> PipelineResult:
        """Read what a run came to from the state of its session, such as one of a journal that is looked at.

        Raises:
            ConfigurationError: an output does not fit the form that its step declares today.
        """
        results = {name: self._typed(each) for name, each in results_in(state, tuple(self.steps)).items()}
        is_over = all(each.status != "pending" for each in results.values())
        data = self._data(results)
        said = "" if data is None else to_text(data)
        unfinished: RunStatus = "cancelled" if isinstance(error, Interrupted) else "error"
        return PipelineResult(
            status=status_of(results) if is_over else unfinished,
            data=data,
            text=said or ("" if error is None else str(error)),
            steps=results,
            inputs=state.get(INPUTS) or {},
            session_id=session_id,
            error=None if is_over else error,
            usage=usage,
        )

    def _typed(self, result: StepResult) -> StepResult:
        """A result whose output is a value of the type that its step declares."""
        output = self.steps[result.name].output
        if output is None or result.status != "done":
            return result
        try:
            return attrs.evolve(result, output=output.convert(result.output))
        except ValueError as wrong:
            raise ConfigurationError(
                f"step {result.name!r} gave what does not fit its output= today: {wrong}; retry it"
            ) from None

    def _data(self, results: Mapping[str, StepResult]) -> Any:
        """The output of the step that is the answer, or those of the last ones that are done."""
        if self._answer is not None:
            return results[self._answer].output
        needed = {each for name in self.steps for each in self._graph.before(name)}
        last = [name for name in self.steps if name not in needed]
        if len(last) == 1:
            return results[last[0]].output
        return {name: results[name].output for name in last if results[name].status == "done"} or None

    def _say(self, state: Mapping[str, Any], words: str) -> Say:
        """The reply of a run by its state: the answer, or what became of the steps."""
        results = results_in(state, tuple(self.steps))
        data = self._data(results)
        is_value = data is not None and not isinstance(data, str)
        return Say(
            text=words if data is None else to_text(data),
            data=data if is_value else None,
            message_type=status_of(results),
        )

    # --- files and pictures --------------------------------------------------------------------

    def to_data(self) -> dict[str, Any]:
        """The pipeline as plain data, agents by their names; what `save` writes."""
        said = {
            "pipeline": self.name,
            "goal": self.profile.goal,
            "inputs": None if self._graph.inputs is None else list(self._graph.inputs),
            "answer": self._answer,
            "on_failure": "" if self.on_failure == "continue" else self.on_failure,
        }
        steps = {name: files.step_to_data(step) for name, step in self.steps.items()}
        return {**{key: value for key, value in said.items() if value not in (None, "")}, "steps": steps}

    def save(self, path: str | Path) -> None:
        """Write the pipeline to a file: `.yaml`, `.yml` or `.json`.

        Raises:
            ConfigurationError: the suffix is another one, or the file cannot be written.
        """
        files.write_definition(path, self.to_data())

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        agents: files.Agents = (),
        llm: LLM | LLMSettings | str | None = None,
        tools: Tools = (),
        **options: Any,
    ) -> Self:
        """Read a pipeline from a file.

        Args:
            path: A file that `save` wrote, or written by hand.
            agents: The agents that its steps name, by these names, or as a list.
            llm: The model of steps with a goal.
            tools: The tools of those.
            options: Further arguments of `Pipeline`, such as `limits`.

        Raises:
            ConfigurationError: the file cannot be read, names an agent that was not given, or its steps cannot run.
        """
        found = files.definition_from(files.read_definition(path), agents)
        return cls(found.pop("name"), llm=llm, tools=tools, **{**found, **options})

    def to_mermaid(self, result: PipelineResult | None = None) -> str:
        """The steps as a flowchart in the language of Mermaid; with a result, coloured by what they came to."""
        return drawing.to_mermaid(self._graph, self._agents, None if result is None else result.steps)

    def draw(self, result: PipelineResult | None = None) -> str:
        """The steps as lines of text; with a result, with what they came to."""
        return drawing.to_lines(self._graph, self._agents, None if result is None else result.steps)


def _checked_graph(name: str, steps: tuple[PipelineStep, ...], inputs: tuple[str, ...] | None) -> Graph:
    """Put the steps together.

    Raises:
        ConfigurationError: they cannot run; the text says all that is wrong.
    """
    for step in steps:
        if not isinstance(step, PipelineStep):
            raise ConfigurationError(f"steps= takes steps, not {step!r:.100}")
    names = [step.name for step in steps]
    problems = [f"there are several steps {each!r}" for each in dict.fromkeys(names) if names.count(each) > 1]
    problems += [] if steps else ["it has no steps"]
    problems += [f"{each!r} is both a step and an input" for each in inputs or () if each in names]
    graph = Graph(dict(zip(names, steps, strict=True)), inputs)
    problems = problems or list(graph.problems())
    if problems:
        listed = "".join(f"\n  - {each}" for each in problems)
        raise ConfigurationError(f"pipeline {name!r} cannot run:{listed}")
    return graph


def _agents_of(
    name: str, steps: Iterable[PipelineStep], llm: LLM | LLMSettings | str | None, tools: Tools
) -> dict[str, Agent[Any, Any]]:
    """The agent of each step; those with a goal share one.

    Raises:
        ConfigurationError: there is no model for a goal, or two agents have one name.
    """
    goals: GoalAgent[Any, Any] | None = None
    agents: dict[str, Agent[Any, Any]] = {}
    for step in steps:
        if step.agent is not None:
            agents[step.name] = step.agent
            continue
        if llm is None:
            raise ConfigurationError(
                f"step {step.name!r} has a goal and no agent: pass its agent=, or llm= of the pipeline"
            )
        goals = goals or GoalAgent(f"{name}-goals", llm=llm, tools=tools)
        agents[step.name] = goals
    by_name = {name: None, **{agent.name: agent for agent in agents.values()}}
    for agent in agents.values():
        if by_name[agent.name] is not agent or agent.name == name:
            raise ConfigurationError(
                f"two agents of pipeline {name!r} are called {agent.name!r}: give each a name of its own"
            )
    return agents
