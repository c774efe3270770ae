"""Messages of sessions, the parts of a message, and the outcomes that handlers receive.

All classes are immutable values that depend on no agent, model or API. A `Message` waits in an inbox and is stored
in a session's records; a model reads and writes its parts.
"""

import enum
import itertools
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Generic, Literal, Self, get_args

import attrs
from typing_extensions import TypeVar

from actgent.approvals import Approval
from actgent.errors import ConfigurationError, NotRunning, SessionClosed, did_you_mean, did_you_mean_or_list
from actgent.errors.end_user_messages import end_user_sentence
from actgent.errors.text_escaping import shown
from actgent.information_flow_labels import Label, label_of
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.common_mistake_hints import (
    hints_for_failures,
    hints_for_media,
    hints_for_messages,
    hints_for_replies,
    hints_for_results,
    hints_for_tokens,
    hints_for_tool_calls,
    hints_for_usage,
)
from actgent.support.dict_serialization import Serializable
from actgent.support.fast_attrs_constructors import DERIVED, EXACT, fast_constructor, fast_init
from actgent.support.untrusted_text_delimiters import delimiter_of_result, enclose_in_delimiters

# --- identifiers -------------------------------------------------------------------------

_log = logging.getLogger(__name__)
_serial = itertools.count()
_process = ""
_secrets: list[str] = []
"""Generated secrets that were not used yet. One system call that generates many costs hardly more than for one."""
_SECRETS = 64


def _begin_process() -> None:
    """Choose a random id prefix for this process and discard cached secrets, so that a forked process never repeats an id."""
    global _process  # noqa: PLW0603 - one prefix a process is the point
    _process = secrets.token_hex(6)
    _secrets.clear()


_begin_process()
os.register_at_fork(after_in_child=_begin_process)


def new_id() -> str:
    """Return a new id, unique across processes. Ids of one process sort by age.

    About ten times as fast as `str(uuid4())`. Ids are not secret: the next id can be guessed from any other.
    """
    return f"{_process}-{next(_serial):08x}"


def is_id_of_process(text: str) -> bool:
    """Return True if `new_id` in this process may have created this id."""
    return text.startswith(f"{_process}-")


def new_secret() -> str:
    """Return an unguessable id: 128 random bits in hexadecimal."""
    try:
        return _secrets.pop()
    except IndexError:  # several threads may refill the list at the same time: each keeps one secret of the batch that it generated
        digits = os.urandom(16 * _SECRETS).hex()
        _secrets.extend([digits[at : at + 32] for at in range(32, len(digits), 32)])
        return digits[:32]


# --- priority and sender -----------------------------------------------------------------


OnBusy = Literal["queue", "collect", "interrupt", "reject"]
"""Handling of a message that arrives while its session runs a turn.

`queue`: the message waits for its turn. `collect`: one turn answers it together with other collected messages.
`interrupt`: it stops the running turn and is processed next. `reject`: it is rejected. An URGENT message always
interrupts.
"""
_BUSY_RULES: tuple[OnBusy, ...] = get_args(OnBusy)


def check_busy_rule(rule: object) -> OnBusy:
    """Return the argument `on_busy=` after a check that it is one of the known rules.

    Raises:
        ConfigurationError: The rule is unknown.
    """
    for known in _BUSY_RULES:
        if rule == known:
            return known
    raise ConfigurationError(
        f"on_busy= takes {', '.join(_BUSY_RULES)}, not {rule!r:.200} {did_you_mean(rule, _BUSY_RULES)}".rstrip()
    )


PriorityName = Literal["urgent", "high", "normal", "low", "URGENT", "HIGH", "NORMAL", "LOW"]
"""Name of a priority in program code; other spellings in upper and lower case are accepted at run time."""


