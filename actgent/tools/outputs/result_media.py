"""Pictures, audio and files that tools return.

A tool returns an `Image`, a `File`, or a list of media and text. Text files are decoded into the result text, where the
limits of results apply. Other media go to `ToolResult.media` within the limits below, and are always mentioned in the
text. The media type is detected from the bytes, because APIs reject the whole conversation for a picture of a wrong type.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from actgent.errors import InvalidToolResult
from actgent.messages import File, Image, Media, Medium, ToolCall
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.user_code_calls import type_name

from .result_text import fallback_text, replace_control_characters, to_text

MAX_MEDIUM_BYTES = 3_750_000
"""Maximum size of one picture or file: 5 MB as base64, the limit of the APIs."""
MAX_MEDIA = 20
"""Maximum number of pictures and files in one result."""
MAX_SESSION_MEDIA_BYTES = 20_000_000
"""Maximum size of all media of a session. Each request sends all of them, and APIs accept 32 MB of base64."""
_KEY_PREFIX = "_result_media"
UNKNOWN_TYPE = "application/octet-stream"
"""Media type of bytes whose type is unknown (RFC 2046)."""
_TYPE = re.compile(r"[a-z0-9]+/[a-z0-9][a-z0-9.+-]{0,80}")
_TEXT_TYPE = re.compile(
    r"text/.+|application/(.+\+)?(json|xml|yaml|x-yaml|javascript|x-ndjson)|image/svg\+xml"
)
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
)
_RIFF_TYPES = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_SIGNED_TYPES = frozenset([kind for _, kind in _SIGNATURES] + list(_RIFF_TYPES.values())) - {"audio/mpeg"}
"""Media types that have a signature. Bytes without the signature do not have the type."""
_MAX_NAME_CHARACTERS = 100


@attrs.frozen(repr=False)
class DescribedMedia(FieldRepr):
    """The text and the media of a tool result."""

    text: str
    """Text of the result, with one line for each picture and file."""
    media: tuple[Medium, ...]
    """Pictures and files that the result contains."""
    unusable: InvalidToolResult | None = None
    """Error of the first item that was converted by `str(item)`; None if JSON can represent all items."""


def has_media(value: object) -> bool:
    """Return True if the value of a tool is a picture or file, or a list with a picture or file. Nested lists are ignored."""
    kind = type(value)  # not `isinstance`: it reads `__class__` of the value, which may raise
    if issubclass(kind, Media):
        return True
    return issubclass(kind, (list, tuple)) and any(issubclass(type(item), Media) for item in value)  # type: ignore[attr-defined]


def split_media(value: Any) -> tuple[list[Any], list[Any]]:
    """Split the value of a tool into two lists: its pictures and files, and its other items."""
    items: Sequence[Any] = (value,) if isinstance(value, Media) else value
    return (
        [item for item in items if isinstance(item, Media)],
        [item for item in items if not isinstance(item, Media)],
    )


def to_display_text(value: object) -> str:
    """Return a tool's value as text for a terminal; pictures and files are shown by type and size."""
    if not has_media(value):
        return str(value)
    return describe_media(value, ToolCall("", {}), state=None, outside=True).text


def make_medium(data: bytes, media_type: str, *, name: str = "file") -> Medium:
    """Make an `Image` of bytes, or a `File` if they are not a picture.

    A media type that is detected from the bytes overrides `media_type`.
    """
    kind = detect_media_type(data, media_type)
    if kind.startswith("image/"):
        return Image(media_type=kind, data=data)
    return File(media_type=kind, data=data, name=name)


def detect_media_type(data: bytes, declared: str) -> str:
    """Detect the media type of bytes by their signature.

    Without a known signature, return the `declared` type, or a generic type if data of the declared type must have a signature.
    """
    real = next((kind for sign, kind in _SIGNATURES if data.startswith(sign)), None)
    if data[:4] == b"RIFF":
        real = _RIFF_TYPES.get(data[8:12], real)
    declared = declared.partition(";")[0].strip().lower()
    if real is not None:
        return real
    return UNKNOWN_TYPE if declared in _SIGNED_TYPES or not _TYPE.fullmatch(declared) else declared


