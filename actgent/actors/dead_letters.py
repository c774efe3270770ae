"""Dead letters: undeliverable or repeatedly failed messages, kept for inspection and redelivery.

A redelivered letter stays in the list until the inbox has accepted it, so a failure loses no letter. A second,
concurrent attempt with the same letter is rejected, so the message is delivered once.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from actgent.errors import DeadLetterGone
from actgent.messages import Priority, new_id
from actgent.support.attrs_class_repr import FieldRepr

DEAD_LETTERS = 1000
"""Maximum number of stored dead letters; older letters are dropped."""


@attrs.frozen(repr=False)
class DeadLetter(FieldRepr):
    """A message that no actor will process, with the reason."""

    actor: str
    """Name of the addressed actor or agent."""
    payload: Any
    """The message, or any other value that was sent."""
    reason: str
    """Text that says why the message was not processed."""
    error: Exception | None = None
    """Exception of the last attempt; None if there was no attempt."""
    at: float = attrs.field(factory=time.time, eq=False, kw_only=True)
    """Time of the failure as Unix time in seconds."""
    priority: Priority = attrs.field(default=Priority.NORMAL, eq=False, kw_only=True)
    """Priority of the message, also when it is sent again."""
    owner: Any = attrs.field(default=None, eq=False, kw_only=True)
    """Owner of the session, for a message to an agent. None if the session ends with this message."""
    id: str = attrs.field(factory=new_id, eq=False, kw_only=True)
    """Id of the dead letter."""


class DeadLetters:
    """The newest dead letters of a system, oldest first."""

    def __init__(self, capacity: int = DEAD_LETTERS) -> None:
        self.capacity = capacity
        self._letters: dict[int, DeadLetter] = {}
        """Letters by `id()`, since two letters can be equal."""
        self._being_sent: set[int] = set()

    def __repr__(self) -> str:
        return f"<DeadLetters: {len(self)} of at most {self.capacity}>"

    def __len__(self) -> int:
        return len(self._letters)

    def __iter__(self) -> Iterator[DeadLetter]:
        return iter(tuple(self._letters.values()))

    def add(self, letter: DeadLetter) -> None:
        """Add a dead letter. If the list is full, drop the oldest one."""
        self._letters[id(letter)] = letter
        if len(self._letters) > self.capacity:
            del self._letters[next(iter(self._letters))]

    @contextmanager
    def resend(self, letter: DeadLetter) -> Iterator[None]:
        """Return a context manager around sending a dead letter again.

        The letter is removed after success, and kept after an exception.

        Raises:
            DeadLetterGone: The letter is not in the list, or another task is sending it.
        """
        key = id(letter)
        if self._letters.get(key) is not letter:
            raise DeadLetterGone(letter.actor, "it was sent already, or was dropped for newer dead letters")
        if key in self._being_sent:
            raise DeadLetterGone(letter.actor, "another task is sending it")
        self._being_sent.add(key)
        try:
            yield
            if self._letters.get(key) is letter:
                del self._letters[key]
        finally:
            self._being_sent.discard(key)
