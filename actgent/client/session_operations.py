"""Operations on sessions by id: rebuild, fork, compare, rate and export a session, and list schedules."""

import os
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import trio

from actgent.agents.session_replay import Difference
from actgent.errors import ConfigurationError, ServerUnreachable, SessionExists
from actgent.journal.journal_interface import SessionSummary
from actgent.journal.record_types import RatingRecord
from actgent.journal.session_tags_and_metadata import (
    AnnotationChange,
    SessionAnnotations,
    make_annotation_change,
)
from actgent.messages import Message, Usage, new_secret
from actgent.runtime.introspection import SetSchedule

from .error_conversion import error_of
from .event_subscription import ServerLink
from .json_conversion import to_message, to_schedule, to_seconds, to_usage
from .request_bodies import annotation_body
from .request_sender import BrokenConnections, RequestSender, RetryBackoff
from .transport_interface import ConnectionLost, Operation, Refused, RemoteRequest

COMPARE_SECONDS = 60.0
"""Seconds for which the client waits for the answer of a `compare` request, in addition to its retry timeout."""


@attrs.frozen(kw_only=True)
class PastSession:
    """A session as it was after one of its journal records, without the bytes of pictures and files."""

    step: int
    """Number of the record up to which the session was rebuilt, counted from 1."""
    state: Mapping[str, Any]
    """State of the session after record `step`."""
    history: tuple[Message, ...]
    """Messages of the history up to record `step`, oldest first."""
    waiting: tuple[Message, ...]
    """Messages that were queued or in progress at record `step`."""
    usage: Usage
    """Token usage of the session's model calls up to record `step`."""
    digest: str
    """Hash of history and state: equal in the running session and in each replay of the same records."""


