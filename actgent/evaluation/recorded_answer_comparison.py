"""`compare_decisions`: compare recorded model answers with those of other models or prompts, at each decision of sessions."""

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
    """Variant of a comparison: agents with the model and the prompt that answer in place of the recorded ones."""

    agents: tuple[Agent, ...] = attrs.field(converter=_agents)
    """Agents, or one agent. A recorded session is compared with the agent that has the name of its agent."""
    model: LLM | None = None
    """Model for all model roles; None uses the models of the agent."""
    prompt: str | None = None
    """System prompt in place of the agent's; the protocol adds its answer format. None keeps the agent's prompt."""
    is_offline: bool = False
    """True if no model is called: each decision gets its recorded answer, which checks only the agent's code."""

    def agent_of(self, recording: Recording) -> Agent | None:
        """Return the agent of this variant that has the same name as the agent of a recording; None if no agent has this name."""
        return next((each for each in self.agents if each.name == recording.agent), None)


async def compare_decisions(
    recordings: Sequence[Recording],
    variants: Mapping[str, DecisionVariant],
    *,
    concurrency: int = 8,
    on_session: Callable[[DecisionReport], object] | None = None,
) -> DecisionReport:
    """Fork each session at each recorded model answer, ask the variants in place of the recorded model, and report the differences.

    No tool runs. If an answer calls other tools than recorded, the fork continues with the recorded results of these calls. The
    fork ends with the turn, or at the first call without a recorded result.

    Args:
        recordings: Sessions to compare. Sessions of other agents are ignored.
        variants: Models and prompts by their names in the report.
        concurrency: Maximum number of sessions that are compared at the same time, each with one model call at a time.
        on_session: Function that is called with the report of each session as soon as it is complete.

    Raises:
        ConfigurationError: There are no variants, `concurrency` is below 1, or no recording belongs to an agent of the variants.
    """
    if not variants or concurrency < 1:
        raise ConfigurationError(
            f"a comparison requires at least one variant, and a concurrency= of at least 1, not {len(variants)} and {concurrency}"
        )
    known = [each for each in recordings if any(v.agent_of(each) for v in variants.values())]
    if not known:
        names = ", ".join(sorted({each.agent for each in recordings})) or "none"
        raise ConfigurationError(
            f"one of the recorded sessions must belong to these agents, but the agents of the sessions are: {names}"
        )
    reports: dict[int, DecisionReport] = {}
    slots = trio.CapacityLimiter(concurrency)

    async def compare(number: int, recording: Recording, slot: object) -> None:
        try:
            reports[number] = report = await _compare_session(recording, variants)
            if on_session is not None:
                on_session(report)
        finally:
            slots.release_on_behalf_of(slot)

    async with _connect_toolsets(variants.values()), trio.open_nursery() as nursery:
        for number, recording in enumerate(known):
            await slots.acquire_on_behalf_of(slot := object())
            nursery.start_soon(compare, number, recording, slot)
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
async def _connect_toolsets(variants: Iterable[DecisionVariant]) -> AsyncGenerator[None, None]:
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
    """Replay a recorded session, and return its decisions. If the replay fails, return the text of its error."""
    try:
        return await find_decisions(recording, agent, system=system)
    except Exception as error:  # noqa: BLE001 - code of the user runs in the replay
        return describe(error)


@attrs.frozen(eq=False)
class _Forks:
    """Comparison of one recorded session with one variant, by forks of the session."""

    recording: Recording
    agent: Agent
    variant: DecisionVariant
    system: str | None
    name: str

    async def compare(self, decision: RecordedDecision) -> ComparedDecision:
        """Call the variant's model at a recorded decision, and compare its answer with the recorded one."""
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
        """Call the variant's model at a decision. Return its answer and an empty text, or None and the text of the error.

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
        """Continue the session from an answer that has other tool calls than recorded, and return how the fork ended.

        Return None if the answer has the same calls or none.
        """
        if not answered.calls or difference_kind(recorded, answered) == "same":
            return None
        try:
            return await follow_fork(
                self.recording, self.agent, decision, answer, self._models, system=self.system
            )
        except Exception as error:  # noqa: BLE001 - code of the user runs in the fork
            return ForkEnd(calls=answered.calls, error=describe(error))
