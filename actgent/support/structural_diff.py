"""Differences (patches) of plain data, such as two values of a key in a session's state.

A difference is a list of operations; each is a list and begins with a path of keys and list indexes:

    [path]                        delete a key of a mapping
    [path, value]                 set a key of a mapping, or an element of a list
    [path, begin, count, items]   replace `count` elements of a list from the index `begin` by `items`

Applied to the old value, the operations yield exactly the new value, including the order of keys. 1, 1.0 and True differ.
Strings are replaced as a whole, so a redaction of strings in stored values also works on a difference.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .tagged_codec import pack_plain

_BRANCHES = 16
"""Number of slices that a sequence is divided into to find the elements that differ."""
_SET = 2
"""Number of elements of an operation that sets a value: path and value."""
MAX_OPERATIONS = 32
"""Default maximum number of operations of a difference."""


class _TooMany(Exception):
    """Raised if a difference needs more operations than allowed."""


class _Operations(list[list[Any]]):
    """A list of operations that raises `_TooMany` beyond a maximum length."""

    def __init__(self, maximum: int) -> None:
        super().__init__()
        self._maximum = maximum

    def append(self, operation: list[Any]) -> None:
        if len(self) >= self._maximum:
            raise _TooMany
        super().append(operation)


def difference(old: Any, new: Any, *, maximum: int = MAX_OPERATIONS) -> list[list[Any]]:
    """Return the operations that turn `old` into `new`. An operation with an empty path replaces the whole value.

    If more than `maximum` operations are needed, one operation replaces the whole value. This bounds the time of a comparison.

    Raises:
        TypeError, ValueError, OverflowError, RecursionError: A value is not plain data, is an integer beyond 64 bits, or is
            nested too deep.
    """
    found = _Operations(maximum)
    try:
        _compare_unknown([], old, new, found)
    except _TooMany:
        return [[[], new]]
    return list(found)


def apply_difference(value: Any, operations: Iterable[Sequence[Any]]) -> Any:
    """Apply operations to a value and return the result. The value is unchanged; both share their equal parts.

    Raises:
        LookupError: The operations belong to another value.
    """
    try:
        for operation in operations:
            value = _apply(value, operation, 0)
    except (TypeError, AttributeError, ValueError) as error:
        raise LookupError(f"a difference does not belong to its value: {error}") from error
    return value


def _compare_unknown(path: list[Any], old: Any, new: Any, found: _Operations) -> None:
    """Append to `found` the operations that turn `old`, which is at `path`, into `new`; none if the values are equal."""
    if type(old) is type(new) and type(old) in (dict, list):  # `_compare` goes into these types in any case
        _compare(path, old, new, found)
    elif pack_plain(old) != pack_plain(new):
        found.append([path, new])


def _compare(path: list[Any], old: Any, new: Any, found: _Operations) -> None:
    """Append to `found` the operations that turn `old` into `new`. The values differ, or are two mappings or lists."""
    if type(old) is type(new) is dict and _compare_mappings(path, old, new, found):
        return
    if type(old) is type(new) is list:
        _compare_lists(path, old, new, found)
    elif pack_plain(old) != pack_plain(new):
        found.append([path, new])


def _compare_mappings(path: list[Any], old: dict[Any, Any], new: dict[Any, Any], found: _Operations) -> bool:
    """Append to `found` the operations that turn the mapping `old` into `new`.

    Return False if the mapping must be replaced as a whole: a key is no text, or the key order differs.
    """
    if not (_has_text_keys(old) and _has_text_keys(new)):
        return False
    kept, names = [key for key in old if key in new], list(new)
    if names[: len(kept)] != kept:  # the order of the keys differs
        return False
    for key in old:
        if key not in new:
            found.append([[*path, key]])
    if not path:  # packing the whole state again would double the cost
        for key in kept:
            _compare_unknown([key], old[key], new[key], found)
    else:
        for index in _differing([old[key] for key in kept], [new[key] for key in kept]):
            key = kept[index]
            _compare([*path, key], old[key], new[key], found)
    for key in names[len(kept) :]:
        found.append([[*path, key], new[key]])
    return True


def _has_text_keys(value: dict[Any, Any]) -> bool:
    return all(type(key) is str for key in value)


def _compare_lists(path: list[Any], old: list[Any], new: list[Any], found: _Operations) -> None:
    if len(old) == len(new):
        for index in _differing(old, new):
            _compare([*path, index], old[index], new[index], found)
        return
    size = min(len(old), len(new))
    begin = _common(old[:size], new[:size])
    end = _common(old[begin:][::-1][: size - begin], new[begin:][::-1][: size - begin])
    found.append([path, begin, len(old) - end - begin, new[begin : len(new) - end]])


def _differing(old: list[Any], new: list[Any]) -> Iterator[int]:
    """Yield the indexes at which two lists of equal length differ."""
    step = max(1, -(-len(old) // _BRANCHES))
    for begin in range(0, len(old), step):
        one, other = old[begin : begin + step], new[begin : begin + step]
        if pack_plain(one) == pack_plain(other):
            continue
        if len(one) == 1:
            yield begin
            continue
        for index in _differing(one, other):
            yield begin + index


def _common(old: list[Any], new: list[Any]) -> int:
    """Return the length of the common prefix of two lists of equal length, found by binary search."""
    if pack_plain(old) == pack_plain(new):
        return len(old)
    low, high = 0, len(old)
    while high - low > 1:
        middle = (low + high) // 2
        if pack_plain(old[low:middle]) == pack_plain(new[low:middle]):
            low = middle
        else:
            high = middle
    return low


def _apply(value: Any, operation: Sequence[Any], depth: int) -> Any:
    path = operation[0]
    if depth == len(path):
        if len(operation) == _SET:
            return operation[1]
        _, begin, count, items = operation
        if type(value) is not list:
            raise TypeError(f"a change of list elements cannot be applied to a {type(value).__name__}")
        return [*value[:begin], *items, *value[begin + count :]]
    key, is_last = path[depth], depth + 1 == len(path)
    made = value.copy()
    if is_last and len(operation) == 1:
        del made[key]
    elif is_last and len(operation) == _SET:
        made[key] = operation[1]
    else:
        made[key] = _apply(made[key], operation, depth + 1)
    return made
