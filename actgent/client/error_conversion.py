"""Conversion of error responses of a server to the exceptions that a local call raises."""

from collections.abc import Callable, Mapping
from typing import Any

from actgent import errors
from actgent.errors import (
    ActgentError,
    ApprovalAlreadyDecided,
    ApprovalNotFound,
    ConfigurationError,
    InboxFull,
    InvalidArguments,
    JournalFull,
    LimitReached,
    MemoryNotFound,
    MemoryReplaced,
    MessageTooLarge,
    ModeChangeRejected,
    NotRunning,
    NotSuspended,
    PermissionDenied,
    RemoteError,
    SessionBusy,
    SessionClosed,
    SessionExists,
    SessionNotFound,
    Suspended,
    TooManySchedules,
    UsageError,
)
from actgent.errors.restored_errors import error_with_text
from actgent.errors.text_escaping import quoted

from .transport_interface import Refused, RemoteRequest

_OF_MEMORIES = (
    "erase_memories",
    "forget_memory",
    "get_memory",
    "get_memories",
    "get_memory_owners",
    "update_memory",
)
"""Operations of long-term memories."""
MakeError = Callable[[Refused, RemoteRequest], ActgentError]


def failure_error(name: str, text: str, kind: str) -> ActgentError:
    """Return the exception with which a message failed, from the exception's class name and message text.

    An unknown class name gives a `RemoteError`. An empty text is replaced by one with the failure `kind`.
    """
    cls = getattr(errors, name, None)
    text = text or f"message failed (kind {kind})"
    if isinstance(cls, type) and issubclass(cls, ActgentError):
        return error_with_text(cls, text)
    return RemoteError(text, kind=kind)


def suspended(waits_for: Any) -> Suspended:
    """Return the exception for a suspended turn, from the JSON list of the open approvals for which the turn waits."""
    known = [each for each in waits_for or () if isinstance(each, Mapping)]
    tools = [str(each.get("tool", "")) for each in known]
    return Suspended([str(each.get("id", "")) for each in known], tools if all(tools) else ())


def error_of(refused: Refused, request: RemoteRequest) -> ActgentError:
    """Return the exception to raise for an error response of the server. Unknown problem kinds become `RemoteError`."""
    make = _MAKE_ERROR.get(refused.kind)
    if make is None:
        return RemoteError(refused.detail, kind=refused.kind, status=refused.status)
    return make(refused, request)


def _text_error(cls: type[ActgentError]) -> MakeError:
    """Return a function that creates an exception of class `cls` with the text of the error response."""
    return lambda refused, _: error_with_text(cls, refused.detail)


def _session_error(cls: Callable[[str], ActgentError]) -> MakeError:
    """Return a function that creates an exception of class `cls` with the session id of the request."""
    return lambda _, request: cls(request.session_id)


def _not_found_error(refused: Refused, request: RemoteRequest) -> ActgentError:
    """Return the error for a missing object: a memory, approval, agent or session, depending on the request."""
    if request.operation in _OF_MEMORIES and "agents" not in refused.fields:
        text = f"memory {quoted(request.part)} does not exist" if request.part else refused.detail
        return error_with_text(MemoryNotFound, text, memory_id=request.part)
    if request.operation == "post_decision":
        return ApprovalNotFound(request.part, request.session_id)
    if request.operation == "get_agent" or "agent" in refused.fields:
        return _not_hosted_error(refused, request.part or str(refused.fields.get("agent", "")))
    return SessionNotFound(request.agent, request.session_id)


def _not_hosted_error(refused: Refused, agent: str) -> NotRunning:
    """Return the error for an agent that does not run on the server. The error lists the agents that run there."""
    hosted = refused.fields.get("agents")
    known = [str(each) for each in hosted] if isinstance(hosted, list) else []
    return NotRunning(agent, known, is_elsewhere=True)


def _conflict(refused: Refused, request: RemoteRequest) -> ActgentError:
    """Return the error for a request that conflicts with the current state, such as an update of a replaced memory."""
    if "replaced_by" in refused.fields:
        return MemoryReplaced(request.part, str(refused.fields["replaced_by"]))
    return error_with_text(UsageError, refused.detail)


def _unavailable_error(refused: Refused, request: RemoteRequest) -> ActgentError:
    """Return the error for an agent or server that cannot answer now, or for an agent that does not run."""
    if "agent" in refused.fields:
        return _not_hosted_error(refused, str(refused.fields["agent"]))
    if request.agent:
        text = (
            refused.detail
            or f"agent {quoted(request.agent)} is not available now: retry later; the reason is in the server's log"
        )
        return error_with_text(NotRunning, text, agent=request.agent)
    return RemoteError(refused.detail, kind=refused.kind, status=refused.status)


def _too_large(refused: Refused, _: RemoteRequest) -> ActgentError:
    """Return the error for a message or body above the server's size limit."""
    return error_with_text(MessageTooLarge, refused.detail, limit=refused.fields.get("limit"))


def _no_access_error(refused: Refused, _: RemoteRequest) -> ActgentError:
    """Return the error for a request that the server does not allow."""
    return PermissionDenied(refused.detail, kind=refused.kind, status=refused.status)


_MAKE_ERROR: Mapping[str, MakeError] = {
    "not-found": _not_found_error,
    "session-exists": lambda _, request: SessionExists(request.agent, request.session_id),
    "session-closed": _session_error(SessionClosed),
    "session-busy": _session_error(SessionBusy),
    "not-suspended": _session_error(NotSuspended),
    "suspended": lambda refused, _: suspended(refused.fields.get("waits_for")),
    "already-decided": lambda refused, request: error_with_text(
        ApprovalAlreadyDecided, refused.detail, approval_id=request.part
    ),
    "mode-refused": _text_error(ModeChangeRejected),
    "message-too-large": _too_large,
    "body-too-large": _too_large,
    "inbox-full": _text_error(InboxFull),
    "too-many-schedules": _text_error(TooManySchedules),
    "busy": _text_error(InboxFull),
    "limit-reached": lambda refused, _: error_with_text(
        LimitReached, refused.detail, limit=refused.fields.get("limit")
    ),
    "invalid": _text_error(ConfigurationError),
    "source-unknown": _text_error(ConfigurationError),
    "key-reused": _text_error(ConfigurationError),
    "invalid-arguments": _text_error(InvalidArguments),
    "ambiguous": _text_error(UsageError),
    "conflict": _conflict,
    "unavailable": _unavailable_error,
    "journal-full": _text_error(JournalFull),
    "unauthorized": _no_access_error,
    "forbidden": _no_access_error,
    "wrong-origin": _no_access_error,
    "wrong-host": _no_access_error,
}
"""Functions that create the exception for an error answer, by problem kind."""