class Priority(enum.IntEnum):
    """Processing order of messages: lower values first. `Priority(text)` ignores case; unknown text is NORMAL."""

    URGENT = 0
    """Stops the running turn of the session, and is processed before all other messages."""
    HIGH = 1
    NORMAL = 2
    LOW = 3

    @classmethod
    def of(cls, value: "Priority | int | str") -> "Priority":
        """Return the priority with this name or number. Unknown text is NORMAL.

        Raises:
            ConfigurationError: The value is a number or an object that is not a priority.
        """
        if isinstance(value, str):
            return cls.__members__.get(value.strip().upper(), cls.NORMAL)
        try:
            return cls(value)
        except ValueError:
            raise ConfigurationError(f"priority= takes URGENT, HIGH, NORMAL or LOW, not {value!r}") from None

    @classmethod
    def named(cls, value: "Priority | int | str") -> "Priority":
        """Return the priority with this name (in any case) or number.

        Raises:
            ConfigurationError: The priority is unknown; the text suggests the nearest name.
        """
        if type(value) is cls:
            return value
        if isinstance(value, str):
            if (name := value.strip().upper()) in cls.__members__:
                return cls[name]
            raise ConfigurationError(
                f"unknown priority {value[:100]!r}: {did_you_mean_or_list(name[:100], cls.__members__)}"
            )
        if isinstance(value, bool):
            raise ConfigurationError(f"priority= takes URGENT, HIGH, NORMAL or LOW, not {value!r}")
        return cls.of(value)

    @classmethod
    def of_chat(cls, value: "Priority | int | str") -> "Priority":
        """Return the priority of a chat message. Unknown text is NORMAL, and a warning is logged.

        Raises:
            ConfigurationError: The value is a misspelt name, or a number that is not a priority.
        """
        if isinstance(value, str):
            name = value.strip().upper()
            if name and name not in cls.__members__ and not did_you_mean(name[:100], cls.__members__):
                _log.warning(
                    "priority %r is unknown, so the message is NORMAL; known: %s",
                    shown(value, 100),
                    ", ".join(cls.__members__),
                )
                return cls.NORMAL
        return cls.named(value)

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return cls.of(value) if isinstance(value, str) else None


SenderKind = Literal["user", "assistant", "agent", "tool", "system"]
"""Kind of a sender: end user, this agent's model, another agent, tool, or the framework (`system`)."""
_KINDS: tuple[SenderKind, ...] = ("user", "assistant", "agent", "tool", "system")


@attrs.frozen(repr=False)
class Sender(Serializable):
    """Sender of a message, or owner of a session. The kind determines the role that a model sees.

    Raises:
        ConfigurationError: The name is empty, or the kind is unknown.
    """

    name: str
    """Name of the user, agent, tool or timer. An owner of sessions is identified by name and kind."""
    kind: SenderKind = "user"
    """Kind of the sender; see `SenderKind`."""

    def __str__(self) -> str:
        return self.name

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():  # type: ignore[redundant-expr]
            raise ConfigurationError(f"a sender must have a name that is not empty, not {self.name!r}")
        if self.kind not in _KINDS:
            raise ConfigurationError(f"a sender's kind must be one of {', '.join(_KINDS)}, not {self.kind!r}")

    @classmethod
    def named(cls, name: str) -> "Sender":
        """Return the sender with this name: kind `assistant`, `agent` or `tool` for exactly these names in any case, else `user`.

        A name never selects the kind `system`, because users choose their names: use `Sender(name, "system")`.
        """
        kind = name.strip().lower()
        return cls(name, kind if kind in _KINDS and kind != "system" else "user")


# --- parts -------------------------------------------------------------------------------


@attrs.frozen(repr=False)
class Text(Serializable):
    """Text part of a message."""

    text: str
    """The text content, in Unicode."""


make_text = fast_constructor(Text)


@attrs.frozen(kw_only=True, repr=False)
class Media(Serializable):
    """Base class of message parts with binary data, given as bytes or as a URL."""

    media_type: str
    """Media type of the data (RFC 6838), e.g. `image/png`. It is not checked against the data."""
    data: bytes | None = attrs.field(default=None, repr=False)
    """Binary content; None if `url` is set."""
    url: str | None = None
    """URL from which the provider downloads the data; None if `data` is set."""

    def __attrs_post_init__(self) -> None:
        if (self.data is None) == (self.url is None):
            raise ValueError(f"{type(self).__name__} takes either data= (bytes) or url=, not both")
        data: object = self.data
        if isinstance(data, str):
            raise TypeError(
                f"{type(self).__name__}(data=...) takes bytes, not a string: write data=text.encode(), or url= for an address"
            )


@hints_for_media
@attrs.frozen(kw_only=True, repr=False)
class Image(Media):
    """Image part of a message."""


@hints_for_media
@attrs.frozen(kw_only=True, repr=False)
class File(Media):
    """File part of a message, e.g. `application/pdf`."""

    name: str = "file"
    """File name, sent to the provider if its API accepts one."""


