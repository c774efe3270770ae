"""Models that are no `LLM`: a function of the messages, or an object that has the methods of a client.

    async def my_model(messages): ...                     a function; sync ones run in threads
    class MyClient:
        def call(self, messages, **kwargs): ...           returns text; sync or async
        def call_stream(self, messages, **kwargs): ...    yields text; used where somebody reads along
    class MyModel:
        async def complete(self, chat, *, on_text=None)   as `LLM.complete`, without the base class

What has `complete` gets the whole `Chat`; the others get messages of text, the system prompt first, and so no native tools:
they are told of tools in words, and call them by the protocol's own form.
"""

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import orjson

from actgent.errors import BrokenAnswer, ConfigurationError
from actgent.llm.base import LLM, Answer, Chat, OnText
from actgent.messages import ChatMessage, File, Image, Part, Text, ToolCall, ToolResult, ToolSpec
from actgent.support.foreign import OwnThreads

_FORWARDED = ("max_tokens", "context_window", "refuses_length", "price_of")
"""What an object may say of itself besides, in the words of `LLM`."""
_OPTIONS = ("temperature", "max_tokens")
"""What a function or `call` is given by name, where it is set and taken."""
_TOOLS = "You can use these tools, each with the JSON Schema of its arguments:"


class SimpleMessage(dict[str, str]):
    """`{"role": "system", "user" or "assistant", "content": text}`; both are attributes, too."""

    __slots__ = ()

    @property
    def role(self) -> str:
        return self["role"]

    @property
    def content(self) -> str:
        return self["content"]


class CompletesChats(Protocol):
    """An object that answers chats: what `LLM` is, without the base class. Text stands for an answer that says it."""

    def complete(self, chat: Chat, *, on_text: OnText | None = None) -> Awaitable[Answer | str]: ...


class CallsMessages(Protocol):
    """A client whose `call` takes messages and returns text; it may have `call_stream`, which yields text."""

    @property
    def call(self) -> Callable[..., str | Awaitable[str]]: ...


ModelFunction = Callable[[list[Any]], str | Awaitable[str]]
"""Gets a list of `SimpleMessage`, and returns text."""
ModelLike = CompletesChats | CallsMessages | ModelFunction
"""What may stand where an `LLM` does; an `LLM` itself is one, too."""


def adapted(model: object) -> LLM | None:
    """Make an `LLM` of what does the work of one; None where nothing in it says how.

    Raises:
        ConfigurationError: it says how, but cannot be called so; the text names it.
    """
    if isinstance(model, type):
        return None
    if callable(getattr(model, "complete", None)):
        return CompletingModel(model)
    if callable(call := getattr(model, "call", None)):
        return CallingModel(model, call, getattr(model, "call_stream", None))
    return CallingModel(model, model) if callable(model) else None


class CompletingModel(LLM):
    """An object with `complete`, as an `LLM`."""

    def __init__(self, model: Any) -> None:
        """Take over what the object says of itself."""
        self.model = model
        _introduce(self, model)
        self._complete = model.complete
        taken = _taken_by(self._complete, self.name)
        self._takes_on_text = taken is None or "on_text" in taken

    async def complete(self, chat: Chat, *, on_text: OnText | None = None) -> Answer:
        if self._takes_on_text:
            answer = await self._complete(chat, on_text=on_text)
            return answer if type(answer) is Answer else _answer_of(answer, self.name)
        answer = _answer_of(await self._complete(chat), self.name)
        if on_text is not None:
            await on_text(answer.text, 0)
        return answer

    def __repr__(self) -> str:
        return f"CompletingModel({self.model!r})"


