"""What a person is asked before a tool runs, and what they may decide.

An approval stands for one call of one tool with these arguments in this session: its id follows from them, so a
decision can never serve for anything else. A decision is a typed value; no text that a tool or a model writes is one.
"""

import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import attrs

from actgent.errors import ConfigurationError, nearest
from actgent.forms import Field, to_form
from actgent.support.serializable import Serializable


def _text(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
    if not isinstance(value, str):
        raise ConfigurationError(f"{field.name}= is a text, not {type(value).__name__}")


def _seconds(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
    if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
        raise ConfigurationError(f"{field.name}= is a number of seconds above 0, not {value!r}")


Risk = Literal["", "low", "medium", "high", "critical"]
"""How much harm a call may do, for whoever decides; empty: nobody said."""
RISKS: tuple[Risk, ...] = get_args(Risk)


def _risk(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
    if value not in RISKS:
        raise ConfigurationError(
            f"{field.name}= is low, medium, high or critical: {nearest(str(value), RISKS[1:])}"
        )


def _mapping(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise ConfigurationError(f"{field.name}= is a mapping, not {type(value).__name__}")


# --- the question ------------------------------------------------------------------------


def _to_form(form: Mapping[str, Any] | Field | Iterable[Field] | None) -> Mapping[str, Any] | None:
    return to_form(form)


@attrs.frozen
class Ask:
    """That a person has to be asked, and how.

    Raises:
        ConfigurationError: a field makes no sense; the text names it.
    """

    question: str = attrs.field(default="", validator=_text)
    """For the person; empty asks whether the tool may run."""
    form: Mapping[str, Any] | None = attrs.field(
        default=None, kw_only=True, converter=_to_form, validator=_mapping
    )
    """JSON Schema of what `Respond` may carry, or fields (`Field`); None takes anything."""
    risk: Risk = attrs.field(default="", kw_only=True, validator=_risk)
    """How much harm it may do, for whoever decides."""
    timeout: float | None = attrs.field(default=None, kw_only=True, validator=_seconds)
    """Seconds to answer; None is the agent's `Limits(approval_timeout=...)`."""


@attrs.frozen(kw_only=True)
class Approval(Serializable):
    """A call that waits for a person."""

    id: str
    """What it is answered by: a digest of all that it stands for, a dot, and the session's id."""
    session_id: str
    """The session whose turn waits."""
    agent: str
    """The name of the agent that it belongs to."""
    call_id: str
    """The `ToolCall.id` of the call."""
    tool_name: str
    """The tool that would run."""
    arguments: Mapping[str, Any] = attrs.field(repr=False, hash=False)
    """As the tool would get them."""
    question: str = ""
    """In words for the person; empty where the tool asked nothing itself."""
    form: Mapping[str, Any] | None = attrs.field(default=None, hash=False)
    """JSON Schema of what is to be filled in; None where a yes or no is all."""
    again: bool = True
    """True if an approved call runs (once more); else what is decided is its result."""
    created_at: float = attrs.field(factory=time.time)
    """Unix time in seconds."""
    risk: str = ""
    """`low`, `medium`, `high` or `critical`: how much harm it may do; empty: nobody said."""
    deadline: float = math.inf
    """Unix time in seconds; nobody having answered by then, it has expired."""
    owner: str = ""
    """Name of the owner of the session; of the topmost session where agents ask agents."""

    @property
    def is_genuine(self) -> bool:
        """Return True if the id stands for these arguments of this tool in this session of this agent."""
        known = (self.session_id, self.call_id, self.tool_name, self.arguments, self.question)
        return self.id in (approval_id(*known, agent=self.agent), approval_id(*known))


def approval_id(
    session_id: str,
    call_id: str,
    tool_name: str,
    arguments: Mapping[str, Any],
    question: str,
    *,
    agent: str = "",
) -> str:
    """The id of the approval of a call: the same after a restart, another for anything else.

    Without an agent it is that of a session from before ids were unique for their agent only.
    """
    words = [session_id, call_id, tool_name, arguments, question, *([agent] if agent else [])]
    known = json.dumps(words, sort_keys=True, default=repr)
    digest = hashlib.blake2b(known.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return f"{digest}.{session_id}"


def session_of(approval: str) -> str:
    """The id of the session in which an approval waits; empty for what is no approval's id."""
    return approval.partition(".")[2]


# --- the decision ------------------------------------------------------------------------


@attrs.frozen
class Approve(Serializable):
    """The tool runs with the arguments that it was called with."""

    reason: str = attrs.field(default="", validator=_text)
    """Why; empty: nothing was said."""
    content: Mapping[str, Any] | None = attrs.field(
        default=None, kw_only=True, validator=attrs.validators.optional(_mapping), hash=False
    )
    """What the form asked for, where the tool that runs now has asked for something."""


@attrs.frozen
class FormAnswer(Approve):
    """An `Approve` with content as the tool finds it in `context.approval`: with the question that it answers."""

    question: str = attrs.field(default="", kw_only=True, validator=_text)
    """As the person read it."""


@attrs.frozen
class Reject(Serializable):
    """The tool does not run, and the model reads why."""

    reason: str = attrs.field(default="", validator=_text)
    """Why, in words for the model; empty: nothing was said."""


@attrs.frozen
class Edit(Serializable):
    """The tool runs with these arguments instead, which have to fit its schema. The model is told."""

    arguments: Mapping[str, Any] = attrs.field(validator=_mapping)
    """All of them, in place of those that the model gave."""
    reason: str = attrs.field(default="", validator=_text)
    """Why, in words for the model; empty: nothing was said."""


@attrs.frozen
class Respond(Serializable):
    """The tool does not run: this is its result."""

    content: Any = ""
    """Text as it is; anything else becomes JSON."""


@attrs.frozen
class Expire(Serializable):
    """Nobody decided in time, so the tool does not run. The clock's decision: no caller can make it."""


@attrs.frozen
class Withdraw(Serializable):
    """The turn was stopped before anybody decided. Not for callers either: see `session.interrupt`."""


Decision = Approve | Reject | Edit | Respond | Expire | Withdraw
BY_PEOPLE = (Approve, Reject, Edit, Respond)
Grant = Approve | Edit
"""A decision that lets the tool run."""


def word_for(decision: Decision) -> str:
    """Name a decision in one word."""
    return _WORDS[type(decision)]


_WORDS: Mapping[type, str] = {
    Approve: "approved",
    Reject: "rejected",
    Edit: "edited",
    Respond: "responded",
    Expire: "expired",
    Withdraw: "withdrawn",
}
