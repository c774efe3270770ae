"""Columns of values as arrays in PostgreSQL's binary form.

Each group of steps is some twenty-four arrays. psycopg makes its own of a list value by value, in Python and as text; one
made here costs a few calls, and has the type that the statement says, so that each statement is prepared once.
"""

import itertools
import operator
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import psycopg
from psycopg.types.string import BytesBinaryDumper

_BEGIN = struct.Struct("!iiIii")
"""Dimensions, whether some values are NULL, the type of the values, how many there are, and the number of the first."""
_EMPTY = struct.Struct("!iiI")
_NULL = b"\xff\xff\xff\xff"
_pack_length = struct.Struct("!i").pack


class Array(bytes):
    """An array in binary form, for a parameter whose type its statement says: `%s::text[]`."""


class _ArrayDumper(BytesBinaryDumper):
    """Sends an array as it is."""

    oid = 0


psycopg.adapters.register_dumper(Array, _ArrayDumper)


Pieces = Iterable[bytes]
"""Values as bytes, each behind their number."""


def _sized(values: Sequence[bytes]) -> Pieces:
    return map(operator.add, map(_pack_length, map(len, values)), values)


def _texts(values: Sequence[str]) -> Pieces:
    if "\0" in "".join(values):
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return _sized([*map(str.encode, values)])


def _fixed(form: str) -> Callable[[Sequence[Any]], Pieces]:
    size = struct.calcsize(f"!{form}")
    return partial(map, partial(struct.Struct(f"!i{form}").pack, size))


_KINDS: dict[str, tuple[int, Callable[[Sequence[Any]], Pieces]]] = {
    "boolean": (16, _fixed("?")),
    "bytea": (17, _sized),
    "bigint": (20, _fixed("q")),
    "smallint": (21, _fixed("h")),
    "integer": (23, _fixed("i")),
    "text": (25, _texts),
    "float8": (701, _fixed("d")),
}
"""Of each type the number that it has at every server, and what makes pieces of its values."""


def encode_array(kind: str, values: Sequence[Any]) -> Array:
    """Values of a type of the server's, and None for NULL, as an array.

    Raises:
        psycopg.DataError: the type has no such value.
        UnicodeEncodeError: it is a text that is no Unicode.
    """
    oid, encode = _KINDS[kind]
    if not values:
        return Array(_EMPTY.pack(0, 0, oid))
    has_null = None in values
    begin = _BEGIN.pack(1, has_null, oid, len(values), 1)
    try:
        if not has_null:
            return Array(begin + b"".join(encode(values)))
        known = iter(encode([each for each in values if each is not None]))
        return Array(begin + b"".join([_NULL if each is None else next(known) for each in values]))
    except struct.error as error:
        raise psycopg.DataError(f"no {kind} can be that: {error}") from error


def encode_columns(types: Mapping[str, str], things: Sequence[Any]) -> list[Array]:
    """An array for each of some attributes of things, which have these types; raises as `encode_array`."""
    columns = zip(*map(operator.attrgetter(*types), things), strict=True) if things else itertools.repeat(())
    return [encode_array(kind, column) for kind, column in zip(types.values(), columns, strict=False)]
