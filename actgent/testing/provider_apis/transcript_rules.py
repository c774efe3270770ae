"""Rules of all provider APIs for requests and conversations. Each rule yields its errors as text."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

Problems = Iterator[str]
"""Error texts of the violations of one rule."""

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Pattern of a valid tool name."""


@attrs.frozen
class TranscriptTurn:
    """Role, calls and results of one message, to check that calls and results belong together."""

    location: str
    """Location of the message for error texts."""
    role: str
    """Role of the message."""
    calls: tuple[str, ...] = ()
    """Ids of the calls in the message."""
    results: tuple[str, ...] = ()
    """Call ids of the results in the message."""


_NOBODY = TranscriptTurn("the end", "")


def merged(turns: Iterable[TranscriptTurn], *, roles: Sequence[str]) -> list[TranscriptTurn]:
    """Merge adjacent turns of the same role, as providers do. Only roles in `roles` are merged."""
    whole: list[TranscriptTurn] = []
    for turn in turns:
        if whole and turn.role == whole[-1].role and turn.role in roles:
            last = whole[-1]
            calls, results = last.calls + turn.calls, last.results + turn.results
            whole[-1] = TranscriptTurn(last.location, last.role, calls, results)
        else:
            whole.append(turn)
    return whole


def adjacent_pairs(turns: Sequence[TranscriptTurn]) -> Problems:
    """Check that every call has exactly one result, in the next turn."""
    for before, turn in itertools.pairwise([_NOBODY, *turns, _NOBODY]):
        if missing := [key for key in before.calls if key not in turn.results]:
            yield f"{before.location}: no result right after it for {', '.join(missing)}"
        if unasked := [key for key in turn.results if key not in before.calls]:
            yield f"{turn.location}: a result for {', '.join(unasked)}, which the message before it does not call"
        for key in repeated(turn.results):
            yield f"{turn.location}: two results for the call {key}"
        for key in repeated(turn.calls):
            yield f"{turn.location}: two calls with the id {key}"


def unique_calls(turns: Iterable[TranscriptTurn]) -> Problems:
    """Check that every call id is unique in the conversation."""
    for key in repeated(key for turn in turns for key in turn.calls):
        yield f"messages: call ids must be unique, {key} occurs twice"


def no_prefill(turns: Sequence[TranscriptTurn]) -> Problems:
    """Check that the conversation does not end with an assistant message without calls.

    Some models reject such a prefill.
    """
    if turns and turns[-1].role == "assistant" and not turns[-1].calls:
        yield f"{turns[-1].location}: the conversation ends with an assistant message (prefill); it must end with user or tool"


def tool_name(location: str, name: object) -> Problems:
    """Check that a tool name is valid for all providers."""
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        yield f"{location}: the tool name {name!r} does not match ^{TOOL_NAME.pattern}$"


def unique_names(names: Iterable[object]) -> Problems:
    """Check that all tool names are different."""
    for name in repeated(str(name) for name in names):
        yield f"tools: tool names must be unique, {name} occurs twice"


def in_range(body: Mapping[str, object], field: str, low: float, high: float) -> Problems:
    """Check that an optional number in a request body is between two bounds, inclusive."""
    value = body.get(field)
    if isinstance(value, (int, float)) and not low <= value <= high:
        yield f"{field}: {value:g} is not between {low:g} and {high:g}"


def required(body: Mapping[str, object], *fields: str) -> Problems:
    """Check that the fields of a request body are present and not empty."""
    for field in fields:
        if body.get(field) in (None, ""):
            yield f"{field}: field required"


def repeated(keys: Iterable[str]) -> list[str]:
    """Return the keys that occur more than once."""
    given = list(keys)
    if len(given) == len(set(given)):
        return []
    return [key for key, count in Counter(given).items() if count > 1]


def objects(location: str, value: object) -> tuple[list[tuple[str, Mapping[str, object]]], list[str]]:
    """Return the objects in a list with their locations, and the errors of the list.

    It is an error if the value is not a list, is empty, or has items that are not objects.
    """
    if not isinstance(value, list):
        return [], [f"{location}: an array is required"]
    if not value:
        return [], [f"{location}: empty array, at least one element is required"]
    located = [(f"{location}[{index}]", item) for index, item in enumerate(value)]
    wrong = [f"{place}: an object is required" for place, item in located if not isinstance(item, dict)]
    return [(place, item) for place, item in located if isinstance(item, dict)], wrong
