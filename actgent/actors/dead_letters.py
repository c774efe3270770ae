"""Messages that were given up: kept for people to look at, and to send once more.

A letter that is being sent again stays in the list until it has arrived, so a failure loses nothing; whoever comes second
with the same letter is refused, so it arrives once.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from actgent.errors import DeadLetterGone
from actgent.messages import Priority

DEAD_LETTERS = 1000
"""How many dead letters are kept, the newest."""


@attrs.frozen
class DeadLetter:
    """A message that no actor will deal with, and why."""

    actor: str
    """The name of the actor or agent that it was sent to."""
    payload: Any
    """What was sent: a message, or any value."""
    reason: str
    """Why nobody deals with it, in words."""
    error: Exception | None = None
    """What it failed with, the last time."""
    at: float = attrs.field(factory=time.time, eq=False, kw_only=True)
    """Unix time in seconds."""
    priority: Priority = attrs.field(default=Priority.NORMAL, eq=False, kw_only=True)
    """The level that it was sent with, and is sent again with."""
    owner: Any = attrs.field(default=None, eq=False, kw_only=True)
    """The owner of the session that an agent's message was sent to; None if that ends with its only message."""


class DeadLetters:
    """The newest dead letters of a system, oldest first."""

    def __init__(self, capacity: int = DEAD_LETTERS) -> None:
        self.capacity = capacity
        self._letters: dict[int, DeadLetter] = {}
        """By identity: two letters may be equal, and each is sent again on its own."""
        self._leaving: set[int] = set()

    def __repr__(self) -> str:
        return f"<DeadLetters: {len(self)} of at most {self.capacity}>"

    def __len__(self) -> int:
        return len(self._letters)

    def __iter__(self) -> Iterator[DeadLetter]:
        return iter(tuple(self._letters.values()))

    def add(self, letter: DeadLetter) -> None:
        """Keep a letter; beyond the capacity the oldest is dropped."""
        self._letters[id(letter)] = letter
        if len(self._letters) > self.capacity:
            del self._letters[next(iter(self._letters))]

    @contextmanager
    def leaving(self, letter: DeadLetter) -> Iterator[None]:
        """Remove a letter at the end of the block that sends it again; an exception leaves it in its place.

        Raises:
            DeadLetterGone: it is not in the list, or is being sent by another task.
        """
        key = id(letter)
        if self._letters.get(key) is not letter:
            raise DeadLetterGone(letter.actor, "it was sent already, or newer ones took its place")
        if key in self._leaving:
            raise DeadLetterGone(letter.actor, "another task is sending it")
        self._leaving.add(key)
        try:
            yield
            if self._letters.get(key) is letter:
                del self._letters[key]
        finally:
            self._leaving.discard(key)
