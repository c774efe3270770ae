"""Base class of model clients for HTTP APIs: retries, timeouts, streams and errors, without the format of any provider.

        complete          one call with its retries
          _attempt        one attempt, admitted by the rate limiter
          _bounded        one request with a timeout; only here library exceptions are converted to ours
            _exchange     sends the request through the provider's SDK (URLs, headers, authentication)
              _read       reads a stream event by event, or a complete body
                decode    method of the subclass: converts the body to a `ModelResponse`

A stream is assembled into the body that the provider would have sent without streaming, so each client decodes answers in
one place. The SDKs' typed requests and stream classes are not used. A typed request costs 0.2 ms per message of the history
with OpenAI's SDK and 6 us with Anthropic's. The stream classes drop events without a name and accept a stream that ends
before the answer does.
"""

import abc
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any, ClassVar, TypedDict, TypeVar, Unpack, cast

import attrs
import httpx2
import msgspec
import trio

from actgent.errors import (
    BadRequest,
    ConfigurationError,
    ModelError,
    ModelTimeout,
    ParseError,
    ProviderUnavailable,
    StreamInterrupted,
    did_you_mean_or_list,
)
from actgent.llm.model_call_spans import ModelWork
from actgent.llm.model_interface import LLM, ModelRequest, ModelResponse, OnText, ResponseFormat
from actgent.llm.rate_limiter_statistics import RateLimiterProtocol
from actgent.llm.rate_limiting import Permit, RateLimiter, rate_limit_key, shared_rate_limiter
from actgent.llm.retry_policy import Retry
from actgent.messages import Text, Usage
from actgent.support.common_mistake_hints import hints_for_clients
from actgent.support.proxy_environment_validation import reading_environment
from actgent.support.tracing_interface import active_trace

from .api_keys import find_key, find_url
from .provider_errors import (
    UnreadableCall,
    error_object,
    interrupted_answer_error,
    page_title_or_text,
    provider_error,
)
from .provider_schemas import OPENAI_STYLE, SchemaStyle, UnsupportedSchema, answer_schema, unwrap_answer
from .provider_sdk_client_and_token_counter import Sdk, TokenCounter
from .secret_removal import Secrets, secrets_in, split_login, validate_headers
from .sse import MAX_EVENT_BYTES, EventDecoder, EventTooLarge
from .tool_result_media import RefusedMedia, media_in, without_media
from .wire_encoding import (
    Body,
    check_decoded,
    check_texts,
    decode_leniently,
    join_surrogates,
    names_by_provider_name,
    split_surrogate,
    to_json,
)

T = TypeVar("T")
DEFAULT_TIMEOUT_SECONDS = 120.0
_VERSION = re.compile(r"v[0-9]+[a-z0-9]*")
_CLOSE_SECONDS = 1.0
"""Maximum seconds for closing a connection after a call."""
_AFTER_ANSWER_SECONDS = 5.0
"""Maximum seconds between a complete answer and its usage or end marker."""
_AFTER_END_SECONDS = 0.2
"""Maximum seconds between the end marker and the end of a stream."""
_MAX_PAGE_BYTES = 4_096
"""Maximum bytes of a web page in which its title is searched."""
_KEEPALIVE = re.compile(rb"\[?[A-Za-z][\w .:-]{0,100}\]?")
"""Pattern of stream data that proxies send to keep a connection open and that is not JSON: `[PING]`, `ping`,
`keep-alive`.
"""


class RemoteOptions(TypedDict, total=False):
    """Options of all clients of remote providers."""

    base_url: str | None
    """Base URL of the API; None uses the provider's environment variable, `LLM_PROVIDER_URL`, or the provider's default."""
    api_key: str | None
    """API key; None uses the provider's environment variable, then `LLM_API_KEY`."""
    temperature: float | None
    """Temperature for requests that set none; None uses the provider's default."""
    max_tokens: int | None
    """Maximum answer tokens for requests that set no maximum; None uses the client's default."""
    price: tuple[float, float]
    """US dollars per million tokens of prompts and of answers; if absent, the tables of genai-prices are used."""
    context_window: int
    """Maximum tokens of prompt and answer together; if absent, the tables of genai-prices are used."""
    timeout: float | None
    """Maximum seconds of one attempt, streaming included; None has no limit. Default 120."""
    retry: Retry
    """Attempts and pauses of a call; if absent, the defaults of `Retry`."""
    rate_limiter: RateLimiter | None
    """Rate limiter of the attempts; None uses a rate limiter shared by all clients of the same base URL and key."""
    stream: bool | None
    """True streams every answer, and False none. None streams an answer if the caller passes `on_text`."""
    http_client: httpx2.AsyncClient | None
    """HTTP client for the requests, for proxies, certificates and tests. The model does not close it."""
    extra_headers: Mapping[str, str]
    """HTTP headers that are added to every request."""
    extra_body: Mapping[str, Any]
    """Fields that are added to the body of every request and override those of actgent. A field that is None is removed."""


