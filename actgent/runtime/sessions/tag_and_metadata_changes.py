"""Changes of the tags and metadata of sessions, also of sessions that are not in memory."""

from collections.abc import Iterable, Mapping

import attrs
import trio

from actgent.errors import Fenced, SessionClosed, SessionNotFound
from actgent.journal.journal_interface import Journal, only_session_key
from actgent.journal.record_types import SessionAnnotatedRecord
from actgent.journal.session_list_queries import SessionKey
from actgent.journal.session_tags_and_metadata import (
    AnnotationChange,
    SessionAnnotations,
    make_annotation_change,
)
from actgent.runtime.agent_directory import Directory
from actgent.sessions.session_context import SessionContext, host_of
from actgent.support.attrs_class_repr import FieldRepr

from .answer_ratings import write_outside_session
from .remote_session_interface import RemoteSessions


@attrs.frozen(repr=False)
class Annotator(FieldRepr):
    """Changes the tags and metadata of sessions in this process, or in the processes that own them."""

    journal: Journal | None
    agents: Directory
    remote_sessions: RemoteSessions | None

    async def annotate(self, key: SessionKey, change: AnnotationChange) -> SessionAnnotations | None:
        """Change the tags and metadata of a session. The change is durable on return.

        Return all tags and metadata of the session after the change; None if another process owns the session and made the change.

        Raises:
            ConfigurationError: The session would have too many tags or metadata keys.
            SessionNotFound: The session does not exist.
            JournalError: The write failed. The journal may retry it later, so the change may be recorded or not.
            ServerUnreachable: In a cluster, the node that owns the session did not answer; the change may be recorded or
                not.
        """
        try:
            return await self._annotate(key, change)
        except Fenced:
            if self.remote_sessions is None:
                raise
            await self.remote_sessions.change_annotations(key, change)
            return None

    async def _annotate(self, key: SessionKey, change: AnnotationChange) -> SessionAnnotations:
        """Change the tags and metadata of a session of this process, and return them after the change."""
        context = self.agents.reload_context(key)
        if context is not None and not context.closed and (context.log is not None or self.journal is None):
            with host_of(context).kept(context):
                await _annotate_open(context, change)
                return context.annotations
        if self.journal is None:
            raise SessionNotFound(*key)
        pending = self.agents.pending_opens_of(key.agent)
        await pending.wait(key.session_id)
        with pending.block(
            key.session_id, erases=False
        ):  # a session that is loaded now would miss the change
            return await self._annotate_stored(self.journal, key, change)

    async def _annotate_stored(
        self, journal: Journal, key: SessionKey, change: AnnotationChange
    ) -> SessionAnnotations:
        """Change the tags and metadata of a session that is only in the journal.

        Return all its tags and metadata after the change.
        """
        epoch = journal.epoch_of(key.session_id)
        head = await journal.head(*key)
        if head is None:
            raise SessionNotFound(*key)
        changed = head.annotations.apply(change)
        if changed == head.annotations:
            return changed
        record = SessionAnnotatedRecord(tags=changed.tags, metadata=changed.metadata)
        await write_outside_session(journal, key, record, epoch)
        if (context := self.agents.find_context(key)) is not None:
            context.annotations = changed
        return changed


async def _annotate_open(context: SessionContext, change: AnnotationChange) -> None:
    """Change the tags and metadata of a session in memory, and record the change.

    The tags and metadata change before the write, so that a concurrent change includes this one.
    """
    before = context.annotations
    changed = before.apply(change)
    if changed == before:
        if context.log is not None:  # the equal value may not be durable yet
            await context.log.flush()
        else:
            await trio.lowlevel.checkpoint()
        return
    context.annotations = changed
    if context.log is None:
        await trio.lowlevel.checkpoint()
        return
    try:
        await context.log.write(SessionAnnotatedRecord(tags=changed.tags, metadata=changed.metadata))
    except SessionClosed:
        raise SessionNotFound(*context.key) from None  # only an erased session accepts no record
    except Exception:
        if context.annotations is changed:
            context.annotations = before
        raise


class Annotations:
    """Mixin of the runtime that changes the tags and metadata of sessions."""

    journal: Journal | None
    agents: Directory
    remote_sessions: RemoteSessions | None

    async def annotate(
        self,
        session_id: str,
        *,
        agent: str | None = None,
        add_tags: Iterable[str] = (),
        remove_tags: Iterable[str] = (),
        metadata: Mapping[str, str | None] | None = None,
    ) -> None:
        """Change the tags and metadata of a session; see `Session.annotate`.

        The session may be closed, and its agent need not be running.

        Args:
            session_id: Id of the session.
            agent: Name of the session's agent; required if several agents have a session with this id.
            add_tags: Tags to add.
            remove_tags: Tags to remove. Missing tags are ignored.
            metadata: New values by key; None removes a key. Other keys keep their values.

        Raises:
            ConfigurationError: A tag, key or value is invalid, the session would have too many of them, or several agents
                have a session with this id.
            SessionNotFound: The session does not exist.
            JournalError: The write failed. The journal may retry it later, so the change may be recorded or not.
            ServerUnreachable: In a cluster, the node that owns the session did not answer; the change may be recorded or
                not.
        """
        change = make_annotation_change(add_tags=add_tags, remove_tags=remove_tags, metadata=metadata)
        if agent is not None:
            key: SessionKey | None = SessionKey(agent, session_id)
        elif self.journal is not None:
            key = only_session_key(await self.journal.agents_with_session(session_id), session_id)
        else:
            key = only_session_key(self.agents.agents_with_session(session_id), session_id)
        if key is None:
            raise SessionNotFound("", session_id)
        await Annotator(self.journal, self.agents, self.remote_sessions).annotate(key, change)
