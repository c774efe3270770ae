"""OpenTelemetry spans and metrics, by the semantic conventions for generative AI. Contents are left out by default."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from importlib import metadata
from typing import Any

from opentelemetry.context import Context, attach
from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind as Kind,
    StatusCode,
    TraceFlags,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
    use_span,
)
from orjson import loads

from actgent.messages import valid_traceparent
from actgent.support import span_names as names
from actgent.support.safe_logging import logger_of
from actgent.support.tracing_interface import Attribute, OpenSpan, SpanKind, Tracing

from .content_shortening import encode_content, shorten_json, shorten_text
from .span_metrics import Instruments

_KINDS: Mapping[SpanKind, Kind] = {
    "internal": Kind.INTERNAL,
    "client": Kind.CLIENT,
    "producer": Kind.PRODUCER,
    "server": Kind.SERVER,
}
MAX_CONTENT_CHARS = 8_192
"""Maximum characters of a content attribute. Longer texts are truncated, and longer JSON is shortened to valid JSON."""
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
"""Version of the semantic conventions for the attributes that are not `gen_ai.`"""
_log = logger_of(__name__)


class Telemetry(Tracing):
    """OpenTelemetry tracing of turns, model calls and tool calls: `open_runtime(telemetry=Telemetry())`.

    Spans and metrics go to the program's OpenTelemetry SDK; without an SDK nothing is recorded. Spans contain ids,
    names, counts and times, but no message texts. One request is one trace, also across inboxes, delegated agents,
    approvals and restarts. Needs the extra `otel`.

    Source: OpenTelemetry semantic conventions for generative AI, see `actgent.support.span_names.CONVENTIONS`.
    """

    def __init__(
        self,
        *,
        content: bool = False,
        redact: Callable[[str], str] | None = None,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        """Create a reporter.

        Args:
            content: True to record prompts, tool definitions, answers, arguments and results, each shortened to
                8,192 characters.
            redact: Function that removes secrets from a text; None records contents unchanged. It is called for
                each text inside of recorded JSON.
            tracer_provider: Provider of spans; None uses the global provider of the process.
            meter_provider: Provider of metrics; None uses the global provider of the process.
        """
        self.has_content = content
        self._redact = redact
        version = metadata.version("actgent")
        self._tracer = get_tracer("actgent", version, tracer_provider, SCHEMA_URL)
        self._instruments = Instruments(get_meter("actgent", version, meter_provider, SCHEMA_URL))

    def begin(
        self,
        name: str,
        attributes: Mapping[str, Attribute],
        *,
        kind: SpanKind = "internal",
        parent: str | None = None,
        links: Iterable[str | None] = (),
    ) -> OpenSpan:
        span = self._tracer.start_span(
            name,
            context=None if parent is None else _context_of_parent(parent),
            kind=_KINDS[kind],
            attributes=attributes,
            links=[Link(found) for each in links if (found := span_context_of(each)) is not None],
        )
        return TelemetrySpan(span, attributes, self._instruments)

    def current(self) -> str | None:
        context = get_current_span().get_span_context()
        return _traceparent(context) if context.is_valid else None

    def content(self, attribute: str, value: Callable[[], object]) -> Mapping[str, Attribute]:
        if not self.has_content:
            return {}
        try:
            content = value()
            if not isinstance(content, str):
                content = loads(encode_content(content))
            if self._redact is not None:
                content = _redact(content, self._redact)
            shorten = shorten_text if isinstance(content, str) else shorten_json
            return {attribute: shorten(content, MAX_CONTENT_CHARS)}
        except Exception as error:  # noqa: BLE001 - an error of `redact` must not stop the turn
            _log.warning("%s is left out of a span: %s", attribute, type(error).__name__)
            return {}


def _redact(value: Any, redact: Callable[[str], str]) -> Any:
    """Return a JSON value with `redact` applied to each text, also to the names of members."""
    match value:
        case str():
            return redact(value)
        case list():
            return [_redact(each, redact) for each in value]
        case dict():
            return {redact(name): _redact(each, redact) for name, each in value.items()}
        case _:
            return value


class TelemetrySpan:
    """An open OpenTelemetry span; records its metrics when it ends."""

    def __init__(self, span: Span, attributes: Mapping[str, Attribute], instruments: Instruments) -> None:
        self._span = span
        self._attributes = attributes
        self._instruments = instruments
        self._begun = time.perf_counter()
        self._is_over = False

    @property
    def traceparent(self) -> str:
        return _traceparent(self._span.get_span_context())

    def current(self) -> AbstractContextManager[object]:
        return use_span(self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False)

    def make_current(self) -> None:
        attach(set_span_in_context(self._span))

    def link(self, traceparent: str | None) -> None:
        if (context := span_context_of(traceparent)) is not None:
            self._span.add_link(context)

    def end(self, attributes: Mapping[str, Attribute] | None = None, *, error: str = "") -> None:
        if self._is_over:
            return
        self._is_over = True
        facts = {**self._attributes, **(attributes or {})}
        self._instruments.record(facts, time.perf_counter() - self._begun, error)
        if attributes:
            self._span.set_attributes(attributes)
        if error:
            self._span.set_attribute(names.ERROR, error)
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


def span_context_of(traceparent: str | None) -> SpanContext | None:
    """Return the span context of a W3C `traceparent`; None if the text is missing or invalid."""
    if traceparent is None or valid_traceparent(traceparent) is None:
        return None
    _, trace_id, span_id, flags, *_ = traceparent.split("-")
    context = SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16))
    )
    return context if context.is_valid else None


def _context_of_parent(parent: str) -> Context:
    """Return the context with the `traceparent` as parent; an empty context, which starts a new trace, if it is invalid."""
    context = span_context_of(parent)
    return Context() if context is None else set_span_in_context(NonRecordingSpan(context), Context())


def _traceparent(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
