"""Errors of A2A 1.0, and their encoding in both bindings. Source: A2A specification 1.0, sections 5.4, 9.5 and 11.6."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from actgent.web.problem_documents import Problem, problem_of
from actgent.web.routes.endpoints import JSON

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
_ERRORS = {
    "TASK_NOT_FOUND": (-32001, 404, "NOT_FOUND"),
    "TASK_NOT_CANCELABLE": (-32002, 409, "FAILED_PRECONDITION"),
    "PUSH_NOTIFICATION_NOT_SUPPORTED": (-32003, 400, "UNIMPLEMENTED"),
    "UNSUPPORTED_OPERATION": (-32004, 400, "UNIMPLEMENTED"),
    "CONTENT_TYPE_NOT_SUPPORTED": (-32005, 415, "INVALID_ARGUMENT"),
    "VERSION_NOT_SUPPORTED": (-32009, 400, "UNIMPLEMENTED"),
}
"""JSON-RPC code, HTTP status and `google.rpc.Status` name of each error reason."""
_STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
"""Name of an HTTP status in `google.rpc.Status`."""
_UNPROCESSABLE = 422
_RPC_STATUSES = (400, 409, _UNPROCESSABLE)
"""HTTP statuses of problems that are sent as JSON-RPC errors with status 200. Other problems keep their status."""


class A2AError(Problem):
    """Error of an operation that A2A 1.0 defines.

    Args:
        reason: Name of the error in A2A, such as `TASK_NOT_FOUND`.
        detail: Explanation for humans.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__("not-found" if reason == "TASK_NOT_FOUND" else "malformed-request", detail)
        self.reason = reason


task_not_found = partial(A2AError, "TASK_NOT_FOUND", "this task does not exist")
"""Error for a task that is unknown or belongs to another owner."""


def invalid(field: str, detail: str) -> Problem:
    """Return the error for an invalid request parameter. `field` is the path of the parameter, `detail` what is required."""
    return Problem("invalid", f"{field}: {detail}", param=field)


def to_problem(error: Exception) -> Problem:
    """Return the error response for an exception. Raise server errors and unknown exceptions again, so that they are logged."""
    problem = problem_of(error)
    if problem is None or (problem.status >= 500 and problem is not error):  # noqa: PLR2004 - server errors
        raise error
    return problem


def envelope_response(problem: Problem, _request_id: str) -> JSON[dict[str, Any]]:
    """Encode a problem as a JSON-RPC error without an id, for a request that was rejected before its method was read."""
    if problem.kind == "invalid":
        problem.fields["code"] = INVALID_REQUEST
    return rpc_response(problem, None)


def rpc_response(problem: Problem, rpc_id: str | int | None) -> JSON[dict[str, Any]]:
    """Encode a problem as a JSON-RPC error with the id of the request. Errors of operations have the HTTP status 200."""
    is_rpc = isinstance(problem, A2AError) or problem.status in _RPC_STATUSES
    error = {"code": _code_of(problem), "message": problem.detail or problem.title, "data": _details(problem)}
    return JSON(
        {"jsonrpc": "2.0", "id": rpc_id, "error": error},
        status_code=200 if is_rpc else problem.status,
        headers=problem.headers,
    )


def rest_response(problem: Problem, _request_id: str) -> JSON[dict[str, Any]]:
    """Encode a problem as the error of the HTTP+JSON binding, with the HTTP status that A2A defines."""
    status = 400 if problem.status == _UNPROCESSABLE else problem.status
    name = _STATUS_NAMES.get(status, "FAILED_PRECONDITION")
    if (reason := _reason_of(problem)) is not None:
        _, status, name = _ERRORS[reason]
    error = {
        "code": status,
        "status": name,
        "message": problem.detail or problem.title,
        "details": _details(problem),
    }
    return JSON({"error": error}, status_code=status, headers=problem.headers)


def _code_of(problem: Problem) -> int:
    if (reason := _reason_of(problem)) is not None:
        return _ERRORS[reason][0]
    if "code" in problem.fields:
        return int(problem.fields["code"])
    if problem.kind == "malformed-request":
        return PARSE_ERROR
    if problem.status >= 500:  # noqa: PLR2004 - server errors
        return INTERNAL_ERROR
    return INVALID_PARAMS if problem.status in _RPC_STATUSES else INVALID_REQUEST


def _details(problem: Problem) -> list[Mapping[str, Any]]:
    if "param" in problem.fields:
        violation = {"field": problem.fields["param"], "description": problem.detail}
        kind = "type.googleapis.com/google.rpc.BadRequest"
        return [{"@type": kind, "fieldViolations": [violation]}]
    reason, domain = _reason_of(problem), "a2a-protocol.org"
    if reason is None:
        reason, domain = problem.kind.upper().replace("-", "_"), "actgent"
    return [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": domain}]


def _reason_of(problem: Problem) -> str | None:
    """Return A2A's name of a problem; None if A2A does not define this error."""
    if problem.kind == "unsupported-media-type":
        return "CONTENT_TYPE_NOT_SUPPORTED"
    return problem.reason if isinstance(problem, A2AError) else None
