"""`Pipeline`: steps with dependencies, each done by an agent. A pipeline is an agent, and its runs are sessions."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.agents.goal import GoalAgent
from actgent.agents.keyword_argument_types import Tools
from actgent.agents.runs.runs_on_other_cluster_nodes import view_session
from actgent.agents.session import Session
from actgent.errors import (
    ActgentError,
    ConfigurationError,
    DeadlineExceeded,
    DuplicateMessage,
    Interrupted,
    LimitReached,
    SessionNotFound,
    WrongOwner,
    did_you_mean_or_list,
)
from actgent.limits_and_schedules.limits import Limits
from actgent.llm.model_interface import LLM, ModelRequest, ModelResponse, OnText
from actgent.llm.model_settings import LLMSettings
from actgent.messages import NO_USAGE, Sender, Text, ToolCall, ToolResult, Usage
from actgent.protocols.protocol_interface import Outcome, Protocol, SendReply, TurnView, WithOutput
from actgent.state.reducers import merge
from actgent.structured_output.output_type import Output
from actgent.support import span_names
from actgent.support.unknown_name_hints import lists_arguments
from actgent.tools.outputs.result_text import to_text

from . import diagrams, pipeline_files
from .dependency_graph import Graph
from .pipeline_results import (
    INPUTS,
    ROUNDS,
    STEPS,
    PipelineResult,
    RunStatus,
    StepResult,
    results_in,
    status_of,
)
from .pipeline_step import PipelineStep
from .run_steps_tool import ANSWER_SEPARATOR, RUN_STEPS, RunSteps
from .start_and_rerun_commands import FROM, input_error

OnFailure = Literal["continue", "stop"]
FIRST_MESSAGE_ID = "run"
"""Id of the first message of a run. A second call for the same run sends this id again, and so waits for the run."""
_CLOSE_TIMEOUT_SECONDS = 5.0
"""Maximum seconds to close the session of a run without an id, also after a cancellation."""


@lists_arguments
class Pipeline(Agent[Any, Any]):
    """Steps with dependencies, each done by an agent. Independent steps run concurrently.

    A run is a session of the pipeline, and each step is a task in a child session. With a journal, a run resumes after a crash,
    and steps that have ended do not run again. The limits of a run cover all of its steps.

    Args:
        name: Name of the pipeline.
        steps: Steps, see `PipelineStep`.
        inputs: Names of the inputs of a run; None derives them from the references of the steps.
        answer: Name of the step whose output is the answer; None uses the last steps, as an object by name if there are
            several.
        on_failure: Effect of a failed step on steps that do not depend on it: `continue` runs them, `stop` stops the run.
        llm: Model of steps with a goal and without an agent.
        tools: Tools of steps with a goal and without an agent.
        goal: Goal of the pipeline, for agents that have it as a tool.
        limits: Limits of a run, with all of its steps.
        max_concurrent_sessions: Maximum number of concurrent runs.
        deps: Value that tools of the steps get as `ToolContext.deps`.
        grace: Seconds to finish accepted messages when the pipeline stops.

    Raises:
        ConfigurationError: The steps cannot run: an unknown name, a cycle, a step that can never run, an invalid reference.
    """

    _operation = span_names.INVOKE_WORKFLOW

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
        max_concurrent_sessions: int = 100,
        deps: Any = None,
        grace: float = 10.0,
    ) -> None:
        written = tuple(steps)
        self._graph = _build_graph(name, written, None if inputs is None else tuple(inputs))
        self._steps = {step.name: step for step in written}
        self.on_failure = on_failure
        if on_failure not in ("continue", "stop"):
            raise ConfigurationError(f"on_failure= must be 'continue' or 'stop', not {on_failure!r:.100}")
        if answer is not None and answer not in self._graph.steps:
            raise ConfigurationError(
                f"answer={answer!r} is not a step: {did_you_mean_or_list(str(answer), self._graph.steps)}"
            )
        self._answer = answer
        agents = _agents_by_step(name, written, llm, tools)
        self._agents = {step: agent.name for step, agent in agents.items()}
        self._outputs = {step.name: step.output or _output_of(agents[step.name]) for step in written}
        super().__init__(
            name,
            llm=PipelineModel(),
            goal=goal,
            protocol=PipelineProtocol(self._respond),
            tools=[RunSteps(self._graph, self._agents, stops=on_failure == "stop", answer=self._answer_data)],
            reducers={STEPS: merge, ROUNDS: merge},
            limits=limits,
            max_concurrent_sessions=max_concurrent_sessions,
            deps=deps,
            grace=grace,
        )
        for agent in dict.fromkeys(agents.values()):
            self.accompany(agent)

    @property
    def steps(self) -> Mapping[str, PipelineStep]:
        """Steps of the pipeline by name."""
        return self._steps

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the required inputs of a run."""
        return self._graph.read_inputs

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Names of the steps in groups. The steps of a group depend only on steps of earlier groups."""
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
        """Run the steps and return their results. Failures of steps are part of the result.

        If a run with the id `session_id` exists, the call waits for it or returns its result; no step runs twice. Without
        `session_id`, the session is closed at the end of the run. If the call is cancelled, the run is stopped unless another
        caller waits for it.

        Args:
            inputs: JSON values by name; None for an existing run.
            session_id: Id of the run, for `result` and `retry` and to resume the run after a crash; None creates one.
            owner: Owner of the run.
            limits: Limits of this run with all its steps, in place of those of the pipeline.

        Raises:
            ConfigurationError: An input is missing or unknown, or the existing run has other inputs.
            WrongOwner: The existing run belongs to another owner.
            NotRunning: The pipeline is not running.
        """
        if inputs is not None and not isinstance(inputs, Mapping):
            raise ConfigurationError(
                f"pipeline {self.name!r}: inputs= must be a mapping of values by name, e.g. {{'topic': 'tea'}}, not {inputs!r}"
            )
        given = dict(inputs or {})
        if session_id is None:
            self._check_inputs(given)
            session = await self.create_session(owner)
            try:
                return await self._process(session, given, limits)
            finally:
                with trio.move_on_after(_CLOSE_TIMEOUT_SECONDS, shield=True):
                    await session.aclose()
        session = await self._open_run(session_id, owner, inputs)
        return await self._process(session, given, limits)

    async def _open_run(
        self, session_id: str, owner: Sender | str, inputs: Mapping[str, Any] | None
    ) -> Session[Any]:
        """Return the session of a pipeline run, and create the session if it does not exist. The inputs of a new run are checked.

        Raises:
            ConfigurationError: An input is missing or unknown, or the existing run has other inputs.
            WrongOwner: The run belongs to another owner.
        """
        try:
            session = await self.open_session(session_id, owner=owner)
        except WrongOwner:
            raise
        except SessionNotFound:
            self._check_inputs(inputs or {})
            return await self.ensure_session(owner, session_id)
        view = await view_session(await self._await_opener(), session)
        recorded = view.state.get(INPUTS)
        if recorded is None and view.status == "idle" and not view.history:
            self._check_inputs(inputs or {})
        if recorded is not None and inputs is not None and recorded != inputs:
            raise ConfigurationError(
                f"run {session_id!r} was started with other inputs: {recorded!r:.200}; omit inputs= or use another session_id="
            )
        return session

    async def retry(self, session_id: str, *from_steps: str, limits: Limits | None = None) -> PipelineResult:
        """Run the named steps of an ended run again, and all steps that depend on them, in new sessions.

        Without names, run the steps again that failed or did not run. Results of other steps stay. If the run is still in progress,
        wait for its end.

        Raises:
            ConfigurationError: A step is unknown, or the run was never started.
            SessionNotFound: The run does not exist.
        """
        for name in from_steps:
            if name not in self.steps:
                raise ConfigurationError(
                    f"the pipeline has no step {name!r}: {did_you_mean_or_list(name, self.steps)}"
                )
        session = await self.open_session(session_id)
        view = await view_session(await self._await_opener(), session)
        if INPUTS not in view.state and view.status == "idle":
            raise ConfigurationError(f"run {session_id!r} was never started: call `process` to start it")
        command = to_text({FROM: list(from_steps)} if from_steps else {})
        return await self._result(session, self.run(command, session=session, limits=limits))

    async def result(self, session_id: str) -> PipelineResult:
        """Return the current result of a run.

        Raises:
            SessionNotFound: The run does not exist.
        """
        view = await view_session(await self._await_opener(), await self.open_session(session_id))
        return self.result_in(view.state, session_id, usage=view.usage)

    def _check_inputs(self, inputs: Mapping[str, Any]) -> None:
        if reason := input_error(inputs, self._graph):
            raise ConfigurationError(f"pipeline {self.name!r}: {reason}")

    async def _process(
        self, session: Session[Any], given: Mapping[str, Any], limits: Limits | None
    ) -> PipelineResult:
        run = self.run(to_text(given), session=session, message_id=FIRST_MESSAGE_ID, limits=limits)
        return await self._result(session, run)

    async def _result(self, session: Session[Any], run: Awaitable[object]) -> PipelineResult:
        """Wait until the run `run` in the session has ended, and build its result from the state of the session."""
        error: ActgentError | None = None
        try:
            await run
        except DuplicateMessage:
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
        """Build the result of a run from the state of the run's session, e.g. of a session that was read from a journal.

        `error` is the error that ended the run; None if there was none.

        Raises:
            ConfigurationError: An output does not fit the type that its step declares now.
        """
        results = {
            name: self._convert_output(each) for name, each in results_in(state, tuple(self.steps)).items()
        }
        has_ended = all(each.status != "pending" for each in results.values())
        data = self._answer_data(results)
        text = "" if data is None else to_text(data)
        unfinished: RunStatus = "cancelled" if isinstance(error, Interrupted) else "error"
        return PipelineResult(
            status=status_of(results) if has_ended else unfinished,
            data=data,
            text=text or ("" if error is None else str(error)),
            steps=results,
            inputs=state.get(INPUTS) or {},
            session_id=session_id,
            error=None if has_ended else error,
            usage=usage,
        )

    def _convert_output(self, result: StepResult) -> StepResult:
        """Return a result with its output converted to the type that the step or its agent declares."""
        output = self._outputs[result.name]
        if output is None or result.status != "done":
            return result
        try:
            return attrs.evolve(result, output=output.convert(result.output))
        except ValueError as wrong:
            raise ConfigurationError(
                f"the output of step {result.name!r} does not fit its output= any more: {wrong}; retry the step"
            ) from None

    def _answer_data(self, results: Mapping[str, StepResult]) -> Any:
        """Return the answer of a run: the output of the step in `answer=`, or of the last step.

        With several last steps, return the outputs of the last steps that are done, by name; None if none is done.
        """
        if self._answer is not None:
            return results[self._answer].output
        needed = {each for name in self.steps for each in self._graph.before(name)}
        last = [name for name in self.steps if name not in needed]
        if len(last) == 1:
            return results[last[0]].output
        return {name: results[name].output for name in last if results[name].status == "done"} or None

    def _respond(self, state: Mapping[str, Any], summary: str) -> SendReply:
        """Return the reply of a run: the answer, or the summary of the steps if the run has no answer.

        The message type of the reply is the run's status.
        """
        results = results_in(state, tuple(self.steps))
        data = self._answer_data(results)
        is_value = data is not None and not isinstance(data, str)
        return SendReply(
            text=summary if data is None else to_text(data),
            data=data if is_value else None,
            message_type=status_of(results),
        )

    # --- files and diagrams --------------------------------------------------------------------

    def to_data(self) -> dict[str, Any]:
        """Return the pipeline as plain data with agents by name, as `save` writes it."""
        data = {
            "pipeline": self.name,
            "goal": self.profile.goal,
            "inputs": None if self._graph.inputs is None else list(self._graph.inputs),
            "answer": self._answer,
            "on_failure": "" if self.on_failure == "continue" else self.on_failure,
        }
        steps = {name: pipeline_files.step_to_data(step) for name, step in self.steps.items()}
        return {**{key: value for key, value in data.items() if value not in (None, "")}, "steps": steps}

    def save(self, path: str | Path) -> None:
        """Write the pipeline to a file: `.yaml`, `.yml` or `.json`.

        Raises:
            ConfigurationError: The suffix is unknown, or the file cannot be written.
        """
        pipeline_files.write_definition(path, self.to_data())

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        agents: pipeline_files.Agents = (),
        llm: LLM | LLMSettings | str | None = None,
        tools: Tools = (),
        **options: Any,
    ) -> Self:
        """Read a pipeline from a file.

        Args:
            path: Path of a pipeline file, written by `save` or by hand.
            agents: Agents that the steps name, as a mapping by name or a list.
            llm: Model of steps with a goal.
            tools: Tools of steps with a goal.
            options: Further arguments of `Pipeline`, such as `limits`.

        Raises:
            ConfigurationError: The file cannot be read, names an unknown agent, or its steps cannot run.
        """
        definition = pipeline_files.read_definition(path)
        try:
            found = pipeline_files.definition_from(definition, agents)
        except ConfigurationError as error:
            raise ConfigurationError(f"{Path(path).name}: {error}") from None
        return cls(found.pop("name"), llm=llm, tools=tools, **{**found, **options})

    def to_mermaid(self, result: PipelineResult | None = None) -> str:
        """Return the steps of the pipeline as a Mermaid flowchart. A result colours the steps by their status."""
        return diagrams.to_mermaid(self._graph, self._agents, None if result is None else result.steps)

    def draw(self, result: PipelineResult | None = None) -> str:
        """Return the steps of the pipeline as lines of text. A result adds the status of each step."""
        return diagrams.to_lines(self._graph, self._agents, None if result is None else result.steps)


def _build_graph(name: str, steps: tuple[PipelineStep, ...], inputs: tuple[str, ...] | None) -> Graph:
    """Build the graph of the steps.

    Raises:
        ConfigurationError: The steps cannot run; the text lists all problems.
    """
    for step in steps:
        if not isinstance(step, PipelineStep):
            raise ConfigurationError(f"steps= must contain PipelineStep objects, not {step!r:.100}")
    names = [step.name for step in steps]
    problems = [f"there are several steps {each!r}" for each in dict.fromkeys(names) if names.count(each) > 1]
    problems += [] if steps else ["it has no steps"]
    problems += [f"{each!r} is both a step and an input" for each in inputs or () if each in names]
    graph = Graph(dict(zip(names, steps, strict=True)), inputs)
    problems = problems or list(graph.problems())
    if problems:
        listed = "".join(f"\n  - {each}" for each in problems)
        raise ConfigurationError(f"pipeline {name!r} cannot run, because its steps have errors:{listed}")
    return graph


def _output_of(agent: Agent[Any, Any]) -> Output | None:
    """Return the output type that an agent declares by `Agent(output=...)`; None if it declares none."""
    protocol = agent._defaults.options.protocol  # noqa: SLF001 - a pipeline is an agent
    return protocol.output if isinstance(protocol, WithOutput) else None


def _agents_by_step(
    name: str, steps: Iterable[PipelineStep], llm: LLM | LLMSettings | str | None, tools: Tools
) -> dict[str, Agent[Any, Any]]:
    """Return the agent of each step. Steps with a goal share one agent.

    Raises:
        ConfigurationError: A step with a goal has no model, or two agents have the same name.
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
                f"two agents of pipeline {name!r} are called {agent.name!r}: give each agent a different name"
            )
    return agents


