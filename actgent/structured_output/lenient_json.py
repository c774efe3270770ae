"""Parser of JSON variants that models write: single quotes, Python constants, comments, trailing commas.

The result has each string and number of the text, unchanged and in the same order, and no others. Strings are never joined,
quoted, truncated or moved. Text that no rule covers makes the complete value unreadable.

`repairs=True` also accepts small errors: bare keys, typographic quotes, and a missing colon after a quoted key. A missing comma
is inserted at a line end, before a key, and between a bracketed item and its neighbour. Use it only for texts that are exactly one
value. A missing comma between two strings or numbers is never inserted: the intention is ambiguous, so the model is asked again.
"""

import re
from typing import Any

from actgent.support.strict_json import check_unicode, constant, integer, real, unique

_SPACE = re.compile(r"(?:[\s\ufeff]+|//[^\n]*|/\*.*?\*/|\#[^\n]*)*", re.DOTALL)
_NUMBER = re.compile(r"([+-]?)((?:\d+(?:_\d+)*)?)((?:\.(?:\d+(?:_\d+)*)?)?)((?:[eE][+-]?\d+)?)(?![\w.$+-])")
_NAME = re.compile(r"[A-Za-z_$][\w$]*(?![\w.$(-])")
_INTEGER = re.compile(r"-?(?:0|[1-9]\d*)(?![\w.$+-])")
_CLOSERS = {'"': '"', "'": "'", "“": "”", "‘": "’"}
_BODIES = {
    opener: re.compile(rf"([^{closer}\\]*(?:\\.[^{closer}\\]*)*){closer}", re.DOTALL)
    for opener, closer in _CLOSERS.items()
}
_ESCAPE = re.compile(
    r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|([^uUx]))|(\\[uUx])", re.DOTALL
)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "'": "'", "\\": "\\", "/": "/"}
_FOREIGN_ESCAPES = frozenset("0123456789aNv\n")
"""Characters that form an escape sequence with a backslash in other languages and not in JSON."""
_CONSTANTS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_LARGEST = 0x10FFFF


class Unreadable(Exception):
    """The text cannot be parsed. The message gives the reason and the position."""


def read(text: str, *, repairs: bool = False) -> Any:
    """Parse a text that is one bracketed value.

    Args:
        text: Text of the value.
        repairs: True accepts small errors, see the description of the module.

    Raises:
        Unreadable: The text is not one value, or no rule covers a part of it.
        ParseError: The value cannot be stored, see `strict_json`.
    """
    reader = _Reader(text, repairs=repairs)
    value = reader.value()
    reader.skip()
    if reader.at < len(text):
        raise reader.unreadable("the answer must be one JSON value, but more text follows the value")
    if not text.isascii() or "\\" in text:
        check_unicode(value)
    return value


