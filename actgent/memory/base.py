"""What an agent remembers: how a session's record becomes what the next request shows of it."""

import abc
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Protocol, TypeAlias

from actgent.messages import ChatMessage, Message

ManageHistory = Callable[[list[Message]], Iterable[Message]]
"""A function that gets a copy of the session's history, oldest message first, and returns the messages to show to the model."""


class ManagesHistory(Protocol):
    """An object with a `manage_history` method."""

    def manage_history(self, history: list[Message], /) -> Iterable[Message]:
        """Return the messages to show to the model. `history` is a copy of the session's history, oldest message first."""
        ...


class ModelView(abc.ABC):
    """What the next request shows of one session's record.

    A view is kept, not computed: `add` is called once for each message of the record, in
    order, so a request costs the same in the first turn and in the five-hundredth.
    """

    @abc.abstractmethod
    def add(self, message: Message, *, answered: bool = False) -> None:
        """Take the record's next message; `answered` is True for one that the model is to answer now."""

    def check_room(self, tail: str = "") -> None:
        """See that the conversation fits into the context with `tail` behind it; what fits without older messages does fit.

        Raises:
            ContextOverflow: what has to be shown is too much.
        """

    def shrink(self, share: float) -> bool:
        """Cut the shown messages to about `share` of their tokens; return False if nothing can be cut.

        Called if a request does not fit into the context window of its model, and once more if it still does not. The message
        that began the running turn has to stay. When a session is read from its journal, the recorded shares are repeated.
        """
        return False

    @abc.abstractmethod
    def messages(self) -> Sequence[ChatMessage]:
        """The conversation to send: complete call/result pairs only, its prefix unchanged since the last call."""

    def context(self) -> str:
        """What templates may say as `memory`, besides what is shown as messages; a prompt that says it is rendered when it changes."""
        return ""

    def save(self) -> bytes | None:
        """All that it holds, for `Memory.restore_view`; None if it can only be made from the record again.

        The bytes tell the memory and its settings, so that another one does not take them.
        """
        return None


class Memory(abc.ABC):
    """How an agent remembers. One object serves all sessions of an agent."""

    summarizes: ClassVar[bool] = False
    """True: its views take summaries, which are made beside their sessions."""

    @abc.abstractmethod
    def open_view(self) -> ModelView:
        """An empty view for a session."""

    def restore_view(self, saved: bytes) -> ModelView | None:
        """A view as it was when it was saved; None where these are no bytes of a view of this memory with these settings.

        A memory without this, and without `ModelView.save`, reads long sessions from their beginning when they are opened.
        """
        return None


MemoryLike: TypeAlias = Memory | ManagesHistory | ManageHistory
"""The values that an agent takes as `memory=`."""
