"""`ScriptedLLM`: a model with prepared answers, for tests, demos and benchmarks."""

import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

import trio

from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import counted
from actgent.messages import Part, ToolCall, to_parts
from actgent.support.unknown_name_hints import lists_arguments

from .model_interface import LLM, ModelRequest, ModelResponse, OnText

ScriptedAnswer = str | Part | ModelResponse | Sequence[str | Part]
"""One answer: text, a tool call, several parts, or a complete `ModelResponse`."""
Scripted = (
    ScriptedAnswer
    | BaseException
    | type[BaseException]
    | Callable[[ModelRequest], "ScriptedAnswer | Awaitable[ScriptedAnswer]"]
)
"""One entry of a script: an answer, an exception to raise, or a sync or async function of the `ModelRequest` that returns an answer."""


@lists_arguments
class ScriptedLLM(LLM):
    """A model that answers calls from a list in order, or from one function. All sessions share the list.

    ```python
    ScriptedLLM(["Hello.", ToolCall("add", {"a": 2, "b": 3}), lambda chat: f"I saw {len(chat.messages)} messages."])
    ```
    """

    dialect: ClassVar[str] = "scripted"

    def __init__(
        self,
        script: Sequence[Scripted] | Callable[[ModelRequest], "ScriptedAnswer | Awaitable[ScriptedAnswer]"],
        *,
        delay: float = 0.0,
        chunk: int | None = None,
        chunk_delay: float = 0.0,
        repeat: bool = False,
        keep: int | None = 1000,
        name: str = "scripted",
        context_window: int | None = None,
    ) -> None:
        """Validate the script, so that a wrong entry raises an error here and not in the middle of a test.

        Args:
            script: List of answers, or one function that answers every call.
            delay: Seconds before each answer.
            chunk: Characters per streamed piece; None streams the text in one piece.
            chunk_delay: Seconds before each piece after the first.
            repeat: True starts the list again after its end.
            keep: Number of newest requests that `chats` stores; None stores all, and 0 stores none.
            name: Name of the model.
            context_window: Maximum estimated tokens of prompt and answer together; None has no maximum.

        Raises:
            ConfigurationError: An entry is neither an answer, an exception nor a function, or `chunk` is below 1.
        """
        numbers: dict[str, Any] = {"delay": delay, "chunk_delay": chunk_delay}
        for label, seconds in numbers.items():
            if not (isinstance(seconds, int | float) and seconds >= 0):
                raise ConfigurationError(
                    f"{label}= must be a number of seconds of at least 0, not {seconds!r:.200}"
                )
        self.name = name
        self.context_window = context_window
        self._script = _prepare(script)
        self._repeat = repeat or callable(script)
        self._delay, self._chunk, self._chunk_delay = delay, chunk, chunk_delay
        self._chats: deque[ModelRequest] = deque(maxlen=keep)
        self._next = 0
        if chunk is not None and (type(chunk) is not int or chunk < 1):
            raise ConfigurationError(
                f"chunk= must be a number of characters of at least 1, not {chunk!r:.200}"
            )

    @property
    def chats(self) -> list[ModelRequest]:
        """Received requests, oldest first. Only the newest `keep` requests are stored."""
        return list(self._chats)

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        self._chats.append(chat)
        entry = self._next_entry()
        if self._delay:
            await trio.sleep(self._delay)
        else:
            await trio.lowlevel.checkpoint()
        answer = entry if type(entry) is ModelResponse else await _perform(entry, chat)
        if on_text is not None:
            await self._stream(answer.text, on_text)
        return answer

    def _next_entry(self) -> "_Entry":
        position = self._next
        if position >= len(self._script):
            if not self._repeat:
                raise ConfigurationError(
                    f"the script of {self.name!r} has {counted(position, 'answer')}, and this is call {position + 1}: "
                    "add answers, or pass repeat=True"
                )
            position = 0
        self._next = position + 1
        return self._script[position]

    async def _stream(self, text: str, on_text: OnText) -> None:
        size = self._chunk or len(text)
        for start in range(0, len(text), size or 1):
            if start and self._chunk_delay:
                await trio.sleep(self._chunk_delay)
            elif start:
                await trio.lowlevel.checkpoint()
            await on_text(text[start : start + size], 0)

    def __repr__(self) -> str:
        return f"ScriptedLLM({self.name!r}, {counted(len(self._script), 'entry', 'entries')})"


_Function = Callable[[ModelRequest], "ScriptedAnswer | Awaitable[ScriptedAnswer]"]
_Entry = ModelResponse | BaseException | _Function


def _prepare(script: object) -> list[_Entry]:
    if callable(script):
        return [_check_function(script)]
    if isinstance(script, str) or not isinstance(script, Sequence):
        raise ConfigurationError(
            f"the script of ScriptedLLM must be a list of answers, or a function of the request, not {script!r:.80}"
        )
    return [_entry(item) for item in script]


def _check_function(function: _Function) -> _Function:
    """Check that a function of a script accepts the request as its only argument, and return the function.

    Raises:
        ConfigurationError: The function cannot be called with the request alone.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # of some builtins
        return function
    try:
        signature.bind(None)
    except TypeError as error:
        raise ConfigurationError(
            f"a function of a script must accept the request as its only required argument, as in `def answer(chat)`: {error}"
        ) from None
    return function


def _entry(item: object) -> _Entry:
    if isinstance(item, type) and issubclass(item, BaseException):
        return item()
    if isinstance(item, BaseException):
        return item
    if callable(item):
        return _check_function(item)
    return _answer(item)


def _answer(scripted: object) -> ModelResponse:
    if isinstance(scripted, ModelResponse):
        return scripted
    try:
        parts = to_parts(scripted)  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigurationError(f"{scripted!r} is not a scripted answer: {error}") from None
    calls_tools = ToolCall in map(type, parts)
    return ModelResponse(parts=parts, stop="tool_calls" if calls_tools else "end", model="scripted")


async def _perform(entry: _Entry, chat: ModelRequest) -> ModelResponse:
    if isinstance(entry, ModelResponse):
        return entry
    if isinstance(entry, BaseException):
        raise entry.with_traceback(None)
    scripted = entry(chat)
    return _answer(await scripted if inspect.isawaitable(scripted) else scripted)
