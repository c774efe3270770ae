"""Whether one answer asks for more than may run at once. Nothing of such an answer runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from actgent.errors.printable import counted
from actgent.messages import ToolCall

from .limits import Limits


def excess_of(calls: Sequence[ToolCall], limits: Limits) -> str | None:
    """Why the calls of an answer are too many or too large, in words for the model; None if they are not."""
    if len(calls) > limits.answer_calls:
        return (
            f"none of the {len(calls):,} calls of this answer ran, since at most {limits.answer_calls:,} run at once: "
            "call fewer, and go on when their results are there"
        )
    size = 0
    for call in calls:
        size += _size(call.arguments)
    if size > limits.argument_bytes:
        return (
            f"no call of this answer ran, since the arguments take {counted(size, 'byte')}, and at most "
            f"{limits.argument_bytes:,} are taken at once: pass less"
        )
    return None


def _size(arguments: Mapping[str, Any] | str) -> int:
    """Bytes as JSON."""
    if not arguments:
        return 2
    if isinstance(arguments, str):
        return len(arguments.encode("utf-8", "surrogatepass"))
    try:
        return len(msgspec.json.encode(arguments))
    except (TypeError, ValueError, RecursionError):  # not of JSON: a model client in Python may pass anything
        return len(repr(arguments))
