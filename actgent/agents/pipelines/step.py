"""A step of a pipeline: which agent is told what, after which others, and when."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from actgent.agents.agent import Agent
from actgent.errors import ConfigurationError
from actgent.structured.output import Output, output_of

from .conditions import When
from .graph import Said
from .references import NAME, Reference, references_in

MAX_RETRIES = 100


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _output(given: Any) -> Output | None:
    return None if given is None else output_of(given)


@attrs.frozen
class PipelineStep:
    """One task of a pipeline, given to an agent in a session of its own.

    Its message, or goal, may read inputs and the outputs of earlier steps: `"Write about {find.summary}"`. What it reads
    it comes after, whether or not `after` says so.

    Raises:
        ConfigurationError: an argument is wrong; the text names the step.
    """

    name: str
    """Its name among the steps: letters, digits, `_` and `-`."""
    agent: Agent[Any, Any] | None = attrs.field(default=None, kw_only=True)
    """Who does it, which may be another pipeline; None for a goal that the pipeline's own goal agent works towards."""
    message: Said | None = attrs.field(default=None, kw_only=True)
    """What the agent is told: a text, or an object or list, which it gets as JSON."""
    goal: str = attrs.field(default="", kw_only=True)
    """The goal, in place of agent and message."""
    after: tuple[str, ...] = attrs.field(default=(), converter=_names, kw_only=True)
    """The steps that have to be over before it, besides those that it reads."""
    when: When | None = attrs.field(default=None, kw_only=True)
    """The condition on which it runs; where that does not hold, it is skipped."""
    output: Output | None = attrs.field(default=None, converter=_output, kw_only=True)
    """The form of its answer: a type, or a JSON Schema. None takes what the agent answers."""
    retries: int = attrs.field(default=0, kw_only=True)
    """How often it is tried again, in a new session, where it fails."""
    timeout: float | None = attrs.field(default=None, kw_only=True)
    """Seconds that each try may take, waits for people and times without a process included; None is without end."""

    def __attrs_post_init__(self) -> None:
        named: object = self.name
        if not isinstance(named, str) or re.fullmatch(NAME, named) is None:
            raise ConfigurationError(
                f"a step's name is made of letters, digits, _ and -, and begins with no digit; it is {named!r:.100}"
            )
        reason = next(filter(None, self._refusals()), None)
        if reason:
            raise ConfigurationError(f"step {named!r}: {reason}")

    def _refusals(self) -> Iterator[str]:
        """Say what is wrong with each of its arguments; empty for nothing."""
        if bool(self.goal) == (self.message is not None):
            yield "it takes either message= or goal="
        elif self.agent is None and not self.goal:
            yield "it has a message and nobody who gets it: pass agent=, or a goal= in place of the message"
        yield _refusal("goal", self.goal, str, "a text")
        yield _refusal("message", self.message, str | Mapping | list | None, "a text, an object or a list")
        yield _refusal("agent", self.agent, Agent | None, "an agent")
        yield _refusal("when", self.when, When | None, "a condition such as When.exists('find')")
        if type(self.retries) is not int or not 0 <= self.retries <= MAX_RETRIES:
            yield f"retries= is a whole number from 0 to {MAX_RETRIES}, not {self.retries!r}"
        if self.timeout is not None and not _is_time(self.timeout):
            yield f"timeout= is a number of seconds above 0, not {self.timeout!r:.100}"

    @property
    def said(self) -> Said | None:
        """What its agent is told, with references."""
        return self.goal or self.message

    @property
    def read(self) -> tuple[Reference, ...]:
        """What its message reads."""
        return tuple(references_in(self.said))

    @property
    def references(self) -> tuple[Reference, ...]:
        """What its message reads, and what its condition looks at."""
        return (*self.read, *(() if self.when is None else self.when.references()))


def _refusal(name: str, value: object, kind: Any, words: str) -> str:
    return "" if isinstance(value, kind) else f"{name}= takes {words}, not {value!r:.100}"


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
