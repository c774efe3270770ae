"""Removal of an untrusted source from the label of a session, because a person trusts the text that came from the source.

The label of a session names the untrusted sources of the text that its model has read. `Session.lift` removes one of them.
"""

from actgent.errors import ConfigurationError, UsageError
from actgent.information_flow_labels import ANY_SOURCE
from actgent.journal.record_types import SourceLiftRecord
from actgent.messages import Sender
from actgent.sessions.session_context import SessionContext
from actgent.sessions.session_record_writer import unless_written
from actgent.support.untrusted_text_delimiters import join_origins
from actgent.tools.untrusted_sources_of_call import sources_outside_of_turns

from .agent_actor import AgentActor
from .waits_between_sessions import collects_sources

MAX_REASON_CHARS = 2000
"""Maximum length of the reason of a lift in characters."""


async def remove_untrusted_source(
    running: AgentActor, context: SessionContext, source: str, *, by: Sender | str, reason: str
) -> None:
    """Remove an untrusted source from the label of a session, because the person `by` trusts the text of this source.

    The label changes first. Then the removal is recorded in the journal; if the write fails, the source is added again. A message
    that arrives during the write is recorded after the removal, and adds its sources to the changed label.

    Args:
        running: Agent of the session.
        context: The session.
        source: Name of the source.
        by: Person that trusts the source; must have a name.
        reason: Reason of the person, for audits.

    Raises:
        ConfigurationError: `by` or `reason` is invalid, or the label of the session does not have the source.
        UsageError: The caller is not a person: see `check_called_by_person`.
        SessionClosed, NotRunning: The session was closed, or its agent is stopping.
    """
    check_called_by_person()
    name = check_removal_arguments(source, by, reason)
    running.lifecycle.check_open(context)
    running.lifecycle.eviction.check_stays(context.id)
    conversation = context.conversation
    _check_has_source(context, source)
    lifted = SourceLiftRecord(source=source, by=name, reason=reason, at=running.clock.now())
    with running.lifecycle.kept(context):
        before = conversation.origin, conversation.via, conversation.unrecorded
        conversation.remove_source(source)
        try:
            await _write(context, lifted)
        except BaseException:
            conversation.origin = join_origins(before[0], conversation.origin)
            conversation.via = join_origins(before[1], conversation.via)
            conversation.unrecorded = join_origins(before[2], conversation.unrecorded)
            raise
        running.core.observer.note_lift(context, lifted)


def check_called_by_person() -> None:
    """Raise unless a person calls `Session.lift`. The context variables of the calling task show the caller.

    Raises:
        UsageError: A tool or a handler of a turn makes the call, or code that has read untrusted text.
    """
    if collects_sources():
        raise UsageError(
            "session.lift() cannot be called by a tool or handler of a turn: only a person may trust a source, so call "
            "session.lift() outside of turns"
        )
    if sources := sources_outside_of_turns():
        raise UsageError(
            f"session.lift() cannot be called by code that has read untrusted text of {sources}: call session.lift() from "
            "other code"
        )


def check_removal_arguments(source: object, by: object, reason: object) -> str:
    """Check the arguments of `Session.lift`, and return the name of the person that trusts the source.

    Raises:
        ConfigurationError: An argument is invalid.
    """
    name = by.name if isinstance(by, Sender) else by
    if not isinstance(source, str) or not source:
        raise ConfigurationError(f"lift() needs the name of a source, not {source!r:.200}")
    if not isinstance(name, str) or not name.strip():
        raise ConfigurationError(
            f"lift(by=) must be the name of the person that trusts the source, not {by!r:.200}"
        )
    if not isinstance(reason, str) or len(reason) > MAX_REASON_CHARS:
        raise ConfigurationError(
            f"lift(reason=) must be a string of at most {MAX_REASON_CHARS:,} characters, not {reason!r:.200}"
        )
    return name


def _check_has_source(context: SessionContext, source: str) -> None:
    """Raise `ConfigurationError` if the label of a session (its untrusted sources) does not contain `source`."""
    known = context.conversation.label.sources
    if source in known:
        return
    has = f"its sources are {', '.join(sorted(known))}" if known else "it has no sources"
    hint = (
        ": the label had too many sources to name them, and lift('*') removes all of them"
        if ANY_SOURCE in known
        else ""
    )
    raise ConfigurationError(
        f"the label of the session does not have the source {source!r:.200}; {has}{hint}"
    )


async def _write(context: SessionContext, lifted: SourceLiftRecord) -> None:
    if context.log is not None:
        with unless_written():
            await context.log.write(lifted)
        return
    if (recent := context.conversation.recent) is not None:
        recent.add_record(lifted)
