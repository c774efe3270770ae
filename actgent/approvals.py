"""Approval requests for tool calls, and the decisions of approvers.

An approval belongs to one call of one tool with fixed arguments in one session. The approval id is a digest of
these, so a decision cannot be used for another call. A decision is a typed object: text of a tool or a model is
never taken as a decision.
"""

import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import attrs

from actgent.errors import ConfigurationError, did_you_mean_or_list
from actgent.forms import Field, to_form
from actgent.information_flow_labels import Label, label_of
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.dict_serialization import Serializable
from actgent.support.unknown_name_hints import lists_arguments


def _text(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
    if not isinstance(value, str):
        raise ConfigurationError(f"{field.name}= must be a string, not {type(value).__name__}")


def _seconds(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
    if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
        raise ConfigurationError(f"{field.name}= must be a number of seconds above 0, not {value!r}")


Risk = Literal["", "low", "medium", "high", "critical"]
"""Rating of the damage that a call can do, shown to the approver; empty if not rated."""
RISKS: tuple[Risk, ...] = get_args(Risk)
"""All values of `Risk`."""


def _risk(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
    if value not in RISKS:
        raise ConfigurationError(
            f"{field.name}= is low, medium, high or critical: {did_you_mean_or_list(str(value), RISKS[1:])}"
        )


def _mapping(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise ConfigurationError(f"{field.name}= must be a mapping, not {type(value).__name__}")


# --- the question ------------------------------------------------------------------------


def _to_form(form: Mapping[str, Any] | Field | Iterable[Field] | None) -> Mapping[str, Any] | None:
    return to_form(form)


@lists_arguments
@attrs.frozen(repr=False)
class ApprovalRequest(FieldRepr):
    """Result of an approval rule: the tool call needs an approval. It contains the question for the approver.

    Raises:
        ConfigurationError: A field has an invalid value. The text names the field.
    """

    question: str = attrs.field(default="", validator=_text)
    """Question for the approver; empty asks whether the tool may run."""
    form: Mapping[str, Any] | None = attrs.field(
        default=None, kw_only=True, converter=_to_form, validator=_mapping
    )
    """JSON Schema, or `Field` objects of `actgent.forms`, of the content of a `Respond` decision; None accepts any content."""
    risk: Risk = attrs.field(default="", kw_only=True, validator=_risk)
    """Risk rating that is shown to the approver; empty if not rated."""
    timeout: float | None = attrs.field(default=None, kw_only=True, validator=_seconds)
    """Seconds until the request expires and the call is rejected; None uses `Limits(approval_timeout=...)` of the agent."""


@attrs.frozen(kw_only=True, repr=False)
class Approval(Serializable):
    """A tool call that waits for the decision of an approver."""

    id: str
    """Id of the approval: a digest of the call, a dot, and the session id."""
    session_id: str
    """Id of the session whose turn waits."""
    agent: str
    """Name of the agent of the session."""
    call_id: str
    """Id of the tool call (`ToolCall.id`)."""
    tool_name: str
    """Name of the tool to run."""
    arguments: Mapping[str, Any] = attrs.field(repr=False, hash=False)
    """Arguments of the tool call."""
    question: str = ""
    """Question for the approver; empty if the question is only whether the tool may run."""
    form: Mapping[str, Any] | None = attrs.field(default=None, hash=False)
    """JSON Schema of the content that the approver fills in; None if a yes or no is enough."""
    again: bool = True
    """True if the tool runs after the approval. False if the decision itself becomes the result of the call."""
    created_at: float = attrs.field(factory=time.time)
    """Unix time of the request in seconds."""
    risk: str = ""
    """Risk rating: `low`, `medium`, `high` or `critical`; empty if not rated."""
    deadline: float = math.inf
    """Unix time in seconds at which the approval expires without a decision; infinite if it never expires."""
    owner: str = ""
    """Name of the session's owner. For a session that works for another agent: name of the owner of the topmost session."""
    state: str = attrs.field(default="", repr=False)
    """Private state that the tool passed to `ApprovalRequired` for its next run; empty if none. Clients do not receive this field."""
    for_caller: bool = False
    """True if the client that sent the turn's message runs the tool.
    The client answers by `Respond` with the result, or by `Reject`.
    """
    sources: Mapping[str, str] | None = attrs.field(default=None, hash=False)
    """Untrusted sources of each checked parameter, separated by commas; None if the call violates no policy."""

    @property
    def labels(self) -> Mapping[str, Label]:
        """Labels of the parameters that depend on untrusted text, by parameter; empty if the call violates no policy."""
        return {name: label_of(text) for name, text in (self.sources or {}).items()}

    @property
    def is_genuine(self) -> bool:
        """True if `id` is the digest of this call: session, agent, tool and arguments are unchanged."""
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
    """Return the id of the approval of a call: the digest of all arguments, a dot, and the session id.

    Equal arguments give equal ids, also after a restart. An empty `agent` gives the id format of old journals, in
    which session ids were unique across agents.
    """
    words = [session_id, call_id, tool_name, arguments, question, *([agent] if agent else [])]
    known = json.dumps(words, sort_keys=True, default=repr)
    digest = hashlib.blake2b(known.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return f"{digest}.{session_id}"


def session_of(approval: str) -> str:
    """Return the session id in an approval id; an empty text if `approval` is not an approval id."""
    return approval.partition(".")[2]


# --- the decision ------------------------------------------------------------------------


@attrs.frozen(repr=False)
class Approve(Serializable):
    """Decision: run the tool with the arguments of the call."""

    reason: str = attrs.field(default="", validator=_text)
    """Reason of the approver; empty if not given."""
    content: Mapping[str, Any] | None = attrs.field(
        default=None, kw_only=True, validator=attrs.validators.optional(_mapping), hash=False
    )
    """Content that the approver filled into the form of the request; None without a form."""


@attrs.frozen(repr=False)
class FormAnswer(Approve):
    """`Approve` decision as `context.approval` of a tool that raised `ApprovalRequired`: with the question and state of that request."""

    question: str = attrs.field(default="", kw_only=True, validator=_text)
    """Question that the approver answered."""
    state: str = attrs.field(default="", kw_only=True, repr=False, validator=_text)
    """State that the tool passed to `ApprovalRequired`, unchanged; empty if none."""


@attrs.frozen(repr=False)
class Reject(Serializable):
    """Decision: do not run the tool. The model receives the reason."""

    reason: str = attrs.field(default="", validator=_text)
    """Reason for the decision, which the model reads; empty if not given."""


@attrs.frozen(repr=False)
class Edit(Serializable):
    """Decision: run the tool with other arguments, which must match the tool's schema. The model is informed of the change."""

    arguments: Mapping[str, Any] = attrs.field(validator=_mapping)
    """New arguments of the call. They replace all original arguments."""
    reason: str = attrs.field(default="", validator=_text)
    """Reason for the decision, which the model reads; empty if not given."""


@attrs.frozen(repr=False)
class Respond(Serializable):
    """Decision: do not run the tool; `content` becomes the result of the call."""

    content: Any = ""
    """Result of the call. A text is used unchanged; other values are encoded as JSON."""


@attrs.frozen(repr=False)
class Expire(Serializable):
    """Decision of the timeout: the approval expired, and the tool does not run. Callers cannot make this decision."""


@attrs.frozen(repr=False)
class Withdraw(Serializable):
    """Decision of a stopped turn: the approval is withdrawn, and the tool does not run.

    Callers use `session.interrupt` instead.
    """


Decision = Approve | Reject | Edit | Respond | Expire | Withdraw
"""Any decision about an approval."""
BY_PEOPLE = (Approve, Reject, Edit, Respond)
"""Decision classes that an approver can make."""
Grant = Approve | Edit
"""Decision that allows the tool to run."""


def decision_name(decision: Decision) -> str:
    """Return the name of a decision: `approved`, `rejected`, `edited`, `responded`, `expired` or `withdrawn`."""
    return _WORDS[type(decision)]


_WORDS: Mapping[type, str] = {
    Approve: "approved",
    Reject: "rejected",
    Edit: "edited",
    Respond: "responded",
    Expire: "expired",
    Withdraw: "withdrawn",
}


def approval_id_of(approval: object) -> str:
    """Return the id of an approval, which is given as an `Approval` or as its id.

    Raises:
        ConfigurationError: The value is neither an `Approval` nor a text.
    """
    if isinstance(approval, Approval):
        return approval.id
    if isinstance(approval, str):
        return approval
    raise ConfigurationError(f"an approval is one of session.approvals, or its id, not {approval!r:.200}")
