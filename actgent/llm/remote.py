"""What the clients of remote providers share: the way from a chat to an answer, and no wire format.

    complete          one call with its repetitions
      _attempt        one request, bounded in time; foreign exceptions become ours here and nowhere else
        _exchange     through the provider's SDK, which owns addresses, headers and authentication
          _read       a stream event by event, or a whole body
            decode    the client's own: what the body says

A stream is folded into the body that the provider would have sent without streaming, so each client
reads answers in one place. The SDKs' typed requests and stream classes are left aside: they cost
0.2 ms a message, drop events without a name and take a stream that merely ends for a whole answer.
"""

import abc
import base64
import contextlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypedDict, Unpack

import attrs
import httpx2
import msgspec
import trio

from actgent.errors import (
    BrokenAnswer,
    ConfigurationError,
    MissingKey,
    ModelError,
    ModelTimeout,
    ProviderUnavailable,
)
from actgent.messages import Media, Part, ToolCall, ToolResult, Usage

from .base import LLM, Answer, Chat, OnText
from .failures import broken, provider_error
from .prices import cost_of, reported_cost
from .retry import Retry
from .sse import EventDecoder, EventTooLarge
from .wire_names import real_names

Body = dict[str, Any]
"""A JSON object of the wire."""

DEFAULT_TIMEOUT = 120.0
_CLOSING = 1.0
"""Seconds that closing a connection may take when the call is over anyway."""


class RemoteOptions(TypedDict, total=False):
    """What every remote client may be told."""

    base_url: str | None
    """Where the API stands; None takes the provider's variable, then `LLM_PROVIDER_URL`, then the provider itself."""
    api_key: str | None
    """None takes the provider's variable, then `LLM_API_KEY`."""
    temperature: float | None
    """For chats that have none of their own."""
    max_tokens: int | None
    """For chats that have none of their own."""
    timeout: float | None
    """Seconds that one attempt may take, stream included; None waits without end. Default 120."""
    retry: Retry
    stream: bool | None
    """None streams if the caller wants the text as it comes."""
    http_client: httpx2.AsyncClient | None
    """Sends the requests; stays open when the model is closed. For proxies, own certificates, and tests."""
    extra_headers: Mapping[str, str]
    extra_body: Mapping[str, Any]
    """Goes into every request, over what actgent would send; a field that is None is left out."""


@attrs.frozen
class Sdk:
    """A provider's SDK client, and the exceptions that it raises."""

    client: Any
    error: type[Exception]
    timeout: type[Exception]


class Fold(abc.ABC):
    """Puts the events of one stream together."""

    begun = False
    """Whether an event has come; what fails after that is a broken answer."""

    @abc.abstractmethod
    def feed(self, event: Body) -> str:
        """Take one event; returns the text that it adds to the answer. Unknown events add none."""

    @abc.abstractmethod
    def body(self) -> Body | None:
        """The body as it would be without streaming; None as long as the stream's last event is missing."""


