"""What steps came to, in the state of a run's session, and what a run came to.

The state of a run:

    inputs   what it was begun with
    steps    by name `{"status": ..., "output": ..., "reason": ..., "task": ..., "tries": ...}`; one that has not ended has none
    rounds   by name how often a step was begun anew, where that was said
    order    which message the steps were last begun by
"""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from actgent.messages import NO_USAGE, Usage
from actgent.support.serializable import Serializable

Ending = Literal["done", "failed", "skipped"]
StepStatus = Literal["done", "failed", "skipped", "pending"]
RunStatus = Literal["success", "partial", "cancelled", "error"]

INPUTS, STEPS, ROUNDS, ORDER = "inputs", "steps", "rounds", "order"


@attrs.frozen(kw_only=True)
class StepResult(Serializable):
    """What one step came to."""

    name: str
    status: StepStatus
    """`done`, `failed`, `skipped` (its condition did not hold, or what it needs is not there), or `pending`: not over."""
    output: Any = None
    """What its agent answered: a value, or a text; None unless it is done."""
    reason: str = ""
    """Why it failed or was skipped, in words."""
    cause: str = ""
    """The step whose failure it was skipped for; empty where a condition decided."""
    session_id: str = ""
    """The session of its last try; empty where there was none."""
    tries: int = 0
    """How many sessions it took."""

    @property
    def is_settled(self) -> bool:
        """True if nothing is missing: it is done, or its condition did not hold."""
        return self.status == "done" or (self.status == "skipped" and not self.cause)

    def to_data(self) -> dict[str, Any]:
        """The result as the state has it: only what is not as usual."""
        return {
            field.name: value
            for field in attrs.fields(type(self))
            if field.name != "name" and (value := getattr(self, field.name)) != field.default
        }


def results_in(state: Mapping[str, Any], names: "tuple[str, ...]") -> dict[str, StepResult]:
    """The results of steps that stand in a state; of each step one."""
    known = state.get(STEPS) or {}
    return {name: _result(name, known.get(name)) for name in names}


def _result(name: str, data: Mapping[str, Any] | None) -> StepResult:
    return StepResult(name=name, **data) if data else StepResult(name=name, status="pending")


def values_in(inputs: Mapping[str, Any], results: Mapping[str, StepResult]) -> dict[str, Any]:
    """Inputs and outputs by their names, as messages and conditions read them."""
    return {**inputs, **{each.name: each.output for each in results.values() if each.status == "done"}}


def status_of(results: Mapping[str, StepResult]) -> RunStatus:
    """The status of a run whose steps are over."""
    return "success" if all(each.is_settled for each in results.values()) else "partial"


@attrs.frozen(kw_only=True)
class PipelineResult(Serializable):
    """What a run of a pipeline came to; `str(result)` is its text."""

    status: RunStatus
    """`success`: each step is done or was not wanted; `partial`: one failed; else some are still pending: `cancelled`, or `error`."""
    data: Any = None
    """The output of the step that is the answer; of several last steps their outputs by name."""
    text: str = ""
    """The same in words, or what went wrong."""
    steps: Mapping[str, StepResult]
    """Of all steps, by their names."""
    inputs: Mapping[str, Any]
    """What the run was given, by the names of the inputs."""
    session_id: str
    """The session of the run."""
    error: Exception | None = None
    """What ended the run before its steps; None if nothing did."""
    usage: Usage = NO_USAGE
    """What it took; `usage.total` is that of its steps, too."""

    def __str__(self) -> str:
        return self.text

    @property
    def outputs(self) -> dict[str, Any]:
        """The outputs of the steps that are done, by their names."""
        return {name: each.output for name, each in self.steps.items() if each.status == "done"}
