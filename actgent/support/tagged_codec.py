"""Serialization of objects to bytes: tagged unions, converted by the hooks of `cattrs_hooks` and packed by msgpack.

A `TaggedCodec` is built from tables of tags, one for each union of classes. A tag is a short word that never changes, so stored
bytes can be read after classes and modules were renamed. Values are not coerced, and unknown tags or fields are rejected.

An object is encoded as `[tag, {field: value}]`; fields with their default value, and derived values, are omitted. Fields of type Any hold plain
data: None, bool, int and float of any size, str, bytes, lists, tuples, mappings and aware datetimes.
"""

import functools
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any

import msgpack  # type: ignore[import-untyped]

from actgent.errors import NotSerializable, WireError
from actgent.errors.text_escaping import shown

SCHEMA_VERSION = 1
"""Version of the encoding. Raise it whenever a default, a name or a meaning of a written field changes."""

_DATETIME, _TUPLE, _INTEGER = 1, 2, 3
"""Codes of msgpack extension types; applications may use 0 to 127."""

MAX_TUPLES = 64
"""Maximum nesting of tuples. Each level takes 50 KB of the C stack when it is read, so 160 levels would crash the
interpreter.
"""
_MAX_SHOWN_CHARACTERS = 500
_MAX_KEPT_BYTES = 1 << 17
"""Maximum size in bytes of a value that fits into the initial buffer of a msgpack packer."""


class Packers:
    """Pool of reusable msgpack packers: creating a packer takes as long as packing three small values.

    A caller has exclusive use of its packer, so packers may be used in several threads, and while another value is being packed.
    """

    def __init__(self, **options: Any) -> None:
        """Store the options of `msgpack.Packer` for all packers of this pool."""
        self._options = options
        self._free: list[Any] = []

    def pack(self, value: object) -> bytes:
        """Encode a value as msgpack bytes with a reused packer. Raises the errors of `msgpack.packb`."""
        try:
            packer = self._free.pop()
        except IndexError:
            packer = msgpack.Packer(**self._options)
        packed: bytes = packer.pack(value)  # a packer that raised is not reused
        if len(packed) <= _MAX_KEPT_BYTES:  # a packer with a large buffer is not reused
            self._free.append(packer)
        return packed


class TaggedCodec:
    """Codec that encodes objects of some unions of classes as bytes. One object may be shared by several threads.

    Args:
        unions: Member classes of each union, by tag. A union that another union contains comes before it.
    """

    def __init__(self, unions: Mapping[Any, Mapping[str, type]]) -> None:
        self._unions = unions

    @functools.cached_property
    def _hooks(self) -> tuple[Mapping[Any, Callable[[Any], Any]], Mapping[Any, Callable[[Any, Any], Any]]]:
        """Functions that write and read the objects of each union. They are generated when they are first needed."""
        from .cattrs_hooks import make_hooks  # noqa: PLC0415 - takes 70 ms, which agents without a journal save

        return make_hooks(self._unions)

    def encode(self, values: Iterable[Any], union: Any) -> bytes:
        """Encode objects of one union as bytes.

        Raises:
            NotSerializable: A value is not plain data; the text names its field and key.
        """
        write = self._hooks[0][union]
        plain = [write(value) for value in values]
        try:
            return _pack(plain)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return _pack_slowly(plain)

    def decode(self, data: bytes, union: Any) -> tuple[Any, ...]:
        """Decode the objects that `encode` encoded.

        Raises:
            WireError: The bytes are malformed, or were written by a newer version.
        """
        read = self._hooks[1][union]
        try:
            return tuple([read(value, union) for value in _unpack_list(data)])
        except WireError:
            raise
        except Exception as error:  # untrusted bytes can raise any error in msgpack, cattrs or a validator
            raise WireError(
                f"not what this version of actgent reads: {shown(error, _MAX_SHOWN_CHARACTERS)}"
            ) from error


# --- plain data --------------------------------------------------------------------------


def _unpack_list(data: bytes) -> list[Any]:
    plain = _unpack(data)
    if type(plain) is list:
        return plain
    raise WireError(f"the stored value must be a list, not {type(plain).__name__}")


def _unpack(data: bytes, depth: int = 0) -> Any:
    """Decode msgpack data. msgpack itself rejects more than 1,024 nested arrays and maps."""
    return msgpack.unpackb(
        data, ext_hook=_EXTENSION_HOOKS[depth], strict_map_key=False, unicode_errors="surrogatepass"
    )


_nesting = threading.local()
"""Thread-local state: `depth` is the current nesting of tuples that this thread packs."""


def _extend(value: object) -> object:
    """Encode values that msgpack does not support. Tuples stay tuples, and datetimes keep their UTC offset."""
    if type(value) is tuple:
        depth = getattr(_nesting, "depth", 0)
        if depth >= MAX_TUPLES:
            raise ValueError(f"the value has more than {MAX_TUPLES} nested tuples")
        _nesting.depth = depth + 1
        try:
            return msgpack.ExtType(_TUPLE, _pack(list(value)))
        finally:
            _nesting.depth = depth
    if type(value) is datetime and value.tzinfo is not None:
        return msgpack.ExtType(_DATETIME, value.isoformat().encode())
    if isinstance(value, Mapping):
        return dict(value)
    if _is_text(value):
        return str.__str__(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def _is_text(value: object) -> bool:
    """Return True for an instance of a subclass of str, e.g. a `MessageId`, which is read back as str.

    Enum members are rejected.
    """
    return isinstance(value, str) and not isinstance(value, Enum)


_pack = Packers(default=_extend, strict_types=True, unicode_errors="surrogatepass").pack
pack_plain = _pack
"""Packers of plain data. Values have equal bytes if they are equal after reading, including their types and the
order of keys.
"""


def _reduce(depth: int, code: int, data: bytes) -> object:
    match code:
        case 1:
            return datetime.fromisoformat(data.decode())
        case 2:
            if depth >= MAX_TUPLES:
                raise WireError(f"the value has more than {MAX_TUPLES} nested tuples")
            return tuple(_unpack(data, depth + 1))
        case 3:
            return int.from_bytes(data, "big", signed=True)
    raise WireError(f"unknown extension type {code}: a newer version of actgent wrote it")


_EXTENSION_HOOKS = [partial(_reduce, depth) for depth in range(MAX_TUPLES + 1)]
"""Extension hooks of the decoder by the current nesting of tuples."""


def _pack_slowly(plain: list[Any]) -> bytes:
    """Encode values that msgpack rejected.

    Integers above 64 bits are boxed; values that are not plain data are named in the error.
    """
    try:
        return _pack([_box_value(value, "") for value in plain])
    except (ValueError, RecursionError) as error:
        raise NotSerializable("a value", f"too large or too deep ({error})") from error


def _box_value(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        return {
            _box_value(key, f"{path} (a key)"): _box_value(item, f"{path}.{key}")
            for key, item in value.items()
        }
    if type(value) in (list, tuple):
        return type(value)(_box_value(item, path) for item in value)
    if type(value) is int and not -(2**63) <= value < 2**64:
        return msgpack.ExtType(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if type(value) is datetime and value.tzinfo is not None:
        return value
    if _is_text(value):
        return str.__str__(value)
    raise NotSerializable(path.lstrip("."), f"a value of type {type(value).__name__}")
