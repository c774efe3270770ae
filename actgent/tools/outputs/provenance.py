"""Results that strangers wrote: data for the model, whatever they say.

The model reads them between marks, and the closing one stands nowhere in them: it is a digest of what it closes. So the
same result always has the same mark, also after a restart, and a prompt's prefix stays as it is. What would be the mark
of a role or a call to some model, and characters that nobody sees, are replaced.
"""

import hashlib
import re

import attrs

from actgent.messages import File, Medium, ToolResult

_UNSEEN = re.compile(
    "[\x7f-\x9f\U000e0000-\U000e007f\u202a-\u202e\u2066-\u2069\u200e\u200f\ufeff\ufff9-\ufffb]"
)
"""Copies of ASCII in tags, which models read and people do not see; signs that turn the order of what is shown."""
_ROLES = (
    "system|assistant|user|human|tool|developer|function|invoke|parameter|start_of_turn|end_of_turn|think"
)
_SIGN = re.compile(
    rf"<(?=\s*(?:/\s*)?(?:[|\uff5c]|s>|(?:antml:)?(?:{_ROLES})(?:_(?:calls?|results?|use|response|outputs?))?s?[\s>/]))"
    r"|(?<=[|\uff5c])>|<(?=<SYS>>|</SYS>>)|<(?=/?SYS>>)|\[(?=/?(?:INST|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS)\])",
    re.IGNORECASE,
)
_HARMLESS = {"<": "\u2039", ">": "\u203a", "[": "\u27e6"}


def from_outside(result: ToolResult, origin: str) -> ToolResult:
    """The result with its words as data from `origin`, and with the mark that closes them."""
    content = neutral(result.content)
    error = None if result.error is None else neutral(result.error)
    origin = neutral(origin)
    mark = _mark(f"{result.call_id}\n{origin}\n{error}\n{content}")
    return ToolResult(  # written out: attrs.evolve would cost as much as the rest
        id=result.id,
        call_id=result.call_id,
        tool_name=result.tool_name,
        status=result.status,
        content=content,
        error=error,
        native=result.native,
        origin=origin,
        mark=mark,
        media=tuple(map(_named, result.media)) if result.media else (),
    )


def _named(medium: Medium) -> Medium:
    return attrs.evolve(medium, name=neutral(medium.name)) if isinstance(medium, File) else medium


def neutral(text: str) -> str:
    """Words without what models take for the mark of a role or a call, and without characters that nobody sees."""
    if not text.isascii() or "\x7f" in text:
        text = _UNSEEN.sub("\ufffd", text)
    return (
        _SIGN.sub(lambda found: _HARMLESS[found[0]], text)
        if "<" in text or ">" in text or "[" in text
        else text
    )


def _mark(text: str) -> str:
    """A word that does not stand in a text, and is the same for the same text."""
    salt = 0
    while True:
        mark = hashlib.blake2s(f"{salt}\n{text}".encode(errors="replace"), digest_size=8).hexdigest()
        if mark not in text:
            return mark
        salt += 1