class SessionOperations:
    """Base class of `Client` with operations on sessions by id, which do not open the session."""

    _link: ServerLink

    async def rebuild(
        self, session_id: str, *, agent: str | None = None, to: int | None = None
    ) -> PastSession:
        """Return a session as it was after the record with number `to`; None is the last record. Requires the scope journal.

        Raises:
            ConfigurationError: The session has no record with this number.
            SessionNotFound: The session does not exist, or the token may not access it.
        """
        head = await self._head(session_id, agent)
        number = head["records"] if to is None else to
        if not 1 <= number <= head["records"]:
            raise ConfigurationError(
                f"to= must be a record number of session {session_id!r}, from 1 to {head['records']}, not {number!r:.100}"
            )
        found = await self._send("get_past", session_id, agent, part=str(number))
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
        """Copy a session, as it was after the record with number `to`, to a new session, and return the summary of the copy.

        Open the copy with `agent.open_session`. A retried request writes only one copy. The copy has no schedules, and shares
        the budget of the original session.

        Raises:
            ConfigurationError: The session has no record of this number, or `new_id` is not a valid id.
            SessionExists: A session with `new_id` exists; no copy was written.
            SessionNotFound: The original does not exist, or the token may not access it.
        """
        return await self._fork(session_id, agent, to, new_id)

    async def _fork(
        self, session_id: str, agent: str | None, to: int | None, new_id: str | None, *, owner: str = ""
    ) -> SessionSummary:
        """Send the fork request, and return the summary of the copy. `owner` is used only between cluster nodes."""
        copy_id = new_id or new_secret()
        body = {"session_id": copy_id} if to is None else {"session_id": copy_id, "at": to}
        request = _request("post_fork", session_id, agent, body=body, owner=owner)
        try:
            copy, _ = await self._requests.send_with_repeat_flag(request, done_by=("session-exists",))
        except SessionExists as error:
            raise SessionExists(error.agent, copy_id) from None
        return to_summary(copy if copy is not None else await self._head(copy_id, agent))

    async def compare(
        self, session_id: str, *, agent: str | None = None, to: int | None = None
    ) -> Difference | None:
        """Replay a session with the agent's current code, and return the first difference; None if there is no difference.

        The server replays up to the record with number `to`, or all records if it is None. Only the agent's code runs: model
        answers and tool results are read from the journal. Requires the scope journal.

        Raises:
            ConfigurationError: The session has no record with this number.
            NotRunning: The agent does not run on the server, or the comparison takes too long.
            SessionNotFound: The session does not exist, or the token may not access it.
        """
        body = {} if to is None else {"at": to}
        found = await self._send("post_compare", session_id, agent, body=body, wait=COMPARE_SECONDS)
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
        """Record a rating of the answer to a message by the token's owner, for `actgent eval --from-journal`.

        A later rating by the same owner replaces the earlier one. The arguments are those of `Runtime.rate`.

        Raises:
            ConfigurationError: The rating has an invalid value, for example a score out of range.
            SessionNotFound: The session does not exist, or the token may not access it.
            UsageError: The session has no message with this id, or the message has no answer yet.
        """
        body = _rating_body(score, comment, expected)
        await self._send("give_feedback", session_id, agent, part=message_id, body=body)

    async def _record_rating(self, session_id: str, agent: str, rated: RatingRecord) -> None:
        """Record a rating on behalf of the owner `rated.by`. Only cluster nodes call this."""
        body = _rating_body(rated.score, rated.comment, rated.expected)
        await self._send("give_feedback", session_id, agent, part=rated.message_id, body=body, owner=rated.by)

    async def annotate(
        self,
        session_id: str,
        *,
        agent: str | None = None,
        add_tags: Iterable[str] = (),
        remove_tags: Iterable[str] = (),
        metadata: Mapping[str, str | None] | None = None,
    ) -> None:
        """Change the tags and metadata of a session, which may be closed. The arguments are those of `Runtime.annotate`.

        Raises:
            ConfigurationError: A tag, key or value is invalid, or the session would have too many of them.
            SessionNotFound: The session does not exist, or the token may not access it.
        """
        change = make_annotation_change(add_tags=add_tags, remove_tags=remove_tags, metadata=metadata)
        await self._change_annotations(session_id, agent, change)

    async def _change_annotations(
        self, session_id: str, agent: str | None, change: AnnotationChange, **more: Any
    ) -> None:
        await self._send("annotate", session_id, agent, body=annotation_body(change), **more)

    async def ratings(
        self, session_id: str, message_id: str, *, agent: str | None = None
    ) -> tuple[RatingRecord, ...]:
        """Return the ratings of the answer to a message: the latest rating by each owner.

        Raises:
            SessionNotFound: The session does not exist, or the token may not access it.
            UsageError: The session has no message with this id, or the message has no answer yet.
        """
        page = await self._send("get_feedback", session_id, agent, part=message_id)
        return tuple(_to_rating(each) for each in page["items"])

    async def export_session(self, session_id: str, path: Path | str, *, agent: str | None = None) -> int:
        """Download a session into a new file in the format of `actgent journal export`. Return the file's size in bytes.

        The file is created only if the download is complete; only its owner may read it. Requires the scope journal.

        Raises:
            ConfigurationError: The file exists or cannot be written, or the transport does not implement downloads.
            SessionNotFound: The session does not exist, or the token may not access it.
        """
        request = _request("get_export", session_id, agent)
        async with new_file(Path(path)) as file:
            return await download(self._requests, request, file)

    async def schedules(self, *, limit: int = 100) -> tuple[SetSchedule, ...]:
        """Return at most `limit` schedules of all sessions that the token may access, ordered by due time."""
        found: list[SetSchedule] = []
        after: str | None = ""
        while after is not None and len(found) < limit:
            query = {"limit": min(500, limit - len(found)), **({"after": after} if after else {})}
            page = await self._requests.send(RemoteRequest(operation="list_all_schedules", query=query))
            found += [
                SetSchedule(agent=each["agent"], session_id=each["session_id"], schedule=to_schedule(each))
                for each in page["items"]
            ]
            after = page["next"]
        return tuple(found)

    # --- requests ----------------------------------------------------------------------------

    @property
    def _requests(self) -> RequestSender:
        """Request sender of the client, which retries requests."""
        return self._link.requests

    async def _head(self, session_id: str, agent: str | None) -> Mapping[str, Any]:
        """Request the current JSON of a session from the server."""
        found: Mapping[str, Any] = await self._send("get_session", session_id, agent)
        return found

    async def _send(self, operation: Operation, session_id: str, agent: str | None, **fields: Any) -> Any:
        """Send a request about a session, with retries, and return the response as decoded JSON."""
        return await self._requests.send(_request(operation, session_id, agent, **fields))


def _request(operation: Operation, session_id: str, agent: str | None, **fields: Any) -> RemoteRequest:
    """Build a request about a session; `fields` are further fields of `RemoteRequest`."""
    return RemoteRequest(operation=operation, agent=agent or "", session_id=session_id, **fields)


