"""OpenTelemetry spans of HTTP requests."""

from actgent.messages import traceparent, valid_traceparent
from actgent.support import span_names as names
from actgent.support.tracing_interface import Attribute, OpenSpan, Tracing

from .routes.endpoints import Endpoint

_SERVER_ERROR = 500


def begin_request_span(tracing: Tracing | None, endpoint: Endpoint, scheme: str) -> OpenSpan | None:
    """Begin the span of a request in the calling task, and make it the current span.

    Its parent is the trace context that the request has, otherwise the current span. Return None without telemetry, and
    for probes and metrics requests.
    """
    if tracing is None or endpoint.scope in (None, "metrics"):
        return None
    route = f"{endpoint.prefix}{endpoint.path}"
    attributes: dict[str, Attribute] = {
        names.HTTP_METHOD: endpoint.verb,
        names.HTTP_ROUTE: route,
        names.URL_SCHEME: scheme,
    }
    parent = valid_traceparent(traceparent.get())
    span = tracing.begin(f"{endpoint.verb} {route}", attributes, kind="server", parent=parent)
    span.make_current()
    traceparent.set(span.traceparent)
    return span


def end_request_span(span: OpenSpan | None, status: int) -> None:
    """End the span of a request with the HTTP status of its answer; 0 means that no answer was sent."""
    if span is not None:
        facts: dict[str, Attribute] = {names.HTTP_STATUS: status} if status else {}
        span.end(facts, error=str(status) if status >= _SERVER_ERROR else "")
