"""Encryption of what a journal's records say, with keys from the environment.

`ACTGENT_JOURNAL_KEYS` holds keys as `id:base64`, several with commas between them, 32 bytes each. The first one writes;
all of them read, so a key is changed by putting another one in front. AES-256-GCM with a random nonce for each row; the
journal and the place of the row in it are authenticated with it, so a row is good at its place only.

    a sealed body:  0xE1 | length of the key's id | the key's id | nonce, 12 bytes | ciphertext and tag

What sessions are listed by stays readable: ids, agents, owners, times, counts and states.
"""

import base64
import binascii
import functools
import os
import re
from collections.abc import Mapping
from typing import Any

import attrs

from actgent.errors import ConfigurationError, JournalKeyError
from actgent.errors.printable import counted

VARIABLE = "ACTGENT_JOURNAL_KEYS"
SEALED = 0xE1
"""How a sealed body begins: above every version of plain ones, so that an older actgent refuses it."""
_NONCE = 12
_KEY = 32
_ID = re.compile(r"[A-Za-z0-9_.-]{1,40}")


@attrs.frozen(eq=False, repr=False)
class Keys:
    """The keys of a process, by their ids; the first one writes."""

    _ciphers: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Keys({', '.join(self._ciphers)})"

    def seal(self, body: bytes, place: bytes) -> bytes:
        """A body as it is stored at this place."""
        key_id, cipher = next(iter(self._ciphers.items()))
        nonce, name = os.urandom(_NONCE), key_id.encode()
        sealed: bytes = cipher.encrypt(nonce, body, place)
        return b"".join((bytes((SEALED, len(name))), name, nonce, sealed))

    def open(self, body: bytes, place: bytes) -> bytes:
        """A sealed body as it was.

        Raises:
            JournalKeyError: its key is not there, or does not open it.
        """
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        start = 2 + body[1]
        key_id = body[2:start].decode("ascii", "replace")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise JournalKeyError(key_id)
        try:
            opened: bytes = cipher.decrypt(body[start : start + _NONCE], body[start + _NONCE :], place)
        except InvalidTag:
            raise JournalKeyError(key_id, is_there=True) from None
        return opened


def is_sealed(body: bytes) -> bool:
    """Return True if a stored body is encrypted."""
    return body[0] == SEALED


def check_readable(body: bytes | None, keys: Keys | None) -> None:
    """Refuse to go on without keys behind a row that is encrypted: what follows it would be plain.

    Raises:
        JournalKeyError: that is so.
    """
    if body and is_sealed(body) and keys is None:
        _NO_KEYS.open(body, b"")


def current_keys() -> Keys | None:
    """The keys that the environment holds; None where it holds none.

    Raises:
        ConfigurationError: they are no keys, or the extra `encryption` is not installed; the text tells no key.
    """
    text = os.environ.get(VARIABLE, "").strip()
    return _keys_in(text) if text else None


def open_sealed(body: bytes, place: bytes) -> bytes:
    """A sealed body as it was, by the keys of the environment.

    Raises:
        JournalKeyError: its key is not there, or does not open it.
    """
    keys = current_keys()
    return (_NO_KEYS if keys is None else keys).open(body, place)


@functools.lru_cache(maxsize=4)
def _keys_in(text: str) -> Keys:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - 20 ms, for few
    except ImportError:
        raise ConfigurationError(
            f"{VARIABLE} is set, and encryption needs the extra: pip install 'actgent[encryption]'"
        ) from None
    ciphers: dict[str, Any] = {}
    for number, entry in enumerate(text.split(","), 1):
        key_id, _, encoded = entry.strip().partition(":")
        if not _ID.fullmatch(key_id):  # which may be a key without an id
            raise ConfigurationError(
                f"entry {number} of {VARIABLE} has no id: write ID:BASE64, the id of letters, digits, '_', '.' and '-'"
            )
        if key_id in ciphers:
            raise ConfigurationError(f"{VARIABLE} has two keys with the id {key_id!r}")
        ciphers[key_id] = AESGCM(_decoded(key_id, encoded.strip()))
    return Keys(ciphers)


def _decoded(key_id: str, encoded: str) -> bytes:
    try:
        key = base64.b64decode(encoded.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigurationError(f"the key {key_id!r} in {VARIABLE} is not valid base64") from None
    if len(key) != _KEY:
        raise ConfigurationError(
            f"the key {key_id!r} in {VARIABLE} has {counted(len(key), 'byte')}: it needs {_KEY}"
        )
    return key


_NO_KEYS = Keys({})
