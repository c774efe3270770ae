"""Results of steps and runs, and their form in the state of the run's session.

The state of a run:

    inputs   inputs of the run, by name
    steps    results of the steps, by name: `{"status": ..., "output": ..., "reason": ..., "task": ..., "tries": ...}`,
             or null for a step that has not ended
    rounds   number of starts of each step that was rerun, by name
    order    id of the last message that started steps
"""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from actgent.messages import NO_USAGE, Usage
from actgent.support.dict_serialization import Serializable

StepStatus = Literal["done", "failed", "skipped", "pending"]
RunStatus = Literal["success", "partial", "cancelled", "error"]

INPUTS, STEPS, ROUNDS, ORDER = "inputs", "steps", "rounds", "order"


@attrs.frozen(kw_only=True)
class StepResult(Serializable):
    """Result of one step."""

    name: str
    """Name of the step."""
    status: StepStatus
    """`done`, `failed`, `skipped` (its condition is false, or a step that it depends on has no output), or `pending` (not ended)."""
    output: Any = None
    """Answer of the agent: a value or a text; None unless the step is done."""
    reason: str = ""
    """Reason why the step failed or was skipped, as text; empty for other steps."""
    cause: str = ""
    """Name of the failed step because of which this step was skipped; empty if a condition skipped it."""
    session_id: str = ""
    """Id of the session in which the last attempt ran; empty if the step was not started."""
    tries: int = 0
    """Number of attempts of the step, each in a new session."""

    @property
    def is_settled(self) -> bool:
        """True if the step need not run again, because it was completed or was skipped by a false condition."""
        return self.status == "done" or (self.status == "skipped" and not self.cause)

    def to_data(self) -> dict[str, Any]:
        """Return the step result as plain data for the session state. Fields with default values are omitted."""
        return {
            field.name: value
            for field in attrs.fields(type(self))
            if field.name != "name" and (value := getattr(self, field.name)) != field.default
        }


def results_in(state: Mapping[str, Any], names: "tuple[str, ...]") -> dict[str, StepResult]:
    """Return the result of each step in `names` from the state of a run; a step without a result is pending."""
    known = state.get(STEPS) or {}
    return {name: _result(name, known.get(name)) for name in names}


def _result(name: str, data: Mapping[str, Any] | None) -> StepResult:
    return StepResult(name=name, **data) if data else StepResult(name=name, status="pending")


def values_in(inputs: Mapping[str, Any], results: Mapping[str, StepResult]) -> dict[str, Any]:
    """Return the inputs of a run and the outputs of its completed steps, by name, for messages and conditions of steps."""
    return {**inputs, **{each.name: each.output for each in results.values() if each.status == "done"}}


def status_of(results: Mapping[str, StepResult]) -> RunStatus:
    """Return the status of an ended run: `success` if all steps are done or skipped by a condition, otherwise `partial`."""
    return "success" if all(each.is_settled for each in results.values()) else "partial"


@attrs.frozen(kw_only=True)
class PipelineResult(Serializable):
    """Result of a run; `str(result)` is its text, or its status with the reason of the first failed step."""

    status: RunStatus
    """`success`: each step is done or was not needed; `partial`: a step failed; `cancelled` or `error`: some steps are pending."""
    data: Any = None
    """Output of the answer step. With several last steps, their outputs by name."""
    text: str = ""
    """The answer in `data` as text, or the text of the error."""
    steps: Mapping[str, StepResult]
    """Results of all steps by name."""
    inputs: Mapping[str, Any]
    """Inputs of the run by name."""
    session_id: str
    """Id of the run's session."""
    error: Exception | None = None
    """Error that ended the run before all steps had ended; None if there was none."""
    usage: Usage = NO_USAGE
    """Tokens and cost of the run's session; `usage.total` also includes the sessions of the steps."""

    def __str__(self) -> str:
        failed = next((each for each in self.steps.values() if each.status == "failed"), None)
        if self.text or failed is None:
            return self.text
        return f"{self.status}: step {failed.name!r} failed: {failed.reason}"

    @property
    def outputs(self) -> dict[str, Any]:
        """Outputs of the steps that are done, by name."""
        return {name: each.output for name, each in self.steps.items() if each.status == "done"}