def _rating_body(score: float, comment: str, expected: str | None) -> Mapping[str, Any]:
    """Return the JSON body of a request that records a rating."""
    body = {"score": score, "comment": comment}
    return body if expected is None else {**body, "expected": expected}


def to_summary(head: Any) -> SessionSummary:
    """Convert the JSON of a session to a `SessionSummary`."""
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
        closed=head["status"] == "closed",
        suspended=head["status"] == "suspended",
        annotations=SessionAnnotations(tags=tuple(head["tags"]), metadata=head["metadata"]),
    )


def _to_rating(data: Mapping[str, Any]) -> RatingRecord:
    """Convert the JSON of a rating to a `RatingRecord`."""
    fields = ("message_id", "score", "comment", "expected", "by")
    return RatingRecord(**{name: data[name] for name in fields}, at=to_seconds(data.get("at")))


# --- downloads -------------------------------------------------------------------------------


@asynccontextmanager
async def new_file(path: Path) -> AsyncGenerator[BinaryIO, None]:
    """Open an `async with` block that writes a temporary file. If the block succeeds, the file gets the name `path`.

    Raises:
        ConfigurationError: The file exists, or its folder cannot be written.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    file = await trio.to_thread.run_sync(_open_draft, draft, path)
    try:
        yield file
        await trio.to_thread.run_sync(_publish, file, draft, path)
    finally:
        file.close()
        draft.unlink(missing_ok=True)


def _open_draft(draft: Path, path: Path) -> BinaryIO:
    """Create the temporary file `draft`, readable only by the current user.

    Raise `ConfigurationError` if the final `path` exists or its folder is not writable.
    """
    if path.exists():
        raise _file_exists_error(path)
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"file {path} cannot be created: {error.strerror}; check its folder"
        ) from error
    return os.fdopen(descriptor, "wb")


def _publish(file: BinaryIO, draft: Path, path: Path) -> None:
    """Write the temporary file to disk (fsync) and link it to its final path. Raise if the path exists by now."""
    file.flush()
    os.fsync(file.fileno())
    try:
        os.link(draft, path)  # a rename would replace an existing file
    except FileExistsError:
        raise _file_exists_error(path) from None


def _file_exists_error(path: Path) -> ConfigurationError:
    """Return the error for an export file that already exists."""
    return ConfigurationError(f"file {path} already exists: choose another name")


async def download(requests: RequestSender, request: RemoteRequest, file: BinaryIO) -> int:
    """Download the response to a request into a file. Return the number of bytes written.

    After a lost connection the download starts again from the first byte. It is retried for `requests.retry_timeout` seconds
    after the last try that received more bytes than all tries before.

    Raises:
        ServerUnreachable: No complete response arrived in time.
        ActgentError: The server answered with an error.
    """
    backoff, furthest, deadline = RetryBackoff(), 0, trio.current_time() + requests.retry_timeout
    broken = BrokenConnections(requests.transport, request)
    while True:
        target = _DownloadTarget(file)
        await trio.to_thread.run_sync(target.clear)
        begun = trio.current_time()
        try:
            async with requests.transport.download(broken.add_count(request)) as pieces:
                async for piece in pieces:
                    await target.write(piece)
                return target.size
        except ConnectionLost as lost:
            failure: ConnectionLost | Refused = lost
            pause = backoff.next_pause()
        except Refused as refused:
            if not refused.is_temporary:
                raise error_of(refused, request) from None
            failure, pause = refused, backoff.next_pause(refused.retry_after)
        if target.size > furthest:
            furthest, deadline = target.size, trio.current_time() + requests.retry_timeout
        with trio.move_on_at(deadline):
            await broken.record(failure, started_at=begun)
            await broken.wait_calm()
        if trio.current_time() + pause > deadline:
            raise ServerUnreachable(str(failure))
        await trio.sleep(pause)


@attrs.define
class _DownloadTarget:
    """File to which the tries of a download write."""

    file: BinaryIO
    size: int = 0
    """Number of bytes that the current try has written."""

    def clear(self) -> None:
        """Truncate the file to zero bytes, so that the download can start again."""
        self.file.seek(0)
        self.file.truncate()

    async def write(self, piece: bytes) -> None:
        """Append bytes to the file, in a worker thread."""
        await trio.to_thread.run_sync(self.file.write, piece)
        self.size += len(piece)
