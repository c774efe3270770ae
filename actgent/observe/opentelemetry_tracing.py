"""OpenTelemetry spans and metrics, by the semantic conventions for generative AI. Contents are left out by default."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from importlib import metadata
from typing import Any

import orjson
from opentelemetry.context import Context, attach
from opentelemetry.metrics import Histogram, Meter, MeterProvider, get_meter
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

MAX_SERIES = 1000
"""Maximum number of label combinations per operation; further ones are recorded with the label value `other`."""
_CALL = (names.OPERATION, names.PROVIDER, names.REQUEST_MODEL, names.RESPONSE_MODEL, names.AGENT)
_TURN = (names.AGENT,)
_TOOL = (names.AGENT, names.TOOL_NAME)
_TAKEOVER = (names.REASON,)
_REQUEST = (names.HTTP_METHOD, names.HTTP_ROUTE, names.HTTP_STATUS, names.URL_SCHEME)


class Instruments:
    """Histograms of one OpenTelemetry meter."""

    def __init__(self, meter: Meter) -> None:
        def histogram(
            name: str, text: str, *, bounds: tuple[float, ...] = names.SECOND_BOUNDS, unit: str = "s"
        ) -> Histogram:
            return meter.create_histogram(
                name, unit=unit, description=text, explicit_bucket_boundaries_advisory=bounds
            )

        self._call = histogram(names.CALL_DURATION, "Duration of a model call attempt.")
        self._first_chunk = histogram(names.CALL_FIRST_CHUNK, "Time until the first token of an answer.")
        self._tokens = histogram(
            names.TOKEN_USAGE, "Tokens of a model call attempt.", bounds=names.TOKEN_BOUNDS, unit="{token}"
        )
        self._turn = histogram(
            names.AGENT_DURATION,
            "Duration of a turn, without its suspension.",
            bounds=names.TURN_SECOND_BOUNDS,
        )
        self._turn_calls = histogram(
            names.AGENT_CALLS, "Model calls of a turn.", bounds=names.CALL_BOUNDS, unit="{inference_call}"
        )
        self._turn_tools = histogram(
            names.AGENT_TOOL_CALLS, "Tool calls of a turn.", bounds=names.CALL_BOUNDS, unit="{tool_call}"
        )
        self._tool = histogram(names.TOOL_DURATION, "Duration of a tool call.")
        self._takeover = histogram(
            names.TAKEOVER_DURATION, "Time until a partition of another node is served after a takeover."
        )
        self._request = histogram(
            names.HTTP_DURATION, "Duration of an HTTP request.", bounds=names.HTTP_SECOND_BOUNDS
        )
        self._series: dict[str, set[tuple[tuple[str, Attribute], ...]]] = {}

    def record(self, facts: Mapping[str, Attribute], seconds: float, error: str) -> None:
        """Record the metrics of an ended span.

        Args:
            facts: Attributes of the span.
            seconds: Duration of the span in seconds.
            error: Error class; empty on success.
        """
        match facts.get(names.OPERATION):
            case names.CHAT | names.EMBEDDINGS as operation:
                self._record_call(operation, facts, seconds, error)
            case names.INVOKE_AGENT | names.INVOKE_WORKFLOW:
                labels = self._labels(names.INVOKE_AGENT, facts, _TURN, error)
                self._turn.record(seconds, labels)
                if isinstance(calls := facts.get(names.TURN_CALLS), int):
                    self._turn_calls.record(calls, labels)
                if isinstance(calls := facts.get(names.TURN_TOOL_CALLS), int):
                    self._turn_tools.record(calls, labels)
            case names.EXECUTE_TOOL if facts.get(names.TOOL_STATUS) != names.REFUSED:
                self._tool.record(seconds, self._labels(names.EXECUTE_TOOL, facts, _TOOL, error))
            case names.TAKE_OVER:
                self._takeover.record(seconds, self._labels(names.TAKE_OVER, facts, _TAKEOVER, error))
            case None if names.HTTP_METHOD in facts:
                self._request.record(seconds, self._labels(names.HTTP_METHOD, facts, _REQUEST, error))

    def _record_call(
        self, operation: str, facts: Mapping[str, Attribute], seconds: float, error: str
    ) -> None:
        labels = self._labels(operation, facts, _CALL, error)
        self._call.record(seconds, labels)
        if isinstance(first := facts.get(names.FIRST_CHUNK), float):
            self._first_chunk.record(first, labels)
        for kind, name in (("input", names.INPUT_TOKENS), ("output", names.OUTPUT_TOKENS)):
            if isinstance(count := facts.get(name), int):
                self._tokens.record(count, {**labels, names.TOKEN_TYPE: kind})

    def _labels(
        self, operation: str, facts: Mapping[str, Attribute], kept: tuple[str, ...], error: str
    ) -> dict[str, Attribute]:
        labels = {name: facts[name] for name in kept if name in facts}
        if error:
            labels[names.ERROR] = error
        known = self._series.setdefault(operation, set())
        if (series := tuple(labels.items())) in known:
            return labels
        if len(known) >= MAX_SERIES:
            return dict.fromkeys(labels, "other")
        known.add(series)
        return labels


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
        """Create the tracing object for `open_runtime(telemetry=...)`.

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
    """Return the OpenTelemetry context in which the `traceparent` text `parent` is the parent span.

    If the text is invalid, return an empty context, which starts a new trace.
    """
    context = span_context_of(parent)
    return Context() if context is None else set_span_in_context(NonRecordingSpan(context), Context())


