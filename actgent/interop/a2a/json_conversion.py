"""Parsing and encoding of A2A 1.0 values in JSON: message parts, decisions, parameters. Source: A2A specification 1.0, 4."""

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from actgent.approvals import Approval, Approve, Decision, Edit, Reject, Respond
from actgent.interop.approval_forms import decision_of, question_text
from actgent.interop.request_field_parsing import media_of_url, to_file
from actgent.messages import Medium, Part, Text
from actgent.tools.outputs.result_text import to_text

from .errors import A2AError, invalid

Wire = dict[str, Any]
STATES = (
    "TASK_STATE_SUBMITTED",
    "TASK_STATE_WORKING",
    "TASK_STATE_COMPLETED",
    "TASK_STATE_FAILED",
    "TASK_STATE_CANCELED",
    "TASK_STATE_INPUT_REQUIRED",
    "TASK_STATE_REJECTED",
    "TASK_STATE_AUTH_REQUIRED",
)
_CONTENT = ("text", "raw", "url", "data")
MAX_HISTORY = 2**31 - 1
_UNDERSCORE = re.compile(r"(?<=[a-z])_([a-z])")
_REJECTED = "the user has rejected it"


def to_camel_case(value: Any) -> Any:
    """Return parameters with their member names in camel case. Clients may also send the proto names, such as `page_size`.

    The client's values of `data` and `metadata` stay unchanged.
    """
    if isinstance(value, list):
        return [to_camel_case(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        _UNDERSCORE.sub(lambda found: found[1].upper(), name): each
        if name in ("data", "metadata")
        else to_camel_case(each)
        for name, each in value.items()
    }


def text_param(params: Mapping[str, Any], name: str, *, field: str = "") -> str:
    """Return the text parameter `name`. `field` is its path for errors; empty uses `name`.

    Raises:
        Problem: The parameter is missing, empty or no text.
    """
    value = params.get(name)
    if not isinstance(value, str) or not value or "\x00" in value:
        raise invalid(field or name, "must be a string that is not empty")
    return value


def object_param(params: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the object parameter `name`; an empty object if it is missing.

    Raises:
        Problem: The parameter is no object.
    """
    value = params.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid(name, "must be an object")
    return value


def count_param(
    params: Mapping[str, Any], name: str, *, minimum: int = 0, maximum: int = MAX_HISTORY
) -> int | None:
    """Return the whole-number parameter `name`; None if it is missing.

    Raises:
        Problem: The parameter is no whole number, or is below `minimum` or above `maximum`.
    """
    value = params.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise invalid(name, f"must be a whole number from {minimum} to {maximum}")
    return value


def time_param(params: Mapping[str, Any], name: str) -> float:
    """Return the time parameter `name` (RFC 3339) as Unix time in seconds; 0 if it is missing.

    Raises:
        Problem: The parameter is no time with a time zone.
    """
    value = params.get(name)
    if value is None:
        return 0.0
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
        if found is not None and found.tzinfo is not None:
            return found.timestamp()
    except (ValueError, OverflowError):
        pass
    raise invalid(name, "must be a time such as 2026-01-31T12:00:00Z")


def is_listed(media_type: str, modes: Iterable[str]) -> bool:
    """Return True if a list of media types, which may have wildcards, contains or covers a media type.

    Parameters of the media type are ignored.
    """
    kind = media_type.partition(";")[0].strip().lower()
    return any(
        mode in (kind, "*/*") or (mode.endswith("/*") and kind.startswith(mode[:-1])) for mode in modes
    )


def read_parts(message: Mapping[str, Any], modes: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the validated parts of an A2A message, each with exactly one content. `modes` are the accepted media types.

    Raises:
        Problem: The message has no parts, or a part is invalid.
        A2AError: The media type of a part is not one of `modes`.
    """
    parts = message.get("parts")
    if not isinstance(parts, list) or not parts:
        raise invalid("message.parts", "must be a list with at least one part")
    for number, part in enumerate(parts):
        field = f"message.parts[{number}]"
        if not isinstance(part, dict) or sum(name in part for name in _CONTENT) != 1:
            raise invalid(field, "must be an object with one of text, raw, url and data")
        media_type = part.get("mediaType") or ""
        if not isinstance(media_type, str):
            raise invalid(f"{field}.mediaType", "must be a string")
        url = part.get("url")
        if isinstance(url, str) and url.startswith("data:"):
            media_type = url.removeprefix("data:").partition(",")[0].partition(";")[0] or media_type
        if media_type and not is_listed(media_type, modes):
            raise A2AError(
                "CONTENT_TYPE_NOT_SUPPORTED",
                f"{media_type:.100} is not accepted: use an input mode that the agent card lists",
            )
    return parts


def check_output_modes(configuration: Mapping[str, Any], modes: Sequence[str]) -> None:
    """Check that the client of a request accepts one of the media types that agents send, `modes`.

    Raises:
        Problem: `acceptedOutputModes` is no list of texts.
        A2AError: The client accepts none of `modes`.
    """
    given = configuration.get("acceptedOutputModes") or []
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise invalid("configuration.acceptedOutputModes", "must be a list of media types")
    # Clients of older revisions name only the first half of a media type, such as `text`.
    accepted = [each.strip().lower() if "/" in each else f"{each.strip().lower()}/*" for each in given]
    if accepted and not any(
        is_listed(mode, accepted) or is_listed(each, modes) for mode in modes for each in accepted
    ):
        raise A2AError(
            "CONTENT_TYPE_NOT_SUPPORTED",
            f"{', '.join(given):.100} is not accepted: use an output mode that the agent card lists",
        )


def parts_to_content(parts: Iterable[Mapping[str, Any]]) -> list[Part]:
    """Convert A2A message parts to content for an agent. Data becomes JSON text. The server never fetches URLs."""
    return [_to_part(part, f"message.parts[{number}]") for number, part in enumerate(parts)]


def _to_part(part: Mapping[str, Any], field: str) -> Part:
    if "data" in part:
        return Text(to_text(part["data"]))
    name = next(name for name in _CONTENT if name in part)
    value = text_param(part, name, field=f"{field}.{name}")
    if name == "text":
        return Text(value)
    media_type, filename = part.get("mediaType") or "", part.get("filename") or "file"
    if not isinstance(filename, str):
        raise invalid(f"{field}.filename", "must be a string")
    if name == "url":
        return media_of_url(value, media_type, name=filename)
    # ProtoJSON accepts both alphabets of base64, with and without padding.
    padded = value.replace("-", "+").replace("_", "/").rstrip("=")
    padded += "=" * (-len(padded) % 4)
    return to_file(padded, media_type or "application/octet-stream", name=filename)


def from_parts(parts: Iterable[Part]) -> list[Wire]:
    """Encode the texts, pictures and files of a message as A2A parts. Other parts are left out."""
    found: list[Wire] = []
    for part in parts:
        if isinstance(part, Text):
            found.append({"text": part.text})
        elif isinstance(part, Medium):
            content = (
                {"url": part.url} if part.data is None else {"raw": base64.b64encode(part.data).decode()}
            )
            name = getattr(part, "name", "")
            found.append({**content, "mediaType": part.media_type, **({"filename": name} if name else {})})
    return found


def question_parts(approvals: Sequence[Approval]) -> list[Wire]:
    """Encode the questions of approvals as A2A parts: a text for humans, and the data that a decision needs."""
    text = "\n".join(question_text(each) for each in approvals)
    asked = [
        {
            "id": each.id,
            "tool": each.tool_name,
            "arguments": dict(each.arguments),
            "question": question_text(each),
            **({} if each.form is None else {"form": dict(each.form)}),
        }
        for each in approvals
    ]
    return [{"text": text}, {"data": {"approvals": plain(asked)}, "mediaType": "application/json"}]


def decision_parts(decision: Decision) -> list[Wire]:
    """Encode an approval decision as the parts of a user's message, for the history of the task."""
    match decision:
        case Approve(content=None):
            return [{"text": "approve"}]
        case Reject(reason=reason):
            return [{"text": reason or "reject"}]
        case Respond(content=content):
            return [{"text": to_text(content)}]
        case Approve(content=content):
            data: Any = content
        case Edit(arguments=arguments):
            data = {"edit": arguments}
        case _:
            return [{"text": "reject"}]
    return [{"data": plain(data), "mediaType": "application/json"}]


def plain(value: Any) -> Any:
    """Convert a value to plain JSON data."""
    return json.loads(to_text(value))


def read_decisions(parts: Sequence[Mapping[str, Any]], approvals: Sequence[Approval]) -> dict[str, Decision]:
    """Return the decisions about open approvals that a message contains, by approval id.

    A data part has the decisions by approval id. If only one approval is open, a data part or text can be its decision.

    Raises:
        Problem: The message has no decision, or it is not clear which approval it decides.
    """
    known = {each.id: each for each in approvals}
    found: dict[str, Decision] = {}
    for part in parts:
        data = part.get("data")
        if isinstance(data, dict) and data.keys() & known.keys():
            found |= {key: _decision_of(known[key], data[key]) for key in data.keys() & known.keys()}
    if found:
        return found
    given = [part["data"] if "data" in part else part.get("text") for part in parts]
    if len(known) != 1 or len(given) != 1 or given[0] is None:
        raise invalid(
            "message.parts",
            "must be one part that decides, or a data part with the decision for each approval id",
        )
    ((key, approval),) = known.items()
    return {key: _decision_of(approval, given[0])}


def _decision_of(approval: Approval, value: Any) -> Decision:
    """Parse the decision about one approval from a text, an object, or the values of the approval's form."""
    if isinstance(value, dict):
        return _decision_of_object(approval, value)
    word = value.strip().casefold() if isinstance(value, str) else ""
    if word == "reject":
        return Reject(_REJECTED)
    is_plain = approval.again and approval.form is None
    return Approve() if is_plain and word == "approve" else Respond(value)


def _decision_of_object(approval: Approval, value: Mapping[str, Any]) -> Decision:
    reason = value.get("reason")
    reason = reason if isinstance(reason, str) else ""
    if value.get("approve") is False:
        return Reject(reason or _REJECTED)
    if approval.form is not None and (decided := decision_of(approval, "accept", value)) is not None:
        return decided
    if value.get("approve") is True:
        return Approve(reason)
    if isinstance(value.get("edit"), dict):
        return Edit(value["edit"])
    if "response" in value:
        return Respond(value["response"])
    raise invalid(
        "message.parts",
        'a decision must be {"approve": true or false}, {"edit": arguments}, {"response": result}, or the fields of the form',
    )
