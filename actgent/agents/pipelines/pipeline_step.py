"""`PipelineStep`: agent, message, dependencies and condition of one step."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from actgent.agents.agent import Agent
from actgent.errors import ConfigurationError
from actgent.structured_output.output_type import Output, output_of
from actgent.support.unknown_name_hints import lists_arguments

from .dependency_graph import MessageTemplate
from .step_conditions import When
from .step_output_references import NAME, Reference, references_in

MAX_RETRIES = 100


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _output(given: Any) -> Output | None:
    return None if given is None else output_of(given)


@lists_arguments
@attrs.frozen
class PipelineStep:
    """One step of a pipeline: a task that an agent executes in a new session.

    The message or goal may refer to inputs and to outputs of earlier steps: `"Write about {find.summary}"`. A step depends on
    the steps that it refers to, in addition to those in `after`.

    Raises:
        ConfigurationError: An argument is invalid; the text names the step.
    """

    name: str
    """Name of the step: letters, digits, `_` and `-`."""
    agent: Agent[Any, Any] | None = attrs.field(default=None, kw_only=True)
    """Agent that executes the step; may be another pipeline. None if the goal agent of the pipeline works on `goal`."""
    message: MessageTemplate | None = attrs.field(default=None, kw_only=True)
    """Message for the agent: a text, or an object or list that it gets as JSON."""
    goal: str = attrs.field(default="", kw_only=True)
    """Goal that the goal agent of the pipeline reaches, for a step without agent and message."""
    after: tuple[str, ...] = attrs.field(default=(), converter=_names, kw_only=True)
    """Names of steps that must end before this step, in addition to the steps that its message or goal refers to."""
    when: When | None = attrs.field(default=None, kw_only=True)
    """Condition of the step. If the condition is false, the step is skipped. None: the step always runs."""
    output: Output | None = attrs.field(default=None, converter=_output, kw_only=True)
    """Type or JSON Schema of the answer; None accepts any answer."""
    retries: int = attrs.field(default=0, kw_only=True)
    """Maximum number of retries after a failure, each in a new session."""
    timeout: float | None = attrs.field(default=None, kw_only=True)
    """Maximum seconds of each attempt, including waits for approvals and times without a process; None is no limit."""

    def __attrs_post_init__(self) -> None:
        named: object = self.name
        if not isinstance(named, str) or re.fullmatch(NAME, named) is None:
            raise ConfigurationError(
                f"a step's name must consist of letters, digits, _ and -, and must not begin with a digit, not {named!r:.100}"
            )
        reason = next(filter(None, self._argument_errors()), None)
        if reason:
            raise ConfigurationError(f"step {named!r}: {reason}")

    def _argument_errors(self) -> Iterator[str]:
        """Yield a text for each checked argument of the step: the error, or an empty text if the argument is valid."""
        if bool(self.goal) == (self.message is not None):
            yield "it takes either message= or goal="
        elif self.agent is None and not self.goal:
            yield "it has a message and no agent: pass agent=, or goal= in place of the message"
        yield _type_error("goal", self.goal, str, "a text")
        yield _type_error("message", self.message, str | Mapping | list | None, "a text, an object or a list")
        yield _type_error("agent", self.agent, Agent | None, "an agent")
        yield _type_error("when", self.when, When | None, "a condition such as When.exists('find')")
        if type(self.retries) is not int or not 0 <= self.retries <= MAX_RETRIES:
            yield f"retries= must be a whole number from 0 to {MAX_RETRIES}, not {self.retries!r}"
        if self.timeout is not None and not _is_time(self.timeout):
            yield f"timeout= must be a number of seconds above 0, not {self.timeout!r:.100}"

    @property
    def template(self) -> MessageTemplate | None:
        """Message or goal of the step, in which references are not replaced yet; None if the step has neither."""
        return self.goal or self.message

    @property
    def read(self) -> tuple[Reference, ...]:
        """References to inputs and outputs in the message or goal of the step."""
        return tuple(references_in(self.template))

    @property
    def references(self) -> tuple[Reference, ...]:
        """References to inputs and outputs in the message or goal and in the condition of the step."""
        return (*self.read, *(() if self.when is None else self.when.references()))


def _type_error(name: str, value: object, kind: Any, words: str) -> str:
    return "" if isinstance(value, kind) else f"{name}= takes {words}, not {value!r:.100}"


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
