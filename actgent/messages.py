"""What is said: messages, their parts, and what handlers get.

Everything here is an immutable value that knows nothing of agents, models or APIs. A
`Message` is what waits in an inbox and what stands in a session's record; its parts are what
a model reads and writes.
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
from typing import Any, Generic, Literal, Self

import attrs
from typing_extensions import TypeVar

from actgent.approvals import Approval
from actgent.errors import ConfigurationError, SessionClosed, meant, nearest
from actgent.errors.printable import shown
from actgent.errors.sentences import sentence_for
from actgent.support.leads import (
    for_failures,
    for_media,
    for_messages,
    for_replies,
    for_results,
    for_tokens,
    for_tool_calls,
    for_usage,
)
from actgent.support.outside_text import between_marks
from actgent.support.quick_init import EXACT, maker, quick_init
from actgent.support.serializable import Serializable

# --- identifiers -------------------------------------------------------------------------

_log = logging.getLogger(__name__)
_serial = itertools.count()
_process = ""
_secrets: list[str] = []
"""Some that nobody has got yet: one call of the system for many costs hardly more than for one."""
_SECRETS = 64


def _begin_process() -> None:
    """Give this process its own prefix and secrets, so that a forked one never repeats an id."""
    global _process  # noqa: PLW0603 - one prefix a process is the point
    _process = secrets.token_hex(6)
    _secrets.clear()


_begin_process()
os.register_at_fork(after_in_child=_begin_process)


def new_id() -> str:
    """A fresh identifier, unique over processes; ids of one process sort by age.

    About ten times as fast as `str(uuid4())`. Not a secret: whoever has seen one can guess the next.
    """
    return f"{_process}-{next(_serial):08x}"


def is_id_of_process(text: str) -> bool:
    """Return True if `new_id` may have made this id in this process."""
    return text.startswith(f"{_process}-")


def new_secret() -> str:
    """A fresh identifier of 128 random bits, in hexadecimal, that nobody can guess."""
    try:
        return _secrets.pop()
    except IndexError:  # one call of its own fills a list of its own: threads may come here together
        digits = os.urandom(16 * _SECRETS).hex()
        _secrets.extend([digits[at : at + 32] for at in range(32, len(digits), 32)])
        return digits[:32]


# --- priority and sender -----------------------------------------------------------------


OnBusy = Literal["queue", "collect", "interrupt", "reject"]
"""What a message does while its session works: wait its turn; be answered in one turn with others that do so;
stop what runs and go next; or not get in. An URGENT message does what URGENT means."""


PriorityName = Literal["urgent", "high", "normal", "low", "URGENT", "HIGH", "NORMAL", "LOW"]
"""The name of a priority as a program writes it; any other case is read, too."""


class Priority(enum.IntEnum):
    """How soon a message is taken. Text is read in any case; unknown text is NORMAL."""

    URGENT = 0
    """Stops what its session is doing and goes before everything else."""
    HIGH = 1
    NORMAL = 2
    LOW = 3

    @classmethod
    def of(cls, value: "Priority | int | str") -> "Priority":
        """A priority from its name or number.

        Raises:
            ConfigurationError: a number, or something else, that is no priority.
        """
        if isinstance(value, str):
            return cls.__members__.get(value.strip().upper(), cls.NORMAL)
        try:
            return cls(value)
        except ValueError:
            raise ConfigurationError(f"priority= takes URGENT, HIGH, NORMAL or LOW, not {value!r}") from None

    @classmethod
    def named(cls, value: "Priority | int | str") -> "Priority":
        """A priority as a caller says it: a name in any case, or its number.

        Raises:
            ConfigurationError: there is no such priority; the text says the nearest.
        """
        if type(value) is cls:
            return value
        if isinstance(value, str):
            if (name := value.strip().upper()) in cls.__members__:
                return cls[name]
            raise ConfigurationError(
                f"unknown priority {value[:100]!r}: {nearest(name[:100], cls.__members__)}"
            )
        if isinstance(value, bool):
            raise ConfigurationError(f"priority= takes URGENT, HIGH, NORMAL or LOW, not {value!r}")
        return cls.of(value)

    @classmethod
    def of_chat(cls, value: "Priority | int | str") -> "Priority":
        """Return the priority of a chat message. Unknown text is NORMAL, and the log has a warning.

        Raises:
            ConfigurationError: The value is a misspelt name, or a number that is no priority.
        """
        if isinstance(value, str):
            name = value.strip().upper()
            if name and name not in cls.__members__ and not meant(name[:100], cls.__members__):
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
_KINDS: tuple[SenderKind, ...] = ("user", "assistant", "agent", "tool", "system")


@attrs.frozen
class Sender(Serializable):
    """Who says a message; the kind decides the role that a model sees.

    Raises:
        ConfigurationError: the name is empty, or there is no such kind.
    """

    name: str
    """Of the person, agent, tool or timer; an owner of sessions is known by it."""
    kind: SenderKind = "user"
    """Who it is; see the class."""

    def __str__(self) -> str:
        return self.name

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():  # type: ignore[redundant-expr]
            raise ConfigurationError(f"a sender has a name that is not empty, not {self.name!r}")
        if self.kind not in _KINDS:
            raise ConfigurationError(f"a sender's kind is one of {', '.join(_KINDS)}, not {self.kind!r}")

    @classmethod
    def named(cls, name: str) -> "Sender":
        """A plain name is a user's, except exactly `assistant`, `agent`, `tool` in any case.

        No name speaks for the system, since people choose theirs: that takes a `Sender(name, "system")`.
        """
        kind = name.strip().lower()
        return cls(name, kind if kind in _KINDS and kind != "system" else "user")


# --- parts -------------------------------------------------------------------------------


@attrs.frozen
class Text(Serializable):
    """Plain text."""

    text: str
    """In Unicode, as it was said."""


make_text = maker(Text)


@attrs.frozen(kw_only=True)
class Media(Serializable):
    """Bytes, or the address of bytes, with their media type (RFC 6838, e.g. `image/png`)."""

    media_type: str
    """What the bytes are; nobody looks into them to check it."""
    data: bytes | None = attrs.field(default=None, repr=False)
    """The bytes themselves; None where there is an address."""
    url: str | None = None
    """Where the provider finds the bytes; None where they are given."""

    def __attrs_post_init__(self) -> None:
        if (self.data is None) == (self.url is None):
            raise ValueError(f"{type(self).__name__} takes either data= (bytes) or url=, not both")
        data: object = self.data
        if isinstance(data, str):
            raise TypeError(
                f"{type(self).__name__}(data=...) takes bytes, not a text: write data=text.encode(), or url= for an address"
            )


@for_media
@attrs.frozen(kw_only=True)
class Image(Media):
    """A picture."""


@for_media
@attrs.frozen(kw_only=True)
class File(Media):
    """A document, e.g. `application/pdf`."""

    name: str = "file"
    """Sent along where the API takes one."""


Medium = Image | File
MEDIA_TAGS: Mapping[str, type] = {"image": Image, "file": File}
"""What they are called in storage."""


@attrs.frozen
class Thinking(Serializable):
    """A model's reasoning before its answer. Clients send it back unchanged, and only to its source."""

    text: str
    """The readable reasoning; empty if the provider hides it."""
    dialect: str
    """The API format of the answer: `openai`, `openai-responses` or `anthropic`."""
    data: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """The provider's block, with its signature or encrypted content."""
    source: str = attrs.field(default="", eq=False, repr=False)
    """The provider that sent the block, see `Remote.source`; empty: any provider of the dialect may get it."""


