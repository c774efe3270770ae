"""Scripted model provider on loopback, for tests: real sockets and HTTP, with answers from a script.

It implements OpenAI chat completions, OpenAI responses and Anthropic messages, with and without streaming, and rejects
the requests that the real providers reject. One provider can serve several APIs.
"""

import inspect
import itertools
import math
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs
import h11
import orjson
import trio

from actgent.errors import ConfigurationError
from actgent.llm.model_resolution import dialect_of
from actgent.testing.provider_apis import (
    PROVIDER_APIS,
    MalformedRequest,
    Pace,
    ProviderAPI,
    ProviderRequest,
    ReplyPlan,
    error_plan,
    json_plan,
    to_answer,
    tokens_of,
    usage_of,
)

from .provider_faults import Fault, Scripted, plan_for
from .rate_limits import Meter, RateLimits

Chooser = Callable[[ProviderRequest], Scripted | Awaitable[Scripted]]
"""Function, sync or async, that returns the answer to a request."""
Script = Sequence[Scripted | Chooser] | Chooser
"""Answers in the order of the requests, which may include functions; or one function for all requests."""

_BY_PATH: Mapping[str, ProviderAPI] = {dialect.path: dialect for dialect in PROVIDER_APIS.values()}
_COUNTING: Mapping[str, ProviderAPI] = {
    dialect.counting_path: dialect for dialect in PROVIDER_APIS.values() if dialect.counting_path
}
_COMPACTING: Mapping[str, ProviderAPI] = {
    dialect.compacting_path: dialect for dialect in PROVIDER_APIS.values() if dialect.compacting_path
}
_OTHERWISE = PROVIDER_APIS["openai"]
"""Provider API of errors that occur before the API of a request is known."""
_MAX_BODY_BYTES = 32 * 1024 * 1024
_RECEIVE_BYTES = 65_536
_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER with timeout 0: close() sends RST


@attrs.frozen
class ProviderStatistics:
    """Counters of a running scripted provider."""

    requests: int
    """Number of received requests."""
    running: int
    """Number of requests whose answer is not complete."""
    connections: int
    """Number of open connections."""
    refused: int = 0
    """Number of requests that exceeded the rate limits and received status 429."""
    counted: int = 0
    """Number of token counting requests; not included in `requests`."""


class ProviderFailed(ConfigurationError):
    """Error: the script of a provider failed. It has too few answers, or its function raised the cause of this error."""


