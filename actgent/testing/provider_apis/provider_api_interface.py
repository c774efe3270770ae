"""A request to the scripted provider, the plan of its reply, and the interface of provider APIs.

A `ProviderAPI` implements one provider API without I/O. It parses a request body into a `ModelRequest`, and formats a
`ModelResponse` as a body or as server-sent events. The provider's socket code uses only the resulting `ReplyPlan`.
"""

import abc
import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

import attrs
import orjson

from actgent.llm.model_interface import ModelRequest, ModelResponse
from actgent.llm.scripted_model import ScriptedAnswer
from actgent.messages import NO_USAGE, File, Image, Text, Thinking, ToolCall, ToolResult, Usage, to_parts

from .transcript_rules import Problems

Pieces = Iterator[bytes]

NEW_YEAR = 1_767_225_600
"""Creation time of all answers as Unix time in seconds (2026-01-01), so that answers are equal in every run."""

_DATA_URL = re.compile(r"data:(?P<type>[^;,]+);base64,(?P<data>[A-Za-z0-9+/]+={0,2})")


def to_answer(scripted: ScriptedAnswer) -> ModelResponse:
    """Convert one entry of a script to a `ModelResponse`. If it has tool calls, its stop reason is `tool_calls`.

    Raises:
        TypeError: The entry contains an image, a file or a tool result, which a model cannot send.
    """
    answer = scripted if isinstance(scripted, ModelResponse) else ModelResponse(parts=to_parts(scripted))
    for part in answer.parts:
        if isinstance(part, (Image, File, ToolResult)):
            raise TypeError(
                f"a scripted answer must contain only text, thinking and tool calls, not {type(part).__name__}"
            )
    if answer.stop == "end" and answer.tool_calls:
        return attrs.evolve(answer, stop="tool_calls")
    return answer


class MalformedRequest(ValueError):
    """Error: a request body does not have the format of the provider API."""


@attrs.frozen(kw_only=True)
class ProviderRequest:
    """A request that the scripted provider received. Functions of a script read it to choose the answer."""

    number: int
    """Number of the request to this provider, from 1."""
    dialect: "ProviderAPI" = attrs.field(repr=lambda dialect: dialect.name)
    """Provider API of the request."""
    path: str
    """Path of the request's URL."""
    headers: Mapping[str, str] = attrs.field(repr=False)
    """HTTP headers of the request with lower-case names, including the API key."""
    body: bytes = attrs.field(repr=False)
    """Request body in bytes."""
    json: Mapping[str, Any] = attrs.field(repr=False)
    """Decoded request body."""
    problems: Sequence[str] = ()
    """Errors for which a real provider rejects the request; if there are any, the answer has status 400."""

    @property
    def model(self) -> str:
        """Model name in the client's request."""
        return str(self.json.get("model", ""))

    @property
    def is_stream(self) -> bool:
        """True if the client requests a stream."""
        return bool(self.json.get("stream"))

    @cached_property
    def chat(self) -> ModelRequest:
        """The request as a `ModelRequest`, independent of the provider API.

        Raises:
            MalformedRequest: The request passed validation but cannot be parsed; the client receives status 400.
        """
        try:
            return self.dialect.read(self.json)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise MalformedRequest(f"The request cannot be read: {error!r}") from error

    @property
    def text(self) -> str:
        """Text of the last user message; empty without one."""
        for message in reversed(self.chat.messages):
            if message.role == "user":
                return "".join(part.text for part in message.parts if isinstance(part, Text))
        return ""

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """Tool results since the model's last message, oldest first; empty if a user message is last."""
        found: list[ToolResult] = []
        for message in reversed(self.chat.messages):
            if message.role != "tool":
                break
            found[:0] = [part for part in message.parts if isinstance(part, ToolResult)]
        return tuple(found)


@attrs.frozen(kw_only=True)
class Pace:
    """Timing and chunk size of a reply."""

    chunk: int = 20
    """Number of characters of text or arguments in one streamed event."""
    delay: float = 0.0
    """Delay in seconds before the first byte."""
    gap: float | None = None
    """Delay in seconds between two writes; None sends everything at once."""


Ending = Literal["whole", "cut", "reset", "silent"]
"""How a connection ends: complete, closed early, reset, or left open without further data."""


@attrs.frozen(kw_only=True)
class ReplyPlan:
    """Plan of a complete reply, made before its first byte is sent."""

    pieces: Sequence[bytes] = ()
    """Encoded events of a stream, or the body as one piece."""
    status: int = 200
    """HTTP status of the reply."""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    """HTTP headers of the reply."""
    length: int | None = None
    """Value of Content-Length; None uses chunked encoding."""
    delay: float = 0.0
    """Delay in seconds before the first byte."""
    gap: float | None = None
    """Delay in seconds between two writes; None sends everything at once."""
    octets: int | None = None
    """Number of bytes in one write; None writes each piece at once."""
    is_head_sent: bool = True
    """False if neither status nor headers are sent."""
    ending: Ending = "whole"
    """End of the reply: `cut` closes and `reset` aborts the connection early; `silent` keeps it open without sending more."""


