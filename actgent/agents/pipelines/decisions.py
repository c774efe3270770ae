"""Whether a step runs, decided from inputs and outcomes alone: a run that goes on after a crash decides the same."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from .graph import GraphStep
from .outcomes import StepResult, values_in
from .references import NoValue, fill


@attrs.frozen
class Go:
    """The step runs, and its agent is told this."""

    said: Any


def decide_step(
    step: GraphStep, before: Sequence[str], inputs: Mapping[str, Any], results: Mapping[str, StepResult]
) -> Go | StepResult:
    """Decide over a step once those `before` it are over: what its agent is told, or what it comes to without."""
    for name in before:
        other = results[name]
        if other.status == "failed":
            return _skipped(step, f"step {name!r} failed: {other.reason}", cause=name)
        if other.cause:
            return _skipped(step, f"step {name!r} was skipped, as {other.cause!r} failed", cause=other.cause)
    values = values_in(inputs, results)
    try:
        if step.when is not None and not step.when.holds(values):
            return _skipped(step, f"{step.when}: that does not hold")
        missing = next(
            (r.name for r in step.read if _is_left_out(r.name, results) and not r.is_optional), None
        )
        if missing is not None:
            return _skipped(step, f"it reads what step {missing!r} gave, which was skipped")
        return Go(fill(step.said, values))
    except NoValue as error:
        return StepResult(name=step.name, status="failed", reason=str(error))


def _is_left_out(name: str, results: Mapping[str, StepResult]) -> bool:
    return name in results and results[name].status == "skipped"


def _skipped(step: GraphStep, reason: str, *, cause: str = "") -> StepResult:
    return StepResult(name=step.name, status="skipped", reason=reason, cause=cause)