@attrs.define(kw_only=True, eq=False)
class Provider:
    """A running scripted provider; opened by `open_provider`."""

    port: int
    _script: Iterator[Scripted | Chooser]
    _pace: Pace
    _api_key: str | None
    _kept: deque[ProviderRequest]
    _meter: Meter
    _count: Callable[[ProviderRequest], int]
    _counted: int = 0
    _failure: Exception | None = None
    _served: int = 0
    _running: int = 0
    _connections: int = 0

    @property
    def base_url(self) -> str:
        """Base URL of the scripted provider for OpenAI's SDK and compatible clients."""
        return f"http://127.0.0.1:{self.port}/v1"

    openai_url = base_url

    @property
    def anthropic_url(self) -> str:
        """Base URL of the scripted provider for Anthropic's SDK, which appends `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    def url_for(self, provider: str) -> str:
        """Return the base URL for the client of a provider, which is named as in `provider:model`."""
        return f"http://127.0.0.1:{self.port}{PROVIDER_APIS[dialect_of(provider)].base}"

    @property
    def requests(self) -> Sequence[ProviderRequest]:
        """The newest `keep` requests that the provider has received, oldest first."""
        return list(self._kept)

    def statistics(self) -> ProviderStatistics:
        return ProviderStatistics(
            self._served, self._running, self._connections, self._meter.refused, self._counted
        )

    def check_script(self) -> None:
        """Raise the error of the script if it has failed. Called when the provider's block ends.

        Raises:
            ProviderFailed: The script failed; the script's exception is the cause.
        """
        if self._failure is not None:
            raise ProviderFailed(
                f"the script of the simulated provider raised an exception: {self._failure!r}"
            ) from self._failure

    # --- deciding ------------------------------------------------------------------------

    async def _decide(self, number: int, head: h11.Request, body: bytes) -> ReplyPlan:
        """Plan the reply to one request: the script's answer, or an error if a provider would reject the request."""
        path = head.target.decode("ascii", "replace").partition("?")[0]
        if path in _COUNTING and head.method == b"POST":
            return self._plan_count(number, _COUNTING[path], path, head=head, body=body)
        if path in _COMPACTING and head.method == b"POST":
            return self._plan_compaction(number, _COMPACTING[path], path, head=head, body=body)
        dialect = _BY_PATH.get(path)
        if dialect is None or head.method != b"POST":
            text = f"Invalid URL ({head.method.decode()} {path})"
            plan = error_plan(_OTHERWISE.error(404, code="unknown_url", message=text))
            return attrs.evolve(plan, pieces=()) if head.method == b"HEAD" else plan
        request = _read_request(number, dialect, path, head=head, body=body)
        self._kept.append(request)
        refusal = self._rejection(request) or self._meter.enter(request, trio.current_time())
        return self._identified(refusal or await self._play(request), request)

    def _plan_count(
        self, number: int, dialect: ProviderAPI, path: str, *, head: h11.Request, body: bytes
    ) -> ReplyPlan:
        """Plan the reply to a token counting request, which does not use the script."""
        self._served -= 1
        self._counted += 1
        request = _read_request(number, dialect, path, head=head, body=body)
        if self._api_key is not None and _key(request.headers) != self._api_key:
            return error_plan(dialect.error(401))
        try:
            return json_plan({"input_tokens": self._count(request)})
        except Exception as error:  # noqa: BLE001 - as in `_play`
            self._failure = self._failure or error
            return error_plan(dialect.error(400, code="script_failed", message=repr(error)))

    def _plan_compaction(
        self, number: int, dialect: ProviderAPI, path: str, *, head: h11.Request, body: bytes
    ) -> ReplyPlan:
        """Plan the reply to a compaction request, which does not use the script."""
        request = _read_request(number, dialect, path, head=head, body=body)
        request = attrs.evolve(request, problems=tuple(dialect.check_compaction(request.json)))
        return self._rejection(request) or json_plan(dialect.compacted(request))

    def _rejection(self, request: ProviderRequest) -> ReplyPlan | None:
        """Plan the error reply with which a real provider rejects a request; return None if the request is valid."""
        error = request.dialect.error
        if self._api_key is not None and _key(request.headers) != self._api_key:
            return error_plan(error(401))
        if request.problems:
            return error_plan(error(400, message="; ".join(request.problems)))
        return None

    async def _play(self, request: ProviderRequest) -> ReplyPlan:
        try:
            scripted = await self._scripted(request)
            self._count_usage(scripted, request)
            plan = plan_for(scripted, request, self._pace)
            limits = self._meter.headers(request, trio.current_time())
            return attrs.evolve(plan, headers={**limits, **plan.headers}) if limits else plan
        except MalformedRequest as error:
            return error_plan(request.dialect.error(400, message=str(error)))
        except Exception as error:  # noqa: BLE001 - user code; raised again when the block ends
            self._failure = self._failure or error
            return error_plan(request.dialect.error(400, code="script_failed", message=repr(error)))

    def _count_usage(self, scripted: Scripted, request: ProviderRequest) -> None:
        answer = scripted
        while isinstance(answer, Fault):  # faults can be nested
            if not hasattr(answer, "answer"):
                return
            answer = answer.answer
        self._meter.use(request.number, usage_of(to_answer(answer), request))

    async def _scripted(self, request: ProviderRequest) -> Scripted:
        entry = next(self._script, None)
        if entry is None:
            raise ConfigurationError(f"request {request.number}: the script has no more answers: add one")
        answer = entry(request) if callable(entry) else entry
        return await answer if inspect.isawaitable(answer) else answer

    @staticmethod
    def _identified(plan: ReplyPlan, request: ProviderRequest) -> ReplyPlan:
        headers = {request.dialect.request_id_header: f"req_{request.number:08d}", **plan.headers}
        return attrs.evolve(plan, headers=headers)

    # --- acting --------------------------------------------------------------------------

    async def _serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection until either side closes it."""
        self._connections += 1
        connection = _Connection(stream=stream)
        try:
            while (received := await connection.receive()) is not None:
                self._running += 1
                self._served += 1
                number = self._served
                try:
                    await connection.send(await self._decide(number, *received))
                finally:
                    self._running -= 1
                    self._meter.leave(number, trio.current_time())
        except (_Gone, trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            pass  # the client disconnected
        finally:
            self._connections -= 1
            stream.socket.close()


class _Gone(Exception):
    """Exception: the connection was closed by the client or by the script."""


@attrs.define(kw_only=True, eq=False)
class _Connection:
    """HTTP/1.1 connection with keep-alive on one socket."""

    stream: trio.SocketStream
    _http: h11.Connection = attrs.field(factory=lambda: h11.Connection(h11.SERVER))

    async def receive(self) -> tuple[h11.Request, bytes] | None:
        """Receive the next request, and return its head and body; None if the client has closed the connection."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        head: h11.Request | None = None
        body = bytearray()
        while True:
            match await self._event():
                case h11.Request() as head:
                    pass
                case h11.Data() as data:
                    body += data.data
                    await self._refuse_above(len(body))
                case h11.EndOfMessage() if head is not None:
                    return head, bytes(body)
                case h11.ConnectionClosed():
                    return None

    async def _event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self.stream.receive_some(_RECEIVE_BYTES))
        return event

    async def _refuse_above(self, size: int) -> None:
        if size > _MAX_BODY_BYTES:
            await self.send(error_plan(_OTHERWISE.error(413)))
            raise _Gone

    async def send(self, plan: ReplyPlan) -> None:
        """Send a reply to the client, with the delays, pieces and ending of its plan.

        Raises:
            _Gone: The plan or the client ends the connection.
        """
        if plan.delay:
            await self._pause(plan.delay)
        if plan.gap is None:
            if data := b"".join((self._head(plan), self._data(b"".join(plan.pieces)), self._tail(plan))):
                await self.stream.send_all(data)
        else:
            await self._send_slowly(plan, plan.gap)
        await self._end(plan)

    async def _send_slowly(self, plan: ReplyPlan, gap: float) -> None:
        await self.stream.send_all(self._head(plan))
        for piece in _portions(plan):
            await self._pause(gap)
            await self.stream.send_all(self._data(piece))
        await self.stream.send_all(self._tail(plan))

    def _head(self, plan: ReplyPlan) -> bytes:
        if not plan.is_head_sent:
            return b""
        headers = [*plan.headers.items()]
        if plan.length is not None:
            headers.append(("content-length", str(plan.length)))
        return self._http.send(h11.Response(status_code=plan.status, headers=headers)) or b""

    def _data(self, data: bytes) -> bytes:
        return (self._http.send(h11.Data(data=data)) or b"") if data else b""

    def _tail(self, plan: ReplyPlan) -> bytes:
        return self._http.send(h11.EndOfMessage()) or b"" if plan.ending == "whole" else b""

    async def _end(self, plan: ReplyPlan) -> None:
        if plan.ending == "silent":
            await self._pause(math.inf)
        if plan.ending == "reset":
            self.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        if plan.ending != "whole" or self._http.our_state is h11.MUST_CLOSE:
            raise _Gone

    async def _pause(self, seconds: float) -> None:
        """Sleep for `seconds`. Raise `_Gone` as soon as the client closes the connection."""
        with trio.move_on_after(seconds):
            while data := await self.stream.receive_some(_RECEIVE_BYTES):
                self._http.receive_data(data)
            raise _Gone