def describe_media(value: object, call: ToolCall, *, state: Any, outside: bool) -> DescribedMedia:
    """Convert a tool's value with pictures or files to text, and select the media that the result contains.

    An item that JSON cannot represent is shown as `str(item)`.

    Args:
        value: A picture, a file, or a list of them and other items.
        call: The tool call. A repetition with the same id does not count the bytes twice.
        state: Session store that accounts for the bytes; with None only the limits of one result apply.
        outside: True if the tool is untrusted. Its media that are only URLs are then left out.
    """
    budget_bytes = MAX_SESSION_MEDIA_BYTES - (0 if state is None else state.shared_values.get(_KEY_PREFIX, 0))
    accepted: list[Medium] = []
    texts: list[str] = []
    unusable: InvalidToolResult | None = None
    for item in value if isinstance(value, (list, tuple)) else (value,):
        try:
            medium = _normalize(item) if issubclass(type(item), Media) else None
            if medium is None:
                texts.append(to_text(item))
                continue
        except InvalidToolResult as error:
            unusable = unusable or error
            texts.append(fallback_text(item))
            continue
        if (text := _as_text(medium)) is not None:
            texts.append(text)
            continue
        rejection = _rejection_note(medium, accepted, budget_bytes, outside=outside)
        texts.append(f"[{_label(medium)}{rejection}]")
        if not rejection:
            accepted.append(medium)
            budget_bytes -= len(medium.data or b"")
    if accepted and state is not None:
        # `once`: a call that is repeated after a crash may have been counted before.
        state.dispatch([(_KEY_PREFIX, MAX_SESSION_MEDIA_BYTES - budget_bytes)], once=f"{call.id}/media")
    return DescribedMedia("\n".join(texts), tuple(accepted), unusable)


def _normalize(medium: Any) -> Medium:
    """Return a picture or file with its detected media type and a name on one line.

    Raises:
        InvalidToolResult: The data is not bytes.
    """
    checked: Medium = medium
    if isinstance(checked, File):
        checked = attrs.evolve(
            checked,
            name=replace_control_characters(str(checked.name))[:_MAX_NAME_CHARACTERS].replace("\n", " "),
        )
    if checked.data is None:
        return checked
    try:
        data = bytes(checked.data)
    except Exception as error:  # user code: the class of the data may raise anything
        raise InvalidToolResult(
            f"the data of {type(checked).__name__} must be bytes, not {type_name(checked.data)}"
        ) from error
    return attrs.evolve(checked, data=data, media_type=detect_media_type(data, checked.media_type))


def _as_text(medium: Medium) -> str | None:
    """Return the content of a text file, with a heading that names the file; None if the medium is not UTF-8 text."""
    if medium.data is None or not _TEXT_TYPE.fullmatch(medium.media_type):
        return None
    try:
        text = medium.data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return f"[{_label(medium)}]\n{to_text(text)}"


def _label(medium: Medium) -> str:
    return ", ".join(_label_parts(medium))


def _label_parts(medium: Medium) -> Iterator[str]:
    kind = medium.media_type.partition("/")[0]
    noun = kind if kind in ("image", "audio", "video") else "file"
    name = f" {medium.name}" if isinstance(medium, File) and medium.name != "file" else ""
    yield f"{noun}{name}: {medium.media_type}"
    yield f"at {medium.url}" if medium.data is None else f"{len(medium.data):,} bytes"


def _rejection_note(medium: Medium, accepted: Sequence[Medium], budget_bytes: int, *, outside: bool) -> str:
    """Return a note for the model if a picture or file exceeds a limit or is not usable, and is therefore left out.

    Return an empty text if the model may get the medium.

    Args:
        medium: The picture or file.
        accepted: Media of the same result that the model gets.
        budget_bytes: Bytes that the media of the session may still have.
        outside: True if the tool is untrusted.
    """
    if medium.data is None:
        return "; URLs from untrusted sources are not fetched" if outside else ""
    if not medium.data:
        return "; it is empty"
    if len(medium.data) > MAX_MEDIUM_BYTES:
        return f"; not shown: longer than {MAX_MEDIUM_BYTES:,} bytes"
    if len(accepted) >= MAX_MEDIA:
        return f"; not shown: a result contains at most {MAX_MEDIA} media"
    if len(medium.data) > budget_bytes:
        return f"; not shown: a session contains at most {MAX_SESSION_MEDIA_BYTES:,} bytes of media"
    return ""
