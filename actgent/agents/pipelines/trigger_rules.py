"""Decisions if a step runs. They depend on inputs and results only, so a run that resumes after a crash decides equally."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from .graph import GraphStep
from .outcomes import StepResult, values_in
from .references import NoValue, fill


@attrs.frozen
class RunStep:
    """Decision to run a step."""

    filled_message: Any
    """Message for the agent, as text or data, with all references replaced."""


def decide_step(
    step: GraphStep, before: Sequence[str], inputs: Mapping[str, Any], results: Mapping[str, StepResult]
) -> RunStep | StepResult:
    """Decide on a step after the steps `before` it have ended: return its message, or its result if it is skipped or fails."""
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
