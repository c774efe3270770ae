"""Propagation of context variables from the sender of a message to its turn and handlers.

Within a process, a message has a copy of all context variables of its sender. The journal stores `traceparent` and the variables
registered with `open_runtime(context=[...])`. A message that is loaded from the journal has these variables, and those that were set
when the runtime was opened.
"""

import types
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

import attrs

from actgent.errors import ConfigurationError, NotSerializable
from actgent.journal.record_types import NOTHING, WIRE, Record, StateChangeRecord
from actgent.limits_and_schedules.id_and_number_validation import check_id
from actgent.messages import traceparent, valid_traceparent
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.safe_logging import logger_of
from actgent.tools.pausable_time_limits import time_limits

from .session_context import QueuedMessage, running_turn

T = TypeVar("T")
MAX_BAGGAGE_BYTES = 4096
"""Maximum bytes of the registered variables of one message, as written to the journal."""
MAX_UNKNOWN = 100
"""Maximum number of unregistered variable names that are logged."""
_log = logger_of(__name__)


# --- journal --------------------------------------------------------------------


@attrs.define(eq=False, repr=False)
class Propagation(FieldRepr):
    """Context variables that are copied from a sender to the turn of its message."""

    variables: Mapping[str, ContextVar[Any]] = NOTHING  # type: ignore[assignment]
    """Context variables that the program registered with `open_runtime(context=)`, by name."""
    base: Context = attrs.field(factory=copy_context)
    """Copy of all context variables of the program, made when the runtime was opened."""
    _unknown: set[str] = attrs.field(factory=set)
    """Names of unregistered variables in the journal for which a warning was logged."""

    def capture(self, sender: Context) -> Mapping[str, Any]:
        """Return the values of the registered variables in the context of a message's sender, by name.

        Raises:
            NotSerializable: A value is not plain data, or the values are too large together.
        """
        captured = {name: sender[variable] for name, variable in self.variables.items() if variable in sender}
        if captured:
            _check_size(captured)
        return captured

    def capture_storable(self, sender: Context) -> Mapping[str, Any]:
        """Return those values of registered variables in the sender's context that can be stored. Log and omit the others.

        Use this method for messages that cannot be rejected, such as results of tasks.
        """
        captured: dict[str, Any] = {}
        for name, variable in self.variables.items():
            if variable in sender:
                try:
                    _check_size({**captured, name: sender[variable]})
                    captured[name] = sender[variable]
                except NotSerializable as error:
                    _log.warning("a message is processed without the context variable %r: %s", name, error)
        return captured

    def restore(self, baggage: Mapping[str, Any], trace: str | None) -> Context:
        """Return the context variables for the turn of a message that was loaded from the journal.

        It contains the context of the program, the stored variables in `baggage`, and the W3C trace context `trace`. Stored
        variables that are not registered are logged and omitted.
        """
        variables = self.base.copy()
        if (trace := valid_traceparent(trace)) is not None:
            variables.run(traceparent.set, trace)
        for name, value in baggage.items():
            if name in self.variables:
                variables.run(self.variables[name].set, value)
            else:
                self._warn_unknown_variable(name)
        return variables

    def restore_all(self, acceptances: Iterable[QueuedMessage]) -> None:
        """Set the context variables of queued messages that were loaded from the journal."""
        for acceptance in acceptances:
            acceptance.variables = self.restore(acceptance.baggage, acceptance.message.traceparent)

    def _warn_unknown_variable(self, name: str) -> None:
        if name not in self._unknown and len(self._unknown) < MAX_UNKNOWN:
            self._unknown.add(name)
            _log.warning(
                "the journal has values of the context variable %r, which is not registered: pass it to "
                "open_runtime(context=[...])",
                name,
            )


def propagation_of(context: Iterable[ContextVar[Any]]) -> Propagation:
    """Create the `Propagation` for the context variables in the argument `open_runtime(context=)`.

    Raises:
        ConfigurationError: A value is not a `ContextVar`, or two variables have the same name.
    """
    variables: dict[str, ContextVar[Any]] = {}
    for variable in context:
        if not isinstance(variable, ContextVar):
            raise ConfigurationError(f"context= must contain ContextVar objects, not {variable!r:.200}")
        check_id("context", variable.name)
        if variables.setdefault(variable.name, variable) is not variable:
            raise ConfigurationError(f"context= has two variables named {variable.name!r}: rename one")
    return Propagation(variables)


def _check_size(captured: Mapping[str, Any]) -> None:
    size = len(WIRE.encode([StateChangeRecord(changes=captured)], Record))
    if size > MAX_BAGGAGE_BYTES:
        names = ", ".join(captured)
        raise NotSerializable(
            f"the context variables {names}",
            f"they have {size} bytes together, and a message may carry at most {MAX_BAGGAGE_BYTES}",
        )


# --- handlers -----------------------------------------------------------------


async def run_with(variables: Context, work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine in this task with a copy of the context variables `variables`.

    The coroutine is not part of the calling turn, and the tool timeouts of the caller do not apply to the coroutine.
    """
    inside = variables.copy()
    inside.run(running_turn.set, None)
    inside.run(time_limits.set, ())
    return await _step(inside, work)


@types.coroutine
def _step(variables: Context, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Run a coroutine in the current task, but with the context variables `variables`.

    A separate task would wrap the exceptions of the coroutine in an exception group.
    """
    resume_work: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        try:
            pause = variables.run(resume_work, value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            resume_work, value = work.send, (yield pause)
        except BaseException as error:  # noqa: ASYNC103, BLE001 - thrown into the coroutine
            resume_work, value = work.throw, error