@attrs.frozen
class Opaque(Serializable):
    """A provider's block that actgent stores and sends back: a server tool's call, citations, unknown fields."""

    dialect: str
    """The API format of the answer; the block goes to no other format."""
    data: Mapping[str, Any] = attrs.field(repr=False)
    """The provider's block, unchanged."""
    source: str = attrs.field(default="", eq=False, repr=False)
    """As `Thinking.source`."""


@for_tool_calls
@quick_init
@attrs.frozen
class ToolCall(Serializable):
    """A model's wish to run a tool."""

    name: str
    """Of the tool, as the model wrote it; there may be none of that name."""
    arguments: Mapping[str, Any] | str
    """The decoded object; a str is what could not be decoded, and never runs."""
    id: str = ""
    """Ours, unique in the session; it is also what goes back to the provider."""
    provider_id: str | None = None
    """Theirs; may repeat or be missing."""
    native: bool = True
    """False: the call stood in the text of the answer, so its result goes back as user text."""
    mapped: bool = False
    """True: made from a validated instruction, the only way to run an instruction's tool."""


ToolStatus = Literal["success", "error", "cancelled", "outcome_unknown"]


@for_results
@quick_init
@attrs.frozen(kw_only=True)
class ToolResult(Serializable):
    """What came of one tool call; there is exactly one for each."""

    id: str = ""
    """Of this delivery, and the same where it is delivered once more."""
    call_id: str
    """The `ToolCall.id` that it answers."""
    tool_name: str
    """As the call has it."""
    status: ToolStatus = "success"
    """`outcome_unknown`: the call may have taken effect, and nobody knows."""
    content: str = ""
    """What the tool returned, as text (other values as JSON)."""
    error: str | None = None
    """What went wrong, worded for the model; None on success."""
    native: bool = True
    """As `ToolCall.native`."""
    origin: str = ""
    """The toolset or tool through which its words came from outside; empty: the program's own tool wrote them."""
    mark: str = ""
    """What the model reads behind words from outside, which do not contain it; empty: they are not from there."""
    media: tuple[Medium, ...] = ()
    """Pictures and files that the tool returned, each of which `content` names; models are shown what their API takes."""
    raised: str = ""
    """Class of the exception of foreign code whose words `error` has; empty if actgent, or a `ToolError`, worded the error."""

    @property
    def text(self) -> str:
        """The text that the model reads; words from outside stand between marks, which say so."""
        if self.error is None:
            return self.fenced(self.content) if self.mark else self.content
        error = f"Error: {self.error}"
        return self.fenced(f"{error}\n{self.content}" if self.content else error)

    def fenced(self, words: str) -> str:
        """Put words of this result between its marks, if it came from outside."""
        if not self.mark:
            return words
        return between_marks(words, self.origin, self.mark)


