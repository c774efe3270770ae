"""Encoding of columns as PostgreSQL arrays in binary form.

Each group of batches has about 24 arrays. psycopg encodes lists value by value, in Python and as text. This encoding
needs a few calls, and keeps the parameter types constant, so each statement is prepared once.
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
"""Struct of an array header: number of dimensions, flag for NULL values, object id of the type, number of values,
first index.
"""
_EMPTY = struct.Struct("!iiI")
_NULL = b"\xff\xff\xff\xff"
_pack_length = struct.Struct("!i").pack


class Array(bytes):
    """An array in binary form, for a parameter with an explicit type such as `%s::text[]`."""


class _ArrayDumper(BytesBinaryDumper):
    """Sends the encoded array unchanged."""

    oid = 0


psycopg.adapters.register_dumper(Array, _ArrayDumper)


Pieces = Iterable[bytes]
"""Encoded values, each preceded by its length."""


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
"""Object id of each type, which is equal on all servers, and the encoder of its values."""


def encode_array(kind: str, values: Sequence[Any]) -> Array:
    """Encode values as an array in PostgreSQL's binary format; None becomes NULL. `kind` is the server type of the values.

    Raises:
        psycopg.DataError: A value does not fit the type.
        UnicodeEncodeError: A text has a lone surrogate.
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
        raise psycopg.DataError(f"a value does not fit the type {kind}: {error}") from error


def encode_columns(types: Mapping[str, str], objects: Sequence[Any]) -> list[Array]:
    """For each attribute in `types`, encode an array with the values of this attribute in all `objects`.

    `types` maps attribute names to PostgreSQL types.
    """
    columns = (
        zip(*map(operator.attrgetter(*types), objects), strict=True) if objects else itertools.repeat(())
    )
    return [encode_array(kind, column) for kind, column in zip(types.values(), columns, strict=False)]
