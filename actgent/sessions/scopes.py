"""What the ids begin with that a session gives to others: to sessions that it opens, and to what its tools do outside.

An id of a session is unique for its agent only, so these are made from both, and no two sessions make the same.
"""

import hashlib

LONGEST = 100
"""Characters of an agent's name and an id together that stand in a scope as they are."""


def scope_of(agent: str, session_id: str) -> str:
    """A text of at most 102 characters that is one session's alone: readable, or a digest where that would be ambiguous."""
    is_plain = "/" not in agent and "/" not in session_id and not agent.startswith("~")
    if is_plain and len(agent) + len(session_id) <= LONGEST:
        return f"@{agent}/{session_id}"
    known = f"{len(agent)}/{agent}/{session_id}".encode("utf-8", "surrogatepass")
    return f"@~{hashlib.blake2b(known, digest_size=16).hexdigest()}"
