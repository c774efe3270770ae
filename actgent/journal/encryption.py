"""Encryption of journal bodies with keys from the environment.

`ACTGENT_JOURNAL_KEYS` holds 32-byte keys as `id:base64`, separated by commas. The first key encrypts, and all keys
decrypt. To rotate, put the new key in front. Bodies use AES-256-GCM with a random nonce per row. The journal identity
and the position of the row are authenticated, so a row cannot be moved.

    a sealed body:  0xE1 | length of the key's id | the key's id | nonce, 12 bytes | ciphertext and tag

Ids, agents, owners, times, counts and states are not encrypted, because lists of sessions need them.
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
from actgent.errors.text_escaping import counted

VARIABLE = "ACTGENT_JOURNAL_KEYS"
SEALED = 0xE1
"""First byte of an encrypted body. It is above every version of plain bodies, so an older actgent rejects it."""
_NONCE = 12
_KEY = 32
_ID = re.compile(r"[A-Za-z0-9_.-]{1,40}")


@attrs.frozen(eq=False, repr=False)
class Keys:
    """Encryption keys of the process by id. The first key encrypts."""

    _ciphers: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Keys({', '.join(self._ciphers)})"

    def seal(self, body: bytes, position: bytes) -> bytes:
        """Encrypt a record body and bind it to `position`, which identifies the row in the journal.

        A copy of the body at another position cannot be decrypted.
        """
        key_id, cipher = next(iter(self._ciphers.items()))
        nonce, name = os.urandom(_NONCE), key_id.encode()
        sealed: bytes = cipher.encrypt(nonce, body, position)
        return b"".join((bytes((SEALED, len(name))), name, nonce, sealed))

    def open(self, body: bytes, position: bytes) -> bytes:
        """Decrypt a record body that was encrypted for the row at `position`.

        Raises:
            JournalKeyError: The key is missing, or does not decrypt the body.
        """
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        start = 2 + body[1]
        key_id = body[2:start].decode("ascii", "replace")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise JournalKeyError(key_id)
        try:
            opened: bytes = cipher.decrypt(body[start : start + _NONCE], body[start + _NONCE :], position)
        except InvalidTag:
            raise JournalKeyError(key_id, is_there=True) from None
        return opened


def is_sealed(body: bytes) -> bool:
    """Return True if a stored body is encrypted."""
    return body[0] == SEALED


def check_readable(body: bytes | None, keys: Keys | None) -> None:
    """Raise `JournalKeyError` if a stored record body is encrypted but this process has no keys.

    Raises:
        JournalKeyError: The body is encrypted and `keys` is None.
    """
    if body and is_sealed(body) and keys is None:
        _NO_KEYS.open(body, b"")


def current_keys() -> Keys | None:
    """Return the keys from the environment; None if the variable is not set.

    Raises:
        ConfigurationError: The keys are invalid, or the extra `encryption` is not installed. The message
            contains no key.
    """
    text = os.environ.get(VARIABLE, "").strip()
    return _keys_in(text) if text else None


def open_sealed(body: bytes, position: bytes) -> bytes:
    """Decrypt a record body with the keys from the environment. `position` identifies the row that has the body.

    Raises:
        JournalKeyError: The key is missing, or does not decrypt the body.
    """
    keys = current_keys()
    return (_NO_KEYS if keys is None else keys).open(body, position)


@functools.lru_cache(maxsize=4)
def _keys_in(text: str) -> Keys:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - 20 ms, for few
    except ImportError:
        raise ConfigurationError(
            f"{VARIABLE} is set, but the extra for encryption is not installed: pip install 'actgent[encryption]'"
        ) from None
    ciphers: dict[str, Any] = {}
    for number, entry in enumerate(text.split(","), 1):
        key_id, _, encoded = entry.strip().partition(":")
        if ":" not in entry or not _ID.fullmatch(
            key_id
        ):  # the entry may be a key without id, so the message must not quote it
            raise ConfigurationError(
                f"entry {number} of {VARIABLE} has no key id: write ID:BASE64, where ID has letters, digits, '_', '.' and '-', and "
                "BASE64 is the encoded key"
            )
        if key_id in ciphers:
            raise ConfigurationError(
                f"{VARIABLE} has two keys with the id {key_id!r}: give each key another id"
            )
        ciphers[key_id] = AESGCM(_decoded(key_id, encoded.strip()))
    return Keys(ciphers)


def _decoded(key_id: str, encoded: str) -> bytes:
    try:
        key = base64.b64decode(encoded.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigurationError(
            f"the key {key_id!r} in {VARIABLE} is not valid base64: encode its 32 bytes with base64"
        ) from None
    if len(key) != _KEY:
        raise ConfigurationError(
            f"the key {key_id!r} in {VARIABLE} has {counted(len(key), 'byte')}, but must have {_KEY} bytes"
        )
    return key


_NO_KEYS = Keys({})