class ProviderAPI(abc.ABC):
    """Interface of one provider API, without I/O: parses requests, and formats answers and errors."""

    name: ClassVar[str]
    """Name of the API, as in `Thinking.dialect`: `openai`, `openai-responses` or `anthropic`."""
    path: ClassVar[str]
    """Path of the endpoint for model calls."""
    counting_path: ClassVar[str] = ""
    """Path of the endpoint that counts tokens; empty if the API has none."""
    compacting_path: ClassVar[str] = ""
    """Path of the endpoint that compacts a conversation; empty if the API has none."""
    base: ClassVar[str] = "/v1"
    """Path of the base URL that is configured in clients. Clients append the rest of the path."""
    request_id_header: ClassVar[str] = "x-request-id"
    """Name of the header with the request id."""
    terminal: ClassVar[re.Pattern[bytes]]
    """Pattern of the event that marks the end of a complete answer."""

    @abc.abstractmethod
    def check_request(self, body: Mapping[str, Any]) -> Problems:
        """Yield the errors for which this provider rejects a request body."""

    @abc.abstractmethod
    def check_messages(self, messages: object) -> Problems:
        """Yield the errors for which this provider rejects the messages (or input items) of a request."""

    @abc.abstractmethod
    def read(self, body: Mapping[str, Any]) -> ModelRequest:
        """Convert a request body to a `ModelRequest`. The body has passed `check_request`."""

    @abc.abstractmethod
    def body(self, answer: ModelResponse, request: ProviderRequest) -> Mapping[str, Any]:
        """Return the answer as the JSON body of a request without `stream`."""

    @abc.abstractmethod
    def events(self, answer: ModelResponse, request: ProviderRequest, *, chunk: int) -> Pieces:
        """Yield the answer as complete server-sent events."""

    def check_compaction(self, body: Mapping[str, Any]) -> Problems:
        """Yield the errors for which the simulated provider rejects a request to compact a conversation."""
        raise NotImplementedError

    def compacted(self, request: "ProviderRequest") -> Mapping[str, Any]:
        """Return the response body for a request at `compacting_path`."""
        raise NotImplementedError

    @abc.abstractmethod
    def error(self, status: int, *, code: str | None = None, message: str | None = None) -> "ErrorBody":
        """Return an error in the provider's form; `code` and `message` replace its defaults."""

    @abc.abstractmethod
    def error_event(self, *, code: str | None = None, message: str | None = None) -> bytes:
        """Return an error event for a stream that started with status 200."""


@attrs.frozen
class ErrorBody:
    """HTTP status and JSON body of an error of a provider API."""

    status: int
    """HTTP status of the error."""
    body: Mapping[str, Any]
    """Decoded JSON body of the error."""


def encode(value: object) -> bytes:
    """Encode a value as compact JSON in UTF-8."""
    return orjson.dumps(value)


def sse(data: object, *, event: str | None = None) -> bytes:
    """Encode data as one server-sent event with JSON."""
    head = b"" if event is None else b"event: " + event.encode() + b"\n"
    return head + b"data: " + encode(data) + b"\n\n"


def split(text: str, size: int) -> Iterator[str]:
    """Split a text into pieces of `size` characters; an empty text has no pieces."""
    return (text[start : start + size] for start in range(0, len(text), size))


def plain_text(content: object) -> str:
    """Return the text of a content field, which is a string or a list of blocks."""
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content) if isinstance(content, Sequence) else ""


def arguments_text(call: ToolCall) -> str:
    """Encode the arguments of a call as JSON text. A string is returned unchanged, also if it is invalid JSON."""
    return call.arguments if isinstance(call.arguments, str) else encode(call.arguments).decode()


def decode_arguments(text: str) -> Mapping[str, Any] | str:
    """Decode the arguments of a call; return the text unchanged if it is not a JSON object."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return value if isinstance(value, dict) else text


def to_media(url: str, *, media_type: str) -> dict[str, Any]:
    """Return the constructor arguments of an `Image` or `File` for a URL: the bytes of a `data:` URL (RFC 2397), or the URL."""
    found = _DATA_URL.fullmatch(url)
    if found is None:
        return {"media_type": media_type, "url": url}
    return {"media_type": found["type"], "data": base64.b64decode(found["data"])}


def thinking_data(part: Thinking, dialect: str) -> dict[str, Any]:
    """Return the data of a thinking part in the format `dialect`; empty if the part has the format of another provider API."""
    return dict(part.data) if part.dialect == dialect else {}


def call_id(call: ToolCall, *, default: str) -> str:
    """Return the id that the script has set for a call; `default` if it has set none."""
    return call.provider_id or call.id or default


def usage_of(answer: ModelResponse, request: ProviderRequest) -> Usage:
    """Return the usage of a scripted answer; if the script sets none, an estimate with four bytes per token."""
    if answer.usage != NO_USAGE:
        return answer.usage
    characters = sum(len(getattr(part, "text", "")) for part in answer.parts)
    asked = sum(len(arguments_text(call)) for call in answer.tool_calls)
    thought = sum(len(part.text) for part in answer.parts if isinstance(part, Thinking))
    return Usage(
        input_tokens=tokens_of(request),
        output_tokens=1 + (characters + asked) // 4,
        reasoning_tokens=thought // 4,
    )


def tokens_of(request: ProviderRequest) -> int:
    """Estimate the number of tokens of a request with four bytes per token."""
    return 1 + len(request.body) // 4


def answer_plan(scripted: ScriptedAnswer, request: ProviderRequest, pace: Pace) -> ReplyPlan:
    """Plan a reply with this answer and without faults, which is streamed if the request asks for a stream."""
    answer, dialect = to_answer(scripted), request.dialect
    if request.is_stream:
        events = tuple(dialect.events(answer, request, chunk=pace.chunk))
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        return ReplyPlan(pieces=events, headers=headers, delay=pace.delay, gap=pace.gap)
    return json_plan(dialect.body(answer, request), delay=pace.delay)


def json_plan(body: Mapping[str, Any], *, status: int = 200, delay: float = 0.0) -> ReplyPlan:
    """Plan a reply with a JSON body."""
    data = encode(body)
    headers = {"content-type": "application/json"}
    return ReplyPlan(pieces=(data,), status=status, headers=headers, length=len(data), delay=delay)


def error_plan(error: ErrorBody) -> ReplyPlan:
    """Plan a reply with this error."""
    return json_plan(error.body, status=error.status)
