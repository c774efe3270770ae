"""Adapters for models that are not an `LLM`: a function of messages, or an object with the methods of a client.

    async def my_model(messages): ...                     a function; sync functions run in threads
    class MyClient:
        def call(self, messages, **kwargs): ...           returns text; sync or async
        def call_stream(self, messages, **kwargs): ...    yields text; used if the caller streams
    class MyModel:
        async def complete(self, chat, *, on_text=None)   same as `LLM.complete`, without the base class

`complete` receives the complete `ModelRequest`. The other forms receive messages of plain text, with the system prompt first. They
have no native tools: the system prompt lists the tools, and the model calls them in the text format of the protocol.
"""

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import orjson

from actgent.errors import ConfigurationError, StreamInterrupted
from actgent.llm.model_interface import LLM, ModelRequest, ModelResponse, OnText
from actgent.messages import ChatMessage, File, Image, Part, Text, ToolCall, ToolResult, ToolSpec
from actgent.support.user_code_calls import DedicatedThreadLimiter

_FORWARDED = ("max_tokens", "context_window", "refuses_length", "price_of")
"""Attributes of `LLM` that are copied from a wrapped object if it has them."""
_OPTIONS = ("temperature", "max_tokens")
"""Settings of a chat that are passed to a function or `call` by name, if they are set and the function has the parameter."""
_TOOLS = "You can use these tools, each with the JSON Schema of its arguments:"


class SimpleMessage(dict[str, str]):
    """Message `{"role": "system" | "user" | "assistant", "content": text}`. Both keys are also attributes."""

    __slots__ = ()

    @property
    def role(self) -> str:
        return self["role"]

    @property
    def content(self) -> str:
        return self["content"]


class CompletesChats(Protocol):
    """Protocol of a model object with the method `complete` of `LLM`, but without the base class.

    `complete` may return text instead of a `ModelResponse`.
    """

    def complete(
        self, chat: ModelRequest, *, on_text: OnText | None = None
    ) -> Awaitable[ModelResponse | str]: ...


class CallsMessages(Protocol):
    """Protocol of a model client whose method `call` takes messages and returns text. A method `call_stream` may yield text."""

    @property
    def call(self) -> Callable[..., str | Awaitable[str]]: ...


ModelFunction = Callable[[list[Any]], str | Awaitable[str]]
"""A sync or async function that takes a list of `SimpleMessage` and returns text."""
ModelLike = CompletesChats | CallsMessages | ModelFunction
"""Objects that are accepted as a model in place of an `LLM`."""


def adapt_model(model: object) -> LLM | None:
    """Wrap an object with `complete`, an object with `call`, or a function in an `LLM`; return None for other objects.

    Raises:
        ConfigurationError: The method or function cannot be called with the messages as its only argument.
    """
    if isinstance(model, type):
        return None
    if callable(getattr(model, "complete", None)):
        return CompletingModel(model)
    if callable(call := getattr(model, "call", None)):
        return CallingModel(model, call, getattr(model, "call_stream", None))
    return CallingModel(model, model) if callable(model) else None


class CompletingModel(LLM):
    """`LLM` that wraps an object with a `complete` method."""

    def __init__(self, model: Any) -> None:
        """Wrap a model object, and copy its name and limits.

        Raises:
            ConfigurationError: `complete` requires more arguments than the request.
        """
        self.model = model
        _copy_attributes(self, model)
        self._complete = model.complete
        parameters = _parameters_of(self._complete, self.name)
        self._takes_on_text = parameters is None or "on_text" in parameters

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        if self._takes_on_text:
            answer = await self._complete(chat, on_text=on_text)
            return answer if type(answer) is ModelResponse else _to_answer(answer, self.name)
        answer = _to_answer(await self._complete(chat), self.name)
        if on_text is not None:
            await on_text(answer.text, 0)
        return answer

    def __repr__(self) -> str:
        return f"CompletingModel({self.model!r})"


