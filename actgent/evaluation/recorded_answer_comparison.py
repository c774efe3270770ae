"""`compare_decisions`: ask other models, or the same model with another prompt, at each decision of recorded sessions."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.agents.session_replay import (
    AnswerReading,
    ForkEnd,
    RecordedDecision,
    Recording,
    SessionDecisions,
    find_decisions,
    follow_fork,
    models_of,
)
from actgent.errors import ConfigurationError
from actgent.llm.model_interface import LLM, ModelResponse, check_answer
from actgent.messages import NO_USAGE
from actgent.support.user_code_calls import convert_user_error
from actgent.tools.outputs.result_text import describe

from .recorded_answer_comparison_report import (
    ComparedDecision,
    DecisionReport,
    UnreachedDecisions,
    difference_kind,
)


def _agents(value: Agent | Iterable[Agent]) -> tuple[Agent, ...]:
    return (value,) if isinstance(value, Agent) else tuple(value)


@attrs.frozen(kw_only=True, eq=False)
class DecisionVariant:
    """Agents with the model and the prompt that are compared with recorded sessions."""

    agents: tuple[Agent, ...] = attrs.field(converter=_agents)
    """Agents, or one agent. A session is compared with the agent of its name."""
    model: LLM | None = None
    """Model for all roles; None uses the models of the agent."""
    prompt: str | None = None
    """System prompt in place of the agent's; the protocol adds its answer format. None keeps the agent's prompt."""
    is_offline: bool = False
    """True asks no model: each decision is answered with the recorded answer. This checks only the agent's code."""

    def agent_of(self, recording: Recording) -> Agent | None:
        """Return the agent that recorded a session, by name. None if it is not among the agents."""
        return next((each for each in self.agents if each.name == recording.agent), None)


async def compare_decisions(
    recordings: Sequence[Recording],
    variants: Mapping[str, DecisionVariant],
    *,
    concurrency: int = 8,
    on_session: Callable[[DecisionReport], object] | None = None,
) -> DecisionReport:
    """Fork each session at each recorded model answer, ask the variants in place of the recorded model, and report the differences.

    No tool runs. If an answer calls other tools than recorded, the fork continues with recorded results of the same calls, to
    the end of the turn or to the first call without a recorded result.

    Args:
        recordings: Sessions to compare. Sessions of other agents are ignored.
        variants: Models and prompts by their names in the report.
        concurrency: Maximum number of sessions that are compared at the same time, each with one model call at a time.
        on_session: Called with the report of each session when the session ends.

    Raises:
        ConfigurationError: There are no variants, `concurrency` is below 1, or no recording belongs to an agent of the variants.
    """
    if not variants or concurrency < 1:
        raise ConfigurationError(
            f"a comparison needs at least one variant and concurrency= of at least 1, not {len(variants)} and {concurrency}"
        )
    known = [each for each in recordings if any(v.agent_of(each) for v in variants.values())]
    if not known:
        names = ", ".join(sorted({each.agent for each in recordings})) or "none"
        raise ConfigurationError(
            f"no recorded session belongs to these agents; agents of the sessions: {names}"
        )
    reports: dict[int, DecisionReport] = {}
    places = trio.CapacityLimiter(concurrency)

    async def compare(number: int, recording: Recording, place: object) -> None:
        try:
            reports[number] = report = await _compare_session(recording, variants)
            if on_session is not None:
                on_session(report)
        finally:
            places.release_on_behalf_of(place)

    async with _started(variants.values()), trio.open_nursery() as nursery:
        for number, recording in enumerate(known):
            await places.acquire_on_behalf_of(place := object())
            nursery.start_soon(compare, number, recording, place)
    return join_reports((reports[number] for number in sorted(reports)), list(variants))


def join_reports(reports: Iterable[DecisionReport], variants: Sequence[str]) -> DecisionReport:
    """Combine the reports of several sessions into one. `variants` are the names of the columns."""
    found = list(reports)
    return DecisionReport(
        decisions=tuple(each for report in found for each in report.decisions),
        unreached=tuple(each for report in found for each in report.unreached),
        variants=tuple(variants),
        sessions=sum(report.sessions for report in found),
    )


@asynccontextmanager
async def _started(variants: Iterable[DecisionVariant]) -> AsyncGenerator[None, None]:
    """Connect the toolsets of all agents during the block, so that their requests show the tools."""
    agents = {id(agent): agent for variant in variants for agent in variant.agents if agent.toolsets}
    async with AsyncExitStack() as stack:
        for agent in agents.values():
            await stack.enter_async_context(agent)
        yield