class _Reader:
    def __init__(self, text: str, *, repairs: bool) -> None:
        self._text = text
        self._repairs = repairs
        self.at = 0

    def unreadable(self, reason: str) -> Unreadable:
        return Unreadable(f"{reason} at character {self.at}")

    def skip(self) -> bool:
        """Skip whitespace and comments at the current position of the text. Return True if they contain a line break."""
        start = self.at
        self.at = _SPACE.match(self._text, start).end()  # type: ignore[union-attr]  # the pattern matches empty text as well
        return "\n" in self._text[start : self.at]

    def _peek(self) -> str:
        return self._text[self.at : self.at + 1]

    def _take(self, mark: str) -> bool:
        taken = self._peek() == mark
        self.at += taken
        return taken

    # --- values --------------------------------------------------------------------------------

    def value(self) -> Any:
        self.skip()
        mark = self._peek()
        if mark == "{":
            return self._object()
        if mark in ("[", "("):
            return self._list(mark)
        return self._string() if mark in _CLOSERS else self._word_or_number()

    def _word_or_number(self) -> Any:
        if word := _NAME.match(self._text, self.at):
            if word[0] in ("NaN", "Infinity"):
                constant(word[0])
            if word[0] not in _CONSTANTS:
                raise self.unreadable(
                    f"{word[0][:30]} is not a JSON value: quote it, or write true, false, null or a number"
                )
            self.at = word.end()
            return _CONSTANTS[word[0]]
        number = _NUMBER.match(self._text, self.at)
        if number is None or not (number[2] or number[3].strip(".")):
            raise self.unreadable("a JSON value is expected here")
        return self._number(number)

    def _number(self, found: re.Match[str]) -> float:
        sign, whole, fraction, exponent = (part.replace("_", "") for part in found.groups())
        if len(whole) > 1 and whole[0] == "0":
            raise self.unreadable("a number must not begin with 0: remove the leading zeros")
        self.at = found.end()
        sign = sign.replace("+", "")
        return real(f"{sign}{whole}{fraction}{exponent}") if fraction or exponent else integer(sign + whole)

    def _string(self) -> str:
        opener = self._peek()
        if opener not in _CLOSERS or (opener not in "\"'" and not self._repairs):
            raise self.unreadable("a string in quotes is expected here")
        body = _BODIES[opener].match(self._text, self.at + 1)
        if body is None:
            raise self.unreadable("a string has no closing quote: add the quote")
        string = body[1]
        if "\\" in string:
            string = _join_surrogates(_ESCAPE.sub(self._unescape, string))
        self.at = body.end()
        return string

    def _unescape(self, escape: re.Match[str]) -> str:
        short, long, byte, mark, _ = escape.groups()
        if digits := short or long or byte:
            if int(digits, 16) > _LARGEST:
                raise self.unreadable("an escape sequence in a string is not a Unicode character")
            return chr(int(digits, 16))
        if mark is None or mark in _FOREIGN_ESCAPES:
            raise self.unreadable(
                "a string has an escape sequence that JSON does not define: write the backslash twice"
            )
        return _ESCAPES.get(mark, escape[0])

    # --- lists ---------------------------------------------------------------------------------

    def _list(self, opener: str) -> Any:
        closer = "]" if opener == "[" else ")"
        self.at += 1
        self._skip_leading_comma(opener)
        items: list[Any] = []
        may_follow = True
        while True:
            self.skip()
            if self._take(closer):
                is_grouped = opener == "(" and len(items) == 1 and not may_follow
                return items[0] if is_grouped else items
            if not may_follow:
                raise self.unreadable("a comma is expected between two items")
            items.append(self.value())
            may_follow = self._ends_item(items[-1], closer)

    def _skip_leading_comma(self, opener: str) -> None:
        self.skip()
        if self._repairs and opener == "[" and self._take(","):
            self.skip()
            if self._peek() == "]":
                raise self.unreadable("a JSON value is expected here")

    def _ends_item(self, item: Any, closer: str) -> bool:
        """Skip the comma after a parsed list item. Return True if another item may follow.

        Another item may follow a comma, or a missing comma that can be repaired unambiguously. `closer` is the closing
        bracket.
        """
        broken = self.skip()
        if self._take(","):
            return True
        if self._peek() == closer or not self._repairs:
            return False
        opens, holds = self._peek() in ("{", "["), isinstance(item, dict | list)
        return (opens or holds) if broken else opens != holds

    # --- objects -------------------------------------------------------------------------------

    def _object(self) -> dict[str, Any]:
        self.at += 1
        members: list[tuple[str, Any]] = []
        may_follow = True
        while True:
            self.skip()
            if self._take("}"):
                return unique(members)
            if not may_follow:
                raise self.unreadable("a comma is expected between two items")
            members.append(self._member())
            may_follow = self._ends_member(members[-1][1])

    def _ends_member(self, value: Any) -> bool:
        broken = self.skip()
        return self._take(",") or (self._repairs and (broken or not isinstance(value, str)))

    def _member(self) -> tuple[str, Any]:
        opener = self._peek()
        key = self._key()
        self.skip()
        if not self._take(":") and not self._may_lack_colon(opener):
            raise self.unreadable("a colon is expected after the key of an object")
        return key, self.value()

    def _may_lack_colon(self, opener: str) -> bool:
        word = _NAME.match(self._text, self.at)
        is_value = self._peek() == '"' or (word is not None and word[0] in _CONSTANTS)
        return self._repairs and opener == '"' and is_value

    def _key(self) -> str:
        if self._peek() in _CLOSERS:
            return self._string()
        found = _INTEGER.match(self._text, self.at)
        if found is None and self._repairs:
            found = _NAME.match(self._text, self.at)
        if found is None:
            raise self.unreadable("a key in quotes is expected here")
        self.at = found.end()
        return found[0]


def _join_surrogates(text: str) -> str:
    """Join the two halves of surrogate pairs that were escaped separately. A lone surrogate stays in the text."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