Medium = Image | File
"""Message parts with binary data."""
MEDIA_TAGS: Mapping[str, type] = {"image": Image, "file": File}
"""Class of each medium, by its tag in stored records."""


@attrs.frozen(repr=False)
class Thinking(Serializable):
    """Reasoning that a model produced before its answer. Model clients return it unchanged, and only to the same provider."""

    text: str
    """Readable reasoning; empty if the provider hides it."""
    dialect: str
    """API format of the provider: `openai`, `openai-responses` or `anthropic`."""
    data: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """Content block of the provider, including its signature or encrypted content."""
    source: str = attrs.field(default="", eq=False, repr=False)
    """Provider that produced the block, as `Remote.source`; empty if any provider with this API format may receive the block."""


@attrs.frozen(repr=False)
class Opaque(Serializable):
    """Content block of a provider that actgent only stores and returns, such as a server tool's call or citations."""

    dialect: str
    """API format of the provider; only providers with this format receive the block."""
    data: Mapping[str, Any] = attrs.field(repr=False)
    """Content block of the provider, unchanged."""
    source: str = attrs.field(default="", eq=False, repr=False)
    """Provider that produced the block; empty if any provider with this API format may receive the block."""


@hints_for_tool_calls
@fast_init
@attrs.frozen(repr=False)
class ToolCall(Serializable):
    """Request of a model to run a tool."""

    name: str
    """Name of the tool as the model wrote it. The tool may not exist."""
    arguments: Mapping[str, Any] | str
    """Decoded arguments. A text could not be decoded: a call with such arguments never runs."""
    id: str = ""
    """Id that actgent assigned, unique in the session. The provider receives it with the result."""
    provider_id: str | None = None
    """Id that the provider assigned; None if there is none. It may repeat."""
    native: bool = True
    """True for a call of the provider's tool API.

    False if the model wrote the call as text: the result is then sent as user text.
    """
    mapped: bool = False
    """True if the model did not request the call: it answered with an instruction (answer type) that is mapped to the tool."""


ToolStatus = Literal["success", "error", "cancelled", "outcome_unknown"]
"""Status of a tool result."""


class LabelFromSources:
    """Base class of values whose label is the sources in their fields `origin` and `via`."""

    __slots__ = ()

    origin: str
    via: str

    @property
    def label(self) -> Label:
        """Label of the value: the sources in `origin` and `via`."""
        return label_of(self.origin, self.via)


def _mark_of(fields: Mapping[str, Any]) -> str:
    """Return the delimiter of a tool result from its stored fields."""
    if not (origin := fields.get("origin")):
        return ""
    return delimiter_of_result(fields["call_id"], origin, fields.get("error"), fields.get("content", ""))


@hints_for_results
@fast_init
@attrs.frozen(kw_only=True, repr=False)
class ToolResult(LabelFromSources, Serializable):
    """Result of one tool call. Each call has exactly one result."""

    id: str = ""
    """Id of the result. If the result is delivered again, for example after a restart, it has the same id."""
    call_id: str
    """Id of the tool call (`ToolCall.id`)."""
    tool_name: str
    """Name of the tool, as in the call."""
    status: ToolStatus = "success"
    """Status of the call. `outcome_unknown`: the call may or may not have taken effect."""
    content: str = ""
    """Value that the tool returned: a text unchanged, other values as JSON."""
    error: str | None = None
    """Error text for the model; None if the call succeeded."""
    native: bool = True
    """True for a call of the provider's tool API; False if the model wrote the call as text."""
    origin: str = ""
    """Name of the toolset or tool that fetched untrusted external text; empty if the program's own tool wrote the text."""
    mark: str = attrs.field(default="", metadata={DERIVED: _mark_of})
    """Delimiter around untrusted text for the model, which the text does not contain; empty for trusted text.
    It is a digest of the other fields, so the journal does not store it.
    """
    media: tuple[Medium, ...] = ()
    """Images and files that the tool returned; `content` names each. A model receives those that its API supports."""
    raised: str = ""
    """Class name of the exception that the tool's code raised and whose message is `error`.
    Empty if actgent or a `ToolError` wrote the text.
    """
    via: str = ""
    """Names of untrusted sources that influenced the result although it does not repeat their text, such as those of a called
    agent; empty if none.
    """
    started_at: float = attrs.field(default=0.0, eq=False, repr=False)
    """Unix time in seconds at which the tool started; 0 if it did not run to its end."""
    ended_at: float = attrs.field(default=0.0, eq=False, repr=False)
    """Unix time in seconds at which the tool ended; 0 if it did not run to its end."""

    @property
    def text(self) -> str:
        """Text for the model: content or error. Untrusted text is enclosed in delimiters."""
        if self.error is None:
            return self.fenced(self.content) if self.mark else self.content
        error = f"Error: {self.error}"
        return self.fenced(f"{error}\n{self.content}" if self.content else error)

    def fenced(self, words: str) -> str:
        """Return a text of this result, enclosed in delimiters if the result is untrusted."""
        if not self.mark:
            return words
        return enclose_in_delimiters(words, self.origin, self.mark)


