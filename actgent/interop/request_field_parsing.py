"""Parsing of fields in requests of other protocols: pictures and files, ids that clients choose, texts and objects."""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from actgent.messages import File, Image, Part, ToolCall
from actgent.web.problem_documents import Problem
from actgent.web.routes.common_request_schemas import CLIENT_ID

_CLIENT_ID = re.compile(CLIENT_ID)


def media_of_url(url: str, media_type: str = "", *, name: str = "file") -> Part:
    """Return the image or file of a URL. `data:` URLs are decoded; the model's provider fetches `http:` and `https:` URLs.

    Raises:
        Problem: The URL has another scheme, or its data is not base64.
    """
    if url.startswith("data:"):
        head, _, text = url.removeprefix("data:").partition(",")
        kind = head.partition(";")[0] or media_type
        return to_file(text, kind, name=name)
    if not url.startswith(("https://", "http://")):
        raise Problem("invalid", "the URL of a file must begin with https:, http: or data:")
    kind = media_type or "image/*"
    return (
        Image(media_type=kind, url=url)
        if kind.startswith("image/")
        else File(media_type=kind, url=url, name=name)
    )


def to_file(text: str, media_type: str, *, name: str = "file") -> Part:
    """Decode a base64 text to an image or file. `name` is the file's name.

    Raises:
        Problem: The text is not base64, or the media type is missing.
    """
    if not media_type:
        raise Problem("invalid", "a file must have a media type")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Problem("invalid", "the data of a file must be base64 (RFC 4648)") from None
    if media_type.startswith("image/"):
        return Image(media_type=media_type, data=data)
    return File(media_type=media_type, data=data, name=name)


def to_client_id(text: str) -> str:
    """Return an id for the id text of a client: the text itself, or a hash of it if it has characters that ids cannot have."""
    if _CLIENT_ID.fullmatch(text):
        return text
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"actgent.outside").hexdigest()


def session_of_field(value: object) -> str:
    """Return the session id in a field of a request; empty if the value is no text, which the endpoint rejects later."""
    return to_client_id(value) if isinstance(value, str) and value else ""


def text_field(value: object, name: str) -> str:
    """Validate the value of the required text field `name`, and return the text.

    Raises:
        Problem: The value is missing, empty or no text.
    """
    if not isinstance(value, str) or not value or "\x00" in value:
        raise Problem("invalid", f"{name} must be a string that is not empty", param=name)
    return value


def content_parts(content: Sequence[Any]) -> Sequence[Any]:
    """Return the parts of a message without empty texts, which clients send next to an image.

    If all parts are empty, return them unchanged.
    """
    return [part for part in content if not is_empty_text(part)] or content


def is_empty_text(part: object) -> bool:
    """Return True if a content part is an empty text."""
    return isinstance(part, dict) and part.get("text") == "" and part.get("type") in _TEXT_TYPES


_TEXT_TYPES = ("text", "input_text", "output_text")
"""Types of content parts that hold a text, in OpenAI's, AG-UI's and Vercel's messages."""
_KINDS: Mapping[type, str] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


def check_types(body: Mapping[str, Any], types: Mapping[str, Sequence[type]]) -> None:
    """Check the types of the fields of a request body. A field may be missing or null.

    Args:
        body: Body of the request.
        types: Allowed types of the fields, by name; `float` also allows whole numbers.

    Raises:
        Problem: A field has a type that is not allowed.
    """
    for name, wanted in types.items():
        value = body.get(name)
        if value is None or type(value) in wanted or (type(value) is int and float in wanted):
            continue
        kinds = " or ".join(_KINDS[each] for each in wanted)
        raise Problem("invalid", f"{name} must be {kinds}", param=name)


def object_of(value: object, name: str) -> Mapping[str, Any]:
    """Validate the value of the object field `name`, and return the object; empty if the value is missing or null.

    Raises:
        Problem: The value is no object.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Problem("invalid", f"{name} must be an object", param=name)
    return value


def call_arguments(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a tool call; empty if the model wrote no JSON object."""
    return {} if isinstance(call.arguments, str) else dict(call.arguments)