make_result = maker(ToolResult)
Part = Text | Image | File | Thinking | Opaque | ToolCall | ToolResult
PART_TAGS: Mapping[str, type] = {
    "text": Text,
    "image": Image,
    "file": File,
    "thinking": Thinking,
    "opaque": Opaque,
    "call": ToolCall,
    "result": ToolResult,
}
"""What they are called in storage. Tags are for ever: a new class gets a new one, and none is given twice."""


def to_parts(content: "str | Part | Sequence[str | Part]") -> tuple[Part, ...]:
    """Text, one part or several, as a tuple of parts.

    Raises:
        TypeError: for anything else; the text names what was given.
    """
    if isinstance(content, str):
        return (Text(content),)
    if isinstance(content, Part):
        return (content,)
    if _is_list(content):
        return tuple(part for item in content for part in to_parts(item))
    raise TypeError(
        f"content is text or parts (Text, Image, File), not {type(content).__name__}{_CONTENT.get(type(content), '')}"
    )


def _is_list(content: object) -> bool:
    return isinstance(content, Sequence) and not isinstance(content, bytes | bytearray)


_CONTENT: Mapping[type, str] = {
    bytes: ": decode it, or wrap it as Image(...) or File(...)",
    dict: ": pass the text alone; the session remembers the conversation, and says who spoke by sender=",
}


# --- usage -------------------------------------------------------------------------------