make_result = fast_constructor(ToolResult)
Part = Text | Image | File | Thinking | Opaque | ToolCall | ToolResult
"""Any part of a message."""
PART_TAGS: Mapping[str, type] = {
    "text": Text,
    "image": Image,
    "file": File,
    "thinking": Thinking,
    "opaque": Opaque,
    "call": ToolCall,
    "result": ToolResult,
}
"""Class of each message part, by its tag in stored records. A tag never gets another meaning; a new class needs a new tag."""


Content = str | Part | Sequence[str | Part]
"""Content of a message: a text, a part, or a sequence of texts and parts."""
_NOT_FROM_USERS = (ToolCall, ToolResult, Thinking)
"""Part classes that only models and tools create. Providers reject them in other messages."""


class TextFromParts:
    """Base class of values with message parts, whose text is that of the parts."""

    __slots__ = ()

    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """Concatenation of all text parts."""
        parts = self.parts
        if len(parts) == 1 and isinstance(parts[0], Text):
            return parts[0].text
        return "".join(part.text for part in parts if isinstance(part, Text))


def to_parts(content: Content) -> tuple[Part, ...]:
    """Return content as a tuple of message parts.

    Raises:
        TypeError: The content is neither a text, a part, nor a sequence of these. The text names its type.
    """
    if isinstance(content, str):
        return (Text(content),)
    if isinstance(content, Part):
        return (content,)
    if _is_list(content):
        return tuple(part for item in content for part in to_parts(item))
    raise TypeError(
        f"content must be a string or parts (Text, Image, File), not {type(content).__name__}{_CONTENT.get(type(content), '')}"
    )


def _is_list(content: object) -> bool:
    return isinstance(content, Sequence) and not isinstance(content, bytes | bytearray)


_CONTENT: Mapping[type, str] = {
    bytes: ": decode it, or wrap it as Image(...) or File(...)",
    dict: ": pass the text alone; the session remembers the conversation, and stores the author of a message in sender=",
}
"""Hint in the error message, by type of the rejected content."""


def message_parts(content: Content) -> tuple[Part, ...]:
    """Return the content of a user's message as parts.

    Raises:
        TypeError: The content is neither text nor parts that a user may send.
        ConfigurationError: The content is empty.
    """
    if type(content) is str and content and not content.isspace():  # the usual case, in a third of the time
        return (make_text(content),)
    parts = to_parts(content)
    for part in parts:
        if isinstance(part, _NOT_FROM_USERS):
            raise TypeError(
                f"content must be a string or parts (Text, Image, File), not {type(part).__name__}"
            )
    if not any(not isinstance(part, Text) or part.text.strip() for part in parts):
        raise ConfigurationError("the message is empty: give it text or another part, such as an image")
    return parts


# --- usage -------------------------------------------------------------------------------


