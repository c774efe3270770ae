"""`evaluate`: run cases concurrently with one or more agents."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.errors import ConfigurationError, Suspended
from actgent.information_flow_labels import text_of
from actgent.llm.custom_model_adapters import ModelLike
from actgent.messages import NO_USAGE
from actgent.support.user_code_calls import convert_user_error
from actgent.tools.outputs.result_text import describe
from actgent.tools.untrusted_sources_of_call import reading_text_of

from .cases_and_results import Case, CheckResult, Trial
from .evaluation_report import Report
from .model_judge import Judge, criteria_of, make_judge
from .predefined_checks import checks_of, result_of
from .simulated_user import SimulatedUser

Variant = Agent[Any, Any] | Callable[[], Agent[Any, Any]]
"""An agent that all runs share, each in its own session, or a function that returns an agent for each run."""


async def evaluate(
    cases: Sequence[Case],
    variants: Variant | Mapping[str, Variant],
    *,
    runs: int = 1,
    concurrency: int = 8,
    judge: ModelLike | str | None = None,
    on_trial: Callable[[Trial], object] | None = None,
) -> Report:
    """Run each case `runs` times with each variant, and return the report of the evaluation.

    Args:
        cases: Cases to run.
        variants: An agent, or several agents (variants) by their names in the report.
        runs: Number of runs of each case and variant.
        concurrency: Maximum number of concurrent runs.
        judge: Judge model, for cases that need one.
        on_trial: Function that is called with each run when it ends, also before a cancellation of the evaluation.

    Raises:
        ConfigurationError: There are no cases or variants, a number is below 1, or a case needs a judge and `judge`
            is None.
    """
    named = dict(variants) if isinstance(variants, Mapping) else {_name_of(variants): variants}
    _check(cases, named, runs, concurrency, judge)
    trials: list[Trial] = []

    def note(trial: Trial) -> None:
        trials.append(trial)
        if on_trial is not None:
            on_trial(trial)

    async with AsyncExitStack() as stack:
        runner = _CaseRunner(await _open_judge(cases, judge, stack), trio.CapacityLimiter(concurrency), note)
        ready = {name: await _prepare(variant, stack) for name, variant in named.items()}
        async with trio.open_nursery() as nursery:
            for run in range(1, runs + 1):
                for case in cases:
                    for name, open_agent in ready.items():
                        await runner.slots.acquire_on_behalf_of(slot := object())
                        nursery.start_soon(runner.run, case, name, run, open_agent, slot)
    return Report.of(trials, cases, list(named))


def _check(
    cases: Sequence[Case],
    variants: Mapping[str, Variant],
    runs: int,
    concurrency: int,
    judge: ModelLike | str | None,
) -> None:
    _check_kinds(cases, variants)
    if not cases or not variants:
        raise ConfigurationError("an evaluation requires at least one case and one agent")
    if runs < 1 or concurrency < 1:
        raise ConfigurationError(f"runs= and concurrency= must be at least 1, not {runs} and {concurrency}")
    unjudged = [case.title for case in cases if judge is None and _criteria(case)]
    if unjudged:
        raise ConfigurationError(f"case {unjudged[0]!r} requires a judge model: pass judge= (or --judge)")


def _check_kinds(cases: Sequence[Case] | Case, variants: Mapping[str, Variant]) -> None:
    if isinstance(cases, Case):
        raise ConfigurationError("cases= must be a list of cases, not a Case: write [case]")
    given: Sequence[object] = cases
    if other := next((each for each in given if not isinstance(each, Case)), None):
        raise ConfigurationError(f"cases= must contain only Case(input=...), not {other!r}")
    if wrong := next((each for each in variants.values() if isinstance(each, type)), None):
        raise ConfigurationError(
            f"expected an agent, or a function that returns one, not the class {wrong.__name__}: write "
            f"{wrong.__name__}(...), or lambda: {wrong.__name__}(...)"
        )


def _criteria(case: Case) -> list[str]:
    return [each for each in (case.judge, *map(criteria_of, case.checks)) if each]


def _name_of(variant: Variant) -> str:
    return variant.name if isinstance(variant, Agent) else getattr(variant, "__name__", "agent")


OpenAgent = Callable[[], Any]
"""Returns an async context manager with the agent of one run."""


async def _prepare(variant: Variant, stack: AsyncExitStack) -> OpenAgent:
    if isinstance(variant, Agent):
        await stack.enter_async_context(variant)
        return partial(_yield_shared_agent, variant)
    return partial(_open_new_agent, variant)


@asynccontextmanager
async def _yield_shared_agent(agent: Agent) -> AsyncGenerator[Agent, None]:
    yield agent


@asynccontextmanager
async def _open_new_agent(make: Callable[[], Agent]) -> AsyncGenerator[Agent, None]:
    async with make() as agent:
        yield agent


async def _open_judge(
    cases: Sequence[Case], model: ModelLike | str | None, stack: AsyncExitStack
) -> Judge | None:
    if model is None or not any(map(_criteria, cases)):
        return None
    judge = make_judge(model)
    await stack.enter_async_context(judge.agent)
    return judge


@attrs.frozen
class _CaseRunner:
    """Runner of cases with limited concurrency."""

    judge: Judge | None
    """Judge model that scores the answers; None if no case needs one."""
    slots: trio.CapacityLimiter
    note: Callable[[Trial], None]

    async def run(self, case: Case, variant: str, run: int, open_agent: OpenAgent, slot: object) -> None:
        try:
            trial = Trial(case=case, variant=variant, run=run)
            try:
                async with open_agent() as agent:
                    trial = await _run_inputs(agent, trial)
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - user code creates the agent
                trial = attrs.evolve(trial, error=_words(convert_user_error(raised, "variant", variant)))
            self.note(await self._run_checks(trial))
        finally:
            self.slots.release_on_behalf_of(slot)

    async def _run_checks(self, trial: Trial) -> Trial:
        if trial.error:
            return trial
        usage = NO_USAGE
        checks = [check for check in checks_of(trial.case) if criteria_of(check) is None]
        results: list[CheckResult] = [await result_of(check, trial) for check in checks]
        for criteria in _criteria(trial.case):
            assert self.judge is not None  # noqa: S101 - checked before
            result, took = await self.judge.score(trial, criteria)
            results.append(result)
            usage += took
        return attrs.evolve(trial, results=tuple(results), judge_usage=usage)


async def _run_inputs(agent: Agent, trial: Trial) -> Trial:
    """Send the inputs of a case in a new session, then run the conversation with its simulated user.

    Return the run with the answer or the error.
    """
    case = trial.case
    session = await agent.create_session("evaluation", limits=case.limits)
    began, reply, error, simulation = trio.current_time(), None, "", None
    try:
        with reading_text_of(text_of(case.label)):
            for text in case.input:
                reply = await agent.run(text, session=session, timeout=case.timeout)
        if case.user is not None:
            user = case.user if isinstance(case.user, SimulatedUser) else case.user(agent)
            simulation = await user.talk_to(agent, session, timeout=case.timeout)
            reply = simulation.reply or reply
    except Exception as failed:  # noqa: BLE001 - a user-defined model may raise anything
        error = _words(failed)
    seconds = trio.current_time() - began
    done = attrs.evolve(
        trial,
        error=error,
        history=session.history,
        usage=session.usage,
        seconds=seconds,
        simulation=simulation,
    )
    if session.status != "closed":
        await session.aclose()
    return done if reply is None or error else attrs.evolve(done, text=reply.text, data=reply.data)


def _words(error: Exception) -> str:
    if isinstance(error, Suspended):
        return f"a tool call needs approval, which an evaluation cannot give: {error}"
    return describe(error)
