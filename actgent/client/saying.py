"""What a client says, as the body of a request."""

import base64
from collections.abc import Mapping
from typing import Any

from actgent.approvals import Approve, Decision, Edit, Reject, Respond
from actgent.control.arguments import check_session_limits
from actgent.control.limits import Limits
from actgent.errors import ConfigurationError
from actgent.messages import File, Image, Part, Priority, Sender, Text, checked_metadata
from actgent.sessions.incoming import Content, sayable_parts

LONGEST_WAIT = 60.0
"""Seconds that a server waits at most for room in an inbox."""


def said(
    content: Content,
    *,
    priority: Priority | str,
    message_id: str,
    on_busy: str | None,
    enqueue_timeout: float,
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The body of a message.

    Raises:
        ConfigurationError: The message is empty, or the priority is misspelt or not a priority.
    """
    body: dict[str, Any] = {
        "content": content_body(content),
        "message_id": message_id,
        "priority": Priority.of_chat(priority).name.lower(),
    }
    if on_busy is not None:
        body["on_busy"] = on_busy
    if metadata:
        body["metadata"] = dict(checked_metadata(metadata))
    if enqueue_timeout >= 1:
        body["deadline"] = min(enqueue_timeout, LONGEST_WAIT)
    return body


def content_body(content: Content) -> str | list[dict[str, Any]]:
    """Text, or parts, as JSON."""
    parts = sayable_parts(content)
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return [_of_part(part) for part in parts]


def _of_part(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if not isinstance(part, Image | File):
        raise ConfigurationError(
            f"content over the network is text, Image or File, not {type(part).__name__}"
        )
    kind = {"type": "file", "name": part.name} if isinstance(part, File) else {"type": "image"}
    where = {"url": part.url} if part.data is None else {"data": base64.b64encode(part.data).decode("ascii")}
    return {**kind, "media_type": part.media_type, **where}


def decided(decision: Decision) -> Mapping[str, Any]:
    """The body of a decision.

    Raises:
        ConfigurationError: it is none that people make.
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
    raise ConfigurationError(f"a decision is Approve, Edit, Reject or Respond, not {decision!r:.200}")


def made(
    agent: str,
    owner: Sender | str | None,
    on_busy: str | None,
    limits: Limits | None,
    mode: str | None = None,
) -> dict[str, Any]:
    """The body of a new session."""
    body: dict[str, Any] = {"agent": agent}
    if owner is not None:
        body["owner"] = owner.name if isinstance(owner, Sender) else owner
    if on_busy is not None:
        body["on_busy"] = on_busy
    if limits is not None:
        check_session_limits(limits)
        body["limits"] = dict(limits.shared)
    if mode is not None:
        body["mode"] = mode
    return body
