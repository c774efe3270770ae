"""Interface to sessions that other processes own, and the check of call arguments. `actgent.cluster` implements the interface."""

from collections.abc import Mapping
from typing import Any, Protocol

from actgent.errors import ConfigurationError, Fenced
from actgent.journal.journal_interface import SessionSummary
from actgent.journal.record_types import RatingRecord
from actgent.journal.session_list_queries import SessionKey
from actgent.journal.session_tags_and_metadata import AnnotationChange


class RemoteSessions(Protocol):
    """Access to agents and sessions in other processes, with the same API as local agents and sessions."""

    relay: Any
    """Object that forwards HTTP requests to the nodes that own the sessions; see `actgent.cluster`."""

    def agent(self, name: str) -> Any:
        """Return a client of the agent with this name, which sends calls to the processes that own its sessions."""

    def session(self, agent: str, session_id: str, *, owner: str) -> Any:
        """Return a handle of a remote session without checking that it exists."""

    async def delete_session(self, session_id: str, *, agent: str) -> None:
        """Close and erase a session in the process that owns it."""

    async def fork_session(
        self, head: SessionSummary, *, to: int | None, session_id: str | None
    ) -> SessionSummary:
        """Copy the session `head` into a new session, in the process that owns the new id. `to` is the last copied record number."""

    async def record_rating(self, key: SessionKey, rated: RatingRecord) -> bool:
        """Record a rating in the process that owns the session. Return False if it equals the user's last rating."""

    async def change_annotations(self, key: SessionKey, change: AnnotationChange) -> None:
        """Change the tags and metadata of a session in the process that owns the session."""

    def id_of(self, session: object) -> str | None:
        """Return the session id of a remote session handle; None for other values."""


def check_sendable(arguments: Mapping[str, object], moved: Fenced) -> None:
    """Raise if the caller has set an argument that cannot be sent to the process that owns the session.

    `arguments` has the arguments by name; unset values are ignored. `moved` becomes the cause of the error.

    Raises:
        ConfigurationError: At least one of the arguments is set; the text names them.
    """
    if names := [name for name, value in arguments.items() if not _is_nothing(value)]:
        raise ConfigurationError(
            f"{', '.join(names)}: this cannot be sent to the node that owns the session; omit the argument, or use a "
            "session of this node, which create_session() without session_id= creates"
        ) from moved


def _is_nothing(value: object) -> bool:
    return value is None or (isinstance(value, tuple | list) and not value)