@hints_for_usage
@fast_init
@attrs.frozen(kw_only=True, repr=False)
class Usage(Serializable):
    """Tokens and cost of model calls. Usages are added with `+`.

    As in the OpenTelemetry GenAI conventions, input tokens always include cached tokens, even if the provider
    counts them separately.
    """

    input_tokens: int = 0
    """Number of prompt tokens, cached or not."""
    output_tokens: int = 0
    """Number of answer tokens, reasoning included."""
    cached_tokens: int = 0
    """Number of the input tokens that were read from the provider's prompt cache."""
    cache_write_tokens: int = 0
    """Number of the input tokens that were written to the provider's prompt cache."""
    reasoning_tokens: int = 0
    """Number of the output tokens that were used for reasoning."""
    cost: float | None = 0.0
    """Cost in US dollars; None if the price of any part is unknown."""
    children: "Usage | None" = None
    """Usage of the sessions that worked for this one; None if there were none. `total` includes it."""

    @property
    def total(self) -> "Usage":
        """Usage of the session itself plus that of the sessions that worked for it."""
        return self if self.children is None else attrs.evolve(self, children=None) + self.children

    def with_child(self, usage: "Usage") -> "Usage":
        """Return this usage with the usage of a session that worked for it added to `children`."""
        return attrs.evolve(self, children=usage if self.children is None else self.children + usage)

    def __add__(self, other: "Usage") -> "Usage":
        return _make_usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cost=None if self.cost is None or other.cost is None else self.cost + other.cost,
            children=other.children if self.children is None else self._children_and(other),
        )

    def _children_and(self, other: "Usage") -> "Usage | None":
        if self.children is None or other.children is None:
            return self.children
        return self.children + other.children

    def __sub__(self, earlier: "Usage") -> "Usage":
        """Return the usage since an `earlier` total of the same counter."""
        before = earlier.children or NO_USAGE
        return Usage(
            input_tokens=self.input_tokens - earlier.input_tokens,
            output_tokens=self.output_tokens - earlier.output_tokens,
            cached_tokens=self.cached_tokens - earlier.cached_tokens,
            cache_write_tokens=self.cache_write_tokens - earlier.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens - earlier.reasoning_tokens,
            cost=None if self.cost is None or earlier.cost is None else self.cost - earlier.cost,
            children=None if self.children is None else self.children - before,
        )


_make_usage = fast_constructor(Usage)
NO_USAGE = Usage()

# --- the message -------------------------------------------------------------------------


class _NoMetadata(Mapping[str, Any]):
    """Class of the constant `NO_METADATA`, an immutable empty mapping. Copies and unpickled objects are the same object."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        """Compare like any mapping, without copying. Each written message is compared with it."""
        if other is self:
            return True
        return len(other) == 0 if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of any mapping

    def __repr__(self) -> str:
        return "{}"

    def __reduce__(self) -> str:
        return "NO_METADATA"


NO_METADATA: Mapping[str, Any] = _NoMetadata()
"""Default metadata of messages: an empty mapping."""
INTERMEDIATE = "intermediate"
"""Metadata key of an agent's message that is an intermediate step, such as a plan, and not an answer."""
MAX_METADATA_CHARS = 16_000
"""Maximum length of a message's metadata as JSON, in characters."""


def checked_metadata(value: object) -> Mapping[str, Any]:
    """Return a copy of the argument `metadata=` of a message after validation.

    Raises:
        ConfigurationError: The value is not a mapping with text keys, is not JSON data, or exceeds 16,000
            characters as JSON.
    """
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ConfigurationError(f"metadata= must be a mapping with texts as keys, not {value!r:.200}")
    try:
        text = json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"metadata= must be JSON data: {error}") from None
    if len(text) > MAX_METADATA_CHARS:
        raise ConfigurationError(
            f"metadata= is {len(text)} characters as JSON, of at most {MAX_METADATA_CHARS}: store large data elsewhere, and put its id into the metadata"
        )
    copy: Mapping[str, Any] = json.loads(text)
    return copy or NO_METADATA


traceparent: ContextVar[str | None] = ContextVar("traceparent", default=None)
"""W3C Trace Context of the current program code.

Messages that it sends carry this context, and their turns continue the trace.
"""
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]{0,100})?")


def valid_traceparent(value: object) -> str | None:
    """Return a valid W3C `traceparent` unchanged; None for any other value, which starts a new trace."""
    return value if isinstance(value, str) and _TRACEPARENT.fullmatch(value) else None


def _to_priority(value: Priority | int | str) -> Priority:
    return Priority.of(value)


def _to_sender(value: Sender | str) -> Sender:
    if isinstance(value, str):
        return Sender.named(value)
    if not isinstance(value, Sender):
        raise ConfigurationError(f"the sender of a message must be a Sender or a name, not {value!r:.200}")
    return value