class CallingModel(LLM):
    """A function of messages, or an object with `call`, as an `LLM`. What is sync runs in a thread."""

    def __init__(
        self, model: object, call: Callable[..., Any], stream: Callable[..., Any] | None = None
    ) -> None:
        """Look once at what the functions take.

        Raises:
            ConfigurationError: they take no messages, or need more than these.
        """
        self.model = model
        _introduce(self, model)
        self._call = call
        self._is_sync = not _is_async(call)
        self._options = _options_of(call, self.name)
        self._stream = stream if callable(stream) else None
        self._stream_options = () if self._stream is None else _options_of(self._stream, self.name)
        self._told: tuple[Sequence[ToolSpec], str] = ((), "")
        self._threads = OwnThreads()

    async def complete(self, chat: Chat, *, on_text: OnText | None = None) -> Answer:
        messages = self._messages_of(chat)
        if on_text is not None and self._stream is not None:
            given = _given(chat, self._stream_options) if self._stream_options else {}
            return _answer_of(await self._streamed(self._stream, messages, given, on_text), self.name)
        given = _given(chat, self._options) if self._options else {}
        if self._is_sync:
            said = await self._in_thread(messages, given)
        else:
            said = await self._call(messages, **given)
        answer = _answer_of(said, self.name)
        if on_text is not None:
            await on_text(answer.text, 0)
        return answer

    async def _in_thread(self, messages: list[SimpleMessage], given: Mapping[str, Any]) -> Any:
        """What a sync function returns, which may be something to wait for; one that is cancelled is not waited for."""
        said = await self._threads.run_sync(partial(self._call, messages, **given))
        return await said if inspect.isawaitable(said) else said

    async def _streamed(
        self,
        stream: Callable[..., Any],
        messages: list[SimpleMessage],
        given: Mapping[str, Any],
        on_text: OnText,
    ) -> str:
        """All that a stream yields, passed on piece by piece."""
        pieces = []
        source = stream(messages, **given)
        async for piece in source if isinstance(source, AsyncIterable) else self._in_threads(source):
            pieces.append(piece)
            await on_text(piece, 0)
        return "".join(pieces)

    async def _in_threads(self, source: Iterable[str]) -> AsyncIterator[str]:
        """What a sync iterator yields, each piece waited for in a thread."""
        iterator = iter(source)
        while (piece := await self._threads.run_sync(next, iterator, None)) is not None:
            yield piece

    def _messages_of(self, chat: Chat) -> list[SimpleMessage]:
        system = chat.system
        if chat.tools:
            if self._told[0] is not chat.tools:
                self._told = (chat.tools, _tools_in_words(chat.tools))
            system = f"{system}\n\n{self._told[1]}" if system else self._told[1]
        messages = [SimpleMessage(role="system", content=system)] if system else []
        messages += [_simple(message) for message in chat.messages]
        return messages

    def __repr__(self) -> str:
        return f"CallingModel({self.model!r})"


# --- what they are given, and what comes back ---------------------------------------------


def _introduce(adapter: LLM, model: object) -> None:
    """Let it say of itself what the object says."""
    name = getattr(model, "name", None) or getattr(model, "__name__", None)
    adapter.name = name if isinstance(name, str) else type(model).__name__
    for each in _FORWARDED:
        if hasattr(model, each):
            setattr(adapter, each, getattr(model, each))


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - whether it is async, not whether it is there
    )


def _taken_by(function: Callable[..., Any], name: str) -> frozenset[str] | None:
    """The names of what a function takes besides its first argument; None: whatever it is given.

    Raises:
        ConfigurationError: it cannot be called with one argument.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin tells nothing
        return frozenset()
    try:
        signature.bind([])
    except TypeError as error:
        raise ConfigurationError(
            f"the model {name!r} is called with the messages alone, as in `async def {name}(messages)`: {error}"
        ) from None
    parameters = signature.parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return frozenset(each.name for each in parameters if each.kind in named)


def _options_of(function: Callable[..., Any], name: str) -> tuple[str, ...]:
    taken = _taken_by(function, name)
    return tuple(option for option in _OPTIONS if taken is None or option in taken)


def _given(chat: Chat, options: Sequence[str]) -> Mapping[str, Any]:
    """What a chat says of these."""
    return {name: value for name in options if (value := getattr(chat, name)) is not None}


def _simple(message: ChatMessage) -> SimpleMessage:
    parts = message.parts
    text = (
        parts[0].text
        if len(parts) == 1 and type(parts[0]) is Text
        else "\n".join(filter(None, map(_words, parts)))
    )
    return SimpleMessage(role="assistant" if message.role == "assistant" else "user", content=text)


def _words(part: Part) -> str:
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


def _tools_in_words(tools: Iterable[ToolSpec]) -> str:
    lines = [f"- {each.name}: {each.description} {orjson.dumps(each.parameters).decode()}" for each in tools]
    return "\n".join([_TOOLS, *lines])


def _answer_of(said: object, name: str) -> Answer:
    if isinstance(said, Answer):
        return said
    if isinstance(said, str):
        return Answer(parts=(Text(said),), model=name)
    raise BrokenAnswer(f"a model returns text or an Answer, not {type(said).__name__}", model=name)
