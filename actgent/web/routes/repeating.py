"""Requests that clients repeat: what a request with an `Idempotency-Key` creates is created once, and only for the same body."""

import hashlib

from actgent.journal.base import SessionSummary
from actgent.journal.records import Opened
from actgent.tools.outputs.results import canonical
from actgent.web.problems import Problem

from .endpoints import HTTPCall
from .schemas import check_client_id


def key_of(call: HTTPCall) -> str:
    """Return the `Idempotency-Key` of a request; empty if it has none.

    Raises:
        Problem: The key has other characters than ids have.
    """
    key = call.header("idempotency-key")
    return check_client_id("idempotency-key:", key) if key else ""


def key_for(call: HTTPCall, field: str) -> str | None:
    """Return the id of what a request creates, from its `Idempotency-Key` or the field of its body; None if it names none.

    Raises:
        Problem: Both are given and differ.
    """
    key, named = key_of(call), call.body.get(field)
    if key and named is not None and key != named:
        raise Problem("invalid", f"idempotency-key: and {field} are two names of one thing, and differ here")
    return key or named


def request_digest(call: HTTPCall) -> str:
    """Return a digest of what a request asks for: its path and its body."""
    text = f"{call.address}\n{canonical(dict(call.body))}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def id_of_key(call: HTTPCall, key: str, *place: str) -> str:
    """Return the id of the session that this owner creates under a key, now and at each repetition."""
    words = "\n".join((call.caller.owner, *place, check_client_id("idempotency-key:", key)))
    return hashlib.blake2b(words.encode(), digest_size=16, person=b"actgent.session").hexdigest()


def fork_id(call: HTTPCall, key: str) -> str:
    """Return the id of the copy that this owner makes of a session under a key."""
    return id_of_key(call, key, "fork", call.path["id"])


def asker_of(call: HTTPCall, key: str) -> str:
    """Return `Opened.asker` of a session that is created under a key; empty without one."""
    return f"made/{id_of_key(call, key)}/{request_digest(call)}" if key else ""


def check_asker(known: str, asker: str) -> bool:
    """Return True if a session was created by the same request, False if by another request or an unknown one.

    Args:
        known: `Opened.asker` of the session.
        asker: That of the request.

    Raises:
        Problem: It was created under the same key, with another body.
    """
    if known == asker:
        return True
    if asker and known.startswith(asker[: asker.rindex("/") + 1]):
        raise key_reused()
    return False


def key_reused() -> Problem:
    """The error for a key that stands for another request."""
    return Problem("key-reused", "this key was sent with another body: take a new key for a new request")


async def first_record(call: HTTPCall, head: SessionSummary) -> Opened | None:
    """Return the first record of a session."""
    first = await call.gateway.reach.journal.read(head.session_id, agent=head.agent, limit=1)
    return first[0] if first and isinstance(first[0], Opened) else None