@hints_for_messages
@fast_init
@attrs.frozen(kw_only=True, repr=False)
class Message(TextFromParts, Serializable):
    """One message of a session: user input, an answer of the model, tool results, or a timer's message."""

    id: str = attrs.field(factory=new_id)
    """Id of the message, chosen by the sender or generated.

    A second message with this id is a repetition and is not processed again.
    """
    session_id: str
    """Id of the session that the message belongs to."""
    sender: Sender = attrs.field(converter=_to_sender, metadata={EXACT: Sender})
    """Sender of the message; a name is converted with `Sender.named`."""
    parts: tuple[Part, ...] = attrs.field(converter=to_parts, metadata={EXACT: tuple})
    """Content of the message; a text or a list of parts is converted with `to_parts`."""
    priority: Priority = attrs.field(
        default=Priority.NORMAL, converter=_to_priority, metadata={EXACT: Priority}
    )
    """Priority in the inbox of the agent."""
    deadline: float | None = None
    """Maximum seconds to wait for room in the inbox; None uses the default of the inbox."""
    correlation_id: str | None = None
    """Id of the message that started the turn; None if this message itself starts a turn."""
    causation_id: str | None = None
    """Id of the message that caused this one; None if this message itself starts a turn."""
    traceparent: str | None = None
    """W3C Trace Context of the sender; None without a trace."""
    created_at: float = attrs.field(factory=time.time)
    """Unix time of creation in seconds."""
    stage: str | None = None
    """Stage of the protocol that processes this message; None if the message begins a turn."""
    on_busy: "OnBusy" = "queue"
    """Rule for the message if a turn is running in its session: queue, collect, interrupt or reject."""
    cut: bool = False
    """True for an interrupted answer: the text is what was received until the interruption."""
    metadata: Mapping[str, Any] = attrs.field(default=NO_METADATA, hash=False)
    """Data of the sender for programs. It is stored with the message and never shown to a model."""
    text_calls: tuple[ToolCall, ...] = ()
    """Tool calls whose results this message contains, if the model wrote the calls as text.
    Other calls are parts of the model's answer.
    """
    origin: str = ""
    """Names of the untrusted sources (tools, toolsets) whose text the message may repeat, such as `page, memories`; empty if
    none.
    """
    via: str = ""
    """Names of untrusted sources that influenced the message although it does not repeat their text, such as those of the
    calling session; empty if none.
    """

    @property
    def label(self) -> Label:
        """Label of the message: the sources in `origin` and `via`, and those of its tool results."""
        results = self.tool_results
        return label_of(
            self.origin, self.via, *(text for each in results for text in (each.origin, each.via))
        )

    @property
    def is_note(self) -> bool:
        """True for a system notice that belongs to no turn."""
        return self.sender.kind == "system" and self.correlation_id is None and self.causation_id is not None

    def caused(
        self,
        sender: Sender,
        parts: tuple[Part, ...],
        *,
        stage: str | None,
        text_calls: tuple[ToolCall, ...] = (),
    ) -> "Message":
        """Return a new message of the same turn, caused by this one."""
        return make_message(
            session_id=self.session_id,
            sender=sender,
            parts=parts,
            priority=self.priority,
            correlation_id=self.correlation_id or self.id,
            causation_id=self.id,
            stage=stage,
            text_calls=text_calls,
        )

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Tool calls among the parts."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """Tool results among the parts."""
        return tuple([part for part in self.parts if isinstance(part, ToolResult)])


make_message = fast_constructor(Message)


Role = Literal["user", "assistant", "tool"]
"""Role of a message for a model."""


@attrs.frozen(repr=False)
class ChatMessage(Serializable):
    """A message in a model request: a role and content parts."""

    role: Role
    """Role of the message's author for the model: user, assistant or tool."""
    parts: tuple[Part, ...]
    """Content of the message, in order."""


make_chat_message = fast_constructor(ChatMessage)


