"""Settings of an A2A server: its public URL, the media types on its agent cards, and the answers that become messages."""

from collections.abc import Iterable

import attrs

from actgent.errors import ConfigurationError

from .push_notification_outbox import PushOutboxes

INPUT_MODES = (
    "text/plain",
    "text/markdown",
    "text/csv",
    "text/html",
    "application/json",
    "application/pdf",
    "image/png",
    "image/jpeg",
    "image/gif",
    "image/webp",
    "audio/mpeg",
    "audio/wav",
)
"""Default media types of parts that agents accept."""
OUTPUT_MODES = ("text/plain", "application/json")
"""Default media types of parts that agents send."""


def _to_modes(modes: Iterable[str]) -> tuple[str, ...]:
    """Validate media types and return them in lower case.

    Raises:
        ConfigurationError: The list is empty, or an entry is no media type.
    """
    found = (modes,) if isinstance(modes, str) else tuple(modes)
    if wrong := [each for each in found if each.count("/") != 1]:
        raise ConfigurationError(f"{wrong[0]!r} must be a media type such as text/plain or image/*")
    if not found:
        raise ConfigurationError("input_modes= and output_modes= must contain at least one media type")
    return tuple(each.strip().lower() for each in found)


@attrs.frozen
class A2ASettings:
    """Settings of an A2A server."""

    base_url: str = ""
    input_modes: tuple[str, ...] = attrs.field(default=INPUT_MODES, converter=_to_modes, kw_only=True)
    output_modes: tuple[str, ...] = attrs.field(default=OUTPUT_MODES, converter=_to_modes, kw_only=True)
    push: PushOutboxes = attrs.field(factory=PushOutboxes, init=False, eq=False, repr=False)
    message_types: frozenset[str] = attrs.field(default=(), converter=frozenset, kw_only=True)
