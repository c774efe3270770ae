"""What a runtime tells of its work as spans, as far as the code that does the work knows of it.

A runtime without telemetry has no `Tracing`, and asks for it by one `if`. `actgent.observe` makes spans of OpenTelemetry of
it. Names and attributes are those of the OpenTelemetry GenAI conventions, see `span_names`.
"""

import abc
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import TracebackType
from typing import Literal, Protocol, Self

from actgent.errors import ConfigurationError, kind_of

Attribute = str | bool | int | float | tuple[str, ...]
SpanKind = Literal["internal", "client", "producer"]


class OpenSpan(Protocol):
    """TracedWork that goes on."""

    @property
    def traceparent(self) -> str:
        """The W3C Trace Context of what it leads to."""
        ...

    def current(self) -> AbstractContextManager[object]:
        """The block in which spans that begin are its children, those of other libraries, too."""
        ...

    def make_current(self) -> None:
        """Be the current span for all that runs with the present context variables from now on."""
        ...

    def link(self, traceparent: str | None) -> None:
        """Point to the work of another trace, or of another branch, that it has to do with."""
        ...

    def end(self, attributes: Mapping[str, Attribute] | None = None, *, error: str = "") -> None:
        """The work is over; `error` is the kind of its failure, and empty where there was none. Ends once."""
        ...


class Tracing(abc.ABC):
    """Makes spans. Nothing of it may raise: what it observes goes on whatever becomes of it."""

    has_content: bool = False
    """True: spans hold what was said, too."""

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
        """Begin a span below `parent`, a traceparent; None is the current span, and empty is none."""

    @abc.abstractmethod
    def current(self) -> str | None:
        """The traceparent of the current span, of whichever library; None if there is none."""

    @abc.abstractmethod
    def content(self, attribute: str, words: Callable[[], str]) -> Mapping[str, Attribute]:
        """An attribute with what was said, redacted and cut; nothing where spans hold no content."""


def check_tracing(given: object) -> None:
    """Refuse what makes no spans.

    Raises:
        ConfigurationError: it is given, and something else.
    """
    if given is not None and not isinstance(given, Tracing):
        raise ConfigurationError(
            f"telemetry= takes an object, e.g. Telemetry() of actgent.observe, not {given!r:.200}"
        )


def error_type(error: Exception, otherwise: str = "") -> str:
    """Return what `error.type` says of an exception: our kind, or its class where it is foreign."""
    return kind_of(error, otherwise or type(error).__name__)


class ActiveTrace:
    """What the spans of one turn have in common."""

    __slots__ = ("attributes", "tracing", "why_stopped")

    def __init__(
        self, tracing: Tracing, attributes: Mapping[str, Attribute], why_stopped: Callable[[], str]
    ) -> None:
        self.tracing = tracing
        self.attributes = attributes
        self.why_stopped = why_stopped
        """Names what cancels the turn's work: `interrupted`, `deadline`, `stopped` ..."""


active_trace: ContextVar[ActiveTrace | None] = ContextVar("active_trace", default=None)
"""Set in the turns of a runtime with telemetry, and in all that they run."""


class TracedWork:
    """A block of a turn's work that is a span: `with TracedWork(active, name, ...) as work:`.

    What comes out of the block ends it as a failure, and goes on; a cancellation is named by what cancels the turn.
    """

    def __init__(
        self,
        active: ActiveTrace,
        name: str,
        attributes: Mapping[str, Attribute],
        *,
        kind: SpanKind = "internal",
    ) -> None:
        self.tracing = active.tracing
        self.facts: dict[str, Attribute] = {}
        """Attributes that are known by the end."""
        self.error = ""
        """The kind of a failure that raises nothing."""
        self._active = active
        self._span = active.tracing.begin(name, {**active.attributes, **attributes}, kind=kind)
        self._block = self._span.current()

    def __enter__(self) -> Self:
        self._block.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._block.__exit__(None, None, None)  # of the exception a span says the kind, and no words
        if isinstance(error, Exception):
            self.error = error_type(error)
        elif error is not None:
            self.error = self._active.why_stopped()
        self._span.end(self.facts, error=self.error)
