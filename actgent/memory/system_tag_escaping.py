"""Delimiters of system notices, and their removal from all other text, as a defence against prompt injection.

A notice is enclosed in `<system>` and `</system>`. In text of users, models and tools, the `<` of such a delimiter is replaced
by `[` before the model sees it, in any spelling. The journal keeps the original text. The result only depends on the text, so
the prefix of a prompt does not change. The headings of results of text calls, `[tool] (ID: ...)`, are protected as well: the
bracket is escaped.

Recognized are spellings in upper and lower case, with spaces, attributes or invisible characters, and with full-width or
look-alike letters and brackets. Also recognized are HTML entities, escapes, and delimiters that are split between two parts of a
message.
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
_LETTERS = {"s": "sѕꜱƽᏚꓢՏ𝗌", "y": "yуүγʏყỿɏЎуꭚ", "t": "tтτᴛŧƫꓔᎢ", "e": "eеєεᴇɛҽℯ℮ꬲəꓰᎬ", "m": "mмᴍʍΜϻꓟᎷ"}
_INVISIBLE = "\u115f\u1160\u3164\uffa0\u2800"
_INVISIBLE_KINDS = ("Cc", "Cf", "Cs", "Mn", "Me", "Zs", "Zl", "Zp", "Cn", "Co")
_TAGS = range(0xE0020, 0xE007F)
"""Invisible Unicode tag characters, which models read as ASCII."""


class _Skeleton(dict[int, str]):
    """Mapping of characters to the ASCII characters that they look like, for characters that occur in a delimiter."""

    def __missing__(self, code: int) -> str:
        if len(self) >= _MAX_KEPT:
            self.clear()
        looks = self[code] = _similar_ascii(chr(code), code)
        return looks


_ALIKE = dict.fromkeys(_OPENERS, "<") | {sign: letter for letter, signs in _LETTERS.items() for sign in signs}


def _similar_ascii(character: str, code: int) -> str:
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


def _encoded_pattern(character: str) -> str:
    """Return a regular expression for a character as an HTML entity, an escape sequence or a URL-encoded byte."""
    codes = {ord(character.lower()), ord(character.upper())}
    return "|".join(rf"&(?:amp;)*#(?:0*{code}|x0*{code:x});?|\\(?:u00|x){code:x}|%{code:x}" for code in codes)


_GAP = r"[\s\x00/]*+"
_LETTER = {letter: rf"(?:{letter}|{_encoded_pattern(letter)})" for letter in _LETTERS}
_MIDDLE = rf"(?:{_LETTER['s']}{_GAP}{_LETTER['t']}|\x01)"
_WORD = _GAP.join((_LETTER["s"], _LETTER["y"], _MIDDLE, _LETTER["e"], _LETTER["m"]))
_MARK = re.compile(
    rf"(<|&(?:amp;)*lt;?|{_encoded_pattern('<')})(?={_GAP}(?:&(?:amp;)*#(?:0*47|x0*2f);?)?{_GAP}{_WORD}(?!\w|[.:-]\w))",
    re.IGNORECASE | re.ASCII,
)
_OPENED = re.compile(rf"[{_OPENERS}&\\%]|[\U000e0020-\U000e007e]|\] \(ID: ")
_PLAIN_NAME = re.compile(r"[\w.-]+", re.ASCII)
_SKELETON = _Skeleton()


_HEADING = re.compile(r"^\[(?=[^\]\n]{0,300}\] \(ID: )", re.MULTILINE)


def _may_contain_delimiter(text: str) -> bool:
    """Return True if a text contains a character that can begin a delimiter.

    This check is fast, since most texts contain none.
    """
    if not text.isascii():
        return _OPENED.search(text) is not None
    return "<" in text or "&" in text or "\\" in text or "%" in text or "] (ID: " in text


def neutralize(text: str) -> str:
    """Return a text in which delimiters of system notices, and headings of tool results, no longer work as such.

    So users and tools cannot imitate system text. Harmless text is returned unchanged.
    """
    if not _may_contain_delimiter(text):
        return text
    text = _HEADING.sub(r"\[", text)
    return _remove_spans(text, _delimiter_spans(text))


def neutralize_parts(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Make system tags in the texts of message parts harmless. Return the parts, or the same tuple if there are no tags.

    Delimiters that are split between adjacent texts are found as well.
    """
    if len(parts) == 1:
        part = parts[0]
        if type(part) is Text and not _may_contain_delimiter(part.text):  # the usual case
            return parts
        return _neutralize_part(parts)
    texts = [part.text for part in parts if isinstance(part, Text)]
    if len(texts) > 1 and any(map(_may_contain_delimiter, texts)):
        replaced = iter(_neutralize_together(texts))
        parts = tuple([Text(next(replaced)) if isinstance(part, Text) else part for part in parts])
    return tuple([_neutralize_part((part,))[0] for part in parts])


def neutralize_result(result: ToolResult) -> ToolResult:
    """Make system tags in content, error and tool name of a result harmless. Without tags, return the same object."""
    if (
        not _may_contain_delimiter(result.content)
        and result.error is None
        and _PLAIN_NAME.fullmatch(result.tool_name)
    ):
        return result  # the usual case
    content, error, name = neutralize(result.content), result.error, neutralize(result.tool_name)
    error = None if error is None else neutralize(error)
    if content == result.content and error == result.error and name == result.tool_name:
        return result
    return attrs.evolve(result, content=content, error=error, tool_name=name)


def _neutralize_part(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    part = parts[0]
    if isinstance(part, Text):
        text = neutralize(part.text)
        return parts if text == part.text else (Text(text),)
    return (neutralize_result(part),) if isinstance(part, ToolResult) else parts


def _neutralize_together(texts: Sequence[str]) -> list[str]:
    """Make system tags in several texts harmless, including tags that are split between two texts."""
    places, start, whole = _delimiter_spans("\n".join(texts)), 0, []
    for text in texts:
        own = [(at - start, end - start) for at, end in places if start <= at and end <= start + len(text)]
        whole.append(_remove_spans(text, own))
        start += len(text) + 1
    return whole


def _delimiter_spans(text: str) -> list[tuple[int, int]]:
    """Return the start and end index of each character, plain or encoded, that begins a delimiter as `<` does."""
    skeleton = text if text.isascii() else text.translate(_SKELETON)
    return [match.span(1) for match in _MARK.finditer(skeleton)]


def _remove_spans(text: str, places: Sequence[tuple[int, int]]) -> str:
    for start, end in reversed(places):
        text = f"{text[:start]}[{text[end:]}"
    return text
