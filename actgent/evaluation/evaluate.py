"""Running cases: some at a time, several times each, side by side for several agents."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.errors import ConfigurationError, Suspended
from actgent.llm.adapters import ModelLike
from actgent.messages import NO_USAGE
from actgent.support.foreign import failure_of
from actgent.tools.outputs.results import describe

from .cases import Case, CheckResult, Trial
from .checks import checks_of, result_of
from .judge import Judge, criteria_of, make_judge
from .report import Report
from .simulated import SimulatedUser

Variant = Agent[Any, Any] | Callable[[], Agent[Any, Any]]
"""An agent that all runs share, each with a session of its own, or a function that makes one for each run."""


async def evaluate(
    cases: Sequence[Case],
    variants: Variant | Mapping[str, Variant],
    *,
    runs: int = 1,
    concurrency: int = 8,
    judge: ModelLike | str | None = None,
    on_trial: Callable[[Trial], object] | None = None,
) -> Report:
    """Run each case `runs` times with each variant, at most `concurrency` at a time, and report.

    Args:
        cases: What is said and checked.
        variants: An agent, or several by the names that the report calls them.
        runs: How often each case is run.
        concurrency: How many run at the same time.
        judge: The model of the judge, for cases that have something to judge.
        on_trial: Called with each run when it has ended; what it was given is there if the evaluation is cancelled.

    Raises:
        ConfigurationError: there are no cases or variants, a number is not positive, or a case needs a judge and there is none.
    """
    named = dict(variants) if isinstance(variants, Mapping) else {_name_of(variants): variants}
    _check(cases, named, runs, concurrency, judge)
    trials: list[Trial] = []

    def note(trial: Trial) -> None:
        trials.append(trial)
        if on_trial is not None:
            on_trial(trial)

    async with AsyncExitStack() as stack:
        bench = _Bench(await _open_judge(cases, judge, stack), trio.CapacityLimiter(concurrency), note)
        ready = {name: await _prepare(variant, stack) for name, variant in named.items()}
        async with trio.open_nursery() as nursery:
            for run in range(1, runs + 1):
                for case in cases:
                    for name, opened in ready.items():
                        await bench.places.acquire_on_behalf_of(place := object())
                        nursery.start_soon(bench.run, case, name, run, opened, place)
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
        raise ConfigurationError("an evaluation takes at least one case and one agent")
    if runs < 1 or concurrency < 1:
        raise ConfigurationError(f"runs= and concurrency= are at least 1, not {runs} and {concurrency}")
    unjudged = [case.title for case in cases if judge is None and _criteria(case)]
    if unjudged:
        raise ConfigurationError(
            f"the case {unjudged[0]!r} has to be judged, and there is no judge: name a model for it (judge=, or --judge)"
        )


def _check_kinds(cases: Sequence[Case] | Case, variants: Mapping[str, Variant]) -> None:
    if isinstance(cases, Case):
        raise ConfigurationError("an evaluation takes a list of cases: write [case]")
    if wrong := next((each for each in variants.values() if isinstance(each, type)), None):
        raise ConfigurationError(
            f"an evaluation takes agents, or functions that make one, not the class {wrong.__name__}: write "
            f"{wrong.__name__}(...), or lambda: {wrong.__name__}(...)"
        )


def _criteria(case: Case) -> list[str]:
    return [each for each in (case.judge, *map(criteria_of, case.checks)) if each]


def _name_of(variant: Variant) -> str:
    return variant.name if isinstance(variant, Agent) else getattr(variant, "__name__", "agent")


Opened = Callable[[], Any]
"""Opens the agent of one run, as an async context manager."""


async def _prepare(variant: Variant, stack: AsyncExitStack) -> Opened:
    if isinstance(variant, Agent):
        await stack.enter_async_context(variant)
        return partial(_shared, variant)
    return partial(_fresh, variant)


@asynccontextmanager
async def _shared(agent: Agent) -> AsyncGenerator[Agent, None]:
    yield agent


@asynccontextmanager
async def _fresh(make: Callable[[], Agent]) -> AsyncGenerator[Agent, None]:
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
class _Bench:
    """Where runs take place."""

    judge: Judge | None
    places: trio.CapacityLimiter
    note: Callable[[Trial], None]

    async def run(self, case: Case, variant: str, run: int, opened: Opened, place: object) -> None:
        try:
            trial = Trial(case=case, variant=variant, run=run)
            try:
                async with opened() as agent:
                    trial = await _answered(agent, trial)
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - of the user's code, which makes the agent
                trial = attrs.evolve(trial, error=_words(failure_of(raised, "variant", variant)))
            self.note(await self._checked(trial))
        finally:
            self.places.release_on_behalf_of(place)

    async def _checked(self, trial: Trial) -> Trial:
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


async def _answered(agent: Agent, trial: Trial) -> Trial:
    """Say the inputs of a case in a session of its own."""
    case = trial.case
    session = await agent.create_session("evaluation", limits=case.limits)
    began, reply, error, told = trio.current_time(), None, "", None
    try:
        for text in case.input:
            reply = await agent.run(text, session=session, timeout=case.timeout)
        if case.user is not None:
            user = case.user if isinstance(case.user, SimulatedUser) else case.user(agent)
            told = await user.talk_to(agent, session, timeout=case.timeout)
            reply = told.reply or reply
    except Exception as failed:  # noqa: BLE001 - a model of the user's own may raise anything
        error = _words(failed)
    seconds = trio.current_time() - began
    done = attrs.evolve(
        trial,
        error=error,
        history=session.history,
        usage=session.usage,
        seconds=seconds,
        simulation=told,
    )
    if session.status != "closed":
        await session.aclose()
    return done if reply is None or error else attrs.evolve(done, text=reply.text, data=reply.data)


def _words(error: Exception) -> str:
    if isinstance(error, Suspended):
        return f"a tool call waits for a person, and nobody is there: {error}"
    return describe(error)
