"""How context variables of a sender get to the turn that answers, and to all that hears of its message.

While the process lives a message has all of them: they are copied when it is accepted. A journal keeps those that are
data, which is `traceparent` and what the program registers by `open_runtime(context=[...])`: a message that comes back
from there has these, over what the program had set when it opened the runtime.
"""

import types
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

import attrs

from actgent.control.arguments import check_id
from actgent.errors import ConfigurationError, NotSerializable
from actgent.journal.records import NOTHING, WIRE, Changed, Record
from actgent.messages import traceparent, valid_traceparent
from actgent.support.logs import logger_of
from actgent.tools.time_limits import time_limits

from .mail import Acceptance
from .turn import running_turn

T = TypeVar("T")
MAX_BAGGAGE = 4096
"""Bytes that the registered variables of one message may take, as a journal writes them."""
MAX_UNKNOWN = 100
"""Names of variables that the log tells at most."""
_log = logger_of(__name__)


# --- what a journal keeps --------------------------------------------------------------------


@attrs.define(eq=False)
class Propagation:
    """Which context variables a runtime's journal keeps with each message, and what those that come back begin with."""

    variables: Mapping[str, ContextVar[Any]] = NOTHING  # type: ignore[assignment]
    """Variables that the program registered, by their names."""
    base: Context = attrs.field(factory=copy_context)
    """Variables of the program when it opened the runtime."""
    _unknown: set[str] = attrs.field(factory=set)
    """Names in the journal that nothing is registered for, as far as the log was told."""

    def take(self, sender: Context) -> Mapping[str, Any]:
        """The values that a journal keeps of a sender's variables.

        Raises:
            NotSerializable: one of them is no plain data, or they are too large together.
        """
        taken = {name: sender[variable] for name, variable in self.variables.items() if variable in sender}
        if taken:
            _check_size(taken)
        return taken

    def take_what_fits(self, sender: Context) -> Mapping[str, Any]:
        """The same for what nobody can be refused, such as a task's result: values that no journal keeps are left out, and logged."""
        taken: dict[str, Any] = {}
        for name, variable in self.variables.items():
            if variable in sender:
                try:
                    _check_size({**taken, name: sender[variable]})
                    taken[name] = sender[variable]
                except NotSerializable as error:
                    _log.warning("a message goes on without the context variable %r: %s", name, error)
        return taken

    def restore(self, baggage: Mapping[str, Any], trace: str | None) -> Context:
        """The variables with which something goes on that comes from a journal."""
        variables = self.base.copy()
        if (trace := valid_traceparent(trace)) is not None:
            variables.run(traceparent.set, trace)
        for name, value in baggage.items():
            if name in self.variables:
                variables.run(self.variables[name].set, value)
            else:
                self._tell_unknown(name)
        return variables

    def restore_all(self, acceptances: Iterable[Acceptance]) -> None:
        """Give messages that come from a journal the variables of their senders."""
        for acceptance in acceptances:
            acceptance.variables = self.restore(acceptance.baggage, acceptance.message.traceparent)

    def _tell_unknown(self, name: str) -> None:
        if name not in self._unknown and len(self._unknown) < MAX_UNKNOWN:
            self._unknown.add(name)
            _log.warning(
                "the journal has values of the context variable %r, which is not registered: pass it to "
                "open_runtime(context=[...])",
                name,
            )


def propagation_of(context: Iterable[ContextVar[Any]]) -> Propagation:
    """The propagation of these variables.

    Raises:
        ConfigurationError: these are no context variables, or two have one name.
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
    size = len(WIRE.encode([Changed(changes=taken)], Record))
    if size > MAX_BAGGAGE:
        names = ", ".join(taken)
        raise NotSerializable(
            f"the context variables {names}",
            f"they take {size} bytes, of which a message carries {MAX_BAGGAGE}",
        )


# --- what hears of a message -----------------------------------------------------------------


async def run_with(variables: Context, work: Coroutine[Any, Any, T]) -> T:
    """Await something in this task, but with a copy of these context variables, as if it were in no turn."""
    inside = variables.copy()
    inside.run(running_turn.set, None)
    inside.run(time_limits.set, ())
    return await _step(inside, work)


@types.coroutine
def _step(variables: Context, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Run a coroutine from one pause to the next, each time with these variables; pauses go on to trio.

    A task of its own would have them, too, but its exceptions come back in a group.
    """
    go_on: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        try:
            pause = variables.run(go_on, value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            go_on, value = work.send, (yield pause)
        except BaseException as error:  # noqa: ASYNC103, BLE001 - the coroutine gets it
            go_on, value = work.throw, error
