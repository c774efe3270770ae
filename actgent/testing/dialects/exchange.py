"""One exchange with the loopback provider: what was asked, and what is decided to go back.

A `Dialect` knows one wire and does no I/O: it reads a request body into a neutral `Chat` and
writes a neutral `Answer` as a body or as server-sent events. The `Plan` made of it is all
that the provider's socket code sees.
"""

import abc
import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

import attrs
import orjson

from actgent.llm.base import Answer, Chat
from actgent.llm.scripted import Said
from actgent.messages import (
    NO_USAGE,
    File,
    Image,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
    to_parts,
)

from .rules import Problems

Pieces = Iterator[bytes]

NEW_YEAR = 1_767_225_600
"""When all answers were made: 2026 began; a script's answers are the same at each run."""

_DATA_URL = re.compile(r"data:(?P<type>[^;,]+);base64,(?P<data>[A-Za-z0-9+/]+={0,2})")


def to_answer(said: Said) -> Answer:
    """The answer that `said` stands for; calls without a stop reason end as `tool_calls`.

    Raises:
        TypeError: for what no model can say: pictures, files and tool results.
    """
    answer = said if isinstance(said, Answer) else Answer(parts=to_parts(said))
    for part in answer.parts:
        if isinstance(part, (Image, File, ToolResult)):
            raise TypeError(f"a model's answer holds text, thinking and calls, not {type(part).__name__}")
    if answer.stop == "end" and answer.tool_calls:
        return attrs.evolve(answer, stop="tool_calls")
    return answer


class MalformedRequest(ValueError):
    """The client's body has not the form of its wire."""


@attrs.frozen(kw_only=True)
class ProviderRequest:
    """One request as the provider got it; a script's function reads it to choose its answer."""

    number: int
    """Counts the provider's requests from 1."""
    dialect: "Dialect" = attrs.field(repr=lambda dialect: dialect.name)
    path: str
    headers: Mapping[str, str] = attrs.field(repr=False)
    """Names in lower case; the key is among them."""
    body: bytes = attrs.field(repr=False)
    json: Mapping[str, Any] = attrs.field(repr=False)
    problems: Sequence[str] = ()
    """What a real provider would refuse; not empty means that the answer was a 400."""

    @property
    def model(self) -> str:
        return str(self.json.get("model", ""))

    @property
    def is_stream(self) -> bool:
        return bool(self.json.get("stream"))

    @cached_property
    def chat(self) -> Chat:
        """The request in neutral parts, whatever wire it came by.

        Raises:
            MalformedRequest: for what the checks let pass and nobody can read; the client gets a 400.
        """
        try:
            return self.dialect.read(self.json)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise MalformedRequest(f"The request cannot be read: {error!r}") from error

    @property
    def text(self) -> str:
        """The text of the last user message; empty without one."""
        for message in reversed(self.chat.messages):
            if message.role == "user":
                return "".join(part.text for part in message.parts if isinstance(part, Text))
        return ""

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The results since the model's last words, oldest first; empty when a user spoke last."""
        found: list[ToolResult] = []
        for message in reversed(self.chat.messages):
            if message.role != "tool":
                break
            found[:0] = [part for part in message.parts if isinstance(part, ToolResult)]
        return tuple(found)


@attrs.frozen(kw_only=True)
class Pace:
    """How an answer is cut up and how fast it goes out."""

    chunk: int = 20
    """Characters of text or arguments in one event."""
    delay: float = 0.0
    """Seconds before the first byte."""
    gap: float | None = None
    """Seconds between two writes; None sends everything at once."""


Ending = Literal["whole", "cut", "reset", "silent"]


@attrs.frozen(kw_only=True)
class ReplyPlan:
    """What goes back, decided before the first byte is sent."""

    pieces: Sequence[bytes] = ()
    """The events of a stream, or the body."""
    status: int = 200
    headers: Mapping[str, str] = attrs.field(factory=dict)
    length: int | None = None
    """Content-Length; None sends chunks."""
    delay: float = 0.0
    gap: float | None = None
    octets: int | None = None
    """Bytes in one write, whatever the pieces are; None writes them as they are."""
    is_head_sent: bool = True
    ending: Ending = "whole"
    """`cut` closes and `reset` aborts the connection in the middle; `silent` keeps it open, for nothing."""


