"""Propagation of context variables from the sender of a message to its turn and handlers.

Within a process, a message keeps a copy of all context variables. The journal stores `traceparent` and the variables registered
with `open_runtime(context=[...])`. A message loaded from the journal gets these, in addition to the variables that were set
when the runtime was opened.
"""

import types
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

import attrs

from actgent.errors import ConfigurationError, NotSerializable
from actgent.journal.record_types import NOTHING, WIRE, Record, StateChangeRecord
from actgent.limits_and_schedules.argument_checks import check_id
from actgent.messages import traceparent, valid_traceparent
from actgent.support.field_repr import FieldRepr
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
    """Registered variables by name."""
    base: Context = attrs.field(factory=copy_context)
    """Context of the program at the time when the runtime was opened."""
    _unknown: set[str] = attrs.field(factory=set)
    """Unregistered variable names for which a warning was logged."""

    def take(self, sender: Context) -> Mapping[str, Any]:
        """Return the values of the registered variables from the context of a message's sender.

        Raises:
            NotSerializable: A value is not plain data, or the values are too large together.
        """
        taken = {name: sender[variable] for name, variable in self.variables.items() if variable in sender}
        if taken:
            _check_size(taken)
        return taken

    def capture_storable(self, sender: Context) -> Mapping[str, Any]:
        """Return the values of the registered variables that can be stored. Log and omit the others.

        Used for messages that cannot be rejected, such as results of tasks.
        """
        taken: dict[str, Any] = {}
        for name, variable in self.variables.items():
            if variable in sender:
                try:
                    _check_size({**taken, name: sender[variable]})
                    taken[name] = sender[variable]
                except NotSerializable as error:
                    _log.warning("a message is processed without the context variable %r: %s", name, error)
        return taken

    def restore(self, baggage: Mapping[str, Any], trace: str | None) -> Context:
        """Return the context variables for the turn of a message loaded from the journal.

        These are the base context, the stored variables and the trace. Stored variables that are not
        registered are logged.
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
        """Set the context of each message that was loaded from the journal."""
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
    """Create the propagation of these registered variables.

    Raises:
        ConfigurationError: A value is not a `ContextVar`, or two variables have the same name.
    """
    variables: dict[str, ContextVar[Any]] = {}
    for variable in context:
        if not isinstance(variable, ContextVar):
            raise ConfigurationError(f"context= takes ContextVars, not {variable!r:.200}")
        check_id("context", variable.name)
        if variables.setdefault(variable.name, variable) is not variable:
            raise ConfigurationError(f"context= has two variables named {variable.name!r}: rename one")
    return Propagation(variables)


def _check_size(taken: Mapping[str, Any]) -> None:
    size = len(WIRE.encode([StateChangeRecord(changes=taken)], Record))
    if size > MAX_BAGGAGE_BYTES:
        names = ", ".join(taken)
        raise NotSerializable(
            f"the context variables {names}",
            f"they have {size} bytes together, and a message carries at most {MAX_BAGGAGE_BYTES}",
        )


# --- handlers -----------------------------------------------------------------


async def run_with(variables: Context, work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine in this task with a copy of the given context variables.

    The coroutine does not count as part of the calling turn, and the caller's tool timeouts do not apply to
    it.
    """
    inside = variables.copy()
    inside.run(running_turn.set, None)
    inside.run(time_limits.set, ())
    return await _step(inside, work)


@types.coroutine
def _step(variables: Context, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Run a coroutine step by step in the given context variables, and pass its traps to trio.

    A separate task could have the variables too, but would wrap exceptions in a group.
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