@attrs.frozen(repr=False)
class ToolSpec(Serializable):
    """Description of a tool for a model."""

    name: str
    """Name by which the model calls the tool."""
    description: str
    """Explanation for the model: what the tool does, and when to call it."""
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments, of type object."""


# --- what handlers get -------------------------------------------------------------------

DataT_co = TypeVar("DataT_co", covariant=True, default=Any)
"""Type of the structured answer, as declared with `output=`."""
_NO_DATA: Any = None


@hints_for_replies
@fast_init
@attrs.frozen(kw_only=True, repr=False)
class Reply(LabelFromSources, Serializable, Generic[DataT_co]):
    """Answer of an agent to a user; `str(reply)` is its text."""

    id: str = ""
    """Id of the reply. If the reply is delivered again, for example after a restart, it has the same id."""
    text: str
    """Text of the answer."""
    data: DataT_co = attrs.field(default=_NO_DATA)
    """Structured answer of the protocol or of `output=`; None without one."""
    message_type: str | None = None
    """Message type that the model chose from the agent's profile; None if the protocol has no message types."""
    reasoning: Mapping[str, Any] | None = None
    """Model's explanation of its answer, e.g. ReAct's `question_nature`, `context` and `additional_info`; None if the
    protocol has none.
    """
    usage: Usage = NO_USAGE
    """Usage of the turn so far; `usage.total` includes the sessions that worked for it."""
    origin: str = ""
    """Tools and toolsets whose untrusted text the answer may repeat, such as `page, memories`; empty if none."""
    via: str = ""
    """Names of untrusted sources that influenced the answer although it does not repeat their text; empty if none."""

    def __str__(self) -> str:
        return self.text


make_reply = fast_constructor(Reply)


@attrs.frozen(repr=False)
class Refuse(FieldRepr):
    """Return value of a guard function (see `Agent.guard`) that rejects a message or an answer."""

    reason: str
    """Reason why the message is refused. The sender receives it as the text of the error, and the journal stores it."""


@attrs.frozen(kw_only=True, repr=False)
class Event(LabelFromSources, Serializable):
    """Structured result of an instruction, for event handlers."""

    id: str = ""
    """Id of the event. If the event is delivered again, for example after a restart, it has the same id."""
    name: str
    """Name of the instruction (answer type) that the model chose."""
    data: Any = None
    """Content of the model's answer for the instruction, decoded from JSON."""
    origin: str = ""
    """Tools and toolsets whose untrusted text the data may repeat, such as `page, memories`; empty if none."""
    via: str = ""
    """Names of untrusted sources that influenced the event although it does not repeat their text; empty if none."""


@attrs.frozen(kw_only=True, repr=False)
class Route(LabelFromSources, Serializable):
    """Request of a model to pass the conversation to another agent or department."""

    id: str = ""
    """Id of the routing. If it is delivered again, for example after a restart, it has the same id."""
    action: str
    """Name of the agent or department to which the model routes the conversation, as the model wrote it."""
    data: Any = None
    """Additional data from the model; None without data."""
    origin: str = ""
    """Tools and toolsets whose untrusted text the route may repeat, such as `page, memories`; empty if none."""
    via: str = ""
    """Names of untrusted sources that influenced the route although it does not repeat their text; empty if none."""