def _traceparent(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


# --- content shortening ----------------------------------------------------------------------

_MARK = "..."
"""End of a truncated text."""
_SMALLEST_CHARS = len('"..."')
"""Length as JSON of the shortest truncated text."""
_LEFT_OUT = object()
"""Marks a value that does not fit, even if it is shortened."""


def encode_content(value: object) -> str:
    """Encode a value as JSON text. Objects without a JSON form are encoded as their `str`."""
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def shorten_text(text: str, limit: int) -> str:
    """Return a text with at most `limit` characters. JSON objects and arrays stay valid JSON; other texts are truncated."""
    if len(text) <= limit:
        return text
    if text.lstrip()[:1] in ("{", "["):
        try:
            return shorten_json(orjson.loads(text), limit)
        except (orjson.JSONDecodeError, RecursionError):
            pass
    return f"{text[: limit - len(_MARK)]}{_MARK}"


def shorten_json(value: object, limit: int) -> str:
    """Return a value as valid JSON text with at most `limit` characters.

    Long texts are truncated. Of a list, the last items are kept, because they are the newest messages.
    """
    text = encode_content(value)
    if len(text) <= limit:
        return text
    fitted = _fit(orjson.loads(text), limit)
    return "null" if fitted is _LEFT_OUT else encode_content(fitted)


def _fit(value: Any, room: int) -> Any:
    """Shorten a JSON value so that its JSON text has at most `room` characters; return `_LEFT_OUT` if that is too few."""
    length = len(encode_content(value))
    if length <= room:
        return value
    if room < _SMALLEST_CHARS:
        return _LEFT_OUT
    match value:
        case str():
            kept = value[: room - _SMALLEST_CHARS]
            while len(encode_content(kept)) + len(_MARK) > room:  # escapes are longer than their characters
                kept = kept[: len(kept) // 2]
            return f"{kept}{_MARK}"
        case list():
            return _fit_list(value, room)
        case dict():
            return _fit_object(value, room)
        case _:
            return _LEFT_OUT


def _fit_list(items: list[Any], room: int) -> list[Any]:
    """Shorten a list to `room` characters of JSON. Items are kept from the end.

    Each item before the last one gets at most half of the characters that are left.
    """
    kept: list[Any] = []
    left = room - len("[]")
    for index in range(len(items) - 1, -1, -1):
        item = _fit(items[index], left // 2 if index else left)
        if item is _LEFT_OUT:
            break
        kept.append(item)
        left -= len(encode_content(item)) + len(",")
    return kept[::-1]


def _fit_object(members: dict[str, Any], room: int) -> dict[str, Any]:
    """Shorten an object to `room` characters of JSON, and keep all members if possible.

    Short members stay whole, and long members share the rest of the characters.
    """
    left = room - len("{}")
    lengths = {
        name: len(encode_content(name)) + len(encode_content(value)) + len(":,")
        for name, value in members.items()
    }
    fitted: dict[str, Any] = {}
    waiting = sorted(members, key=lengths.__getitem__)
    for place, name in enumerate(waiting):
        share = left // (len(waiting) - place)
        value = _fit(members[name], share - len(encode_content(name)) - len(":,"))
        if value is _LEFT_OUT:
            continue
        fitted[name] = value
        left -= len(encode_content(name)) + len(encode_content(value)) + len(":,")
    return {name: fitted[name] for name in members if name in fitted}
