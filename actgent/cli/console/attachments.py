"""Files that go with a message: pictures, sound, videos and documents as they are, text as text."""

import mimetypes
from pathlib import Path

from actgent.errors import ConfigurationError
from actgent.errors.printable import counted
from actgent.messages import File, Image, Part, Text

MAX_BYTES = 20_000_000


def attachment(place: str) -> Part:
    """Read a file for a message.

    Raises:
        ConfigurationError: it cannot be read, is too large, or is neither a picture, sound, a video, a PDF nor text.
    """
    path = Path(place).expanduser()
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
            f"{place} cannot be attached: it is neither a picture, nor sound, a video, a PDF, nor text in UTF-8"
        ) from None
    return Text(f"The file {path.name}:\n\n{text}")


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigurationError(f"{path} cannot be attached: it has more than {MAX_BYTES:,} bytes")
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be attached: {error.strerror}") from None


def describe_attachment(part: Part) -> str:
    """Return what an attachment is, in a few words."""
    match part:
        case Image(media_type=kind, data=bytes(data)):
            return f"picture {kind}, {counted(len(data), 'byte')}"
        case File(name=name, data=bytes(data)):
            return f"{name}, {counted(len(data), 'byte')}"
        case Text(text=text):
            return f"{text.partition(':')[0].removeprefix('The file ')}, {counted(len(text), 'character')}"
    return type(part).__name__
