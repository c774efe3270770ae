"""Message attachments: images, audio, video and PDF files are sent as binary parts, all others as text."""

import mimetypes
from pathlib import Path

from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import counted
from actgent.messages import File, Image, Part, Text

MAX_BYTES = 20_000_000
"""Maximum size of an attachment in bytes."""


def attachment(path_text: str) -> Part:
    """Read the file at a path and return its content as a message part.

    Raises:
        ConfigurationError: The file cannot be read, is too large, or is neither a media file, a PDF nor UTF-8 text.
    """
    path = Path(path_text).expanduser()
    data = _read(path)
    kind = mimetypes.guess_type(path.name)[0] or ""
    if kind.startswith("image/"):
        return Image(media_type=kind, data=data)
    if kind == "application/pdf" or kind.startswith(("audio/", "video/")):
        return File(media_type=kind, data=data, name=path.name)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"{path_text} cannot be attached: it must be an image, audio, video, PDF or UTF-8 text file"
        ) from None
    return Text(f"The file {path.name}:\n\n{text}")


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigurationError(
                f"{path} cannot be attached: the file must have at most {MAX_BYTES:,} bytes"
            )
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be attached: {error.strerror}") from None


def describe_attachment(part: Part) -> str:
    """Return the kind or name of an attachment, and its size, as text."""
    match part:
        case Image(media_type=kind, data=bytes(data)):
            return f"picture {kind}, {counted(len(data), 'byte')}"
        case File(name=name, data=bytes(data)):
            return f"{name}, {counted(len(data), 'byte')}"
        case Text(text=text):
            return f"{text.partition(':')[0].removeprefix('The file ')}, {counted(len(text), 'character')}"
    return type(part).__name__
