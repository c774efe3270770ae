"""What the clients of remote providers share: the way from a chat to an answer, and no wire format.

    complete          one call with its repetitions
      _attempt        one admission by the governor
      _bounded        one request, bounded in time; foreign exceptions become ours here and nowhere else
        _exchange     through the provider's SDK, which owns addresses, headers and authentication
          _read       a stream event by event, or a whole body
            decode    the client's own: what the body says

A stream is folded into the body that the provider would have sent without streaming, so each client
reads answers in one place. The SDKs' typed requests and stream classes are not used. Per message of
the history a typed request costs 0.2 ms with OpenAI's SDK and 6 us with Anthropic's. The stream classes
drop events without a name and accept a stream that ends before the answer does.
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
    BrokenAnswer,
    ConfigurationError,
    ModelError,
    ModelTimeout,
    ParseError,
    ProviderUnavailable,
    nearest,
)
from actgent.llm.base import LLM, Answer, Chat, OnText, ResponseFormat
from actgent.llm.doors import Door
from actgent.llm.governor import Governor, Permit, rate_limit_key, shared_governor
from actgent.llm.retry import Retry
from actgent.llm.spans import ModelWork
from actgent.messages import Text, Usage
from actgent.support.http_environment import reading_environment
from actgent.support.leads import for_clients
from actgent.support.tracing import active_trace

from .counting import TokenCounter
from .failures import UnreadableCall, broken, provider_error
from .keys import find_key, find_url
from .media import RefusedMedia, media_in, without_media
from .names import real_names
from .prices import check_price, cost_of, reported_cost, window_of
from .schemas import OPENAI_STYLE, Inexpressible, SchemaStyle, provider_form, unwrap_answer
from .sdk import Sdk
from .secrets import Secrets, checked_headers, secrets_in, without_login
from .sse import EventDecoder, EventTooLarge
from .wire import (
    Body,
    check_decoded,
    decode_leniently,
    joined_surrogates,
    split_surrogate,
    to_json,
    with_words,
)

T = TypeVar("T")
DEFAULT_TIMEOUT = 120.0
_VERSION = re.compile(r"v[0-9]+[a-z0-9]*")
_CLOSING = 1.0
"""Seconds that closing a connection may take when the call is over anyway."""
_AFTER_ANSWER = 5.0
"""Seconds in which usage or an end marker has to follow a complete answer."""
_AFTER_END = 0.2
"""Seconds that a stream may take to end after its end marker."""
_SIGN_OF_LIFE = re.compile(rb"\[?[A-Za-z][\w .:-]{0,100}\]?")
"""Data of proxies that is not JSON: `[PING]`, `ping`, `keep-alive`."""


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
    price: tuple[float, float]
    """US dollars for a million tokens of prompts and of answers; without it the tables of genai-prices are asked."""
    context_window: int
    """Tokens of a prompt and its answer together; without it the tables of genai-prices are asked."""
    timeout: float | None
    """Seconds that one attempt may take with the provider, stream included; None waits without end. Default 120."""
    retry: Retry
    governor: Governor | None
    """Admits each attempt. None shares one with all clients of the same address and key."""
    stream: bool | None
    """None streams if the caller wants the text as it comes."""
    http_client: httpx2.AsyncClient | None
    """Sends the requests; stays open when the model is closed. For proxies, own certificates, and tests."""
    extra_headers: Mapping[str, str]
    extra_body: Mapping[str, Any]
    """Goes into every request, over what actgent would send; a field that is None is left out."""


class Fold(abc.ABC):
    """Puts the events of one stream together."""

    begun = False
    """True if an event has come; what fails after that is a broken answer."""
    complete = False
    """True if the answer has come, whatever becomes of the connection; its usage may still follow."""
    ended = False
    """True after the stream's end marker; the rest of the stream is not read."""

    @abc.abstractmethod
    def feed(self, event: Body) -> str:
        """Take one event; returns the text that it adds to the answer. Unknown events add none."""

    @abc.abstractmethod
    def body(self) -> Body | None:
        """The body as it would be without streaming; None as long as the stream's last event is missing."""