class StreamAssembler(abc.ABC):
    """Assembles the events of one streamed response into the body of a response without streaming."""

    has_begun = False
    """True after the first event of the stream. A failure after the first event means an interrupted answer."""
    complete = False
    """True if the answer is complete, so that a lost connection is no error. An event with the usage may still follow."""
    ended = False
    """True after the end marker of the stream. Later data is ignored."""

    @abc.abstractmethod
    def feed(self, event: Body) -> str:
        """Process one event of the stream, and return the answer text in it.

        Unknown events are ignored. For events without answer text, return an empty text.
        """

    @abc.abstractmethod
    def body(self) -> Body | None:
        """Return the body that the provider would have sent without streaming; None if the last event has not been received."""


@hints_for_clients
class Remote(LLM):
    """Base class of clients for models behind HTTP. Keys never appear in its repr, its logs or its errors."""

    traces_attempts = True
    refuses_length = True
    provider: ClassVar[str]
    """Name of the provider, the first part of `provider:model`."""
    path: ClassVar[str]
    """URL path of the endpoint for answers, relative to the base URL."""
    answer_field: ClassVar[str]
    """Field of every complete response. A body without it may be an error."""
    event_field: ClassVar[str] = "type"
    """Field of every event of a stream. An event without it may be an error."""
    counting_path: ClassVar[str] = ""
    """URL path of the endpoint that counts tokens; empty if the API has none."""
    counted_fields: ClassVar[tuple[str, ...]] = ()
    """Request fields that the counting endpoint accepts; it rejects other fields."""
    conversation: ClassVar[str] = "messages"
    """Name of the request field that holds the conversation."""
    key_variables: ClassVar[tuple[str, ...]]
    """Environment variables that may hold the API key, in order."""
    url_variables: ClassVar[tuple[str, ...]]
    """Environment variables that may hold the base URL, in order."""
    default_url: ClassVar[str]
    """Base URL of the provider's API."""
    default_max_tokens: ClassVar[int | None] = None
    """Maximum answer tokens if neither chat nor client sets a maximum; None omits the maximum from requests."""
    style: SchemaStyle = OPENAI_STYLE
    """Subset of JSON Schema that the provider accepts."""
    key_needed_everywhere: ClassVar[bool] = False
    """True if a server at an `http://` address, such as a local server, also needs an API key."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Wrap the constructor of a subclass: its error for a misspelt argument suggests the right name."""
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            hints_for_clients(cls)

    def __init__(self, model: str, **options: Unpack[RemoteOptions]) -> None:
        """Create a client for the model named `model`. `options` are those of `RemoteOptions`.

        Raises:
            MissingKey: The API key is neither an argument nor set in an environment variable.
            ConfigurationError: An option, the URL, or an environment variable for proxies or certificates is invalid.
        """
        if unknown := options.keys() - RemoteOptions.__annotations__.keys():
            name, allowed = min(unknown), sorted(RemoteOptions.__annotations__)
            meant = did_you_mean_or_list(name, allowed)
            hint = f"{meant} The" if meant.endswith("?") else "the"
            raise ConfigurationError(
                f"{type(self).__name__} has no option {name!r}: {hint} options are: {', '.join(allowed)}"
            )
        if not (model and model.strip()):
            raise ConfigurationError(f"{type(self).__name__}(model): the name of the model must not be empty")
        _check_settings(options)
        self.model = model.strip()
        self.name = f"{self.provider}:{self.model}"
        url = self._url(options.get("base_url"))
        # HTTP libraries log the URL of each request, so user and password are sent in a header instead.
        self.base_url, login = split_login(url)
        self.source = self._source()
        """Identifies the provider, model and host that wrote a block of an answer; see `Thinking.source`."""
        self._key = self._find_key(options.get("api_key"))
        given = validate_headers(options.get("extra_headers"))
        if login:
            given = {name: value for name, value in given.items() if name.lower() != "authorization"}
        headers = given | login
        self._secrets = Secrets((self._key, *headers.values(), *secrets_in(url)))
        self._temperature = options.get("temperature")
        self.max_tokens = options.get("max_tokens") or self.default_max_tokens
        self._price = check_price(options.get("price"))
        self.context_window = self._find_window(options.get("context_window"))
        timeout = options.get("timeout", DEFAULT_TIMEOUT_SECONDS)
        self._timeout = math.inf if timeout is None else timeout
        self._retry = options.get("retry") or Retry()
        self._rate_limiter = options.get("rate_limiter")
        self._is_own_rate_limiter = self._rate_limiter is not None
        self._rate_limit_key = rate_limit_key(url, self._key)
        self._stream = options.get("stream")
        self._extra_body = dict(options.get("extra_body") or {})
        self._refused_media = RefusedMedia()
        self._counter = TokenCounter(self.counting_path)
        self._owns_connections = options.get("http_client") is None
        with nullcontext() if options.get("http_client") else reading_environment():
            self._sdk = self._connect(
                api_key=self._key,
                base_url=self.base_url,
                timeout=timeout,
                http_client=options.get("http_client"),
                default_headers=headers,
            )

    # --- implemented by subclasses ---------------------------------------------------------

    @abc.abstractmethod
    def _connect(self, **options: Any) -> Sdk:
        """Create the SDK client. The SDK is imported here, since the import takes about a second."""

    @abc.abstractmethod
    def encode(self, chat: ModelRequest) -> Body:
        """Return the request body of a chat, without `model` and `stream`.

        Raises:
            UnsupportedPart: The API cannot represent a part of the chat.
        """

    @abc.abstractmethod
    def assembler(self) -> StreamAssembler:
        """Return a new assembler, which builds the response body from the events of one stream."""

    @abc.abstractmethod
    def decode(self, body: Body, names: Mapping[str, str]) -> ModelResponse:
        """Decode a complete response body. `names` maps tool names in the API to the real names.

        Raises:
            ModelError: The body is an error of the provider, or lacks fields that the API promises.
        """

    def stream_fields(self) -> Body:
        """Return the fields that the request body needs so that the provider streams the answer."""
        return {"stream": True}

    # --- path of a call ----------------------------------------------------------------------

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        streams = self._stream if self._stream is not None else on_text is not None
        chat = self._with_defaults(chat)
        if self._refused_media:
            chat = self._refused_media.omit_from(chat)
        # The text of a wrapped answer is passed to `on_text` after it was unwrapped.
        is_wrapped = chat.response_format is not None and self._must_wrap(chat.response_format)
        show = None if is_wrapped else on_text
        try:
            answer = await self._ask(chat, show, streams=streams)
        except UnreadableCall as slip:
            answer = slip.answer(names_by_provider_name(chat.tools))
        except BadRequest as refused:
            answer = await self._ask_without_media(chat, show, refused, streams=streams)
        if is_wrapped:
            answer = _unwrap_response(answer)
            if on_text is not None and answer.text:
                await on_text(answer.text, 0)
        return answer if answer.model else attrs.evolve(answer, model=self.model)

    def _must_wrap(self, response_format: ResponseFormat) -> bool:
        """Return True if the answer is requested as `{"response": VALUE}`, because the provider only accepts schemas of objects."""
        try:
            return answer_schema(response_format.schema, self.style).is_wrapped
        except UnsupportedSchema:
            return False

    async def _ask(self, chat: ModelRequest, on_text: OnText | None, *, streams: bool) -> ModelResponse:
        content = self._request(chat, streams=streams)
        call = _Call(chat, content, streams, names_by_provider_name(chat.tools), on_text, trio.current_time())
        watch = chat.watch
        return await self._retry.run(
            lambda attempt: self._attempt(call, attempt),
            deadline=chat.deadline,
            on_failure=None if watch is None else partial(watch.fail, self.name),
        )

    async def _ask_without_media(
        self, chat: ModelRequest, on_text: OnText | None, refused: BadRequest, *, streams: bool
    ) -> ModelResponse:
        """Retry a rejected request without the images and files of tool results, so that one bad image does not end the session.

        `refused` is the error of the rejected request.

        Raises:
            BadRequest: The chat has no such media, or the request is rejected without them as well.
        """
        if next(media_in(chat), None) is None:
            raise refused
        try:
            answer = await self._ask(without_media(chat), on_text, streams=streams)
        except BadRequest:
            raise refused from None
        self._refused_media.add(chat)
        return answer

    @property
    def counts_tokens(self) -> bool:
        return self._counter.is_supported

    async def count_tokens(self, chat: ModelRequest) -> int | None:
        if not self._counter.is_supported:
            return await super().count_tokens(chat)
        body = {**self.encode(self._refused_media.omit_from(chat)), **self._extra_body}
        counted = {name: body[name] for name in self.counted_fields if body.get(name) is not None}
        return await self._counter.count(self._sdk, to_json({"model": self.model, **counted}))

    def _request(self, chat: ModelRequest, *, streams: bool) -> bytes:
        body = {"model": self.model, **self.encode(chat), **(self.stream_fields() if streams else {})}
        if self._extra_body:
            body = {key: value for key, value in {**body, **self._extra_body}.items() if value is not None}
        if (
            self.conversation in body
        ):  # last, so that the request shares its first bytes with the previous one (prompt cache)
            body[self.conversation] = body.pop(self.conversation)
        return to_json(body)

    @property
    def _address(self) -> tuple[str, int]:
        """Host and port of the provider's API, for traces."""
        url = httpx2.URL(self.base_url)
        return url.host, url.port or (443 if url.scheme == "https" else 80)

    def _with_defaults(self, chat: ModelRequest) -> ModelRequest:
        if chat.temperature is None and self._temperature is not None:
            chat = attrs.evolve(chat, temperature=self._temperature)
        if chat.max_tokens is None and self.max_tokens is not None:
            chat = attrs.evolve(chat, max_tokens=self.max_tokens)
        return chat

    async def _attempt(self, call: "_Call", attempt: int) -> ModelResponse:
        if (active := active_trace.get()) is None:
            return await self._admit(call, attempt)
        with ModelWork(
            active, self.name, call.chat, attempt=attempt, streams=call.streams, address=self._address
        ) as work:
            answer = await self._admit(attrs.evolve(call, work=work), attempt)
            work.note_answer(answer)
            return answer

    async def _admit(self, call: "_Call", attempt: int) -> ModelResponse:
        async with self.rate_limiter.admit(
            call.chat, model=self.model, size=len(call.content), arrived=call.started_at
        ) as permit:
            if call.chat.watch is not None:
                call.chat.watch.begin(self.name, attempt)
            if call.work is not None:
                call.work.record_admission()
            answer = await self._call_with_timeout(call, attempt, permit)
            permit.report_usage(answer.usage)
            return answer

    async def _call_with_timeout(self, call: "_Call", attempt: int, permit: Permit) -> ModelResponse:
        failure: ModelError | None = None
        with trio.move_on_after(self._timeout):
            try:
                return await self._exchange(call, attempt, permit)
            except (self._sdk.error, httpx2.HTTPError, httpx2.StreamError) as error:
                failure = self._failure(error, permit)
        # Raised outside of the handler, so that the library's exception, whose text may contain the key, is not its context.
        raise failure or ModelTimeout(f"no answer within {self._timeout:g} s", model=self.name)

    async def _exchange(self, call: "_Call", attempt: int, permit: Permit) -> ModelResponse:
        response: httpx2.Response = await self._sdk.client.post(
            self.path, content=call.content, cast_to=httpx2.Response, stream=call.streams
        )
        permit.read(response.headers)
        try:
            self._check_redirect(response)
            return await self._read(response, call, attempt)
        finally:
            with trio.move_on_after(_CLOSE_SECONDS, shield=True):
                await response.aclose()

    async def _read(self, response: httpx2.Response, call: "_Call", attempt: int) -> ModelResponse:
        if _is_stream(response, requested=call.streams):
            body, shown = await self._read_events(response, call, attempt)
        else:
            body, shown = self._read_whole(await response.aread(), response), False
        answer = self._decode(body, call, response)
        if not shown and answer.text:
            await call.show([answer.text], attempt)
        return answer

    def _read_whole(self, data: bytes, response: httpx2.Response) -> Body:
        """Parse a complete response, which contains one JSON object or all events of a stream."""
        if not _starts_events(data):
            return self._parse_whole(data, response)
        assembler, decoder = self.assembler(), _Stream()
        for chunk in (data, None):
            self._feed(decoder, chunk, assembler, response)
        return self._assembled(assembler, decoder, response)

    async def _read_events(self, response: httpx2.Response, call: "_Call", attempt: int) -> tuple[Body, bool]:
        """Read an event stream. Return the assembled body, and True if its text was already passed to `on_text`."""
        assembler, decoder = self.assembler(), _Stream()
        failure: BaseException | None = None
        is_over = False
        try:
            with trio.CancelScope() as scope:
                async for chunk in response.aiter_bytes():
                    if is_over:
                        continue
                    scope.deadline = math.inf
                    try:
                        await call.show(self._feed(decoder, chunk, assembler, response), attempt)
                    except BaseException as error:  # noqa: BLE001, ASYNC103 - raised again below
                        # Leaving the loop here would leave the library's nested generators suspended. Cancelled at their
                        # next read, they close properly.
                        failure = error
                        scope.cancel()
                    is_over = failure is not None or assembler.ended
                    if assembler.complete or is_over:
                        # If the stream ends within this time, the connection can be reused. Some proxies never end it.
                        scope.deadline = trio.current_time() + (
                            _AFTER_END_SECONDS if is_over else _AFTER_ANSWER_SECONDS
                        )
        except (httpx2.HTTPError, httpx2.StreamError):
            if not (assembler.complete or assembler.ended):
                raise
        if failure is not None:
            raise failure
        if not assembler.ended:
            await call.show(self._feed(decoder, None, assembler, response), attempt)
        if not assembler.has_begun and decoder.head:  # not an event stream, although one was requested
            return self._parse_whole(bytes(decoder.head), response), False
        return self._assembled(assembler, decoder, response), True

    def _assembled(self, assembler: StreamAssembler, stream: "_Stream", response: httpx2.Response) -> Body:
        if (body := self._parse_safely(assembler.body, response)) is None:
            raise self._interrupted_error(
                f"the stream ended before the answer was complete{stream.remark}", response
            )
        return join_surrogates(body) if stream.has_surrogates else body

    def _feed(
        self, stream: "_Stream", chunk: bytes | None, assembler: StreamAssembler, response: httpx2.Response
    ) -> list[str]:
        """Pass a chunk of received bytes to the assembler, and return the new pieces of answer text.

        A chunk of None marks the end of the stream.
        """
        return self._parse_safely(lambda: list(self._texts(stream, chunk, assembler, response)), response)

    def _texts(
        self, stream: "_Stream", chunk: bytes | None, assembler: StreamAssembler, response: httpx2.Response
    ) -> Iterator[str]:
        if chunk is not None and not assembler.has_begun and stream.is_no_stream(chunk):
            return
        for data in stream.split(chunk):
            if assembler.ended:
                return
            if not (text := data.strip()):
                continue
            if text == b"[DONE]":
                assembler.ended = True
            elif _KEEPALIVE.fullmatch(text):
                stream.last_non_json = self._secrets.redact(text.decode())
            else:
                event = self._parse(data, response, stream)
                self._check_error(event, response, self.event_field, has_begun=assembler.has_begun)
                assembler.has_begun = True
                if piece := stream.complete_text(assembler.feed(event)):
                    yield piece

    def _parse(self, data: bytes, response: httpx2.Response, stream: "_Stream | None" = None) -> Body:
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            value = decode_leniently(data)
            if stream is None:
                value = join_surrogates(value)
            else:
                stream.has_surrogates = True
        if not isinstance(value, dict):
            if data.lstrip()[:1] == b"<":
                page = self._secrets.redact(
                    page_title_or_text(data[:_MAX_PAGE_BYTES].decode("utf-8", "replace"))
                )
                raise self._interrupted_error(
                    f"the response is not JSON but a {page[:200]}: check {self._url_settings}", response
                )
            if not data.strip():
                raise self._interrupted_error(f"the response is empty: check {self._url_settings}", response)
            excerpt = self._secrets.redact(_excerpt(data))
            raise self._interrupted_error(
                f"the response must be a JSON object, not {excerpt}: check {self._url_settings}", response
            )
        return value

    def _parse_whole(self, data: bytes, response: httpx2.Response) -> Body:
        body = self._parse(data, response)
        try:
            check_decoded(data)
        except ParseError as error:
            raise self._malformed_error(ValueError(error.reason), response) from None
        return body

    def _decode(self, body: Body, call: "_Call", response: httpx2.Response) -> ModelResponse:
        self._check_error(body, response, self.answer_field)
        return self._parse_safely(lambda: check_texts(self.decode(body, call.names)), response)

    def _parse_safely(self, read: Callable[[], T], response: httpx2.Response) -> T:
        """Call `read`, which parses the body of `response`, and return its result. Convert its parse errors to `StreamInterrupted`.

        Raises:
            StreamInterrupted: The body has another structure than the API promises.
        """
        try:
            return read()
        except _MALFORMED as error:
            failure = self._malformed_error(error, response)
        # Raised outside of the handler, so that the original exception, whose text may contain the key, is not its context.
        raise failure

    # --- failures ----------------------------------------------------------------------------

    def _check_redirect(self, response: httpx2.Response) -> None:
        """Raise an error if a redirect was not followed, or turned the POST request into a GET request, which has no body.

        Raises:
            BadRequest: The server redirects to another URL, which base_url= must name.
        """
        if response.next_request is not None:
            status, url = response.status_code, response.next_request.url
        elif response.history and response.request.method != "POST":
            status, url = response.history[0].status_code, response.url
        else:
            return
        shown_url = self._secrets.redact(str(url.copy_with(query=None)).removesuffix(self.path))
        raise BadRequest(
            f"the server redirects to {shown_url}: set {self._url_settings} to the URL after the redirect",
            model=self.name,
            status=status,
        )

    def _check_error(
        self, body: Body, response: httpx2.Response, field: str, *, has_begun: bool = False
    ) -> None:
        """Raise the provider's error if a response body or stream event is an error, which providers also send with status 200.

        A body without `field`, which every answer has, is an error if it contains an error text. `has_begun` is True after the
        first event of the stream; an overload error then means an interrupted answer.
        """
        detail = body.get("error") or (body if body.get("type") == "error" else None)
        if not detail and body.get(field) is None:
            detail = error_object(body)
        if not detail:
            return
        error = provider_error(detail, model=self.name, secrets=self._secrets, headers=response.headers)
        if has_begun and isinstance(error, ProviderUnavailable):
            reason = str(error).removeprefix(f"{self.name}: ")
            raise self._interrupted_error(f"the answer was interrupted: {reason}", response, code=error.code)
        raise error

    def _malformed_error(self, error: Exception, response: httpx2.Response) -> StreamInterrupted:
        if isinstance(error, EventTooLarge):
            return self._interrupted_error(str(error), response)
        reason = self._secrets.redact(str(error) if type(error) is ValueError else repr(error))
        return self._interrupted_error(f"the answer does not have the format of the API: {reason}", response)

    def _interrupted_error(
        self, reason: str, response: httpx2.Response, *, code: str | None = None
    ) -> StreamInterrupted:
        return interrupted_answer_error(
            reason, response.headers, model=self.name, secrets=self._secrets, code=code
        )

    def _failure(self, error: Exception, permit: Permit) -> ModelError:
        """Convert an exception of the SDK or HTTP library to a ModelError. Pass rate limits in its response headers to `permit`."""
        response: httpx2.Response | None = getattr(error, "response", None)
        if response is not None:
            permit.read(response.headers)
            try:
                self._check_redirect(response)
            except BadRequest as redirected:
                return redirected
            return provider_error(
                self._add_url_advice(_detail(getattr(error, "body", None)), response),
                model=self.name,
                secrets=self._secrets,
                headers=response.headers,
                status=response.status_code,
            )
        if isinstance(error, self._sdk.timeout | httpx2.TimeoutException):
            return ModelTimeout("the provider did not answer in time", model=self.name)
        if isinstance(error, self._sdk.error) and not isinstance(error.__cause__, httpx2.DecodingError):
            return ProviderUnavailable(
                f"no connection to {self._host} ({self._root_text(error)}): check that the server is running, and check {self._url_settings}",
                model=self.name,
            )
        return StreamInterrupted(
            f"the connection was lost before the end of the answer: {self._root_text(error)}", model=self.name
        )

    def _add_url_advice(self, detail: object, response: httpx2.Response) -> object:
        """Add advice about `base_url=` to the error object of a 404 response.

        Return it unchanged for other statuses, and if the provider gives another reason, such as an unknown model.
        """
        text = str(detail.get("message", "")) if isinstance(detail, Mapping) else str(detail or "")
        if response.status_code != HTTPStatus.NOT_FOUND or "model" in str(detail).lower():
            return detail
        path = httpx2.URL(self.base_url).path
        advice = f"check {self._url_settings} and the model's name"
        if path.rstrip("/").endswith(self.path):
            advice = f"remove {self.path} from the end of {self._url_settings}"
        elif _has_version(self.default_url) and not _has_version(self.base_url):
            advice = f"add /v1 to {self._url_settings}, whose path is {path!r}"
        return {"message": f"{text[:200] or 'not found'} (404 from {self._host}): {advice}"}

    def _root_text(self, error: BaseException) -> str:
        """Return the text of the innermost cause of an exception, with secrets removed.

        The text for a rejected header is replaced, because it may quote any header.
        """
        while (cause := error.__cause__ or error.__context__) is not None:
            error = cause
        if isinstance(error, BaseExceptionGroup):  # one for each address of the host
            return "; ".join(dict.fromkeys(self._root_text(each) for each in error.exceptions))
        if "LocalProtocolError" in type(error).__name__ or isinstance(error, UnicodeError):
            return (
                "the request contains characters that HTTP does not allow: check the headers of http_client="
            )
        return self._secrets.redact(str(error)) or type(error).__name__

    # --- address and limits ----------------------------------------------------------------------

    @property
    def rate_limiter(self) -> RateLimiter:
        """Rate limiter of this client in the current trio run.

        Without a configured one, all clients with the same URL and key share it.
        """
        if not self._is_own_rate_limiter or self._rate_limiter is None:
            # Stored, since the shared rate limiter only lives as long as a client refers to it.
            self._rate_limiter = shared_rate_limiter(self._rate_limit_key)
        return self._rate_limiter

    def waiting_seconds(self, session: str) -> float:
        return self.rate_limiter.waiting_seconds(session)

    def rate_limiters(self) -> Mapping[str, RateLimiterProtocol]:
        """Return the rate limiter of this client.

        Its name is the host and the last four characters of the hashed key.
        """
        return {f"{self._host} {self._rate_limit_key[-4:]}": self.rate_limiter}

    def _source(self) -> str:
        return f"{self.name}@{httpx2.URL(self.base_url).host}"

    @cached_property
    def _host(self) -> str:
        """Host of the API, followed by the port if it is not the default. Cached because parsing takes 10 us."""
        url = httpx2.URL(self.base_url)
        return f"{url.host}:{url.port}" if url.port else url.host

    @property
    def _url_settings(self) -> str:
        """Names of the argument and variables that set the base URL, for errors."""
        return f"base_url= (or {' or '.join((*self.url_variables, 'LLM_PROVIDER_URL'))})"

    def _url(self, argument: str | None) -> str:
        return find_url(argument, (*self.url_variables, "LLM_PROVIDER_URL"), default=self.default_url)

    def _find_key(self, argument: str | None) -> str:
        is_optional = not self.key_needed_everywhere and self.base_url.lower().startswith("http://")
        return find_key(
            argument, (*self.key_variables, "LLM_API_KEY"), name=self.name, is_optional=is_optional
        )

    def _find_window(self, argument: int | None) -> int | None:
        if argument is None:  # other servers may use another window for a model of the same name
            return window_of(self.model, url=self.base_url) if self.base_url == self.default_url else None
        if type(argument) is not int or argument < 1:
            raise ConfigurationError(
                f"context_window= must be a whole number of tokens of at least 1, not {argument!r}"
            )
        return argument

    async def aclose(self) -> None:
        if self._owns_connections:
            await self._sdk.client.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r})"

    # --- usage -----------------------------------------------------------------------------------

    def priced(self, usage: Usage, model: str, raw: Mapping[str, Any]) -> Usage:
        """Return the usage with its cost: the cost in `raw` that the provider reports, or the price by the tables, or None."""
        cost = reported_cost(raw)
        if cost is None and usage.input_tokens + usage.output_tokens:
            cost = self._cost(usage, model or self.model)
        return attrs.evolve(usage, cost=cost)

    def price_of(self, usage: Usage) -> float | None:
        return self._cost(usage, self.model)

    def _cost(self, usage: Usage, model: str) -> float | None:
        if self._price is None:
            return cost_of(usage, model, url=self.base_url)
        prompt, answer = self._price
        return (usage.input_tokens * prompt + usage.output_tokens * answer) / 1e6


