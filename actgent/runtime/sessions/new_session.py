"""What a session is created with, checked, and its first record."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

import attrs

from actgent.control.arguments import check_session_limits
from actgent.control.limits import Limits
from actgent.errors import (
    ConfigurationError,
    WrongOwner,
)
from actgent.errors.printable import quoted
from actgent.journal.listing import is_storable
from actgent.journal.records import Opened
from actgent.messages import OnBusy, Sender
from actgent.sessions.context import SessionContext
from actgent.sessions.history import Former, check_history
from actgent.sessions.incoming import check_rule


class NewSession(TypedDict, total=False):
    """What a session is given that is created."""

    parent: SessionContext | None
    system: str | None
    on_busy: OnBusy | None
    limits: Limits | None
    history: Iterable[Former]


OnSession = Callable[[Any], Any]
"""Called with the user's end of a session."""


@attrs.frozen
class Given:
    """What else is written of a session that is created."""

    has_deps: bool
    notify: tuple[str, ...]
    is_transient: bool
    is_described: bool
    asker: str


def check_new(new: NewSession) -> None:
    """Refuse what no session can be given, also where there is one already.

    Raises:
        ConfigurationError: the text says what.
    """
    if (limits := new.get("limits")) is not None:
        check_session_limits(limits)
    if (rule := new.get("on_busy")) is not None:
        check_rule(rule)
    if (history := new.get("history", ())) != ():
        new["history"] = check_history(history)


@functools.lru_cache(maxsize=256)
def _user(name: str) -> Sender:
    """A user of this name; who opens one session opens more."""
    _check_kept(name)
    return Sender(name)


def _check_kept(name: str) -> None:
    """Refuse a name that comes back as another from a database, and so would be another owner's.

    Raises:
        ConfigurationError: it holds NUL, or half of a surrogate pair.
    """
    if not is_storable(name):
        raise ConfigurationError(
            f"owner {quoted(name)} holds NUL or half of a surrogate pair, which databases do not keep: take it out"
        )


def to_owner(owner: Sender | str) -> Sender:
    """Whoever a session belongs to; a name is a user's.

    Raises:
        ConfigurationError: it is empty, nobody, or holds what no database keeps as it is.
    """
    if isinstance(owner, str) and owner.strip():
        return _user(owner)
    if not isinstance(owner, Sender):
        what = "must not be empty" if type(owner) is str else f"is a text or a Sender, not {owner!r:.100}"
        raise ConfigurationError(f"owner {what}: pass the name of whoever talks to the agent")
    _check_kept(owner.name)
    return owner


def check_parent(agent: str, owner: Sender, parent: SessionContext) -> None:
    """Refuse a session of one user below that of another, who would see and decide what it asks people.

    Sessions that agents own are below those that they work for.
    """
    if owner.kind == parent.owner.kind == "user" and owner != parent.owner:
        raise WrongOwner(agent, parent.id, owner.name)


def opened_record(
    context: SessionContext,
    limits: Mapping[str, float],
    on_busy: OnBusy | None,
    given: Given,
    now: float,
) -> Opened:
    """Build the first record of a session."""
    parent = context.parent
    return Opened(
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
        transient=given.is_transient,
        deps=given.has_deps,
        notify=given.notify,
        is_described=given.is_described,
        parent_agent="" if parent is None else parent.agent,
        reports=context.task is not None and context.task.reports,
        deadline=0.0 if context.task is None else context.task.deadline,
        task="" if context.task is None else context.task.name,
        asker=given.asker if context.task is None else context.task.asker,
    )