@for_usage
@quick_init
@attrs.frozen(kw_only=True)
class Usage(Serializable):
    """What model calls took. Adds up with `+`.

    Input tokens include the cached ones, as in the OpenTelemetry GenAI conventions, whatever the provider counts.
    """

    input_tokens: int = 0
    """Of the prompts, cached or not."""
    output_tokens: int = 0
    """Of the answers, with what was thought."""
    cached_tokens: int = 0
    """Of the input tokens, those read from the provider's prompt cache."""
    cache_write_tokens: int = 0
    """Of the input tokens, those written to it."""
    reasoning_tokens: int = 0
    """Of the output tokens, those spent on thinking."""
    cost: float | None = 0.0
    """In US dollars; None as soon as the price of one part is not known."""
    children: "Usage | None" = None
    """What sessions took that worked for this one; None: there were none. `total` has it, too."""

    @property
    def total(self) -> "Usage":
        """All of it: its own, and that of the sessions that worked for it."""
        return self if self.children is None else attrs.evolve(self, children=None) + self.children

    def with_child(self, usage: "Usage") -> "Usage":
        """The same, with what a session took that works for this one."""
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
        """Return what came since an earlier count of the same."""
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


_make_usage = maker(Usage)
NO_USAGE = Usage()

# --- the message -------------------------------------------------------------------------


class _NoMetadata(Mapping[str, Any]):
    """An empty mapping that stays so, and is itself in every copy."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        """As of any mapping, without a copy of both: each message that is written is asked whether it has some."""
        if other is self:
            return True
        return len(other) == 0 if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of any mapping

    def __repr__(self) -> str:
        return "{}"

    def __reduce__(self) -> str:
        return "NO_METADATA"


NO_METADATA: Mapping[str, Any] = _NoMetadata()
INTERMEDIATE = "intermediate"
"""The key in the metadata of an agent's message that is a step to the answer, such as a plan, and no answer itself."""
MAX_METADATA = 16_000
"""Characters of the metadata of a message as JSON."""


def checked_metadata(value: object) -> Mapping[str, Any]:
    """Copy metadata of a message: a mapping with names that JSON can carry, of at most 16,000 characters.

    Raises:
        ConfigurationError: it is something else, or too long.
    """
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ConfigurationError(f"metadata= is a mapping with texts as names, not {value!r:.200}")
    try:
        text = json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"metadata= holds what JSON cannot carry: {error}") from None
    if len(text) > MAX_METADATA:
        raise ConfigurationError(
            f"metadata= is {len(text)} characters as JSON, of at most {MAX_METADATA}: keep the rest elsewhere, and note its id"
        )
    copy: Mapping[str, Any] = json.loads(text)
    return copy or NO_METADATA


traceparent: ContextVar[str | None] = ContextVar("traceparent", default=None)
"""The W3C Trace Context in which the program works: messages that it sends carry it, and their turns have it."""
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]{0,100})?")


def valid_traceparent(value: object) -> str | None:
    """A `traceparent` as the standard has it; anything else is None, which starts a trace of its own."""
    return value if isinstance(value, str) and _TRACEPARENT.fullmatch(value) else None


def _to_priority(value: Priority | int | str) -> Priority:
    return Priority.of(value)


def _to_sender(value: Sender | str) -> Sender:
    if isinstance(value, str):
        return Sender.named(value)
    if not isinstance(value, Sender):
        raise ConfigurationError(f"the sender of a message is a Sender or a name, not {value!r:.200}")
    return value