@attrs.define(eq=False)
class _Stream:
    """State of reading one event stream: the event decoder and incomplete characters."""

    events: EventDecoder = attrs.field(factory=EventDecoder)
    has_surrogates: bool = False
    """True if a text of the stream may end with half of a surrogate pair."""
    head: bytearray = attrs.field(factory=bytearray)
    """Data received so far, if it does not look like events; empty for an event stream."""
    last_non_json: str = ""
    """Last data of the stream that was not JSON, such as an error message of a proxy; empty if there was none."""
    _half: str = ""

    @property
    def remark(self) -> str:
        return f"; its last data was {self.last_non_json!r}" if self.last_non_json else ""

    def is_no_stream(self, chunk: bytes) -> bool:
        """Add a chunk of a response. Return True if the response so far is JSON or a web page, and not an event stream.

        Raises:
            EventTooLarge: A response that is no event stream exceeds `MAX_EVENT_BYTES`.
        """
        if not self.head and chunk.lstrip(_BLANK)[:1] not in (b"{", b"<", b"["):
            return False
        self.head += chunk
        if len(self.head) > MAX_EVENT_BYTES:
            raise EventTooLarge(f"the response has more than {MAX_EVENT_BYTES} bytes")
        return True

    def split(self, chunk: bytes | None) -> Iterator[bytes]:
        """Yield the data of the events that are complete after a chunk of bytes. None as chunk ends the stream.

        Some servers omit the blank line after each event, so that several JSON objects form one event.
        """
        for data in self.events.close() if chunk is None else self.events.feed(chunk):
            lines = data.split(b"\n") if b"}\n" in data else ()
            if lines and all(_WHOLE_LINE.fullmatch(line.strip()) for line in lines):
                yield from lines
            else:
                yield data

    def complete_text(self, text: str) -> str:
        """Return a piece of text without half a surrogate pair at its end. The half is kept until the other half is received."""
        if not self.has_surrogates:
            return text
        text, self._half = split_surrogate(self._half + text)
        return text