class Dialect(abc.ABC):
    """One provider's wire, without any I/O."""

    name: ClassVar[str]
    """As in `Thinking.dialect`: `openai`, `openai-responses` or `anthropic`."""
    path: ClassVar[str]
    counting_path: ClassVar[str] = ""
    """Where it counts the tokens of a request; empty: it does not."""
    compacting_path: ClassVar[str] = ""
    """Where it compacts a conversation; empty: it does not."""
    base: ClassVar[str] = "/v1"
    """What its clients want behind the host: they add the rest of the path themselves."""
    request_id_header: ClassVar[str] = "x-request-id"
    terminal: ClassVar[re.Pattern[bytes]]
    """Matches the events that tell that the answer is whole."""

    @abc.abstractmethod
    def check_request(self, body: Mapping[str, Any]) -> Problems:
        """Tell what this provider refuses in a request's body."""

    @abc.abstractmethod
    def check_messages(self, messages: object) -> Problems:
        """Tell what this provider refuses in the messages (or input items) of a request."""

    @abc.abstractmethod
    def read(self, body: Mapping[str, Any]) -> Chat:
        """The request in neutral parts; the body has passed `check_request`."""

    @abc.abstractmethod
    def body(self, answer: Answer, request: ProviderRequest) -> Mapping[str, Any]:
        """The answer to a request without `stream`."""

    @abc.abstractmethod
    def events(self, answer: Answer, request: ProviderRequest, *, chunk: int) -> Pieces:
        """The same as server-sent events, each whole with its empty line."""

    def check_compaction(self, body: Mapping[str, Any]) -> Problems:
        """Tell what this provider refuses in a request at `compacting_path`."""
        raise NotImplementedError

    def compacted(self, request: "ProviderRequest") -> Mapping[str, Any]:
        """Return the answer to a request at `compacting_path`."""
        raise NotImplementedError

    @abc.abstractmethod
    def error(self, status: int, *, code: str | None = None, message: str | None = None) -> "ErrorBody":
        """The error as this provider words it; `code` and `message` override its defaults."""

    @abc.abstractmethod
    def error_event(self, *, code: str | None = None, message: str | None = None) -> bytes:
        """The error as an event inside of a stream that began with 200."""


@attrs.frozen
class ErrorBody:
    """An error of a provider: not every one has every status."""

    status: int
    body: Mapping[str, Any]


def encode(value: object) -> bytes:
    """Compact JSON, as UTF-8."""
    return orjson.dumps(value)


def sse(data: object, *, event: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if event is None else b"event: " + event.encode() + b"\n"
    return head + b"data: " + encode(data) + b"\n\n"


def split(text: str, size: int) -> Iterator[str]:
    """The text in pieces of `size` characters; nothing for the empty text."""
    return (text[start : start + size] for start in range(0, len(text), size))


def plain_text(content: object) -> str:
    """The text of a content field, which is a string or a list of blocks on every wire."""
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content) if isinstance(content, Sequence) else ""


def arguments_text(call: ToolCall) -> str:
    """The arguments as models write them; a str is sent as it is, broken or not."""
    return call.arguments if isinstance(call.arguments, str) else encode(call.arguments).decode()


def decode_arguments(text: str) -> Mapping[str, Any] | str:
    """The object in a call's arguments; the text itself where it is none."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return value if isinstance(value, dict) else text


def to_media(url: str, *, media_type: str) -> dict[str, Any]:
    """The arguments of an `Image` or `File`: the bytes of a `data:` URL (RFC 2397), or the URL itself."""
    found = _DATA_URL.fullmatch(url)
    if found is None:
        return {"media_type": media_type, "url": url}
    return {"media_type": found["type"], "data": base64.b64decode(found["data"])}


def thinking_data(part: Thinking, dialect: str) -> dict[str, Any]:
    """The provider's own form of a thought; empty for a thought of another wire."""
    return dict(part.data) if part.dialect == dialect else {}


def call_id(call: ToolCall, *, default: str) -> str:
    """The id that the script gave to a call, or the provider's own."""
    return call.provider_id or call.id or default


def usage_of(answer: Answer, request: ProviderRequest) -> Usage:
    """The answer's usage, or four bytes a token where the script gave none."""
    if answer.usage != NO_USAGE:
        return answer.usage
    said = sum(len(getattr(part, "text", "")) for part in answer.parts)
    asked = sum(len(arguments_text(call)) for call in answer.tool_calls)
    thought = sum(len(part.text) for part in answer.parts if isinstance(part, Thinking))
    return Usage(
        input_tokens=tokens_of(request), output_tokens=1 + (said + asked) // 4, reasoning_tokens=thought // 4
    )


def tokens_of(request: ProviderRequest) -> int:
    """Return what a request takes where the script says nothing else: four bytes a token."""
    return 1 + len(request.body) // 4


def answer_plan(said: Said, request: ProviderRequest, pace: Pace) -> ReplyPlan:
    """The faultless way to send what was said."""
    answer, dialect = to_answer(said), request.dialect
    if request.is_stream:
        events = tuple(dialect.events(answer, request, chunk=pace.chunk))
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        return ReplyPlan(pieces=events, headers=headers, delay=pace.delay, gap=pace.gap)
    return json_plan(dialect.body(answer, request), delay=pace.delay)


def json_plan(body: Mapping[str, Any], *, status: int = 200, delay: float = 0.0) -> ReplyPlan:
    """One JSON body."""
    data = encode(body)
    headers = {"content-type": "application/json"}
    return ReplyPlan(pieces=(data,), status=status, headers=headers, length=len(data), delay=delay)


def error_plan(error: ErrorBody) -> ReplyPlan:
    """An error before the answer began."""
    return json_plan(error.body, status=error.status)