@for_messages
@quick_init
@attrs.frozen(kw_only=True)
class Message(Serializable):
    """One thing said in one session: a user's words, a model's answer, tool results, a timer."""

    id: str = attrs.field(factory=new_id)
    """Chosen by the sender, or new; a repetition of it is said once."""
    session_id: str
    """The session that it is said in."""
    sender: Sender = attrs.field(converter=_to_sender, metadata={EXACT: Sender})
    """Who says it; a name is taken, too, as by `Sender.named`."""
    parts: tuple[Part, ...] = attrs.field(converter=to_parts, metadata={EXACT: tuple})
    """Text and lists of parts are taken, too."""
    priority: Priority = attrs.field(
        default=Priority.NORMAL, converter=_to_priority, metadata={EXACT: Priority}
    )
    """Who goes first where an agent has more messages than it can deal with."""
    deadline: float | None = None
    """Seconds that it may wait for a place in the inbox; None is the inbox's default."""
    correlation_id: str | None = None
    """The outside message that began the turn."""
    causation_id: str | None = None
    """The message that led to this one."""
    traceparent: str | None = None
    """W3C Trace Context of the sender."""
    created_at: float = attrs.field(factory=time.time)
    """Unix time in seconds."""
    stage: str | None = None
    """The protocol's stage that this message goes on with; None begins a turn."""
    on_busy: "OnBusy" = "queue"
    """What is to happen with it where its session is busy."""
    cut: bool = False
    """True: an answer that was stopped on the way; its text is what had come until then."""
    metadata: Mapping[str, Any] = attrs.field(default=NO_METADATA, hash=False)
    """What its sender noted beside it, for programs: kept with it, and never shown to a model."""
    text_calls: tuple[ToolCall, ...] = ()
    """The calls whose results this message holds, if the model wrote them as text. Native calls are parts of the answer."""
    origin: str = ""
    """The tools and toolsets whose text from outside its words may repeat, such as `page, memories`; empty if none."""

    @property
    def text(self) -> str:
        """The text parts, joined."""
        parts = self.parts
        if len(parts) == 1 and isinstance(parts[0], Text):
            return parts[0].text
        return "".join(part.text for part in parts if isinstance(part, Text))

    @property
    def is_note(self) -> bool:
        """True for a notice of something that happened beside the conversation and was caused by no turn."""
        return self.sender.kind == "system" and self.correlation_id is None and self.causation_id is not None

    def caused(
        self,
        sender: Sender,
        parts: tuple[Part, ...],
        *,
        stage: str | None,
        text_calls: tuple[ToolCall, ...] = (),
    ) -> "Message":
        """Return a follow-up of this message in the same turn."""
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
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        return tuple([part for part in self.parts if isinstance(part, ToolResult)])


make_message = maker(Message)


Role = Literal["user", "assistant", "tool"]


@attrs.frozen
class ChatMessage(Serializable):
    """One message as a model sees it: a role and its parts."""

    role: Role
    """Who says it, for the model."""
    parts: tuple[Part, ...]
    """In the order in which they were said."""


make_chat_message = maker(ChatMessage)


@attrs.frozen
class ToolSpec(Serializable):
    """A tool as a model sees it."""

    name: str
    """What the model calls it by."""
    description: str
    """When to call it, in words for the model."""
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments, an object."""


# --- what handlers get -------------------------------------------------------------------

DataT_co = TypeVar("DataT_co", covariant=True, default=Any)
"""The type of what an agent answers, as `output=` declares it."""
_NO_DATA: Any = None


@for_replies
@quick_init
@attrs.frozen(kw_only=True)
class Reply(Serializable, Generic[DataT_co]):
    """An answer for the user; `str(reply)` is its text."""

    id: str = ""
    """Of this delivery, and the same where it is delivered once more."""
    text: str
    """What the user reads."""
    data: DataT_co = attrs.field(default=_NO_DATA)
    """The structured answer, where the protocol or `output=` has one; else None."""
    message_type: str | None = None
    """The type that the model chose among those of the profile; None where the protocol has no types."""
    reasoning: Mapping[str, Any] | None = None
    """What the model said about its answer, e.g. ReAct's `question_nature`, `context` and `additional_info`; else None."""
    usage: Usage = NO_USAGE
    """Of the turn so far; `usage.total` is that with the sessions that worked for it."""
    origin: str = ""
    """The tools and toolsets whose text from outside the answer may repeat, such as `page, memories`; empty if none."""

    def __str__(self) -> str:
        return self.text


make_reply = maker(Reply)


@attrs.frozen
class Refuse:
    """What a guard returns for a message or an answer that it does not let through: see `Agent.guard`."""

    reason: str
    """For whoever said the message; it is in the error, and in the journal."""


@attrs.frozen(kw_only=True)
class Event(Serializable):
    """The structured result of an instruction."""

    id: str = ""
    """Of this delivery, and the same where it is delivered once more."""
    name: str
    """Of the instruction."""
    data: Any = None
    """What the model gave for it, decoded from JSON."""


