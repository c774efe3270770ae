"""Options and first record of a new session, and their validation."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

import attrs

from actgent.errors import ConfigurationError, WrongOwner
from actgent.errors.text_escaping import quoted
from actgent.journal.record_types import SessionCreatedRecord
from actgent.journal.session_list_queries import is_storable
from actgent.journal.session_tags_and_metadata import SessionAnnotations
from actgent.limits_and_schedules.id_and_number_validation import check_session_limits
from actgent.limits_and_schedules.limits import Limits
from actgent.messages import OnBusy, Sender, check_busy_rule
from actgent.sessions.imported_history import ImportedMessage, check_history
from actgent.sessions.session_context import SessionContext
from actgent.support.attrs_class_repr import FieldRepr


class NewSession(TypedDict, total=False):
    """Keyword arguments of a new session."""

    parent: SessionContext | None
    system: str | None
    on_busy: OnBusy | None
    limits: Limits | None
    history: Iterable[ImportedMessage]
    annotations: SessionAnnotations


OnSession = Callable[[Any], Any]
"""Function registered with `Agent.on_session`; it is called with the public session handle."""


@attrs.frozen(repr=False)
class FirstRecordFields(FieldRepr):
    """Fields of a new session's first record that the session context does not store."""

    has_deps: bool
    notify: tuple[str, ...]
    is_transient: bool
    is_described: bool
    asker: str


def validate_new_session(new: NewSession) -> None:
    """Raise if an option of a new session is invalid.

    Raises:
        ConfigurationError: An option is invalid; the text names it.
    """
    if (limits := new.get("limits")) is not None:
        check_session_limits(limits)
    if (rule := new.get("on_busy")) is not None:
        check_busy_rule(rule)
    if (history := new.get("history", ())) != ():
        new["history"] = check_history(history)


@functools.lru_cache(maxsize=256)
def _user(name: str) -> Sender:
    """Return the sender object of the user with this name. The object is cached, because one user opens many sessions."""
    _check_storable_name(name)
    return Sender(name)


def _check_storable_name(name: str) -> None:
    """Raise if a database would change the name of an owner. The changed name could be the name of another owner.

    Raises:
        ConfigurationError: The name contains NUL or half of a surrogate pair.
    """
    if not is_storable(name):
        raise ConfigurationError(
            f"owner {quoted(name)} contains NUL or a lone surrogate, which databases cannot store: remove it"
        )


def to_owner(owner: Sender | str) -> Sender:
    """Return the owner of a session as a `Sender`; a string is the name of a user.

    Raises:
        ConfigurationError: The owner is empty, of another type, or contains characters that databases cannot store.
    """
    if isinstance(owner, str) and owner.strip():
        return _user(owner)
    if not isinstance(owner, Sender):
        what = (
            "must not be empty" if type(owner) is str else f"must be a text or a Sender, not {owner!r:.100}"
        )
        raise ConfigurationError(f"owner {what}: pass the name of the user of the agent")
    _check_storable_name(owner.name)
    return owner


def check_parent(agent: str, owner: Sender, parent: SessionContext) -> None:
    """Raise if the parent of a new session belongs to another user. The owner of a parent sees and decides the child's approvals.

    Sessions owned by agents may be children of users' sessions.

    Raises:
        WrongOwner: The two sessions belong to different users.
    """
    if owner.kind == parent.owner.kind == "user" and owner != parent.owner:
        raise WrongOwner(agent, parent.id, owner.name)


def build_created_record(
    context: SessionContext,
    limits: Mapping[str, float],
    on_busy: OnBusy | None,
    fields: FirstRecordFields,
    now: float,
) -> SessionCreatedRecord:
    """Build the first record of a session, with its owner, parent, limits and budget accounts.

    `fields` has the values that the context does not store. `now` is the creation time in Unix seconds.
    """
    parent = context.parent
    return SessionCreatedRecord(
        agent=context.agent,
        owner=context.owner,
        parent_id=None if parent is None else parent.id,
        created_at=now,
        on_busy=on_busy,
        limits=limits,
        system=context.conversation.system,
        within=tuple(
            account.key
            for account in context.accounts
            if (account.key.agent, account.key.session_id) != context.key
        ),
        transient=fields.is_transient,
        deps=fields.has_deps,
        notify=fields.notify,
        is_described=fields.is_described,
        parent_agent="" if parent is None else parent.agent,
        reports=context.task is not None and context.task.reports,
        deadline=0.0 if context.task is None else context.task.deadline,
        task="" if context.task is None else context.task.name,
        asker=fields.asker if context.task is None else context.task.asker,
        tags=context.annotations.tags,
        metadata=context.annotations.metadata,
        via=context.conversation.via,
    )
