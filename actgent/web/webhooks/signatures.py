"""Webhook signatures: HMAC-SHA256 over id, time and body, with which receivers authenticate the sender.

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
from actgent.support.files_shared_by_processes import write_whole
from actgent.support.safe_logging import logger_of

PREFIX = "whsec_"
MIN_BYTES, MAX_BYTES = 24, 64
"""Minimum and maximum length of a secret in bytes, from the specification."""
_log = logger_of(__name__)


def new_webhook_secret() -> str:
    """Return a new random secret (`whsec_...`) for signing webhook notifications. The receiver needs the same secret."""
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
            f"a webhook secret must be {PREFIX} followed by the base64 of {MIN_BYTES} to {MAX_BYTES} random bytes"
        )
    return key


@attrs.frozen
class SigningKeys:
    """Signing keys of a webhook, the newest first. Requests are signed with each key, so that secrets can be rotated."""

    keys: tuple[bytes, ...] = attrs.field(repr=False)

    @classmethod
    def of(cls, secrets: Iterable[str]) -> "SigningKeys":
        """Decode secrets in text form (`whsec_...`), the newest first, to signing keys.

        Raises:
            ConfigurationError: There are no secrets, or a secret has the wrong syntax or length.
        """
        keys = tuple(_key_of(secret) for secret in secrets)
        if not keys:
            raise ConfigurationError(
                "a webhook must have at least one secret to sign requests: create one with new_webhook_secret()"
            )
        return cls(keys)

    def headers(self, webhook_id: str, at: int, body: bytes) -> Mapping[str, str]:
        """Return the headers that sign a request body: the notification id, the Unix time `at`, and one signature per key."""
        signed = b".".join((webhook_id.encode(), str(at).encode(), body))
        return {
            "webhook-id": webhook_id,
            "webhook-timestamp": str(at),
            "webhook-signature": " ".join(f"v1,{_signature(key, signed)}" for key in self.keys),
        }

    def derive(self, *labels: str) -> "SigningKeys":
        """Derive new keys from these keys and from labels. These keys cannot be computed from the derived keys."""
        purpose = "\n".join(labels).encode()
        return SigningKeys(tuple(hmac.digest(key, purpose, hashlib.sha256) for key in self.keys))

    @property
    def newest(self) -> str:
        """Newest key as a secret in text form (`whsec_...`), to be given to a receiver."""
        return _secret_of(self.keys[0])


def _signature(key: bytes, signed: bytes) -> str:
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode("ascii")


class SecretsFile:
    """File with signing secrets, one per line, the newest first. A changed file is read again without a restart.

    Raises:
        ConfigurationError: The file cannot be read, is empty, or has an invalid secret.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp = self._read_file_stamp()
        self._keys = self._read()

    def keys(self) -> SigningKeys:
        """Return the current keys. If the file has changed and cannot be read, log an error and return the previous keys."""
        try:
            if (stamp := self._read_file_stamp()) != self._stamp:
                self._keys, self._stamp = self._read(), stamp
        except ConfigurationError as error:
            _log.error("the previous webhook secrets stay in use: %s", error)
        return self._keys

    def _read_file_stamp(self) -> tuple[int, int, int]:
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
            raise ConfigurationError(
                f"the file of webhook secrets must be encoded in UTF-8: {self.path}"
            ) from error
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.path}: {error}") from error


def make_secrets_file(path: Path) -> bool:
    """Create a secrets file with one new secret, readable only by the file's owner. Return False if the file exists.

    Raises:
        ConfigurationError: The file cannot be created.
    """
    if path.exists():
        return False
    try:
        write_whole(path, new_webhook_secret() + "\n", mode=0o600)
    except OSError as error:
        raise ConfigurationError(
            f"the file of webhook secrets cannot be created at {path}: {error.strerror or error}"
        ) from error
    return True
