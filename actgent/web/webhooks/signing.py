"""Signatures of webhooks, by which receivers know who sent them and when: HMAC-SHA256 over id, time and body.

Source: Standard Webhooks 1.0 (https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md).
"""

import base64
import binascii
import hashlib
import hmac
import secrets as random_secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from actgent.errors import ConfigurationError
from actgent.support.files import write_whole
from actgent.support.logs import logger_of

PREFIX = "whsec_"
MIN_BYTES, MAX_BYTES = 24, 64
"""Of a secret, by the specification."""
_log = logger_of(__name__)


def new_webhook_secret() -> str:
    """A secret that a sender and its receivers share."""
    return _secret_of(random_secrets.token_bytes(32))


def _secret_of(key: bytes) -> str:
    return PREFIX + base64.b64encode(key).decode("ascii")


def _key_of(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not MIN_BYTES <= len(key) <= MAX_BYTES:
        raise ConfigurationError(
            f"a secret of webhooks is {PREFIX} and the base64 of {MIN_BYTES} to {MAX_BYTES} random bytes"
        )
    return key


@attrs.frozen
class SigningKeys:
    """The keys of one sender: the newest, and those that receivers may still know."""

    keys: tuple[bytes, ...] = attrs.field(repr=False)

    @classmethod
    def of(cls, secrets: Iterable[str]) -> "SigningKeys":
        """The keys of secrets, the newest first.

        Raises:
            ConfigurationError: there is none, or one is no such secret.
        """
        keys = tuple(_key_of(secret) for secret in secrets)
        if not keys:
            raise ConfigurationError("webhooks need a secret, by which receivers know who sent them")
        return cls(keys)

    def headers(self, webhook_id: str, at: int, body: bytes) -> Mapping[str, str]:
        """What a request with this body says of itself: its id, when it was sent (Unix time), and a signature by each key."""
        signed = b".".join((webhook_id.encode(), str(at).encode(), body))
        return {
            "webhook-id": webhook_id,
            "webhook-timestamp": str(at),
            "webhook-signature": " ".join(f"v1,{_signature(key, signed)}" for key in self.keys),
        }

    def derived(self, *words: str) -> "SigningKeys":
        """Keys that follow from these for one purpose, and tell nothing of them."""
        purpose = "\n".join(words).encode()
        return SigningKeys(tuple(hmac.digest(key, purpose, hashlib.sha256) for key in self.keys))

    @property
    def newest(self) -> str:
        """The first of them, as receivers are told it."""
        return _secret_of(self.keys[0])


def _signature(key: bytes, signed: bytes) -> str:
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode("ascii")


class SecretsFile:
    """Secrets in a file, one a line, the newest first; it is read again when it changes, so that they are replaced without a restart.

    Raises:
        ConfigurationError: it cannot be read, or has no good secret.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp = self._stamp_now()
        self._keys = self._read()

    def keys(self) -> SigningKeys:
        """The keys that count now; those of before where the file cannot be read any more, which the log says."""
        try:
            if (stamp := self._stamp_now()) != self._stamp:
                self._keys, self._stamp = self._read(), stamp
        except ConfigurationError as error:
            _log.error("webhooks are signed as before: %s", error)
        return self._keys

    def _stamp_now(self) -> tuple[int, int, int]:
        try:
            seen = self.path.stat()
        except OSError as error:
            raise ConfigurationError(
                f"the file of webhook secrets cannot be read: {error.strerror}: {self.path}"
            ) from error
        return (seen.st_mtime_ns, seen.st_size, seen.st_ino)

    def _read(self) -> SigningKeys:
        try:
            lines = self.path.read_text(encoding="utf-8").split()
            return SigningKeys.of(lines)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the file of webhook secrets cannot be read: {self.path}") from error
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.path}: {error}") from error


def make_secrets_file(path: Path) -> bool:
    """Make a file with one secret, readable by its owner alone, where there is none; returns whether it did.

    Raises:
        ConfigurationError: none can be made there.
    """
    if path.exists():
        return False
    try:
        write_whole(path, new_webhook_secret() + "\n", mode=0o600)
    except OSError as error:
        raise ConfigurationError(
            f"no file of webhook secrets can be made at {path}: {error.strerror or error}"
        ) from error
    return True
