"""JSON as models write it: single quotes, Python's constants, comments, trailing commas.

What is read has each string and number of its text, as it stands there and at its place, and nothing else: no two
strings become one, none is quoted, cut or moved. What no rule below accounts for makes the whole value unreadable.

`mends=True` also takes small losses: bare keys, typographic quotes, a colon behind a quoted key, a comma at the end of a
line, before a member whose key is there, or between a bracketed item and its neighbour. It is for a text that is one
value and nothing else. A comma that is missing between two strings or numbers is never put in: nobody knows what the
model meant, so it is asked again.
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
"""Other languages know these, and make other characters of them."""
_CONSTANTS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_LARGEST = 0x10FFFF


class Unreadable(Exception):
    """A text that is not read; the words say why and where."""


def read(text: str, *, mends: bool = False) -> Any:
    """The value of a text that is one bracketed value.

    Raises:
        Unreadable: it is none, or no rule accounts for something in it.
        ParseError: it holds what is not stored, see `strict_json`.
    """
    reader = _Reader(text, mends=mends)
    value = reader.value()
    reader.skip()
    if reader.at < len(text):
        raise reader.unreadable("there is more than one value")
    if not text.isascii() or "\\" in text:
        check_unicode(value)
    return value


class _Reader:
    def __init__(self, text: str, *, mends: bool) -> None:
        self._text = text
        self._mends = mends
        self.at = 0

    def unreadable(self, reason: str) -> Unreadable:
        return Unreadable(f"{reason} at character {self.at}")

    def skip(self) -> bool:
        """Go behind space and comments; whether there is a line break among them."""
        start = self.at
        self.at = _SPACE.match(self._text, start).end()  # type: ignore[union-attr]  # it matches nothing, too
        return "\n" in self._text[start : self.at]

    def _next(self) -> str:
        return self._text[self.at : self.at + 1]

    def _take(self, mark: str) -> bool:
        taken = self._next() == mark
        self.at += taken
        return taken

    # --- values --------------------------------------------------------------------------------

    def value(self) -> Any:
        self.skip()
        mark = self._next()
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
                raise self.unreadable(f"{word[0][:30]} is not a value")
            self.at = word.end()
            return _CONSTANTS[word[0]]
        number = _NUMBER.match(self._text, self.at)
        if number is None or not (number[2] or number[3].strip(".")):
            raise self.unreadable("a value is missing")
        return self._number(number)

    def _number(self, found: re.Match[str]) -> float:
        sign, whole, fraction, exponent = (part.replace("_", "") for part in found.groups())
        if len(whole) > 1 and whole[0] == "0":
            raise self.unreadable("a number begins with 0")
        self.at = found.end()
        sign = sign.replace("+", "")
        return real(f"{sign}{whole}{fraction}{exponent}") if fraction or exponent else integer(sign + whole)

    def _string(self) -> str:
        opener = self._next()
        if opener not in _CLOSERS or (opener not in "\"'" and not self._mends):
            raise self.unreadable("a string is missing")
        body = _BODIES[opener].match(self._text, self.at + 1)
        if body is None:
            raise self.unreadable("a string has no end")
        said = body[1]
        if "\\" in said:
            said = _joined_pairs(_ESCAPE.sub(self._unescaped, said))
        self.at = body.end()
        return said

    def _unescaped(self, escape: re.Match[str]) -> str:
        short, long, byte, mark, _ = escape.groups()
        if digits := short or long or byte:
            if int(digits, 16) > _LARGEST:
                raise self.unreadable("an escape means no character")
            return chr(int(digits, 16))
        if mark is None or mark in _FOREIGN_ESCAPES:
            raise self.unreadable("a string holds an escape that JSON does not know")
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
                raise self.unreadable("a comma is missing")
            items.append(self.value())
            may_follow = self._ends_item(items[-1], closer)

    def _skip_leading_comma(self, opener: str) -> None:
        self.skip()
        if self._mends and opener == "[" and self._take(","):
            self.skip()
            if self._next() == "]":
                raise self.unreadable("a value is missing")

    def _ends_item(self, item: Any, closer: str) -> bool:
        """Return True if another item may follow: behind a comma, or where none is needed to tell them apart."""
        broken = self.skip()
        if self._take(","):
            return True
        if self._next() == closer or not self._mends:
            return False
        opens, holds = self._next() in ("{", "["), isinstance(item, dict | list)
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
                raise self.unreadable("a comma is missing")
            members.append(self._member())
            may_follow = self._ends_member(members[-1][1])

    def _ends_member(self, value: Any) -> bool:
        broken = self.skip()
        return self._take(",") or (self._mends and (broken or not isinstance(value, str)))

    def _member(self) -> tuple[str, Any]:
        opener = self._next()
        key = self._key()
        self.skip()
        if not self._take(":") and not self._may_lack_colon(opener):
            raise self.unreadable("a colon is missing")
        return key, self.value()

    def _may_lack_colon(self, opener: str) -> bool:
        word = _NAME.match(self._text, self.at)
        is_value = self._next() == '"' or (word is not None and word[0] in _CONSTANTS)
        return self._mends and opener == '"' and is_value

    def _key(self) -> str:
        if self._next() in _CLOSERS:
            return self._string()
        found = _INTEGER.match(self._text, self.at)
        if found is None and self._mends:
            found = _NAME.match(self._text, self.at)
        if found is None:
            raise self.unreadable("a key is missing")
        self.at = found.end()
        return found[0]


def _joined_pairs(text: str) -> str:
    """Surrogates that were escaped one by one as the characters that they mean; a lone one stays, to be refused."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
