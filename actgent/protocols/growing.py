"""What may be shown of an answer while it grows, in time that grows with its length.

A protocol's `partial` reads a whole text. Asked at every piece it would take quadratic time, so it is asked seldom:

    looking     `partial` reads the text: at each piece while the text is short, then whenever it has grown by 1/64
    following   the end of the text is inside of what is shown: each piece is shown as it comes, and read once

Who follows gives up where a piece holds more than it can tell, and `partial` looks again: it alone decides.
"""

import json
import re
import typing
from collections.abc import Callable

import attrs

SHORT = 4096
"""Characters up to which a text is looked at with each piece."""
STEP = 64
"""A longer one is looked at when it has grown by this part of itself."""
ESCAPE = 12
"""Characters of the longest escape in JSON, a pair of surrogates."""

Partial = Callable[[str], str | None]


@attrs.define
class GrowingText:
    """A text in pieces, and when it is worth another look: all looks together read some 64 times its length."""

    size: int = 0
    """In characters."""
    _pieces: list[str] = attrs.field(factory=list)
    _looked: int = 0
    """How long it was when it was read last."""

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self.size += len(piece)

    @property
    def is_due(self) -> bool:
        """Return True if it is short, or has grown enough since it was read."""
        return self.size <= SHORT or self.size - self._looked >= self._looked // STEP

    @property
    def is_unread(self) -> bool:
        """True if it has grown since it was read."""
        return self.size > self._looked

    @property
    def whole(self) -> str:
        """All of it, for who only looks: it counts as unread."""
        return "".join(self._pieces)

    def read(self) -> str:
        """All of it."""
        self._looked = self.size
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""


class Follower(typing.Protocol):
    """Shows the pieces of a text whose end is shown."""

    def take(self, piece: str) -> str | None:
        """Return what is shown of the next piece; None from the moment only the whole text can tell."""


Follow = Callable[[str, str], Follower | None]
"""Of a text and what is shown of it: who shows its next pieces, if anyone can."""


def follow_nothing(_text: str, _visible: str) -> Follower | None:
    """For a protocol of which only its `partial` is known."""
    return None


@attrs.define(eq=False)
class Growth:
    """One answer while it grows, as a protocol shows it."""

    _partial: Partial
    _follow: Follow = follow_nothing
    text: GrowingText = attrs.field(factory=GrowingText)
    _shown: int = 0
    """Characters of what is visible that were given out."""
    _follower: Follower | None = None
    _looks_again: bool = False
    """True if the next piece is worth a look: what is shown ends in an escape, so that nobody could follow yet."""

    def add(self, piece: str) -> str:
        """Take the next piece, and give what may be shown that was not."""
        self.text.add(piece)
        if self._follower is not None:
            said = self._follower.take(piece)
            if said is not None:
                self._shown += len(said)
                return said
            self._follower = None
            return self._look()
        if self.text.is_due or self._looks_again:
            return self._look()
        return ""

    @property
    def visible(self) -> str:
        """What was given out so far."""
        return (self._partial(self.text.whole) or "")[: self._shown]

    def finish(self) -> str:
        """Return what may still be shown of the whole text."""
        return self._look() if self._follower is None and self.text.is_unread else ""

    def _look(self) -> str:
        text = self.text.read()
        visible = self._partial(text) or ""
        new = visible[self._shown :]
        if new:
            self._shown = len(visible)
            self._follower = self._follow(text, visible)
        is_left = bool(new) and self._follower is None
        self._looks_again = is_left and not self._looks_again and "\\" in text[-ESCAPE:]
        return new


# --- those who follow --------------------------------------------------------------------------


class Everything:
    """Prose: whatever comes is shown."""

    def take(self, piece: str) -> str | None:
        return piece


_ESCAPE = r'\\(?:["\\/bfnrt]|u(?!d[89a-f])[0-9a-f]{4}|ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2})'
_BODY = re.compile(rf'(?:[^"\\\x00-\x1f\ud800-\udfff]+|{_ESCAPE})*', re.IGNORECASE)
_BEGUN = re.compile(r"\\(?:u[0-9a-f]{0,3}|ud[89ab][0-9a-f]{2}(?:\\(?:u[0-9a-f]{0,3})?)?)?", re.IGNORECASE)
_PROBE, _PROBED = "\\u0071", "q"


class StringTail:
    """The rest of a JSON string, up to its closing quote."""

    def __init__(self) -> None:
        self._begun = ""
        """An escape that is not whole yet."""

    def take(self, piece: str) -> str | None:
        raw = self._begun + piece
        match = _BODY.match(raw)
        body = match[0] if match else ""
        self._begun = raw[len(body) :]
        if self._begun and not _BEGUN.fullmatch(self._begun):
            return None  # the string ends, or is none
        return json.loads(f'"{body}"') if "\\" in body else body


def follow_strings(partial: Partial) -> Follow:
    """Follow what is shown as long as it is one JSON string of the answer, as an escape at its end tells."""
    return lambda text, visible: StringTail() if partial(text + _PROBE) == visible + _PROBED else None


def follow_prose(_text: str, _visible: str) -> Follower | None:
    """Follow text that is shown as it is, whatever comes."""
    return Everything()
