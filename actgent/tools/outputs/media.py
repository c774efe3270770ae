"""Pictures, audio and files that tools return: what a result holds of them, and the words that stand for them.

A tool returns an `Image`, a `File`, or a list of them and of text. What is text after all is put into the words, so that
it goes through the limits of results; the rest stands in `ToolResult.media`, as far as the bounds allow, and is named in
the words in any case. A model's client shows what its API takes. The type is read from the bytes, as an API refuses
whole conversations for a picture that is none.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from actgent.errors import UnusableResult
from actgent.messages import File, Image, Media, Medium, ToolCall
from actgent.support.foreign import type_name

from .results import controls_shown, fallback_text, to_text

LONGEST = 3_750_000
"""Bytes of one picture or file that a result holds: 5 MB as base64, which is what APIs take."""
MOST_PIECES = 20
"""Pictures and files of one result."""
MOST_BYTES = 20_000_000
"""Bytes of them that a session holds in its whole life, since each request has them all: APIs take 32 MB, as base64."""
_KEY = "_result_media"
OTHER = "application/octet-stream"
"""The type of bytes that say nothing of themselves (RFC 2046)."""
_TYPE = re.compile(r"[a-z0-9]+/[a-z0-9][a-z0-9.+-]{0,80}")
_TEXT = re.compile(r"text/.+|application/(.+\+)?(json|xml|yaml|x-yaml|javascript|x-ndjson)|image/svg\+xml")
_SIGNS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
)
_IN_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_SIGNED = frozenset([kind for _, kind in _SIGNS] + list(_IN_RIFF.values())) - {"audio/mpeg"}
"""Types whose bytes say so themselves: what does not begin with the sign is not of the type."""
_LONGEST_NAME = 100


@attrs.frozen
class DescribedMedia:
    """What a tool returned, in words, and the pictures and files that stand beside them."""

    text: str
    media: tuple[Medium, ...]
    unusable: UnusableResult | None = None
    """Why an item is shown as `str(item)`; None if JSON carries all items."""


def has_media(value: object) -> bool:
    """Return True for a picture or file, and for a list that has one."""
    kind = type(value)  # not `isinstance`: that asks the value, whose `__class__` may raise
    if issubclass(kind, Media):
        return True
    return issubclass(kind, (list, tuple)) and any(issubclass(type(item), Media) for item in value)  # type: ignore[attr-defined]


def media_and_rest(value: Any) -> tuple[list[Any], list[Any]]:
    """Pictures and files of what a tool returned, and the rest."""
    items: Sequence[Any] = (value,) if isinstance(value, Media) else value
    return (
        [item for item in items if isinstance(item, Media)],
        [item for item in items if not isinstance(item, Media)],
    )


def in_words(value: object) -> str:
    """Return what a tool returned, for a person: pictures and files by their type and size."""
    if not has_media(value):
        return str(value)
    return describe_media(value, ToolCall("", {}), state=None, outside=True).text


def medium_of(data: bytes, media_type: str, *, name: str = "file") -> Medium:
    """Bytes as a picture, or as a file where they are none; their type goes before what somebody says of it."""
    kind = type_of(data, media_type)
    if kind.startswith("image/"):
        return Image(media_type=kind, data=data)
    return File(media_type=kind, data=data, name=name)


def type_of(data: bytes, said: str) -> str:
    """The media type of bytes: by their sign, else as said, unless they would have to have a sign."""
    real = next((kind for sign, kind in _SIGNS if data.startswith(sign)), None)
    if data[:4] == b"RIFF":
        real = _IN_RIFF.get(data[8:12], real)
    said = said.partition(";")[0].strip().lower()
    if real is not None:
        return real
    return OTHER if said in _SIGNED or not _TYPE.fullmatch(said) else said


def describe_media(value: object, call: ToolCall, *, state: Any, outside: bool) -> DescribedMedia:
    """Put into words what a tool returned that holds pictures or files, and choose which of these the result holds.

    `state` is the session's store, which counts their bytes; without one only the bounds of one result count. Of what
    comes from outside no address is passed on. An item that JSON cannot carry is shown as `str(item)`.
    """
    room = MOST_BYTES - (0 if state is None else state.get(_KEY, 0))
    kept: list[Medium] = []
    texts: list[str] = []
    unusable: UnusableResult | None = None
    for item in value if isinstance(value, (list, tuple)) else (value,):
        try:
            medium = _checked(item) if issubclass(type(item), Media) else None
            if medium is None:
                texts.append(to_text(item))
                continue
        except UnusableResult as error:
            unusable = unusable or error
            texts.append(fallback_text(item))
            continue
        if (text := _as_text(medium)) is not None:
            texts.append(text)
            continue
        refusal = _why_not(medium, kept, room, outside=outside)
        texts.append(f"[{_named(medium)}{refusal}]")
        if not refusal:
            kept.append(medium)
            room -= len(medium.data or b"")
    if kept and state is not None:
        # Once: a call that is repeated after a crash may have come as far as here before it.
        state.dispatch([(_KEY, MOST_BYTES - room)], once=f"{call.id}/media")
    return DescribedMedia("\n".join(texts), tuple(kept), unusable)


def _checked(medium: Any) -> Medium:
    """Return a picture or file with the type that its bytes have, and with a name of one line.

    Raises:
        UnusableResult: The data is not bytes.
    """
    checked: Medium = medium
    if isinstance(checked, File):
        checked = attrs.evolve(
            checked, name=controls_shown(str(checked.name))[:_LONGEST_NAME].replace("\n", " ")
        )
    if checked.data is None:
        return checked
    try:
        data = bytes(checked.data)
    except Exception as error:  # of a foreign class
        raise UnusableResult(
            f"the data of {type(checked).__name__} is {type_name(checked.data)}, not bytes"
        ) from error
    return attrs.evolve(checked, data=data, media_type=type_of(data, checked.media_type))


def _as_text(medium: Medium) -> str | None:
    """Return what it says, where it is text; None: it is none."""
    if medium.data is None or not _TEXT.fullmatch(medium.media_type):
        return None
    try:
        text = medium.data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return f"[{_named(medium)}]\n{to_text(text)}"


def _named(medium: Medium) -> str:
    return ", ".join(_details(medium))


def _details(medium: Medium) -> Iterator[str]:
    kind = medium.media_type.partition("/")[0]
    what = kind if kind in ("image", "audio", "video") else "file"
    name = f" {medium.name}" if isinstance(medium, File) and medium.name != "file" else ""
    yield f"{what}{name}: {medium.media_type}"
    yield f"at {medium.url}" if medium.data is None else f"{len(medium.data):,} bytes"


def _why_not(medium: Medium, kept: Sequence[Medium], room: int, *, outside: bool) -> str:
    """Say why a result does not hold it; empty: it does."""
    if medium.data is None:
        return "; an address of a stranger is not followed" if outside else ""
    if not medium.data:
        return "; it is empty"
    if len(medium.data) > LONGEST:
        return f"; not shown: longer than {LONGEST:,} bytes"
    if len(kept) >= MOST_PIECES:
        return f"; not shown: a result holds {MOST_PIECES} of them"
    if len(medium.data) > room:
        return f"; not shown: a session holds {MOST_BYTES:,} bytes of them"
    return ""
