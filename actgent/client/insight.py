"""Sessions as they were, copies, judgements, files and schedules: what a `Runtime` says of its sessions, asked of a server."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from actgent.agents.upgrading import Difference
from actgent.errors import ConfigurationError, SessionExists
from actgent.journal.base import SessionSummary
from actgent.journal.records import Rated
from actgent.messages import Message, Usage, new_secret
from actgent.runtime.insight import SetSchedule

from .calls import Calls
from .downloads import download, new_file
from .hearing import ServerLink
from .reading import to_message, to_schedule, to_seconds, to_usage
from .transport import Operation, RemoteRequest

COMPARING = 60.0
"""Seconds that a server may take to compare a session with today's code, besides those of any answer."""


@attrs.frozen(kw_only=True)
class PastSession:
    """A session after one of its records, as a server tells it; bytes of pictures and files stay there."""

    step: int
    """The number of that record, from 1."""
    state: Mapping[str, Any]
    """Its state then."""
    history: tuple[Message, ...]
    """What had been said by then, oldest first."""
    waiting: tuple[Message, ...]
    """Accepted by then, and not ended."""
    usage: Usage
    """What its model calls had taken by then."""
    digest: str
    """The same for the same history and state, in the running session and in any replay."""


class RemoteInsight:
    """What a server tells of its sessions, and does with them without their agents."""

    _link: ServerLink

    async def rebuild(
        self, session_id: str, *, agent: str | None = None, to: int | None = None
    ) -> PastSession:
        """Return a session as it was after its record `to`, or after the last; takes the scope journal.

        Raises:
            ConfigurationError: there is no such record.
            SessionNotFound: there is no such session.
        """
        head = await self._head(session_id, agent)
        number = head["records"] if to is None else to
        if not 1 <= number <= head["records"]:
            raise ConfigurationError(
                f"to={number!r:.100}: the records of session {session_id!r} are 1 to {head['records']}"
            )
        found = await self._ask("get_past", session_id, agent, part=str(number))
        return PastSession(
            step=found["number"],
            state=found["state"],
            history=tuple(to_message(session_id, each) for each in found["history"]),
            waiting=tuple(to_message(session_id, each) for each in found["waiting"]),
            usage=to_usage(found["usage"]),
            digest=found["digest"],
        )

    async def fork(
        self, session_id: str, *, agent: str | None = None, to: int | None = None, new_id: str | None = None
    ) -> SessionSummary:
        """Write a copy of a session, as it was after its record `to`, that goes its own way: `agent.open_session` goes on with it.

        One copy is written, however often the request is sent. It has no schedules, and draws on the budget of its original.

        Raises:
            ConfigurationError: there is no such record, or the new id is none.
            SessionExists: there is a session of the new id; nothing was written.
            SessionNotFound: there is no such session.
        """
        return await self._fork(session_id, agent, to, new_id)

    async def _fork(
        self, session_id: str, agent: str | None, to: int | None, new_id: str | None, *, owner: str = ""
    ) -> SessionSummary:
        """The same for this owner, where the server believes us that."""
        wanted = new_id or new_secret()
        body = {"session_id": wanted} if to is None else {"session_id": wanted, "at": to}
        request = _request("post_fork", session_id, agent, body=body, owner=owner)
        try:
            made, _ = await self._calls.call_told(request, done_by=("session-exists",))
        except SessionExists as error:
            raise SessionExists(error.agent, wanted) from None
        return to_summary(made if made is not None else await self._head(wanted, agent))

    async def compare(
        self, session_id: str, *, agent: str | None = None, to: int | None = None
    ) -> Difference | None:
        """Return what today's code of its agent would do otherwise in a session; None where it does the same.

        Up to the record `to`, or all of it; takes the scope journal. Nothing runs but the agent's code, on the server, with
        the recorded answers and results.

        Raises:
            ConfigurationError: there is no such record.
            NotRunning: its agent does not run there, or the comparison takes too long.
            SessionNotFound: there is no such session.
        """
        body = {} if to is None else {"at": to}
        found = await self._ask("post_compare", session_id, agent, body=body, wait=COMPARING)
        return None if found["difference"] is None else Difference(**found["difference"])

    async def rate(
        self,
        session_id: str,
        message_id: str,
        *,
        agent: str | None = None,
        score: float,
        comment: str = "",
        expected: str | None = None,
    ) -> None:
        """Keep what the token's owner thinks of the answer to a message, for `actgent eval --from-journal`.

        A later word of the same owner replaces the one before; see `Runtime.rate` for the arguments.

        Raises:
            ConfigurationError: this is no judgement.
            SessionNotFound: there is no such session.
            UsageError: it has no such message, or it is not answered yet.
        """
        body = _judgement(score, comment, expected)
        await self._ask("give_feedback", session_id, agent, part=message_id, body=body)

    async def _keep_rating(self, session_id: str, agent: str, rated: Rated) -> None:
        """The same for the reader that a judgement names, where the server believes us that."""
        body = _judgement(rated.score, rated.comment, rated.expected)
        await self._ask("give_feedback", session_id, agent, part=rated.message_id, body=body, owner=rated.by)

    async def ratings(
        self, session_id: str, message_id: str, *, agent: str | None = None
    ) -> tuple[Rated, ...]:
        """Return what each reader thinks of the answer to a message, the latest word of each.

        Raises:
            SessionNotFound: there is no such session.
            UsageError: it has no such message, or it is not answered yet.
        """
        page = await self._ask("get_feedback", session_id, agent, part=message_id)
        return tuple(_to_rating(each) for each in page["items"])

    async def export_session(self, session_id: str, path: Path | str, *, agent: str | None = None) -> int:
        """Write a session into a new file, as `actgent journal export` does, and return its bytes; takes the scope journal.

        The file is there whole or not at all, and nobody else may read it.

        Raises:
            ConfigurationError: the file exists, cannot be written, or the transport carries no files.
            SessionNotFound: there is no such session.
        """
        request = _request("get_export", session_id, agent)
        async with new_file(Path(path)) as file:
            return await download(self._calls, request, file)

    async def schedules(self, *, limit: int = 100) -> tuple[SetSchedule, ...]:
        """List at most `limit` schedules of all sessions that the token reaches, the next first."""
        found: list[SetSchedule] = []
        after: str | None = ""
        while after is not None and len(found) < limit:
            query = {"limit": min(500, limit - len(found)), **({"after": after} if after else {})}
            page = await self._calls.call(RemoteRequest(operation="list_all_schedules", query=query))
            found += [_to_set_schedule(each) for each in page["items"]]
            after = page["next"]
        return tuple(found)

    # --- how it asks -------------------------------------------------------------------------

    @property
    def _calls(self) -> Calls:
        return self._link.calls

    async def _head(self, session_id: str, agent: str | None) -> Mapping[str, Any]:
        found: Mapping[str, Any] = await self._ask("get_session", session_id, agent)
        return found

    async def _ask(self, operation: Operation, session_id: str, agent: str | None, **more: Any) -> Any:
        return await self._calls.call(_request(operation, session_id, agent, **more))


