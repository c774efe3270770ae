"""Errors as clients of the gateway read them: `application/problem+json` (RFC 9457), in our words alone.

No trace and no text of a foreign exception goes out; what is not foreseen here is a 500 with the id of the request,
under which the log has it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from actgent.errors import (
    ActgentError,
    ActorFailed,
    AlreadyAnswered,
    AlreadyDecided,
    ApprovalMismatch,
    ApprovalNotFound,
    ConfigurationError,
    DepsMissing,
    Fenced,
    InboxFull,
    InvalidArguments,
    JournalDamaged,
    JournalError,
    JournalFull,
    LimitReached,
    MessageTooLarge,
    ModeRefused,
    NotRunning,
    NotSerializable,
    NotSuspended,
    ParseError,
    SessionBusy,
    SessionClosed,
    SessionExists,
    SessionNotFound,
    Suspended,
    TooManySchedules,
    UsageError,
    WouldDeadlock,
)
from actgent.errors.printable import shown

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER = 1
"""Seconds after which to try again what was full."""
_WORDS = 1000

TITLES: Mapping[str, tuple[int, str]] = {
    "malformed-request": (400, "The request cannot be read"),
    "unauthorized": (401, "No token, or none that is known"),
    "forbidden": (403, "The token does not allow this"),
    "wrong-origin": (403, "The request comes from another site"),
    "mode-refused": (403, "The mode may not be switched"),
    "not-found": (404, "There is nothing of this name"),
    "method-not-allowed": (405, "This address does not take this verb"),
    "not-acceptable": (406, "None of the media types that are asked for"),
    "timeout": (408, "The request took too long to come"),
    "ambiguous": (409, "Several agents have a session of this id"),
    "session-exists": (409, "The id is taken"),
    "session-busy": (409, "The session works"),
    "session-closed": (409, "The session is closed"),
    "already-decided": (409, "It was decided before"),
    "suspended": (409, "The session waits for people"),
    "not-suspended": (409, "Nothing waits for a decision"),
    "conflict": (409, "This does not fit what is there"),
    "message-too-large": (413, "The message is too large"),
    "body-too-large": (413, "The body is too large"),
    "unsupported-media-type": (415, "The body is of a kind that is not taken"),
    "wrong-host": (421, "This server does not answer under this name"),
    "invalid": (422, "A value makes no sense"),
    "invalid-arguments": (422, "The arguments do not fit"),
    "key-reused": (422, "The key stands for another request"),
    "inbox-full": (429, "The inbox is full"),
    "too-many-schedules": (429, "The session has as many schedules as it may"),
    "limit-reached": (429, "A limit is used up"),
    "busy": (429, "As many requests of the session wait as may"),
    "too-many-requests": (429, "The token asks for too much at a time"),
    "internal": (500, "Something failed that should not"),
    "poison": (500, "The processes that were to answer this have died"),
    "unavailable": (503, "Not now"),
    "journal-full": (503, "There is no space for the journal"),
}
"""What there is, by the last part of its `type`: status and title."""


class Problem(Exception):
    """An answer that is an error.

    Args:
        kind: One of `TITLES`.
        detail: For people, in our own words.
        headers: Besides those of every answer.
        fields: Members of its own, such as `limit`.
    """

    def __init__(
        self, kind: str, detail: str = "", *, headers: Mapping[str, str] | None = None, **fields: Any
    ) -> None:
        self.kind = kind
        self.status, self.title = TITLES[kind]
        self.detail = detail
        self.fields = fields
        self.headers = dict(headers or {})
        if self.status in (429, 503):
            self.fields.setdefault("retry_after", RETRY_AFTER)
            self.headers.setdefault("retry-after", str(self.fields["retry_after"]))
        if kind == "unauthorized":
            self.headers.setdefault("www-authenticate", 'Bearer realm="actgent"')
        super().__init__(f"{self.status} {kind}: {detail}")

    def document(self, instance: str) -> dict[str, Any]:
        """Its body; `instance` is the id of the request."""
        return {
            "type": f"/errors/{self.kind}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "instance": instance,
            **self.fields,
        }


@attrs.frozen
class _Row:
    """What a class of our errors becomes."""

    error: type[ActgentError]
    kind: str
    fields: Callable[[Any], Mapping[str, Any]] = lambda _: {}


def _decided(error: AlreadyDecided) -> Mapping[str, Any]:
    return {"approval_id": error.approval_id}


def _waiting(error: Suspended) -> Mapping[str, Any]:
    return {
        "waits_for": [{"id": each, "tool": tool} for each, tool in zip(error.ids, error.tools, strict=False)]
    }


def _bound(error: LimitReached) -> Mapping[str, Any]:
    return {"limit": error.limit}


_ROWS = (
    _Row(SessionNotFound, "not-found"),
    _Row(ApprovalNotFound, "not-found"),
    _Row(SessionExists, "session-exists"),
    _Row(SessionClosed, "session-closed"),
    _Row(SessionBusy, "session-busy"),
    _Row(AlreadyDecided, "already-decided", _decided),
    _Row(AlreadyAnswered, "conflict"),
    _Row(ApprovalMismatch, "conflict"),
    _Row(NotSuspended, "not-suspended"),
    _Row(ModeRefused, "mode-refused"),
    _Row(InvalidArguments, "invalid-arguments"),
    _Row(NotSerializable, "invalid"),
    _Row(MessageTooLarge, "message-too-large", lambda error: {"limit": error.limit}),
    _Row(InboxFull, "inbox-full"),
    _Row(TooManySchedules, "too-many-schedules"),
    _Row(LimitReached, "limit-reached", _bound),
    _Row(Suspended, "suspended", _waiting),
    _Row(WouldDeadlock, "conflict"),
    _Row(NotRunning, "unavailable", lambda error: {"agent": error.agent}),
    _Row(ActorFailed, "unavailable"),
    _Row(DepsMissing, "unavailable"),
    _Row(Fenced, "unavailable", lambda _: {"moved": True}),
    _Row(JournalFull, "journal-full"),
    _Row(JournalDamaged, "internal"),
    _Row(JournalError, "unavailable"),
    _Row(ConfigurationError, "invalid"),
    _Row(ParseError, "malformed-request"),
    _Row(UsageError, "conflict"),
)
"""The first that fits counts."""
_UNTOLD = {"unavailable", "journal-full", "internal"}
"""Kinds whose errors name files, processes and hosts of ours, so their words stay in the log."""


def problem_of(error: Exception) -> Problem | None:
    """Return what an error of ours is to a client; None for what nobody foresaw."""
    if isinstance(error, Problem):
        return error
    row = next((row for row in _ROWS if isinstance(error, row.error)), None)
    if row is None:
        return None
    if isinstance(error, SessionNotFound | ApprovalNotFound):
        return missing()
    detail = "" if row.kind in _UNTOLD and not isinstance(error, NotRunning) else shown(error, _WORDS)
    return Problem(row.kind, detail, **row.fields(error))


def missing(**fields: Any) -> Problem:
    """There is no such thing, or it is another owner's: the same answer for both, byte by byte, but for `fields` that say more."""
    return Problem("not-found", "there is nothing of this id here", **fields)