class Remote(LLM):
    """A model behind HTTP. Keys never appear in its repr, its logs or its errors."""

    provider: ClassVar[str]
    """As in `provider:model`."""
    path: ClassVar[str]
    key_variables: ClassVar[tuple[str, ...]]
    url_variables: ClassVar[tuple[str, ...]]
    default_url: ClassVar[str]
    key_needed_everywhere: ClassVar[bool] = False
    """False: a server at an `http://` address, one's own, is asked without a key."""

    def __init__(self, model: str, **options: Unpack[RemoteOptions]) -> None:
        """See `RemoteOptions`.

        Raises:
            MissingKey: no key in the argument or the variables.
            ConfigurationError: the model's name, the key or the URL cannot be right.
        """
        if not model.strip():
            raise ConfigurationError(f"{type(self).__name__}(model): the model's name is empty")
        self.model = model.strip()
        self.name = f"{self.provider}:{self.model}"
        self.base_url = self._url(options.get("base_url"))
        self._key = self._find_key(options.get("api_key"))
        self._temperature = options.get("temperature")
        self._max_tokens = options.get("max_tokens")
        timeout = options.get("timeout", DEFAULT_TIMEOUT)
        self._timeout = math.inf if timeout is None else timeout
        self._retry = options.get("retry") or Retry()
        self._stream = options.get("stream")
        self._extra_body = dict(options.get("extra_body") or {})
        self._owns_connections = options.get("http_client") is None
        self._sdk = self._connect(
            api_key=self._key,
            base_url=self.base_url,
            timeout=timeout,
            http_client=options.get("http_client"),
            default_headers=dict(options.get("extra_headers") or {}),
        )

    # --- what each client says -------------------------------------------------------------

    @abc.abstractmethod
    def _connect(self, **options: Any) -> Sdk:
        """Open the SDK; importing it takes about a second, so it happens here."""

    @abc.abstractmethod
    def encode(self, chat: Chat) -> Body:
        """The request's body, without `model` and `stream`.

        Raises:
            UnsupportedPart: the wire has no form for a part of the chat.
        """

    @abc.abstractmethod
    def fold(self) -> Fold:
        """A fresh fold for one stream."""

    @abc.abstractmethod
    def decode(self, body: Body, names: Mapping[str, str]) -> Answer:
        """What a whole body says; `names` maps names on the wire to the tools' own.

        Raises:
            ModelError: the body is a failure, or not what the API promises.
        """

    def stream_fields(self) -> Body:
        """What a request for a stream has besides the others."""
        return {"stream": True}

    # --- the staircase -----------------------------------------------------------------------

    async def complete(self, chat: Chat, *, on_text: OnText | None = None) -> Answer:
        streams = self._stream if self._stream is not None else on_text is not None
        content = self._request(chat, streams=streams)
        call = _Call(content, streams, real_names(chat.tools), on_text)
        answer = await self._retry.run(lambda attempt: self._attempt(call, attempt))
        return answer if answer.model else attrs.evolve(answer, model=self.model)

    def _request(self, chat: Chat, *, streams: bool) -> bytes:
        chat = self._with_defaults(chat)
        body = {"model": self.model, **self.encode(chat), **(self.stream_fields() if streams else {})}
        if self._extra_body:
            body = {key: value for key, value in {**body, **self._extra_body}.items() if value is not None}
        return to_json(body)

    def _with_defaults(self, chat: Chat) -> Chat:
        if chat.temperature is None and self._temperature is not None:
            chat = attrs.evolve(chat, temperature=self._temperature)
        if chat.max_tokens is None and self._max_tokens is not None:
            chat = attrs.evolve(chat, max_tokens=self._max_tokens)
        return chat

    async def _attempt(self, call: "_Call", attempt: int) -> Answer:
        failure: ModelError | None = None
        with trio.move_on_after(self._timeout):
            try:
                return await self._exchange(call, attempt)
            except (self._sdk.error, httpx2.HTTPError, httpx2.StreamError) as error:
                failure = self._failure(error)
        # Raised out here so that the foreign exception, whose text may quote the key, is not its context.
        raise failure or ModelTimeout(f"no answer within {self._timeout:g} s", model=self.name)

    async def _exchange(self, call: "_Call", attempt: int) -> Answer:
        response: httpx2.Response = await self._sdk.client.post(
            self.path, content=call.content, cast_to=httpx2.Response, stream=call.streams
        )
        try:
            return await self._read(response, call, attempt)
        finally:
            with trio.move_on_after(_CLOSING, shield=True):
                await response.aclose()

    async def _read(self, response: httpx2.Response, call: "_Call", attempt: int) -> Answer:
        if _is_stream(response, asked=call.streams):
            body, shown = await self._read_events(response, call, attempt), True
        else:
            body, shown = self._parse(await response.aread(), response), False
        answer = self._decode(body, call, response)
        if call.on_text is not None and not shown and answer.text:
            await call.on_text(answer.text, attempt)
        return answer

    async def _read_events(self, response: httpx2.Response, call: "_Call", attempt: int) -> Body:
        fold = self.fold()
        decoder = EventDecoder()
        async with contextlib.aclosing(response.aiter_bytes()) as chunks:
            async for chunk in chunks:
                for text in self._take(decoder, chunk, fold, response):
                    if call.on_text is not None:
                        await call.on_text(text, attempt)
        for text in self._take(decoder, None, fold, response):
            if call.on_text is not None:
                await call.on_text(text, attempt)
        body = fold.body()
        if body is None:
            raise broken("the stream ended before the answer did", self.name, response.headers)
        return body

    def _take(
        self, decoder: EventDecoder, chunk: bytes | None, fold: Fold, response: httpx2.Response
    ) -> list[str]:
        """The pieces of text in what has come; None is the stream's end."""
        texts = []
        try:
            for data in decoder.close() if chunk is None else decoder.feed(chunk):
                if data.startswith(b"[DONE]"):
                    continue
                event = self._parse(data, response)
                self._check_error(event, response, begun=fold.begun)
                fold.begun = True
                if text := fold.feed(event):
                    texts.append(text)
        except EventTooLarge as error:
            raise broken(str(error), self.name, response.headers) from None
        except _MISSHAPEN as error:
            raise self._misshapen(error, response) from error
        return texts

    def _parse(self, data: bytes, response: httpx2.Response) -> Body:
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise broken(f"{_excerpt(data)} is not a JSON object", self.name, response.headers)
        return value

    def _decode(self, body: Body, call: "_Call", response: httpx2.Response) -> Answer:
        self._check_error(body, response)
        try:
            answer = self.decode(body, call.names)
        except _MISSHAPEN as error:
            raise self._misshapen(error, response) from error
        return answer

    # --- failures ----------------------------------------------------------------------------

    def _check_error(self, body: Body, response: httpx2.Response, *, begun: bool = False) -> None:
        """A 200 may still carry an error, as its body or as an event of its stream."""
        detail = body.get("error") or (body if body.get("type") == "error" else None)
        if not detail:
            return
        error = provider_error(detail, model=self.name, secret=self._key, headers=response.headers)
        if begun and isinstance(error, ProviderUnavailable):
            reason = str(error).removeprefix(f"{self.name}: ")
            raise broken(
                f"the answer stopped before its end: {reason}", self.name, response.headers, code=error.code
            )
        raise error

    def _misshapen(self, error: Exception, response: httpx2.Response) -> BrokenAnswer:
        return broken(
            f"the answer has not the form that the API promises ({error!r})", self.name, response.headers
        )

    def _failure(self, error: Exception) -> ModelError:
        """A foreign exception as ours."""
        response: httpx2.Response | None = getattr(error, "response", None)
        if response is not None:
            return provider_error(
                _detail(getattr(error, "body", None)),
                model=self.name,
                secret=self._key,
                headers=response.headers,
                status=response.status_code,
            )
        if isinstance(error, self._sdk.timeout | httpx2.TimeoutException):
            return ModelTimeout("the provider did not answer in time", model=self.name)
        if isinstance(error, self._sdk.error):
            return ProviderUnavailable(f"no connection to {self._host}: {_root(error)}", model=self.name)
        return BrokenAnswer(f"the connection broke before the answer's end: {_root(error)}", model=self.name)

    # --- where and who -------------------------------------------------------------------------

    @property
    def _host(self) -> str:
        return httpx2.URL(self.base_url).host

    def _url(self, argument: str | None) -> str:
        url = argument or _first_variable((*self.url_variables, "LLM_PROVIDER_URL")) or self.default_url
        try:
            parsed = httpx2.URL(url)
        except (httpx2.InvalidURL, TypeError):
            parsed = httpx2.URL("")
        if parsed.scheme not in ("http", "https") or not parsed.host:
            names = " or ".join((*self.url_variables, "LLM_PROVIDER_URL"))
            raise ConfigurationError(f"base_url= (or {names}) is no http(s) address with a host")
        return url.strip().rstrip("/")

    def _find_key(self, argument: str | None) -> str:
        variables = (*self.key_variables, "LLM_API_KEY")
        key = (argument or _first_variable(variables) or "").strip()
        if not key and not self.key_needed_everywhere and self.base_url.lower().startswith("http://"):
            return "none"  # The SDK insists on one; a server of one's own rarely does.
        if not key:
            raise MissingKey(self.name, variables)
        if not (key.isascii() and key.isprintable()):
            raise ConfigurationError(
                f"the API key of {self.name} (api_key= or {' or '.join(variables)}) has characters that no key has"
            )
        return key

    async def aclose(self) -> None:
        if self._owns_connections:
            await self._sdk.client.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r})"

    # --- usage -----------------------------------------------------------------------------------

    def priced(self, usage: Usage, model: str, raw: Mapping[str, Any]) -> Usage:
        """`usage` with its cost: as the provider reports it in `raw`, else by the tables, else None."""
        cost = reported_cost(raw)
        if cost is None and usage.input_tokens + usage.output_tokens:
            cost = cost_of(usage, model or self.model, url=self.base_url)
        return attrs.evolve(usage, cost=cost)