def _request(operation: Operation, session_id: str, agent: str | None, **more: Any) -> RemoteRequest:
    return RemoteRequest(operation=operation, agent=agent or "", session_id=session_id, **more)


def _judgement(score: float, comment: str, expected: str | None) -> Mapping[str, Any]:
    body = {"score": score, "comment": comment}
    return body if expected is None else {**body, "expected": expected}


def to_summary(head: Any) -> SessionSummary:
    """What is known of a session without opening it."""
    parent = head["parent"] or {}
    return SessionSummary(
        session_id=head["id"],
        agent=head["agent"],
        owner=head["owner"],
        parent_id=parent.get("id"),
        parent_agent=parent.get("agent"),
        created_at=to_seconds(head["created_at"]),
        updated_at=to_seconds(head["updated_at"]),
        records=head["records"],
        unfinished=head["unfinished"],
        closed=head["state"] == "closed",
        suspended=head["state"] == "suspended",
    )


def _to_rating(data: Mapping[str, Any]) -> Rated:
    shown = ("message_id", "score", "comment", "expected", "by")
    return Rated(**{name: data[name] for name in shown}, at=to_seconds(data.get("at")))


def _to_set_schedule(data: Mapping[str, Any]) -> SetSchedule:
    return SetSchedule(agent=data["agent"], session_id=data["session_id"], schedule=to_schedule(data))
