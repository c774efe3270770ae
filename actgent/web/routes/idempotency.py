"""Idempotent requests: a request with an `Idempotency-Key` creates its object once; the same key needs the same body."""

import hashlib

from actgent.journal.journal_interface import SessionSummary
from actgent.journal.record_types import SessionCreatedRecord
from actgent.tools.outputs.result_text import canonical_json
from actgent.web.problem_documents import Problem

from .common_request_schemas import check_client_id
from .endpoints import HTTPCall


def request_digest(call: HTTPCall) -> str:
    """Return a digest of a request's path and body, which differs if an idempotency key is sent with another request."""
    text = f"{call.address}\n{canonical_json(dict(call.body))}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def id_of_key(call: HTTPCall, key: str, *purpose: str) -> str:
    """Return a session id that is derived from an idempotency key and the caller's owner. A retry gives an equal id.

    Args:
        call: Request with the caller.
        key: Idempotency key of the request.
        purpose: Name of the operation. Different operations with the same key get different ids.
    """
    text = "\n".join((call.caller.owner, *purpose, check_client_id("idempotency-key:", key)))
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"actgent.session").hexdigest()


def fork_id(call: HTTPCall, key: str) -> str:
    """Return the id of the session that a fork request creates, derived from its idempotency key. A retry gives an equal id."""
    return id_of_key(call, key, "fork", call.path["id"])


def creator_id(call: HTTPCall, key: str) -> str:
    """Return the text that identifies a request as the creator of a session; empty if `key` is empty.

    The field `asker` in the first record of the session has this text.
    """
    return f"made/{id_of_key(call, key)}/{request_digest(call)}" if key else ""


def was_created_by(recorded: str, current: str) -> bool:
    """Return True if a session was created by the current request or an earlier try of it, False if not or if unknown.

    Args:
        recorded: Field `asker` in the session's first record.
        current: Value of `creator_id` for the current request.

    Raises:
        Problem: The session was created with the same key, but with a different body.
    """
    if recorded == current:
        return True
    if current and recorded.startswith(current[: current.rindex("/") + 1]):
        raise key_reused()
    return False


def key_reused() -> Problem:
    """Return the error for an idempotency key that was sent before with a different body."""
    return Problem(
        "key-reused",
        "this idempotency key was sent before with a different body: use a new key for each new request",
    )


async def first_record(call: HTTPCall, head: SessionSummary) -> SessionCreatedRecord | None:
    """Read the first record of a session. Return None if it is not a `SessionCreatedRecord`."""
    first = await call.gateway.access.journal.read(head.session_id, agent=head.agent, limit=1)
    return first[0] if first and isinstance(first[0], SessionCreatedRecord) else None