# --- pipeline protocol -----------------------------------------------------------------------


class PipelineModel(LLM):
    """Model of a pipeline, which calls no provider. It answers a message with a call of `run_steps`, and the result with text."""

    name = "pipeline"
    dialect: ClassVar[str] = "pipeline"

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        await trio.lowlevel.checkpoint()
        last = chat.messages[-1]
        results = [part for part in last.parts if isinstance(part, ToolResult)]
        if results:
            text = results[0].error or results[0].content
            answer = text.partition(ANSWER_SEPARATOR)[2]
            return ModelResponse(parts=(Text(answer if answer.strip() else text),), model=self.name)
        text = "".join(part.text for part in last.parts if isinstance(part, Text))
        return ModelResponse(
            parts=(ToolCall(RUN_STEPS, {"order": text}),), stop="tool_calls", model=self.name
        )

    def price_of(self, usage: Usage) -> float | None:
        return 0.0


class PipelineProtocol(Protocol):
    """Protocol of a pipeline. The reply is the output of the last step, and its type is the status of the run."""

    name: ClassVar[str] = "pipeline"
    template: ClassVar[str] = "{{ profile.name }}: a pipeline, whose steps other agents do."
    lookback = 0

    def __init__(self, reply: Callable[[Mapping[str, Any], str], SendReply]) -> None:
        """Create the protocol. `reply` builds the reply from the state of the run and the summary of its steps."""
        self._reply = reply

    def read(self, answer: ModelResponse, view: TurnView) -> Sequence[Outcome]:
        results = next((each.tool_results for each in reversed(view.record) if each.tool_results), ())
        if results and results[0].error is not None:
            return [SendReply(text=answer.text, message_type="error")]
        return [self._reply(view.state, answer.text)]

    def shortfall(self, message_type: str | None) -> str | None:
        return None if message_type == "success" else message_type
