"""Visible text of an incomplete answer, selected in time linear in the length of the answer.

A protocol's `partial` reads the whole text. Calling it for each chunk would take quadratic time, so there are
two states:

    scanning    `partial` reads the text: for each chunk while the text is short, then after each growth by
        1/64
    following   the end of the text is inside the shown part: a follower shows each chunk and reads it once

A follower stops if it cannot interpret a chunk. Then `partial` parses the whole text again.
"""

import json
import re
import typing
from collections.abc import Callable

import attrs

from actgent.support.attrs_class_repr import FieldRepr

SHORT_TEXT_CHARS = 4096
"""Length of text up to which `partial` reads the text again for each chunk."""
GROWTH_DIVISOR = 64
"""A longer text is read again after it has grown by this fraction: 1/64."""
MAX_ESCAPE_CHARS = 12
"""Length of the longest JSON escape sequence, a surrogate pair."""

Partial = Callable[[str], str | None]


@attrs.define(repr=False)
class StreamingText(FieldRepr):
    """The text of an answer received so far. It decides when the text must be read again.

    All reads together cost about 64 times the length of the text.
    """

    size: int = 0
    """Length of the text received so far in characters."""
    _chunks: list[str] = attrs.field(factory=list)
    _read_size: int = 0
    """Length of the text in characters at the last read."""

    def add(self, chunk: str) -> None:
        self._chunks.append(chunk)
        self.size += len(chunk)

    @property
    def is_due(self) -> bool:
        """True if the text must be read again: it is short, or has grown enough since the last read."""
        return (
            self.size <= SHORT_TEXT_CHARS or self.size - self._read_size >= self._read_size // GROWTH_DIVISOR
        )

    @property
    def is_unread(self) -> bool:
        """True if chunks of the answer were added after the last `read`."""
        return self.size > self._read_size

    @property
    def whole(self) -> str:
        """Text received so far. In contrast to `read`, the use of this property does not count as a read."""
        return "".join(self._chunks)

    def read(self) -> str:
        """Return the whole text and record its length as read."""
        self._read_size = self.size
        if len(self._chunks) > 1:
            self._chunks = ["".join(self._chunks)]
        return self._chunks[0] if self._chunks else ""


class Follower(typing.Protocol):
    """Interface that selects the text to show from each chunk, while the end of the received text is inside the shown part."""

    def feed(self, chunk: str) -> str | None:
        """Process the next chunk of an answer. Return the new text to show; None if only the complete answer can decide."""


Follow = Callable[[str, str], Follower | None]
"""Function of the text and its shown part that creates a follower for the next chunks, or returns None."""


def never_follow(_text: str, _visible: str) -> Follower | None:
    """Return None, so that the protocol reads the whole partial answer again at each chunk."""
    return None


@attrs.define(eq=False, repr=False)
class PartialAnswer(FieldRepr):
    """Filter of one streamed answer: selects the text that the protocol shows to the user."""

    _partial: Partial
    _follow: Follow = never_follow
    text: StreamingText = attrs.field(factory=StreamingText)
    _shown: int = 0
    """Number of visible characters that were returned so far."""
    _follower: Follower | None = None
    _reads_next: bool = False
    """True if the next chunk triggers a new read of the whole text. The shown text ended in an incomplete escape sequence."""

    def add(self, chunk: str) -> str:
        """Add the next chunk of the answer, and return the new text for the user; empty if the chunk adds no text."""
        self.text.add(chunk)
        if self._follower is not None:
            new = self._follower.feed(chunk)
            if new is not None:
                self._shown += len(new)
                return new
            self._follower = None
            return self._scan()
        if self.text.is_due or self._reads_next:
            return self._scan()
        return ""

    @property
    def visible(self) -> str:
        """Part of the answer that was returned for the user so far."""
        return (self._partial(self.text.whole) or "")[: self._shown]

    def finish(self) -> str:
        """Return the text of the complete answer that `add` has not returned yet. Call this method after the last chunk."""
        return self._scan() if self._follower is None and self.text.is_unread else ""

    def _scan(self) -> str:
        text = self.text.read()
        visible = self._partial(text) or ""
        new = visible[self._shown :]
        if new:
            self._shown = len(visible)
            self._follower = self._follow(text, visible)
        is_unfollowed = bool(new) and self._follower is None
        self._reads_next = is_unfollowed and not self._reads_next and "\\" in text[-MAX_ESCAPE_CHARS:]
        return new


# --- followers --------------------------------------------------------------------------


class PlainTextFollower:
    """Follower for prose, which shows every chunk unchanged."""

    def feed(self, chunk: str) -> str | None:
        return chunk


_ESCAPE = r'\\(?:["\\/bfnrt]|u(?!d[89a-f])[0-9a-f]{4}|ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2})'
_BODY = re.compile(rf'(?:[^"\\\x00-\x1f\ud800-\udfff]+|{_ESCAPE})*', re.IGNORECASE)
_INCOMPLETE_ESCAPE = re.compile(
    r"\\(?:u[0-9a-f]{0,3}|ud[89ab][0-9a-f]{2}(?:\\(?:u[0-9a-f]{0,3})?)?)?", re.IGNORECASE
)
_PROBE, _DECODED_PROBE = "\\u0071", "q"


class JSONStringFollower:
    """Follower that shows the rest of a JSON string, up to its closing quote."""

    def __init__(self) -> None:
        self._incomplete = ""
        """Incomplete escape sequence at the end of the last chunk."""

    def feed(self, chunk: str) -> str | None:
        raw = self._incomplete + chunk
        match = _BODY.match(raw)
        body = match[0] if match else ""
        self._incomplete = raw[len(body) :]
        if self._incomplete and not _INCOMPLETE_ESCAPE.fullmatch(self._incomplete):
            return None  # the string ends here, or is invalid
        return json.loads(f'"{body}"') if "\\" in body else body


def follow_strings(partial: Partial) -> Follow:
    """Return a `Follow` function for protocols that show one JSON string of the answer.

    The function returns a follower if the received text ends inside this string. To find out, it appends an escape
    sequence to the text: inside the string, `partial` decodes the sequence.
    """
    return lambda text, visible: (
        JSONStringFollower() if partial(text + _PROBE) == visible + _DECODED_PROBE else None
    )


def follow_prose(_text: str, _visible: str) -> Follower | None:
    """Return a follower that shows every further chunk, for answers in plain text."""
    return PlainTextFollower()