@for_clients
class Remote(LLM):
    """A model behind HTTP. Keys never appear in its repr, its logs or its errors."""

    traces_attempts = True
    refuses_length = True
    provider: ClassVar[str]
    """As in `provider:model`."""
    path: ClassVar[str]
    counting_path: ClassVar[str] = ""
    """Where the API counts the tokens of a request; empty: it does not."""
    counted_fields: ClassVar[tuple[str, ...]] = ()
    """The fields of a request that it counts; it refuses others."""
    conversation: ClassVar[str] = "messages"
    """The field of a request that holds what was said."""
    key_variables: ClassVar[tuple[str, ...]]
    url_variables: ClassVar[tuple[str, ...]]
    default_url: ClassVar[str]
    default_max_tokens: ClassVar[int | None] = None
    """Sent where nobody says how long an answer may get; None sends nothing."""
    style: SchemaStyle = OPENAI_STYLE
    """The JSON Schemas that it accepts."""
    key_needed_everywhere: ClassVar[bool] = False
    """False: a server at an `http://` address, one's own, is asked without a key."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Word the errors of a constructor that a subclass has of its own."""
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            for_clients(cls)

    def __init__(self, model: str, **options: Unpack[RemoteOptions]) -> None:
        """See `RemoteOptions`.

        Raises:
            MissingKey: no key in the argument or the variables.
            ConfigurationError: the model's name, the key, the URL, or a variable of proxies or certificates cannot be right.
        """
        if unknown := options.keys() - RemoteOptions.__annotations__.keys():
            name, allowed = min(unknown), sorted(RemoteOptions.__annotations__)
            meant = nearest(name, allowed)
            hint = f"{meant} T" if meant.endswith("?") else "t"
            raise ConfigurationError(
                f"{type(self).__name__} has no option {name!r}: {hint}here are: {', '.join(allowed)}"
            )
        if not (model and model.strip()):
            raise ConfigurationError(f"{type(self).__name__}(model): the model's name is empty")
        _check_settings(options)
        self.model = model.strip()
        self.name = f"{self.provider}:{self.model}"
        url = self._url(options.get("base_url"))
        # Libraries below log the address of each request, so what it logs in with goes as a header.
        self.base_url, login = without_login(url)
        self.source = self._source()
        """The provider, model and host by which blocks of its answers are known; see `Thinking.source`."""
        self._key = self._find_key(options.get("api_key"))
        given = checked_headers(options.get("extra_headers"))
        if login:
            given = {name: value for name, value in given.items() if name.lower() != "authorization"}
        headers = given | login
        self._secrets = Secrets((self._key, *headers.values(), *secrets_in(url)))
        self._temperature = options.get("temperature")
        self.max_tokens = options.get("max_tokens") or self.default_max_tokens
        self._price = check_price(options.get("price"))
        self.context_window = self._find_window(options.get("context_window"))
        timeout = options.get("timeout", DEFAULT_TIMEOUT)
        self._timeout = math.inf if timeout is None else timeout
        self._retry = options.get("retry") or Retry()
        self._governor = options.get("governor")
        self._is_own_governor = self._governor is not None
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

    # --- what each client says -------------------------------------------------------------

    @abc.abstractmethod
    def _connect(self, **options: Any) -> Sdk:
        """Open the SDK; importing it takes about a second, so it happens here."""

    @abc.abstractmethod
    def encode(self, chat: Chat) -> Body:
        """The request's body, without `model` and `stream`.

        Raises:
            UnsupportedPart: the API has no form for a part of the chat.
        """

    @abc.abstractmethod
    def fold(self) -> Fold:
        """A fresh fold for one stream."""

    @abc.abstractmethod
    def decode(self, body: Body, names: Mapping[str, str]) -> Answer:
        """Decode a whole body; `names` maps names in the API to the tools' own.

        Raises:
            ModelError: the body is a failure, or not what the API promises.
        """

    def stream_fields(self) -> Body:
        """Return the fields that only a request for a stream has."""
        return {"stream": True}

    # --- the staircase -----------------------------------------------------------------------

    async def complete(self, chat: Chat, *, on_text: OnText | None = None) -> Answer:
        streams = self._stream if self._stream is not None else on_text is not None
        chat = self._with_defaults(chat)
        if self._refused_media:
            chat = self._refused_media.left_out(chat)
        # The text of a wrapped answer is shown when it can be unwrapped.
        is_wrapped = chat.response_format is not None and self._wraps(chat.response_format)
        show = None if is_wrapped else on_text
        try:
            answer = await self._ask(chat, show, streams=streams)
        except UnreadableCall as slip:
            answer = slip.answer(real_names(chat.tools))
        except BadRequest as refused:
            answer = await self._ask_without_media(chat, show, refused, streams=streams)
        if is_wrapped:
            answer = _unwrapped(answer)
            if on_text is not None and answer.text:
                await on_text(answer.text, 0)
        return answer if answer.model else attrs.evolve(answer, model=self.model)

    def _wraps(self, wanted: ResponseFormat) -> bool:
        """True if the provider is asked for the answer as a member of an object."""
        try:
            return provider_form(wanted.schema, self.style).is_wrapped
        except Inexpressible:
            return False

    async def _ask(self, chat: Chat, on_text: OnText | None, *, streams: bool) -> Answer:
        content = self._request(chat, streams=streams)
        call = _Call(chat, content, streams, real_names(chat.tools), on_text, trio.current_time())
        watch = chat.watch
        return await self._retry.run(
            lambda attempt: self._attempt(call, attempt),
            deadline=chat.deadline,
            on_failure=None if watch is None else partial(watch.fail, self.name),
        )

    async def _ask_without_media(
        self, chat: Chat, on_text: OnText | None, refused: BadRequest, *, streams: bool
    ) -> Answer:
        """Ask again without the pictures and files of results: one that the provider does not take ends no session.

        Raises:
            BadRequest: there are none, or they were not the reason.
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
        return self._counter.is_there

    async def count_tokens(self, chat: Chat) -> int | None:
        if not self._counter.is_there:
            return await super().count_tokens(chat)
        body = {**self.encode(self._refused_media.left_out(chat)), **self._extra_body}
        counted = {name: body[name] for name in self.counted_fields if body.get(name) is not None}
        return await self._counter.ask(self._sdk, to_json({"model": self.model, **counted}))

    def _request(self, chat: Chat, *, streams: bool) -> bytes:
        body = {"model": self.model, **self.encode(chat), **(self.stream_fields() if streams else {})}
        if self._extra_body:
            body = {key: value for key, value in {**body, **self._extra_body}.items() if value is not None}
        if self.conversation in body:  # last, so that a request begins with the bytes of the one before it
            body[self.conversation] = body.pop(self.conversation)
        return to_json(body)

    @property
    def _address(self) -> tuple[str, int]:
        """Host and port of the API."""
        url = httpx2.URL(self.base_url)
        return url.host, url.port or (443 if url.scheme == "https" else 80)

    def _with_defaults(self, chat: Chat) -> Chat:
        if chat.temperature is None and self._temperature is not None:
            chat = attrs.evolve(chat, temperature=self._temperature)
        if chat.max_tokens is None and self.max_tokens is not None:
            chat = attrs.evolve(chat, max_tokens=self.max_tokens)
        return chat

    async def _attempt(self, call: "_Call", attempt: int) -> Answer:
        if (active := active_trace.get()) is None:
            return await self._admitted(call, attempt)
        with ModelWork(
            active, self.name, call.chat, attempt=attempt, streams=call.streams, address=self._address
        ) as work:
            answer = await self._admitted(attrs.evolve(call, work=work), attempt)
            work.note_answer(answer)
            return answer

    async def _admitted(self, call: "_Call", attempt: int) -> Answer:
        async with self.governor.admit(
            call.chat, model=self.model, size=len(call.content), arrived=call.begun
        ) as permit:
            if call.chat.watch is not None:
                call.chat.watch.begin(self.name, attempt)
            if call.work is not None:
                call.work.note_granted()
            answer = await self._bounded(call, attempt, permit)
            permit.report_usage(answer.usage)
            return answer

    async def _bounded(self, call: "_Call", attempt: int, permit: Permit) -> Answer:
        failure: ModelError | None = None
        with trio.move_on_after(self._timeout):
            try:
                return await self._exchange(call, attempt, permit)
            except (self._sdk.error, httpx2.HTTPError, httpx2.StreamError) as error:
                failure = self._failure(error, permit)
        # Raised out here so that the foreign exception, whose text may quote the key, is not its context.
        raise failure or ModelTimeout(f"no answer within {self._timeout:g} s", model=self.name)

    async def _exchange(self, call: "_Call", attempt: int, permit: Permit) -> Answer:
        response: httpx2.Response = await self._sdk.client.post(
            self.path, content=call.content, cast_to=httpx2.Response, stream=call.streams
        )
        permit.read(response.headers)
        try:
            return await self._read(response, call, attempt)
        finally:
            with trio.move_on_after(_CLOSING, shield=True):
                await response.aclose()

    async def _read(self, response: httpx2.Response, call: "_Call", attempt: int) -> Answer:
        if _is_stream(response, asked=call.streams):
            body, shown = await self._read_events(response, call, attempt), True
        else:
            body, shown = self._parse_whole(await response.aread(), response), False
        answer = self._decode(body, call, response)
        if not shown and answer.text:
            await call.show([answer.text], attempt)
        return answer

    async def _read_events(self, response: httpx2.Response, call: "_Call", attempt: int) -> Body:
        fold, decoder = self.fold(), _Stream()
        failure: BaseException | None = None
        is_over = False
        try:
            with trio.CancelScope() as scope:
                async for chunk in response.aiter_bytes():
                    if is_over:
                        continue
                    scope.deadline = math.inf
                    try:
                        await call.show(self._take(decoder, chunk, fold, response), attempt)
                    except BaseException as error:  # noqa: BLE001, ASYNC103 - raised again below
                        # Leaving the loop here would leave the library's nested generators half read;
                        # cancelled at their next read, they close from within.
                        failure = error
                        scope.cancel()
                    is_over = failure is not None or fold.ended
                    if fold.complete or is_over:
                        # A connection whose stream ends now can be used again; some proxies keep it open.
                        scope.deadline = trio.current_time() + (_AFTER_END if is_over else _AFTER_ANSWER)
        except (httpx2.HTTPError, httpx2.StreamError):
            if not (fold.complete or fold.ended):
                raise
        if failure is not None:
            raise failure
        if not fold.ended:
            await call.show(self._take(decoder, None, fold, response), attempt)
        if (body := self._understood(fold.body, response)) is None:
            raise self._broken(f"the stream ended before the answer did{decoder.remark}", response)
        return joined_surrogates(body) if decoder.has_surrogates else body

    def _take(
        self, stream: "_Stream", chunk: bytes | None, fold: Fold, response: httpx2.Response
    ) -> list[str]:
        """The pieces of text in what has come; None is the stream's end."""
        return self._understood(lambda: list(self._texts(stream, chunk, fold, response)), response)

    def _texts(
        self, stream: "_Stream", chunk: bytes | None, fold: Fold, response: httpx2.Response
    ) -> Iterator[str]:
        for data in stream.events.close() if chunk is None else stream.events.feed(chunk):
            if fold.ended:
                return
            if not (text := data.strip()):
                continue
            if text == b"[DONE]":
                fold.ended = True
            elif _SIGN_OF_LIFE.fullmatch(text):
                stream.words = self._secrets.blotted(text.decode())
            else:
                event = self._parse(data, response, stream)
                self._check_error(event, response, begun=fold.begun)
                fold.begun = True
                if piece := stream.shown(fold.feed(event)):
                    yield piece

    def _parse(self, data: bytes, response: httpx2.Response, stream: "_Stream | None" = None) -> Body:
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            value = decode_leniently(data)
            if stream is None:
                value = joined_surrogates(value)
            else:
                stream.has_surrogates = True
        if not isinstance(value, dict):
            excerpt = self._secrets.blotted(_excerpt(data))
            raise self._broken(f"{excerpt} is not a JSON object", response)
        return value

    def _parse_whole(self, data: bytes, response: httpx2.Response) -> Body:
        body = self._parse(data, response)
        try:
            check_decoded(data)
        except ParseError as error:
            raise self._misshapen(ValueError(error.reason), response) from None
        return body

    def _decode(self, body: Body, call: "_Call", response: httpx2.Response) -> Answer:
        self._check_error(body, response)
        return self._understood(lambda: with_words(self.decode(body, call.names)), response)

    def _understood(self, read: Callable[[], T], response: httpx2.Response) -> T:
        """Return what reading a body gives.

        Raises:
            BrokenAnswer: the body is not what the API promises.
        """
        try:
            return read()
        except _MISSHAPEN as error:
            failure = self._misshapen(error, response)
        # Raised out here so that the foreign exception, whose text may quote the key, is not its context.
        raise failure

    # --- failures ----------------------------------------------------------------------------

    def _check_error(self, body: Body, response: httpx2.Response, *, begun: bool = False) -> None:
        """A 200 may still carry an error, as its body or as an event of its stream."""
        detail = body.get("error") or (body if body.get("type") == "error" else None)
        if not detail:
            return
        error = provider_error(detail, model=self.name, secrets=self._secrets, headers=response.headers)
        if begun and isinstance(error, ProviderUnavailable):
            reason = str(error).removeprefix(f"{self.name}: ")
            raise self._broken(f"the answer stopped before its end: {reason}", response, code=error.code)
        raise error

    def _misshapen(self, error: Exception, response: httpx2.Response) -> BrokenAnswer:
        if isinstance(error, EventTooLarge):
            return self._broken(str(error), response)
        what = self._secrets.blotted(str(error) if type(error) is ValueError else repr(error))
        return self._broken(f"the answer is not what the API promises: {what}", response)

    def _broken(self, reason: str, response: httpx2.Response, *, code: str | None = None) -> BrokenAnswer:
        return broken(reason, response.headers, model=self.name, secrets=self._secrets, code=code)

    def _failure(self, error: Exception, permit: Permit) -> ModelError:
        """A foreign exception as ours."""
        response: httpx2.Response | None = getattr(error, "response", None)
        if response is not None:
            permit.read(response.headers)
            return provider_error(
                self._advised(_detail(getattr(error, "body", None)), response),
                model=self.name,
                secrets=self._secrets,
                headers=response.headers,
                status=response.status_code,
            )
        if isinstance(error, self._sdk.timeout | httpx2.TimeoutException):
            return ModelTimeout("the provider did not answer in time", model=self.name)
        if isinstance(error, self._sdk.error):
            return ProviderUnavailable(
                f"no connection to {self._host} ({self._root(error)}): look whether the server runs there, and at {self._where}",
                model=self.name,
            )
        return BrokenAnswer(
            f"the connection broke before the answer's end: {self._root(error)}", model=self.name
        )

    def _advised(self, detail: object, response: httpx2.Response) -> object:
        """Say of a 404 what is wrong with `base_url=`, unless the provider names another reason, such as an unknown model."""
        said = str(detail.get("message", "")) if isinstance(detail, Mapping) else str(detail or "")
        if response.status_code != HTTPStatus.NOT_FOUND or "model" in str(detail).lower():
            return detail
        path = httpx2.URL(self.base_url).path
        advice = f"look at {self._where} and at the model's name"
        if path.rstrip("/").endswith(self.path):
            advice = f"remove {self.path} from the end of {self._where}"
        elif _has_version(self.default_url) and not _has_version(self.base_url):
            advice = f"add /v1 to {self._where}, whose path is {path!r}"
        return {"message": f"{said[:200] or 'not found'} (404 from {self._host}): {advice}"}

    def _root(self, error: BaseException) -> str:
        """Return the text of the library's own error without our secrets; a refused request may quote any header."""
        while (cause := error.__cause__ or error.__context__) is not None:
            error = cause
        if isinstance(error, BaseExceptionGroup):  # one for each address of the host
            return "; ".join(dict.fromkeys(self._root(each) for each in error.exceptions))
        if "LocalProtocolError" in type(error).__name__ or isinstance(error, UnicodeError):
            return "the request holds what HTTP cannot carry, look at the headers of http_client="
        return self._secrets.blotted(str(error)) or type(error).__name__

    # --- where and who -------------------------------------------------------------------------

    @property
    def governor(self) -> Governor:
        """The governor of its requests in this trio run: the one it was given, or that of its address and key."""
        if not self._is_own_governor or self._governor is None:
            # Kept here, since it lives as long as somebody keeps it.
            self._governor = shared_governor(self._rate_limit_key)
        return self._governor

    def waited(self, session: str) -> float:
        return self.governor.waited(session)

    def doors(self) -> Mapping[str, Door]:
        """By its host, and four characters that stand for the key."""
        return {f"{self._host} {self._rate_limit_key[-4:]}": self.governor}

    def _source(self) -> str:
        return f"{self.name}@{httpx2.URL(self.base_url).host}"

    @cached_property
    def _host(self) -> str:
        """Host of the API, with a port that is not the scheme's own. Kept because parsing takes 10 us."""
        url = httpx2.URL(self.base_url)
        return f"{url.host}:{url.port}" if url.port else url.host

    @property
    def _where(self) -> str:
        return f"base_url= (or {' or '.join((*self.url_variables, 'LLM_PROVIDER_URL'))})"

    def _url(self, argument: str | None) -> str:
        return find_url(argument, (*self.url_variables, "LLM_PROVIDER_URL"), default=self.default_url)

    def _find_key(self, argument: str | None) -> str:
        is_optional = not self.key_needed_everywhere and self.base_url.lower().startswith("http://")
        return find_key(
            argument, (*self.key_variables, "LLM_API_KEY"), name=self.name, is_optional=is_optional
        )

    def _find_window(self, argument: int | None) -> int | None:
        if argument is None:  # a server of one's own may set any window for a model of the same name
            return window_of(self.model, url=self.base_url) if self.base_url == self.default_url else None
        if type(argument) is not int or argument < 1:
            raise ConfigurationError(f"context_window= is a number of tokens from 1, not {argument!r}")
        return argument

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
    """What is read of one stream, beside its fold."""

    events: EventDecoder = attrs.field(factory=EventDecoder)
    has_surrogates: bool = False
    """True if an event may hold half of a character."""
    words: str = ""
    """The last data that was no JSON: a sign of life, or a server's last words."""
    _half: str = ""

    @property
    def remark(self) -> str:
        return f"; it said {self.words!r}" if self.words else ""

    def shown(self, text: str) -> str:
        """Return text for listeners: half of a character waits for its other half."""
        if not self.has_surrogates:
            return text
        text, self._half = split_surrogate(self._half + text)
        return text


