"""What tells a notice of the system from what anybody says.

A notice stands between `<system>` and `</system>`. Nobody else's words hold these marks as a model sees them: where the sign
that opens one stands, in whichever spelling, a `[` stands instead. The record keeps the words as they were said, and the
same words always come out the same, so a prompt's prefix stays as it is. The headings of results of calls that stood in
text, `[tool] (ID: ...)`, are nobody else's either: there the bracket is escaped.

Spellings are other cases, spaces and attributes in it, full-width and look-alike letters and brackets, invisible characters
between them, entities and escapes, and marks that begin in one part of a message and end in another.
"""

import re
import unicodedata
from collections.abc import Sequence

import attrs

from actgent.messages import Part, Text, ToolResult

_IGNORED = "\x00"
_LIGATURE = "\x01"
_MAX_KEPT = 4_096
_OPENERS = "<˂‹〈〈⟨❬❮❰⧼《⟪≺⋖ᐸᐊ＜﹤𖼑"
_LETTERS = {
    "s": "sѕꜱƽᏚꓢՏ𝗌",
    "y": "yуүγʏყỿɏЎуꭚ",
    "t": "tтτᴛŧƫꓔᎢ",
    "e": "eеєεᴇɛҽℯ℮ꬲəꓰᎬ",
    "m": "mмᴍʍΜϻꓟᎷ",
}
_INVISIBLE = "\u115f\u1160\u3164\uffa0\u2800"
_INVISIBLE_KINDS = ("Cc", "Cf", "Cs", "Mn", "Me", "Zs", "Zl", "Zp", "Cn", "Co")
_TAGS = range(0xE0020, 0xE007F)
"""Invisible copies of ASCII, which models read."""


class _Skeleton(dict[int, str]):
    """What a character looks like, as one ASCII character where it looks like one that counts here."""

    def __missing__(self, code: int) -> str:
        if len(self) >= _MAX_KEPT:
            self.clear()
        looks = self[code] = _looks_like(chr(code), code)
        return looks


_ALIKE = dict.fromkeys(_OPENERS, "<") | {sign: letter for letter, signs in _LETTERS.items() for sign in signs}


def _looks_like(character: str, code: int) -> str:
    if code < 0x80:  # noqa: PLR2004 - ASCII
        return character
    if code in _TAGS:
        return chr(code - 0xE0000)
    if character in _INVISIBLE or unicodedata.category(character) in _INVISIBLE_KINDS:
        return _IGNORED
    plain = [
        each
        for each in unicodedata.normalize("NFKD", character).casefold()
        if unicodedata.category(each) not in ("Mn", "Me")
    ]
    if plain == ["s", "t"]:
        return _LIGATURE
    return _ALIKE.get(character) or (_ALIKE.get(plain[0], plain[0]) if len(plain) == 1 else character)


def _encoded(character: str) -> str:
    """A pattern for a character as an entity, an escape or a byte of an address."""
    codes = {ord(character.lower()), ord(character.upper())}
    return "|".join(rf"&(?:amp;)*#(?:0*{code}|x0*{code:x});?|\\(?:u00|x){code:x}|%{code:x}" for code in codes)


_GAP = r"[\s\x00/]*+"
_LETTER = {letter: rf"(?:{letter}|{_encoded(letter)})" for letter in _LETTERS}
_MIDDLE = rf"(?:{_LETTER['s']}{_GAP}{_LETTER['t']}|\x01)"
_WORD = _GAP.join((_LETTER["s"], _LETTER["y"], _MIDDLE, _LETTER["e"], _LETTER["m"]))
_MARK = re.compile(
    rf"(<|&(?:amp;)*lt;?|{_encoded('<')})(?={_GAP}(?:&(?:amp;)*#(?:0*47|x0*2f);?)?{_GAP}{_WORD}(?!\w|[.:-]\w))",
    re.IGNORECASE | re.ASCII,
)
_OPENED = re.compile(rf"[{_OPENERS}&\\%]|[\U000e0020-\U000e007e]|\] \(ID: ")
_PLAIN_NAME = re.compile(r"[\w.-]+", re.ASCII)
_SKELETON = _Skeleton()


_HEADING = re.compile(r"^\[(?=[^\]\n]{0,300}\] \(ID: )", re.MULTILINE)


def _may_mark(text: str) -> bool:
    """Return True if anything in a text could begin a mark; searches of ASCII for single characters take no time."""
    if not text.isascii():
        return _OPENED.search(text) is not None
    return "<" in text or "&" in text or "\\" in text or "%" in text or "] (ID: " in text


def unmarked(text: str) -> str:
    """Words that are no notice and no heading of a result, without their marks."""
    if not _may_mark(text):
        return text
    text = _HEADING.sub(r"\[", text)
    return _without(text, _places(text))


def unmarked_parts(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The parts of a message that is no notice, without a notice's marks; the same tuple where there are none."""
    if len(parts) == 1:
        part = parts[0]
        if type(part) is Text and not _may_mark(part.text):  # the usual case
            return parts
        return _unmarked_part(parts)
    texts = [part.text for part in parts if isinstance(part, Text)]
    if len(texts) > 1 and any(map(_may_mark, texts)):
        replaced = iter(_unmarked_together(texts))
        parts = tuple([Text(next(replaced)) if isinstance(part, Text) else part for part in parts])
    return tuple([_unmarked_part((part,))[0] for part in parts])


def unmarked_result(result: ToolResult) -> ToolResult:
    """A tool's result without the marks of a notice in what the model reads of it."""
    if not _may_mark(result.content) and result.error is None and _PLAIN_NAME.fullmatch(result.tool_name):
        return result  # the usual case
    content, error, name = unmarked(result.content), result.error, unmarked(result.tool_name)
    error = None if error is None else unmarked(error)
    if content == result.content and error == result.error and name == result.tool_name:
        return result
    return attrs.evolve(result, content=content, error=error, tool_name=name)


def _unmarked_part(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    part = parts[0]
    if isinstance(part, Text):
        text = unmarked(part.text)
        return parts if text == part.text else (Text(text),)
    return (unmarked_result(part),) if isinstance(part, ToolResult) else parts


def _unmarked_together(texts: Sequence[str]) -> list[str]:
    """Texts that a provider may put side by side."""
    places, start, whole = _places("\n".join(texts)), 0, []
    for text in texts:
        own = [(at - start, end - start) for at, end in places if start <= at and end <= start + len(text)]
        whole.append(_without(text, own))
        start += len(text) + 1
    return whole


def _places(text: str) -> list[tuple[int, int]]:
    """Where the signs stand that open a mark."""
    skeleton = text if text.isascii() else text.translate(_SKELETON)
    return [match.span(1) for match in _MARK.finditer(skeleton)]


def _without(text: str, places: Sequence[tuple[int, int]]) -> str:
    for start, end in reversed(places):
        text = f"{text[:start]}[{text[end:]}"
    return text