class CallingModel(LLM):
    """`LLM` that wraps a function of messages or an object with `call`. Sync functions run in a thread."""

    def __init__(
        self, model: object, call: Callable[..., Any], stream: Callable[..., Any] | None = None
    ) -> None:
        """Wrap the function `call`, and `stream` for streamed answers. Their parameters are inspected once.

        Raises:
            ConfigurationError: A function takes no messages, or has further required parameters.
        """
        self.model = model
        _copy_attributes(self, model)
        self._call = call
        self._is_sync = not _is_async(call)
        self._options = _options_of(call, self.name)
        self._stream = stream if callable(stream) else None
        self._stream_options = () if self._stream is None else _options_of(self._stream, self.name)
        self._tools_text: tuple[Sequence[ToolSpec], str] = ((), "")
        """Last tool list and its text for the system prompt."""
        self._threads = DedicatedThreadLimiter()

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        messages = self._to_messages(chat)
        if on_text is not None and self._stream is not None:
            options = _options_from(chat, self._stream_options) if self._stream_options else {}
            return _to_answer(await self._stream_text(self._stream, messages, options, on_text), self.name)
        options = _options_from(chat, self._options) if self._options else {}
        if self._is_sync:
            result = await self._threads.run_sync(partial(self._call, messages, **options))
            result = await result if inspect.isawaitable(result) else result
        else:
            result = await self._call(messages, **options)
        answer = _to_answer(result, self.name)
        if on_text is not None:
            await on_text(answer.text, 0)
        return answer

    async def _stream_text(
        self,
        stream: Callable[..., Any],
        messages: list[SimpleMessage],
        options: Mapping[str, Any],
        on_text: OnText,
    ) -> str:
        """Pass each piece of the stream to `on_text`, and return the joined text as the answer."""
        pieces = []
        source = stream(messages, **options)
        async for piece in source if isinstance(source, AsyncIterable) else self._iterate_in_thread(source):
            pieces.append(piece)
            await on_text(piece, 0)
        return "".join(pieces)

    async def _iterate_in_thread(self, source: Iterable[str]) -> AsyncIterator[str]:
        """Yield the items of a sync iterable. Each `next` runs in a thread."""
        iterator = iter(source)
        while (piece := await self._threads.run_sync(next, iterator, None)) is not None:
            yield piece

    def _to_messages(self, chat: ModelRequest) -> list[SimpleMessage]:
        system = chat.system
        if chat.tools:
            if self._tools_text[0] is not chat.tools:
                self._tools_text = (chat.tools, _describe_tools(chat.tools))
            system = f"{system}\n\n{self._tools_text[1]}" if system else self._tools_text[1]
        messages = [SimpleMessage(role="system", content=system)] if system else []
        messages += [_to_simple_message(message) for message in chat.messages]
        return messages

    def __repr__(self) -> str:
        return f"CallingModel({self.model!r})"


# --- parameters, messages and answers -------------------------------------------------------


def _copy_attributes(adapter: LLM, model: object) -> None:
    """Copy the name, the limits and the price of a wrapped model object to its adapter. Missing attributes are skipped."""
    name = getattr(model, "name", None) or getattr(model, "__name__", None)
    adapter.name = name if isinstance(name, str) else type(model).__name__
    for each in _FORWARDED:
        if hasattr(model, each):
            setattr(adapter, each, getattr(model, each))


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - a callable object is async if its `__call__` is
    )


def _parameters_of(function: Callable[..., Any], name: str) -> frozenset[str] | None:
    """Return the names of a function's parameters; None if the function accepts any keyword argument.

    Raises:
        ConfigurationError: The function cannot be called with one positional argument.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # builtins have no signature
        return frozenset()
    try:
        signature.bind([])
    except TypeError as error:
        raise ConfigurationError(
            f"the model {name!r} must accept the messages as its only required argument, as in `async def {name}(messages)`: {error}"
        ) from None
    parameters = signature.parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return frozenset(each.name for each in parameters if each.kind in named)


def _options_of(function: Callable[..., Any], name: str) -> tuple[str, ...]:
    parameters = _parameters_of(function, name)
    return tuple(option for option in _OPTIONS if parameters is None or option in parameters)


def _options_from(chat: ModelRequest, options: Sequence[str]) -> Mapping[str, Any]:
    """Return, by name, the settings of a request that `options` lists and that have a value."""
    return {name: value for name in options if (value := getattr(chat, name)) is not None}


def _to_simple_message(message: ChatMessage) -> SimpleMessage:
    parts = message.parts
    text = (
        parts[0].text
        if len(parts) == 1 and type(parts[0]) is Text
        else "\n".join(filter(None, map(_part_text, parts)))
    )
    return SimpleMessage(role="assistant" if message.role == "assistant" else "user", content=text)


def _part_text(part: Part) -> str:
    match part:
        case Text():
            return part.text
        case ToolCall():
            return orjson.dumps({"tool_name": part.name, "parameters": part.arguments}).decode()
        case ToolResult():
            return f"[{part.tool_name}] (ID: {part.call_id})\n{part.text}"
        case Image() | File():
            return f"({type(part).__name__.lower()}, {part.media_type})"
    return ""


def _describe_tools(tools: Iterable[ToolSpec]) -> str:
    lines = [f"- {each.name}: {each.description} {orjson.dumps(each.parameters).decode()}" for each in tools]
    return "\n".join([_TOOLS, *lines])


def _to_answer(result: object, name: str) -> ModelResponse:
    if isinstance(result, ModelResponse):
        return result
    if isinstance(result, str):
        return ModelResponse(parts=(Text(result),), model=name)
    raise StreamInterrupted(
        f"a custom model must return text or a ModelResponse, not {type(result).__name__}", model=name
    )
