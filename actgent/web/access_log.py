"""One log record for each HTTP request of a gateway: method, path template, status, milliseconds and request id.

Paths are templates (`/v1/sessions/{id}`), so that no id, query value or token gets into the log.
"""

import logging

import trio

LOGGER = "actgent.access"
"""Name of the logger. Requests are logged at INFO, probes and metrics at DEBUG."""
_QUIET = frozenset({"/v1/health/live", "/v1/health/ready", "/v1/metrics"})
"""Path templates that monitoring programs request every few seconds; logged at DEBUG."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_log = logging.getLogger(LOGGER)


def log_request(method: str, route: str, status: int, begun: float, request_id: str) -> None:
    """Log a completed request. Do nothing if the log level of its path is disabled.

    Args:
        method: HTTP method as the client sent it; unknown methods are logged as OTHER.
        route: Path template, or `none` for addresses outside `/v1`.
        status: HTTP status of the response; 0 if the client disconnected before the response began.
        begun: Arrival time of the request by trio's clock, in seconds.
        request_id: The `X-Request-Id` of the response.
    """
    level = logging.DEBUG if route in _QUIET else logging.INFO
    if not _log.isEnabledFor(level):
        return
    method = method if method in _METHODS else "OTHER"
    milliseconds = round((trio.current_time() - begun) * 1000, 1)
    fields = {
        "method": method,
        "path": route,
        "status": status,
        "ms": milliseconds,
        "request_id": request_id,
    }
    _log.log(
        level,
        "%s %s %d %.1f ms %s",
        method,
        route,
        status,
        milliseconds,
        request_id,
        extra={"fields": fields},
    )