@attrs.frozen(kw_only=True)
class Route(Serializable):
    """The model's wish that someone else goes on."""

    id: str = ""
    """Of this delivery, and the same where it is delivered once more."""
    action: str
    """Where it is to go, as the model wrote it."""
    data: Any = None
    """What the model said besides."""


@for_failures
@quick_init
@attrs.frozen(kw_only=True)
class Failure(Serializable):
    """A message that ended without an answer, or a handler that failed."""

    id: str = ""
    """Of this delivery, and the same where it is delivered once more."""
    kind: str
    """`parse`, `model`, `limit`, `context`, `handler`, `refusal`, `filter`, `length`, `empty`, `interrupted`, `deadline`, `stopped`,
    `guard`, `journal`, `moved`, `deps`, `pool`, `internal`."""
    error: Exception
    """What was raised."""
    message_id: str
    """The outside message that it ended."""
    raw: str = ""
    """The model's text, where there was one."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.error}"

    @property
    def user_message(self) -> str:
        """A sentence for end users, without technical details. It depends on the provider's status or on the kind."""
        return sentence_for(self.kind, self.error)

    @property
    def may_continue(self) -> bool:
        """True if the failure may not be the outcome of the message, which is still to come.

        True for the kinds `journal` and `moved`, where the same `message_id` may be sent again and is answered then, for
        `stopped` in a session with a journal whose agent stops, and for a caller whose own time was over before the turn's. The
        `id` of such a failure is not that of the outcome.
        """
        is_open = is_open_failure(self.kind, self.error)
        return is_open or self.id.startswith(f"{_failure_id(self.message_id)}/")


_OPEN_KINDS = ("journal", "moved", "stopped")


def is_open_failure(kind: str, error: Exception) -> bool:
    """Return True if the message of a failure of this kind may still be answered: by the next start, or when it is sent again."""
    return kind in _OPEN_KINDS and not isinstance(error, SessionClosed)


def _failure_id(message_id: str) -> str:
    return f"{message_id}/failure"


def message_failure(
    message_id: str, kind: str, error: Exception, *, raw: str = "", is_outcome: bool = True
) -> Failure:
    """Make the failure of a message.

    Args:
        message_id: The outside message.
        kind: As in `Failure.kind`.
        error: The exception.
        raw: The model's text, if there is one.
        is_outcome: False: the message may still be answered for others, as of a caller that stops waiting.
    """
    failure_id = _failure_id(message_id)
    if not is_outcome or is_open_failure(kind, error):
        failure_id = f"{failure_id}/{kind}"
    return Failure(id=failure_id, kind=kind, error=error, message_id=message_id, raw=raw)


@for_tokens
@attrs.frozen
class Token(Serializable):
    """A piece of a growing answer, as far as the protocol shows it."""

    text: str
    """To be put behind the former pieces of the same reply and attempt."""
    reply_id: str
    """The `Reply.id` that it will belong to."""
    attempt: int = 0
    """Rises with each retry or fallback, and voids the text of the former attempts."""


make_token = maker(Token)


@attrs.frozen(kw_only=True)
class CallProgress(Serializable):
    """How far a tool call has come, as its tool says; only the latest of each call waits for its readers."""

    call_id: str
    """The `ToolCall.id` of the call."""
    tool_name: str
    """As the call has it."""
    done: float | None = None
    """How much is done, in a unit of the tool's; None: it did not say."""
    total: float | None = None
    """How much there is to do, in the same unit; None: not known."""
    text: str = ""
    """What it does, in words of the tool's."""

    @property
    def id(self) -> str:
        """The same for all progress of a call."""
        return f"{self.call_id}/progress"


Delivery = Reply[DataT_co] | Event | Route | Failure | ToolResult | Token | Approval | CallProgress
"""Something that a stream tells; `Delivery[Offer]` where `Reply.data` is an `Offer`."""


def message_bytes(message: Message) -> int:
    """Return the size of a message: its texts as UTF-8, and the data of its pictures and files, in bytes."""
    total = 0
    for part in message.parts:
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