@attrs.frozen
class _Call:
    """What all attempts of one call share."""

    content: bytes
    streams: bool
    names: Mapping[str, str]
    on_text: OnText | None


_MISSHAPEN = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What reading a body raises that has a list where an object should be, and the like."""

# --- what the clients use too --------------------------------------------------------------------


def to_json(value: object) -> bytes:
    """JSON text of a body; a lone surrogate, which UTF-8 cannot carry, becomes `?`."""
    try:
        return msgspec.json.encode(value, enc_hook=_plain)
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=False, default=_plain).encode("utf-8", "replace")


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def data_url(part: Media) -> str:
    """The part's own address, or its bytes as one (RFC 2397)."""
    return part.url or f"data:{part.media_type};base64,{base64_text(part)}"


def base64_text(part: Media) -> str:
    """The part's bytes as base64."""
    return base64.b64encode(part.data or b"").decode()


def result_text(result: ToolResult) -> str:
    """The result of a call that stood in the text of an answer, for the user's side of the conversation."""
    return f"Result of {result.tool_name}:\n{result.text}"


def read_arguments(arguments: object) -> Mapping[str, Any] | str:
    """A call's arguments as an object; text that is none stays as it is, and nothing at all is `{}`."""
    if isinstance(arguments, Mapping):
        return arguments
    text = "" if arguments is None else arguments
    if not isinstance(text, str):
        return to_json(text).decode()
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def write_arguments(arguments: Mapping[str, Any] | str) -> str:
    """A call's arguments as the JSON text that providers take."""
    return arguments if isinstance(arguments, str) else to_json(arguments).decode()