@attrs.frozen
class _Call:
    """A model call, with the data that all its attempts share."""

    chat: ModelRequest
    """Request that the call sends."""
    content: bytes
    """Encoded request body."""
    streams: bool
    """True if the request asks for a stream."""
    names: Mapping[str, str]
    """Tool names of the agent by their encoded names in the API."""
    on_text: OnText | None
    """Callback for streamed text; None if the caller wants no pieces."""
    started_at: float
    """Start time of the call, in seconds of trio's clock."""
    work: ModelWork | None = None
    """Trace span of the current attempt; None without tracing."""

    async def show(self, texts: Sequence[str], attempt: int) -> None:
        """Pass pieces of answer text and the number of the attempt to `on_text`, if the caller has passed `on_text`."""
        if self.work is not None and any(texts):
            self.work.note_chunk()
        if self.on_text is not None:
            for text in texts:
                await self.on_text(text, attempt)


_MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Exceptions from parsing a body with an unexpected structure, such as a list in place of an object."""


# --- helpers -----------------------------------------------------------------------------------


_BLANK = b" \t\r\n\xef\xbb\xbf"
_WHOLE_LINE = re.compile(rb"\{.*\}|\[DONE\]|")
_EVENTS = (b"data:", b"event:", b":")


def _starts_events(data: bytes) -> bool:
    return data.lstrip(_BLANK).startswith(_EVENTS)


def _is_stream(response: httpx2.Response, *, requested: bool) -> bool:
    """Return True if the content type of a response is an event stream.

    Without a content type, decide by `requested`, which is True if the request asked for a stream, and by the first bytes.
    """
    kind = response.headers.get("content-type", "")
    if "event-stream" in kind or "json" in kind:
        return "event-stream" in kind
    return requested or _starts_events(response.content)


def _unwrap_response(answer: ModelResponse) -> ModelResponse:
    """Replace the text of an answer, `{"response": VALUE}`, by the JSON text of VALUE. Other answers are returned unchanged."""
    text = unwrap_answer(answer.text)
    if text is None:
        return answer
    others = tuple(part for part in answer.parts if not isinstance(part, Text))
    return attrs.evolve(answer, parts=(*others, Text(text)))


def _check_settings(options: Mapping[str, Any]) -> None:
    """Check the types and ranges of the options of a new model client.

    Raises:
        ConfigurationError: A setting has the wrong type or is out of range. The text contains no header or body value.
    """
    temperature, timeout = options.get("temperature"), options.get("timeout")
    if temperature is not None and not (_is_number(temperature) and temperature >= 0):
        raise ConfigurationError(
            f"temperature= must be a number of at least 0 (most models accept up to 2), not {temperature!r:.200}"
        )
    max_tokens = options.get("max_tokens")
    if max_tokens is not None and not (type(max_tokens) is int and max_tokens > 0):
        raise ConfigurationError(f"max_tokens= must be a whole number of at least 1, not {max_tokens!r:.200}")
    if timeout is not None and not (_is_number(timeout) and timeout > 0):
        raise ConfigurationError(
            f"timeout= must be a number of seconds above 0, or None for no limit, not {timeout!r:.200}"
        )
    if not isinstance(options.get("stream"), bool | None):
        raise ConfigurationError(f"stream= must be True or False, not {options['stream']!r:.200}")
    for name in ("extra_headers", "extra_body"):
        if not isinstance(options.get(name) or {}, Mapping):
            raise ConfigurationError(f"{name}= must be a dict, not a {type(options[name]).__name__}")
    for name, kind in (("retry", Retry), ("rate_limiter", RateLimiter)):
        if not isinstance(options.get(name), kind | None):
            raise ConfigurationError(f"{name}= must be {kind.__name__}(...), not {options[name]!r:.200}")


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and not math.isnan(cast("float", value))


def _has_version(url: str) -> bool:
    """Return True if a segment of the URL path is an API version, such as `v1` or `v1beta`."""
    return any(_VERSION.fullmatch(step) for step in httpx2.URL(url).path.split("/"))


def _detail(body: object) -> object:
    """Return the error object in the body of an error response. Gemini puts the error object into a list."""
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    return body["error"] if isinstance(body, Mapping) and body.get("error") else body


def _excerpt(data: bytes) -> str:
    text = data[:80].decode("utf-8", "replace")
    return repr(text + "..." if len(data) > len(text) else text)


# --- model prices ----------------------------------------------------------------------------


def cost_of(usage: Usage, model: str, *, url: str) -> float | None:
    """Return the price of `usage` in US dollars by the price tables, for a model at the API with the base URL `url`.

    Return None if the tables do not contain the model.
    """
    # Imported at the first price: the tables take 0.1 s to load, and most programs never need them.
    import genai_prices  # noqa: PLC0415

    tokens = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    try:
        return float(genai_prices.calc_price(tokens, model, provider_api_url=url).total_price)
    except (LookupError, ValueError):
        return None  # an unknown model, or contradictory token counts


def window_of(model: str, *, url: str) -> int | None:
    """Return the context window of a model in tokens, for the API at the base URL `url`; None if the tables lack the model."""
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - as above

    try:
        _, known = get_snapshot().find_provider_model(model, None, None, url)
    except LookupError:
        return None
    return known.context_window


def reported_cost(usage: Mapping[str, Any]) -> float | None:
    """Return the cost in US dollars in a provider's usage object, as OpenRouter reports it; None without a cost."""
    cost = usage.get("cost")
    known = isinstance(cost, int | float) and not isinstance(cost, bool) and math.isfinite(cost) and cost >= 0
    return float(cost) if known and cost is not None else None


def check_price(price: object) -> tuple[float, float] | None:
    """Validate `price=`, the US dollars for a million prompt and answer tokens.

    Return the prices as two floats, or None for None.

    Raises:
        ConfigurationError: The price is not a pair of amounts in US dollars.
    """
    if price is None:
        return None
    match price:
        case (int() | float() as prompt, int() | float() as answer) if (
            0 <= prompt < math.inf and 0 <= answer < math.inf
        ):
            return float(prompt), float(answer)
    raise ConfigurationError(
        f"price= must be a pair of US dollars per million tokens of prompts and of answers, such as (1.25, 10), not {price!r}"
    )
