"""JSON bodies of requests that send messages, decide approvals and create sessions."""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from actgent.approvals import Approve, Decision, Edit, Reject, Respond
from actgent.errors import ConfigurationError
from actgent.journal.session_tags_and_metadata import (
    AnnotationChange,
    check_session_metadata,
    check_tags,
    new_annotations,
)
from actgent.limits_and_schedules.id_and_number_validation import check_session_limits
from actgent.limits_and_schedules.limits import Limits
from actgent.messages import (
    Content,
    File,
    Image,
    Part,
    Priority,
    Sender,
    Text,
    checked_metadata,
    message_parts,
)
from actgent.tools.tools_run_by_caller import CallerTools, to_spec

MAX_DEADLINE_SECONDS = 60.0
"""Maximum of the `deadline` field in seconds. The server waits this long for room in a full inbox."""


def message_body(
    content: Content,
    *,
    priority: Priority | str,
    message_id: str,
    on_busy: str | None,
    enqueue_timeout: float,
    metadata: Mapping[str, Any] | None = None,
    tools: CallerTools | None = None,
) -> dict[str, Any]:
    """Return the JSON body of a request that sends a message to a session.

    The body has a `deadline` only if `enqueue_timeout` is at least 1 second; it is capped at `MAX_DEADLINE_SECONDS`.

    Raises:
        ConfigurationError: The content is empty or of an unsupported type, or `priority` is not a priority.
    """
    body: dict[str, Any] = {
        "input": content_body(content),
        "message_id": message_id,
        "priority": Priority.of_chat(priority).name.lower(),
    }
    if on_busy is not None:
        body["on_busy"] = on_busy
    if metadata:
        body["metadata"] = dict(checked_metadata(metadata))
    if tools is not None:
        body["tools"] = [attrs.asdict(to_spec(each)) for each in tools]
    if enqueue_timeout >= 1:
        body["deadline"] = min(enqueue_timeout, MAX_DEADLINE_SECONDS)
    return body


def content_body(content: Content) -> str | list[dict[str, Any]]:
    """Return message content as JSON: a string for a single text, else a list of parts with pictures and files in base64.

    Raises:
        ConfigurationError: The content is empty, or a part is not text, Image or File.
    """
    parts = message_parts(content)
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return [_part_body(part) for part in parts]


def _part_body(part: Part) -> dict[str, Any]:
    """Return the JSON of a message part: a text, picture or file.

    Raises:
        ConfigurationError: The part has a different type, for example `ToolCall`.
    """
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if not isinstance(part, Image | File):
        raise ConfigurationError(
            f"content of a remote message must be text, Image or File, not {type(part).__name__}"
        )
    kind = {"type": "file", "name": part.name} if isinstance(part, File) else {"type": "image"}
    source = {"url": part.url} if part.data is None else {"data": base64.b64encode(part.data).decode("ascii")}
    return {**kind, "media_type": part.media_type, **source}


def decision_body(decision: Decision) -> Mapping[str, Any]:
    """Return the JSON body of the request that decides an approval.

    Raises:
        ConfigurationError: The decision is not Approve, Edit, Reject or Respond.
    """
    match decision:
        case Approve(reason=reason):
            return {"approve": dict(decision.content or {}), **({"reason": reason} if reason else {})}
        case Edit(arguments=arguments, reason=reason):
            return {"edit": dict(arguments), **({"reason": reason} if reason else {})}
        case Reject(reason=reason):
            return {"reject": reason}
        case Respond(content=content):
            return {"respond": content}
    raise ConfigurationError(f"decision must be Approve, Edit, Reject or Respond, not {decision!r:.200}")


def session_body(
    agent: str,
    owner: Sender | str | None,
    on_busy: str | None,
    limits: Limits | None,
    *,
    tags: Iterable[str] = (),
    metadata: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the JSON body of the request that creates a session. Options that are None or empty are left out.

    Raises:
        ConfigurationError: `limits` has a limit that does not apply to a whole session, or a tag or the metadata is
            invalid.
    """
    body: dict[str, Any] = {"agent": agent}
    if owner is not None:
        body["owner"] = owner.name if isinstance(owner, Sender) else owner
    if on_busy is not None:
        body["on_busy"] = on_busy
    if limits is not None:
        check_session_limits(limits)
        body["limits"] = dict(limits.shared)
    annotations = new_annotations(tags, metadata)
    if annotations.tags:
        body["tags"] = list(annotations.tags)
    if annotations.metadata:
        body["metadata"] = dict(annotations.metadata)
    return body


def annotation_body(change: AnnotationChange) -> dict[str, Any]:
    """Return the JSON body of the request that changes the tags and metadata of a session."""
    body = {"add_tags": list(change.add_tags), "remove_tags": list(change.remove_tags)}
    return {**body, "metadata": dict(change.metadata)}


def annotation_query(tags: Iterable[str], metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return the query parameters that select sessions by tags and metadata.

    Raises:
        ConfigurationError: A tag or the metadata is invalid.
    """
    found = {}
    if words := check_tags("tags", tags):
        found["tags"] = ",".join(words)
    if values := check_session_metadata(metadata):
        found["metadata"] = json.dumps(dict(values), ensure_ascii=False)
    return found
