"""Names that were replaced and go on working for a while: which, since when, and when they go.

A name lives for at least two minor releases and for six months, whichever is longer; docs/help/versions.md has the same
table for users. Every `DeprecationWarning` of the package comes from here.
"""

import warnings
from collections.abc import Mapping
from datetime import date

import attrs


@attrs.frozen
class Deprecation:
    """A public name that has another one now."""

    new: str
    """What to write instead."""
    since: str
    """The first version that warns."""
    removal: str
    """The first version that may be without it."""
    day: date
    """The day from which it warns; it goes no earlier than six months later."""


_FIRST_DAY = date(2026, 11, 1)
DEPRECATED: Mapping[str, Deprecation] = {
    "GoalResult.result": Deprecation("GoalResult.data", "0.1", "0.3", _FIRST_DAY),
    "AgentAnswer.final_answer": Deprecation("AgentAnswer.text", "0.1", "0.3", _FIRST_DAY),
    "Session.chat(deadline=)": Deprecation("Session.chat(enqueue_timeout=)", "0.1", "0.3", _FIRST_DAY),
    "AgentRef.tell(deadline=)": Deprecation("AgentRef.tell(enqueue_timeout=)", "0.1", "0.3", _FIRST_DAY),
    "Agent.companions": Deprecation("Agent._companions", "0.1", "0.3", _FIRST_DAY),
    "Agent.access_rules": Deprecation("Agent._access_rules", "0.1", "0.3", _FIRST_DAY),
    "Agent.route": Deprecation("Agent._route", "0.1", "0.3", _FIRST_DAY),
}
"""By the old name, as its users write it."""


def warn_deprecated(name: str, why: str = "", *, stacklevel: int = 3) -> None:
    """Tell who uses an old name what it is called now, and until when it works; `why` says it in other words.

    `stacklevel` is that of `warnings.warn`: 3 is who called the caller.

    Raises:
        KeyError: the name is not in the table.
    """
    known = DEPRECATED[name]
    said = why or f"{name} is called {known.new}"
    warnings.warn(
        f"{said} (deprecated since {known.since}; {known.removal} may be without it)",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