@attrs.frozen
class _Call:
    """What all attempts of one call share."""

    chat: Chat
    content: bytes
    streams: bool
    names: Mapping[str, str]
    on_text: OnText | None
    begun: float
    work: ModelWork | None = None
    """The span of the attempt; None without telemetry."""

    async def show(self, texts: Sequence[str], attempt: int) -> None:
        """Pass pieces of text on to whoever listens."""
        if self.work is not None and any(texts):
            self.work.note_chunk()
        if self.on_text is not None:
            for text in texts:
                await self.on_text(text, attempt)


_MISSHAPEN = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What reading a body raises that has a list where an object should be, and the like."""


# --- small things -----------------------------------------------------------------------------------


def _is_stream(response: httpx2.Response, *, asked: bool) -> bool:
    """By what the server says it sent, not by what was asked for: some servers ignore `stream`."""
    kind = response.headers.get("content-type", "")
    if "event-stream" in kind or "json" in kind:
        return "event-stream" in kind
    return asked or response.content.lstrip().startswith((b"data:", b"event:", b":"))


def _unwrapped(answer: Answer) -> Answer:
    """Return an answer with the member `response` of its object as its text; any other answer as it is."""
    text = unwrap_answer(answer.text)
    if text is None:
        return answer
    others = tuple(part for part in answer.parts if not isinstance(part, Text))
    return attrs.evolve(answer, parts=(*others, Text(text)))


def _check_settings(options: Mapping[str, Any]) -> None:
    """Refuse settings of a wrong type or unit where they are written, not at the first call.

    Raises:
        ConfigurationError: A setting is no number in its range, or no mapping. The text has no value of a mapping.
    """
    temperature, timeout = options.get("temperature"), options.get("timeout")
    if temperature is not None and not (_is_number(temperature) and temperature >= 0):
        raise ConfigurationError(
            f"temperature= is a number, at least 0 (most models take up to 2), not {temperature!r:.200}"
        )
    max_tokens = options.get("max_tokens")
    if max_tokens is not None and not (type(max_tokens) is int and max_tokens > 0):
        raise ConfigurationError(f"max_tokens= is a whole number, at least 1, not {max_tokens!r:.200}")
    if timeout is not None and not (_is_number(timeout) and timeout > 0):
        raise ConfigurationError(
            f"timeout= is a number of seconds above 0, or None for no limit, not {timeout!r:.200}"
        )
    if not isinstance(options.get("stream"), bool | None):
        raise ConfigurationError(f"stream= is True or False, not {options['stream']!r:.200}")
    for name in ("extra_headers", "extra_body"):
        if not isinstance(options.get(name) or {}, Mapping):
            raise ConfigurationError(f"{name}= is a dict, not a {type(options[name]).__name__}")
    for name, kind in (("retry", Retry), ("governor", Governor)):
        if not isinstance(options.get(name), kind | None):
            raise ConfigurationError(f"{name}= takes {kind.__name__}(...), not {options[name]!r:.200}")


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and not math.isnan(cast("float", value))


def _has_version(url: str) -> bool:
    """True if a step of the address's path is a version of an API, such as `v1` or `v1beta`."""
    return any(_VERSION.fullmatch(step) for step in httpx2.URL(url).path.split("/"))


def _detail(body: object) -> object:
    """The error object inside an error body, however deep the provider puts it; Gemini wraps it into a list."""
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    return body["error"] if isinstance(body, Mapping) and body.get("error") else body


def _excerpt(data: bytes) -> str:
    text = data[:80].decode("utf-8", "replace")
    return repr(text + "..." if len(data) > len(text) else text)
