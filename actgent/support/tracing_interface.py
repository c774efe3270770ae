"""The tracing interface of the runtime: begin and end spans, independently of OpenTelemetry.

A runtime without telemetry has no `Tracing`, which costs one `if` per operation. `actgent.observe` implements the interface
with OpenTelemetry. Names and attributes follow the OpenTelemetry GenAI conventions, see `span_names`.
"""

import abc
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from types import TracebackType
from typing import Literal, Protocol, Self

from actgent.errors import ConfigurationError, kind_of

from . import span_names as names

Attribute = str | bool | int | float | tuple[str, ...]
SpanKind = Literal["internal", "client", "producer", "server"]


class OpenSpan(Protocol):
    """A tracing span that has begun."""

    @property
    def traceparent(self) -> str:
        """W3C `traceparent` header value for work that this span causes."""
        ...

    def current(self) -> AbstractContextManager[object]:
        """Return a context manager in which new spans, also of other libraries, become children of this span."""
        ...

    def make_current(self) -> None:
        """Make this the current span of the calling task. The previous span is not restored automatically."""
        ...

    def link(self, traceparent: str | None) -> None:
        """Add a link to a related span, given by its traceparent; None adds nothing."""
        ...

    def end(self, attributes: Mapping[str, Attribute] | None = None, *, error: str = "") -> None:
        """End the span; `error` is the kind of its failure, empty on success. Further calls have no effect."""
        ...


class Tracing(abc.ABC):
    """Interface of a span factory. Its methods must not raise, because an error in tracing must not stop the work."""

    has_content: bool = False
    """True if spans include message contents."""

    @abc.abstractmethod
    def begin(
        self,
        name: str,
        attributes: Mapping[str, Attribute],
        *,
        kind: SpanKind = "internal",
        parent: str | None = None,
        links: Iterable[str | None] = (),
    ) -> OpenSpan:
        """Begin a span with the parent `parent` (a traceparent); None uses the current span, empty begins a new trace."""

    @abc.abstractmethod
    def current(self) -> str | None:
        """Return the traceparent of the current span, of any library; None without a current span."""

    @abc.abstractmethod
    def content(self, attribute: str, value: Callable[[], object]) -> Mapping[str, Attribute]:
        """Return an attribute with redacted and shortened content; empty if `has_content` is False.

        `value` returns a text, or a list or an object that is recorded as JSON.
        """


def check_tracing(value: object) -> None:
    """Check that a `telemetry=` argument is None or a `Tracing`.

    Raises:
        ConfigurationError: The argument is another object.
    """
    if value is not None and not isinstance(value, Tracing):
        raise ConfigurationError(
            f"telemetry= must be a Tracing object, e.g. Telemetry() of actgent.observe, not {value!r:.200}"
        )


def error_type(error: Exception, otherwise: str = "") -> str:
    """Return the value of the span attribute `error.type` for an exception.

    The value is the failure kind of errors of actgent, or the class name of other exceptions.
    """
    return kind_of(error, otherwise or type(error).__name__)


class ActiveTrace:
    """Data of a trace that all spans of one turn share."""

    __slots__ = ("attributes", "deciders", "tracing", "why_stopped")

    def __init__(
        self,
        tracing: Tracing,
        attributes: Mapping[str, Attribute],
        why_stopped: Callable[[], str],
        deciders: Mapping[str, str] | None = None,
    ) -> None:
        self.tracing = tracing
        self.attributes = attributes
        self.why_stopped = why_stopped
        """Function that returns the reason of the turn's cancellation: `interrupted`, `deadline`, `stopped` ..."""
        self.deciders = deciders or {}
        """Trace contexts of the requests that decided the approvals of tool calls, by call id."""


active_trace: ContextVar[ActiveTrace | None] = ContextVar("active_trace", default=None)
"""Trace of the running turn; None without telemetry or outside of a turn."""


class TracedWork:
    """Context manager that records its block as a span: `with TracedWork(active, name, ...) as work:`.

    An exception ends the span as a failure and propagates. A cancellation is recorded with the reason of the turn.
    """

    def __init__(
        self,
        active: ActiveTrace,
        name: str,
        attributes: Mapping[str, Attribute],
        *,
        kind: SpanKind = "internal",
        links: Iterable[str | None] = (),
    ) -> None:
        self.tracing = active.tracing
        self.facts: dict[str, Attribute] = {}
        """Attributes to add when the span ends."""
        self.error = ""
        """Kind of a failure that raised no exception; empty on success."""
        self._active = active
        self._span = active.tracing.begin(name, {**active.attributes, **attributes}, kind=kind, links=links)
        self._block = self._span.current()

    def __enter__(self) -> Self:
        self._block.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._block.__exit__(None, None, None)  # a span records the kind of an exception, never its text
        if isinstance(error, Exception):
            self.error = error_type(error)
        elif error is not None:
            self.error = self._active.why_stopped()
        self._span.end(self.facts, error=self.error)


def begin_operation(
    operation: str,
    name: str = "",
    attributes: Mapping[str, Attribute] | None = None,
    *,
    kind: SpanKind = "internal",
) -> AbstractContextManager[TracedWork | None]:
    """Return a block that records an operation as a span of the running turn; without a trace, the block yields None.

    `name` is the name of the span; empty uses the name of the operation.
    """
    if (active := active_trace.get()) is None:
        return nullcontext()
    return TracedWork(
        active, name or operation, {names.OPERATION: operation, **(attributes or {})}, kind=kind
    )
