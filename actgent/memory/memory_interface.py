"""Interface of memories: a `Memory` selects which messages of a session's record the next request contains."""

import abc
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Protocol, TypeAlias

from actgent.messages import ChatMessage, Message

ManageHistory = Callable[[list[Message]], Iterable[Message]]
"""Function that receives a copy of the session's history, oldest message first, and returns the messages for the model."""


class ManagesHistory(Protocol):
    """An object with a `manage_history` method."""

    def manage_history(self, history: list[Message], /) -> Iterable[Message]:
        """Return the messages to show to the model. `history` is a copy of the session's history, oldest message first."""
        ...


class ModelView(abc.ABC):
    """The messages of one session that the next request contains.

    `add` is called once for each message of the record, in order. A view is updated, not recomputed, so that a request costs
    the same in the first turn and in the five-hundredth.
    """

    @abc.abstractmethod
    def add(self, message: Message, *, answered: bool = False) -> None:
        """Add the next message of the session. `answered` is True if the model is going to answer this message now."""

    def check_room(self, tail: str = "") -> None:
        """Omit older messages until the conversation fits into the memory's limit. Called before each model call.

        `tail` is the text that the request adds after the messages.

        Raises:
            ContextOverflow: The messages that cannot be omitted exceed the limit.
        """

    def shrink(self, share: float) -> bool:
        """Shorten the shown messages to about the fraction `share` of their tokens.

        Return False if nothing can be shortened.

        Called at most twice for a request that does not fit into the context window of its model. The message that began
        the running turn must stay. The journal records each call, and a restore of the session repeats it.
        """
        return False

    @abc.abstractmethod
    def messages(self) -> Sequence[ChatMessage]:
        """Return the messages to send.

        Tool calls and results are complete pairs. Between two cuts, earlier messages stay the same.
        """

    def context(self) -> str:
        """Return the text that prompt templates insert as `memory`.

        If the text changes, prompts that use it are rendered again.
        """
        return ""

    def save(self) -> bytes | None:
        """Return the state of the view as bytes for `Memory.restore_view`.

        Return None if the view can only be built from all messages of the session.

        The bytes identify the memory class and its settings, so that another memory rejects them.
        """
        return None


class Memory(abc.ABC):
    """Base class of memories. One object serves all sessions of an agent."""

    summarizes: ClassVar[bool] = False
    """True if the views use summaries, which a model writes concurrently with the session."""

    @abc.abstractmethod
    def open_view(self) -> ModelView:
        """Return a new view, which will select the messages of one session. `ModelView.add` adds its messages."""

    def restore_view(self, saved: bytes) -> ModelView | None:
        """Restore a view from the bytes of `ModelView.save`; None if another memory class or other settings wrote the bytes.

        Without this method and `ModelView.save`, a long session is read from its beginning when it is opened.
        """
        return None


MemoryLike: TypeAlias = Memory | ManagesHistory | ManageHistory
"""The values that `Agent(memory=...)` accepts."""


class LongTermMemoryBase(AbstractAsyncContextManager[Any], abc.ABC):
    """Base class of `LongTermMemory`, the value of `Agent(long_term_memory=...)`. Defined here so that agents without it load no database.

    Its context manager is reentrant: the memories are open until the last block exits.
    """
