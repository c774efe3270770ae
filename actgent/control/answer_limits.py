"""Check the number and size of the tool calls in one answer."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from actgent.errors.printable import counted
from actgent.messages import ToolCall

from .limits import Limits


def excess_of(calls: Sequence[ToolCall], limits: Limits) -> str | None:
    """Return an error text for the model if the calls of an answer are too many or too large, else None."""
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
    """Return the size of arguments in bytes of JSON."""
    if not arguments:
        return 2
    if isinstance(arguments, str):
        return len(arguments.encode("utf-8", "surrogatepass"))
    try:
        return len(msgspec.json.encode(arguments))
    except (
        TypeError,
        ValueError,
        RecursionError,
    ):  # a model client written in Python can pass values that JSON cannot express
        return len(repr(arguments))
