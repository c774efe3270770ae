"""Idempotent requests: a request with an `Idempotency-Key` creates its object once; the same key needs the same body."""

import hashlib

from actgent.journal.journal_interface import SessionSummary
from actgent.journal.record_types import SessionCreatedRecord
from actgent.tools.outputs.result_text import canonical_json
from actgent.web.problem_documents import Problem

from .endpoints import HTTPCall
from .shared_schemas import check_client_id


def request_digest(call: HTTPCall) -> str:
    """Return a digest of a request's path and body.

    It shows if an idempotency key is used for another request.
    """
    text = f"{call.address}\n{canonical_json(dict(call.body))}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def id_of_key(call: HTTPCall, key: str, *place: str) -> str:
    """Return the session id that belongs to an idempotency key of the caller's owner. A retry gets the same id.

    Args:
        call: The request.
        key: Idempotency key of the request.
        place: Further parts of the digest. Other operations with the same key get another id.
    """
    words = "\n".join((call.caller.owner, *place, check_client_id("idempotency-key:", key)))
    return hashlib.blake2b(words.encode(), digest_size=16, person=b"actgent.session").hexdigest()


def fork_id(call: HTTPCall, key: str) -> str:
    """Return the id of the session copy that belongs to an idempotency key of a fork request. A retry gets the same id."""
    return id_of_key(call, key, "fork", call.path["id"])


def asker_of(call: HTTPCall, key: str) -> str:
    """Return the text that identifies the request in the field `asker` of the created session.

    Empty without an idempotency key.
    """
    return f"made/{id_of_key(call, key)}/{request_digest(call)}" if key else ""


def check_asker(known: str, asker: str) -> bool:
    """Return True if a session was created by the current request; False if another or an unknown request created it.

    Args:
        known: Value of `asker` in the session's first record.
        asker: Value of `asker_of` for the current request.

    Raises:
        Problem: The session was created with the same key, but with another body.
    """
    if known == asker:
        return True
    if asker and known.startswith(asker[: asker.rindex("/") + 1]):
        raise key_reused()
    return False


def key_reused() -> Problem:
    """Return the error for an idempotency key that was sent before with another body."""
    return Problem("key-reused", "this key was sent with another body: take a new key for a new request")


async def first_record(call: HTTPCall, head: SessionSummary) -> SessionCreatedRecord | None:
    """Read the first record of a session; None if it is not a `SessionCreatedRecord`."""
    first = await call.gateway.access.journal.read(head.session_id, agent=head.agent, limit=1)
    return first[0] if first and isinstance(first[0], SessionCreatedRecord) else None
