"""Errors of a server as the exceptions that the same call raises in process."""

from collections.abc import Callable, Mapping
from typing import Any

from actgent import errors
from actgent.errors import (
    AccessRefused,
    ActgentError,
    AlreadyDecided,
    ApprovalNotFound,
    ConfigurationError,
    InboxFull,
    InvalidArguments,
    JournalFull,
    LimitReached,
    MessageTooLarge,
    ModeRefused,
    NotRunning,
    NotSuspended,
    RemoteError,
    SessionBusy,
    SessionClosed,
    SessionExists,
    SessionNotFound,
    Suspended,
    TooManySchedules,
    UsageError,
)
from actgent.errors.printable import quoted
from actgent.errors.restored import reworded

from .transport import Refused, RemoteRequest

Asked = Callable[[Refused, RemoteRequest], ActgentError]


def failure_error(name: str, words: str, kind: str) -> ActgentError:
    """The error that a message ended with, by the name of its class."""
    cls = getattr(errors, name, None)
    words = words or f"the message ended as {kind} failure"
    if isinstance(cls, type) and issubclass(cls, ActgentError):
        return reworded(cls, words)
    return RemoteError(words, kind=kind)


def suspended(waits_for: Any) -> Suspended:
    """The error of a turn that waits for people."""
    known = [each for each in waits_for or () if isinstance(each, Mapping)]
    tools = [str(each.get("tool", "")) for each in known]
    return Suspended([str(each.get("id", "")) for each in known], tools if all(tools) else ())


def error_of(refused: Refused, request: RemoteRequest) -> ActgentError:
    """Return what a refused request raises."""
    row = _ROWS.get(refused.kind)
    if row is None:
        return RemoteError(refused.detail, kind=refused.kind, status=refused.status)
    return row(refused, request)


def _words(cls: type[ActgentError]) -> Asked:
    return lambda refused, _: reworded(cls, refused.detail)


def _of_session(cls: Callable[[str], ActgentError]) -> Asked:
    return lambda _, request: cls(request.session_id)


def _missing(refused: Refused, request: RemoteRequest) -> ActgentError:
    if request.operation == "post_decision":
        return ApprovalNotFound(request.part, request.session_id)
    if request.operation == "get_agent" or "agent" in refused.fields:
        return _not_hosted(refused, request.part or str(refused.fields.get("agent", "")))
    return SessionNotFound(request.agent, request.session_id)


def _not_hosted(refused: Refused, agent: str) -> NotRunning:
    hosted = refused.fields.get("agents")
    known = [str(each) for each in hosted] if isinstance(hosted, list) else []
    return NotRunning(agent, known, pool=refused.pool, is_elsewhere=True)


def _unavailable(refused: Refused, request: RemoteRequest) -> ActgentError:
    if "agent" in refused.fields:
        return _not_hosted(refused, str(refused.fields["agent"]))
    if request.agent:
        words = (
            refused.detail
            or f"agent {quoted(request.agent)} cannot answer now: ask again later; the server's log says why"
        )
        return reworded(NotRunning, words, agent=request.agent)
    return RemoteError(refused.detail, kind=refused.kind, status=refused.status)


def _too_large(refused: Refused, _: RemoteRequest) -> ActgentError:
    return reworded(MessageTooLarge, refused.detail, limit=refused.fields.get("limit"))


def _no_access(refused: Refused, _: RemoteRequest) -> ActgentError:
    return AccessRefused(refused.detail, kind=refused.kind, status=refused.status)


_ROWS: Mapping[str, Asked] = {
    "not-found": _missing,
    "session-exists": lambda _, request: SessionExists(request.agent, request.session_id),
    "session-closed": _of_session(SessionClosed),
    "session-busy": _of_session(SessionBusy),
    "not-suspended": _of_session(NotSuspended),
    "suspended": lambda refused, _: suspended(refused.fields.get("waits_for")),
    "already-decided": lambda refused, request: reworded(
        AlreadyDecided, refused.detail, approval_id=request.part
    ),
    "mode-refused": _words(ModeRefused),
    "message-too-large": _too_large,
    "body-too-large": _too_large,
    "inbox-full": _words(InboxFull),
    "too-many-schedules": _words(TooManySchedules),
    "busy": _words(InboxFull),
    "limit-reached": lambda refused, _: reworded(
        LimitReached, refused.detail, limit=refused.fields.get("limit")
    ),
    "invalid": _words(ConfigurationError),
    "key-reused": _words(ConfigurationError),
    "invalid-arguments": _words(InvalidArguments),
    "ambiguous": _words(UsageError),
    "conflict": _words(UsageError),
    "unavailable": _unavailable,
    "journal-full": _words(JournalFull),
    "unauthorized": _no_access,
    "forbidden": _no_access,
    "wrong-origin": _no_access,
    "wrong-host": _no_access,
}
"""By the kinds of problems that a gateway has."""
