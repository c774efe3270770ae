"""A model that says what it was told to: for tests, demos and benchmarks."""

import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

import trio

from actgent.errors import ConfigurationError
from actgent.errors.printable import counted
from actgent.messages import Part, ToolCall, to_parts

from .base import LLM, Answer, Chat, OnText

Said = str | Part | Answer | Sequence[str | Part]
"""What one answer may be written as: text, a tool call, several parts, or a whole `Answer`."""
Scripted = Said | BaseException | type[BaseException] | Callable[[Chat], "Said | Awaitable[Said]"]
"""One entry of a script: an answer, an exception to raise, or a function of the `Chat` (sync or async)."""


class ScriptedLLM(LLM):
    """Answers from a list, in order, whoever asks; a single function answers every call.

    ```python
    ScriptedLLM(["Hello.", ToolCall("add", {"a": 2, "b": 3}), lambda chat: f"I saw {len(chat.messages)} messages."])
    ```
    """

    dialect: ClassVar[str] = "scripted"

    def __init__(
        self,
        script: Sequence[Scripted] | Callable[[Chat], "Said | Awaitable[Said]"],
        *,
        delay: float = 0.0,
        chunk: int | None = None,
        chunk_delay: float = 0.0,
        repeat: bool = False,
        keep: int | None = 1000,
        name: str = "scripted",
        context_window: int | None = None,
    ) -> None:
        """Check the whole script, so that a wrong entry shows here and not in the middle of a test.

        Args:
            script: A list of answers, or one function for all of them.
            delay: Seconds before each answer.
            chunk: Characters a piece when the text is streamed; None streams it whole.
            chunk_delay: Seconds before each piece after the first.
            repeat: Whether the list begins again at its end.
            keep: How many chats `chats` remembers, the latest ones; None keeps all, 0 none.
            name: The model's name.
            context_window: Tokens of a prompt and its answer together, estimated; None: requests may be as long as they are.

        Raises:
            ConfigurationError: an entry is none of these things.
        """
        self.name = name
        self.context_window = context_window
        self._script = _prepare(script)
        self._repeat = repeat or callable(script)
        self._delay, self._chunk, self._chunk_delay = delay, chunk, chunk_delay
        self._chats: deque[Chat] = deque(maxlen=keep)
        self._next = 0
        if chunk is not None and chunk < 1:
            raise ConfigurationError(f"chunk= is a number of characters, at least 1, not {chunk}")

    @property
    def chats(self) -> list[Chat]:
        """The chats it was asked, oldest first, as far as `keep` goes."""
        return list(self._chats)

    async def complete(self, chat: Chat, *, on_text: OnText | None = None) -> Answer:
        self._chats.append(chat)
        entry = self._take()
        if self._delay:
            await trio.sleep(self._delay)
        else:
            await trio.lowlevel.checkpoint()
        answer = entry if type(entry) is Answer else await _perform(entry, chat)
        if on_text is not None:
            await self._stream(answer.text, on_text)
        return answer

    def _take(self) -> "_Entry":
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


_Entry = Answer | BaseException | Callable[[Chat], "Said | Awaitable[Said]"]


def _prepare(script: object) -> list[_Entry]:
    if callable(script):
        return [script]
    if isinstance(script, str) or not isinstance(script, Sequence):
        raise ConfigurationError(
            f"ScriptedLLM takes a list of answers, or a function of the chat, not {script!r:.80}"
        )
    return [_entry(item) for item in script]


def _entry(item: object) -> _Entry:
    if isinstance(item, type) and issubclass(item, BaseException):
        return item()
    if isinstance(item, BaseException) or callable(item):
        return item
    return _answer(item)


def _answer(said: object) -> Answer:
    if isinstance(said, Answer):
        return said
    try:
        parts = to_parts(said)  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigurationError(f"{said!r} is not a scripted answer: {error}") from None
    return Answer(
        parts=parts,
        stop="tool_calls" if any(isinstance(part, ToolCall) for part in parts) else "end",
        model="scripted",
    )


async def _perform(entry: _Entry, chat: Chat) -> Answer:
    if isinstance(entry, Answer):
        return entry
    if isinstance(entry, BaseException):
        raise entry.with_traceback(None)
    said = entry(chat)
    return _answer(await said if inspect.isawaitable(said) else said)