@hints_for_failures
@fast_init
@attrs.frozen(kw_only=True, repr=False)
class Failure(Serializable):
    """Outcome of a message that ended without an answer, or of a handler that raised an exception."""

    id: str = ""
    """Id of the failure. If the failure is delivered again, for example after a restart, it has the same id."""
    kind: str
    """Kind of the failure: `parse`, `model`, `limit`, `context`, `handler`, `refusal`, `filter`, `text_size`, `empty`,
    `interrupted`, `suspended`, `deadline`, `stopped`, `guard`, `journal`, `moved`, `deps`, `pool` or `internal`.
    """
    error: Exception
    """Exception that caused the failure."""
    message_id: str
    """Id of the message that failed, which started the turn."""
    raw: str = ""
    """Text of the model's answer that could not be used; empty if there was none."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.error}"

    @property
    def user_message(self) -> str:
        """Sentence about the failure for end users, without technical details. The HTTP status of the provider, or else `kind`, decides."""
        return end_user_sentence(self.kind, self.error)

    @property
    def may_continue(self) -> bool:
        """True if this failure may not be the final outcome of the message.

        True for the kinds `journal` and `moved`: a message sent again with the same `message_id` is answered. True
        for `stopped` in a session with a journal: the next start resumes the turn. True for a caller that timed out
        before the turn ended. The final outcome has another `id`.
        """
        is_open = is_open_failure(self.kind, self.error)
        return is_open or self.id.startswith(f"{_failure_id(self.message_id)}/")


_OPEN_KINDS = ("journal", "moved", "stopped")


def is_open_failure(kind: str, error: Exception) -> bool:
    """Return True if the message may still be answered after a failure of this kind: after a restart, or when sent again."""
    return kind in _OPEN_KINDS and not isinstance(error, NotRunning | SessionClosed)


def _failure_id(message_id: str) -> str:
    return f"{message_id}/failure"


def message_failure(
    message_id: str, kind: str, error: Exception, *, raw: str = "", is_outcome: bool = True
) -> Failure:
    """Create the failure of a message.

    Args:
        message_id: Id of the message that failed, which started the turn.
        kind: Value of `Failure.kind`.
        error: Exception that caused the failure.
        raw: Text of the model's answer; empty if there was none.
        is_outcome: False if the message may still be answered for other callers, as after a timeout of one caller.
    """
    failure_id = _failure_id(message_id)
    if not is_outcome or is_open_failure(kind, error):
        failure_id = f"{failure_id}/{kind}"
    return Failure(id=failure_id, kind=kind, error=error, message_id=message_id, raw=raw)


@hints_for_tokens
@attrs.frozen(repr=False)
class Token(Serializable):
    """A piece of a streamed answer, as far as the protocol shows it to users."""

    text: str
    """Text to append to the earlier pieces of the same reply and attempt."""
    reply_id: str
    """Id of the final reply (`Reply.id`)."""
    attempt: int = 0
    """Number of the attempt. A higher number (after a retry or fallback) voids the text of earlier attempts."""


make_token = fast_constructor(Token)


@attrs.frozen(kw_only=True, repr=False)
class CallProgress(Serializable):
    """Progress of a running tool call, as reported by the tool.

    An unread progress report is replaced by the next one of the call.
    """

    call_id: str
    """Id of the tool call (`ToolCall.id`)."""
    tool_name: str
    """Name of the tool."""
    done: float | None = None
    """Finished amount in a unit that the tool chooses; None if not reported."""
    total: float | None = None
    """Total amount in the same unit; None if unknown."""
    text: str = ""
    """Current activity as text; empty if not reported."""

    @property
    def id(self) -> str:
        """Id of the progress reports of this call; the same for all of them."""
        return f"{self.call_id}/progress"


Delivery = Reply[DataT_co] | Event | Route | Failure | ToolResult | Token | Approval | CallProgress
"""Item of a session's stream; with `Delivery[Offer]`, `Reply.data` is an `Offer`."""


def message_bytes(message: Message) -> int:
    """Return the size of a message in bytes: its texts in UTF-8 and the data of its images and files."""
    parts = message.parts
    if len(parts) == 1 and type(part := parts[0]) is Text and part.text.isascii():  # the usual case
        return len(part.text)
    total = 0
    for part in parts:
        if isinstance(part, Text):
            text = part.text
            total += len(text) if text.isascii() else _text_bytes(text)
        elif isinstance(part, Media):
            total += _text_bytes(part.url or "") if part.data is None else len(part.data)
        elif isinstance(part, ToolResult):
            total += _text_bytes(part.content) + sum(len(medium.data or b"") for medium in part.media)
    return total


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


MEDIA_CHARACTERS = 4000
"""Minimum size of an image, document or opaque block, in characters."""
_DOCUMENT_BYTES = 6
"""Bytes of a document that count as one character."""


def count_characters(parts: Sequence[Part]) -> int:
    """Return the estimated size of message parts in characters. Models read about four such characters per token.

    Three bytes of text that is not ASCII count as four characters, so a Chinese character is one token. An image counts as
    `MEDIA_CHARACTERS`, a text file as its text, and any other document as a sixth of its bytes.
    """
    if len(parts) == 1 and type(part := parts[0]) is Text and part.text.isascii():  # the usual case
        return len(part.text)
    characters = 0
    for part in parts:
        if isinstance(part, (Text, Thinking, ToolResult)):
            text = part.text
            characters += len(text) if text.isascii() else text_size(text)
        elif isinstance(part, ToolCall):
            characters += text_size(part.name) + text_size(str(part.arguments))
        else:
            characters += _media_characters(part)
    return characters


def text_size(text: str) -> int:
    """Return the size of a text in characters. Text that is not ASCII counts four characters for three bytes of UTF-8."""
    return len(text) if text.isascii() else (_text_bytes(text) * 4 + 2) // 3


def _media_characters(part: Image | File | Opaque) -> int:
    data = part.data if isinstance(part, File) else None
    if not data:
        return MEDIA_CHARACTERS
    is_text = isinstance(part, File) and part.media_type.startswith(("text/", "application/json"))
    return max(MEDIA_CHARACTERS, len(data) * 4 // 3 if is_text else len(data) // _DOCUMENT_BYTES)