def read_call(name: object, arguments: object, call_id: object, names: Mapping[str, str]) -> ToolCall:
    """A tool call of the wire as ours."""
    wire = name if isinstance(name, str) else ""
    return ToolCall(
        names.get(wire, wire),
        read_arguments(arguments),
        provider_id=call_id if isinstance(call_id, str) and call_id else None,
    )


def whole_calls(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The parts of an answer that was cut, without the calls that have lost their end, or may have."""
    kept = [part for part in parts if not (isinstance(part, ToolCall) and isinstance(part.arguments, str))]
    if kept and isinstance(kept[-1], ToolCall) and not kept[-1].arguments:
        kept.pop()
    return tuple(kept)


def is_strict(schema: object) -> bool:
    """Whether a JSON Schema has the form that OpenAI enforces: closed objects, every property required."""
    if isinstance(schema, Mapping):
        if schema.get("type") == "object" or "properties" in schema:
            properties = schema.get("properties") or {}
            if schema.get("additionalProperties") is not False or set(schema.get("required") or ()) != set(
                properties
            ):
                return False
        return all(is_strict(value) for value in schema.values())
    return not isinstance(schema, list) or all(is_strict(value) for value in schema)


def count(usage: Mapping[str, Any], *path: str) -> int:
    """A number of tokens out of a nested usage object; 0 where there is none."""
    value: object = usage
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, int) else int(value) if isinstance(value, float) else 0


# --- small things -----------------------------------------------------------------------------------


def _is_stream(response: httpx2.Response, *, asked: bool) -> bool:
    """By what the server says it sent, not by what was asked for: some servers ignore `stream`."""
    kind = response.headers.get("content-type", "")
    if "event-stream" in kind or "json" in kind:
        return "event-stream" in kind
    return asked or response.content.lstrip().startswith((b"data:", b"event:", b":"))


def _detail(body: object) -> object:
    """The error object inside an error body, however deep the provider puts it."""
    return body["error"] if isinstance(body, Mapping) and body.get("error") else body


def _first_variable(names: Sequence[str]) -> str | None:
    return next((value for name in names if (value := os.environ.get(name, "").strip())), None)


def _root(error: BaseException) -> str:
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return str(error) or type(error).__name__


def _excerpt(data: bytes) -> str:
    text = data[:80].decode("utf-8", "replace")
    return repr(text + "..." if len(data) > len(text) else text)