async def _compare_session(recording: Recording, variants: Mapping[str, DecisionVariant]) -> DecisionReport:
    replays: dict[tuple[int, str | None], SessionDecisions | str] = {}
    compared, unreached = list[ComparedDecision](), list[UnreachedDecisions]()
    for name, variant in variants.items():
        if (agent := variant.agent_of(recording)) is None:
            continue
        system = None if variant.prompt is None else agent.prompts.with_form(variant.prompt)
        key = id(agent), system
        if key not in replays:
            replays[key] = await _find(recording, agent, system)
        found = replays[key]
        if isinstance(found, str):
            count, reason = len(recording.model_answers), found
        else:
            count = found.missing
            reason = "" if found.difference is None else str(found.difference)
            fork = _Forks(recording, agent, variant, system, name)
            compared += [await fork.compare(decision) for decision in found.decisions]
        if count or reason:
            unreached.append(
                UnreachedDecisions(
                    session_id=recording.session_id,
                    agent=recording.agent,
                    variant=name,
                    count=count,
                    reason=reason or "the replay makes fewer model calls",
                )
            )
    return DecisionReport(
        decisions=tuple(compared), unreached=tuple(unreached), variants=tuple(variants), sessions=1
    )


async def _find(recording: Recording, agent: Agent, system: str | None) -> SessionDecisions | str:
    """Find the decisions of a session by a replay. If the replay fails, return its error as text."""
    try:
        return await find_decisions(recording, agent, system=system)
    except Exception as error:  # noqa: BLE001 - code of the user runs in the replay
        return describe(error)


@attrs.frozen(eq=False)
class _Forks:
    """Forks of one session for one variant."""

    recording: Recording
    agent: Agent
    variant: DecisionVariant
    system: str | None
    name: str

    async def compare(self, decision: RecordedDecision) -> ComparedDecision:
        """Ask the variant's model at a recorded decision, and compare its answer with the recorded one."""
        recorded = decision.read(decision.answer)
        begun = trio.current_time()
        answer, error = await self._ask(decision)
        seconds = trio.current_time() - begun
        answered, end = None, None
        if answer is not None:
            answered = decision.read(answer)
            end = await self._follow(decision, answer, recorded, answered)
        return ComparedDecision(
            session_id=self.recording.session_id,
            agent=self.recording.agent,
            step=decision.step,
            variant=self.name,
            recorded=recorded,
            answered=answered,
            error=error,
            end=end,
            is_asked=not self.variant.is_offline,
            recorded_usage=decision.answer.usage,
            usage=NO_USAGE if answer is None or self.variant.is_offline else answer.usage,
            seconds=seconds,
        )

    @property
    def _models(self) -> Mapping[str, LLM]:
        models = models_of(self.agent)
        return models if self.variant.model is None else dict.fromkeys(models, self.variant.model)

    async def _ask(self, decision: RecordedDecision) -> tuple[ModelResponse | None, str]:
        """Return the answer of the variant's model, or None and the error of the call.

        Offline, the recorded answer is returned.
        """
        if self.variant.is_offline:
            await trio.lowlevel.checkpoint()
            return decision.answer, ""
        models = self._models
        model = models.get(decision.role) or models["default"]
        try:
            with trio.fail_after(decision.timeout):
                return check_answer(await model.complete(attrs.evolve(decision.chat)), model), ""
        except trio.TooSlowError:
            return None, f"no answer within {decision.timeout:g} s"
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - a model of the user may raise anything
            error = convert_user_error(raised, "model", model.name)
        return None, describe(error)

    async def _follow(
        self,
        decision: RecordedDecision,
        answer: ModelResponse,
        recorded: AnswerReading,
        answered: AnswerReading,
    ) -> ForkEnd | None:
        """Continue the session from an answer with other calls than recorded, and return where it ended.

        None if the answer has the same or no calls.
        """
        if not answered.calls or difference_kind(recorded, answered) == "same":
            return None
        try:
            return await follow_fork(
                self.recording, self.agent, decision, answer, self._models, system=self.system
            )
        except Exception as error:  # noqa: BLE001 - code of the user runs in the fork
            return ForkEnd(calls=answered.calls, error=describe(error))