@asynccontextmanager
async def open_provider(
    script: Script,
    *,
    chunk: int = 20,
    delay: float = 0.0,
    gap: float | None = None,
    keep: int = 1000,
    api_key: str | None = None,
    limits: RateLimits | None = None,
    count: Callable[[ProviderRequest], int] = tokens_of,
) -> AsyncIterator[Provider]:
    """Async context manager: run a scripted provider on a free port of 127.0.0.1 until the block exits.

    ```python
    async with open_provider([ToolCall("add", {"a": 2, "b": 3}), "It is 5."]) as provider:
        llm = OpenAI("any-model", base_url=provider.openai_url, api_key="any")
    ```

    Args:
        script: Answers in the order of the requests: texts, parts, `ToolCall`, `ModelResponse` or `Fault` objects, or sync or
            async functions of the request that return one of these. Or one function for all requests. Requests after the last
            answer fail.
        chunk: Number of characters in one streamed event.
        delay: Delay in seconds before each answer.
        gap: Delay in seconds before each streamed event; None sends all events at once.
        keep: Number of latest requests that `requests` stores.
        api_key: The only accepted API key; None accepts every key.
        limits: Rate limits; None sets no limits. Requests above them receive status 429.
        count: Returns the number of tokens of a request at the counting endpoints.

    All connections, including open streams, are closed when the block exits.

    Raises:
        ProviderFailed: The block exits without an exception, but the script has failed.
    """
    entries = _entries(script)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    provider = Provider(
        port=listeners[0].socket.getsockname()[1],
        script=entries,
        pace=Pace(chunk=chunk, delay=delay, gap=gap),
        api_key=api_key,
        kept=deque(maxlen=keep),
        meter=Meter(limits or RateLimits()),
        count=count,
    )
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, provider._serve, listeners)  # noqa: SLF001 - a private method of this module
        try:
            yield provider
        except Exception as error:  # noqa: BLE001 - raised again below, out of the nursery's exception group
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    provider.check_script()


def _portions(plan: ReplyPlan) -> Iterable[bytes]:
    if plan.octets is None:
        return plan.pieces
    data, size = b"".join(plan.pieces), plan.octets
    return (data[start : start + size] for start in range(0, len(data), size))


def _entries(script: Script) -> Iterator[Scripted | Chooser]:
    if isinstance(script, str):
        raise ConfigurationError(
            "the script must be a list of answers or a function, not a string: write [...] around a string"
        )
    return itertools.repeat(script) if callable(script) else iter(tuple(script))


def _key(headers: Mapping[str, str]) -> str:
    return headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")


def _read_request(
    number: int, dialect: ProviderAPI, path: str, *, head: h11.Request, body: bytes
) -> ProviderRequest:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    json, problems = _parse(body, dialect)
    return ProviderRequest(
        number=number, dialect=dialect, path=path, headers=headers, body=body, json=json, problems=problems
    )


def _parse(body: bytes, dialect: ProviderAPI) -> tuple[Mapping[str, object], Sequence[str]]:
    try:
        json = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return {}, [f"We could not parse the JSON body of your request: {error}"]
    if not isinstance(json, dict):
        return {}, ["The body of your request is not a JSON object."]
    return json, list(dialect.check_request(json))
