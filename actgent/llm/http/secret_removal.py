"""Removal of keys and other secrets, whole or in part, from error texts of servers and libraries."""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import httpx2

from actgent.errors import ConfigurationError

MIN_SECRET_CHARS = 8
"""Minimum length of a secret in characters. A shorter one is a placeholder, and would redact ordinary words."""
_REVEALING_CHARS = 4
"""Number of characters at the start or end of a secret that identify it, so that they are redacted too."""
_REVEALING_CHARS_MASKED = 3
"""Number of characters at the start or end of a partly masked secret, such as `sk-...abc`, that identify it."""
_MAX_TEXT_CHARS = 10_000
_TOKEN = re.compile(r"[^\s\"'`<>(){}\[\],;:=/?&]+")
_MASK = re.compile(r"[*•…]+|\.{2,}|[xX]{4,}|#{2,}")
_SECRET_NAME = re.compile("key|token|secret|sig|pass|auth|cred", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@attrs.frozen
class Secrets:
    """The secrets of one model client: API key, header values, and parts of the URL."""

    _values: tuple[str, ...] = attrs.field(repr=False)

    def redact(self, text: str) -> str:
        """Return the first 10,000 characters of a text with `[api key]` in place of secrets and of words with parts of a secret."""
        text = text[:_MAX_TEXT_CHARS]
        for secret in self._values:
            if len(secret) >= MIN_SECRET_CHARS:
                text = _redact(text, secret)
        return text


def _redact(text: str, secret: str) -> str:
    text = text.replace(secret, "[api key]")
    text = _TOKEN.sub(lambda token: "[api key]" if _reveals(token[0], secret) else token[0], text)
    for start in range(len(secret) - MIN_SECRET_CHARS + 1):
        text = text.replace(secret[start : start + MIN_SECRET_CHARS], "[api key]")
    return text


def _reveals(token: str, secret: str) -> bool:
    """Return True if a word of a text contains the start or end of a secret, plain or next to a mask such as `***`."""
    pieces = [piece for piece in _MASK.split(token.rstrip(".!")) if piece]
    least = (
        _REVEALING_CHARS if len(pieces) == 1 and pieces[0] == token.rstrip(".!") else _REVEALING_CHARS_MASKED
    )
    begins, ends = secret[:least], secret[-least:]
    return any(len(piece) >= least and (piece.startswith(begins) or piece.endswith(ends)) for piece in pieces)


def split_login(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL without `user:password@`, and the equivalent Authorization header (empty if the URL has no login)."""
    parsed = httpx2.URL(url)
    if not parsed.userinfo:
        return url, {}
    login = base64.b64encode(f"{parsed.username}:{parsed.password}".encode()).decode()
    return str(parsed.copy_with(userinfo=b"")), {"Authorization": f"Basic {login}"}


def secrets_in(url: str) -> Iterator[str]:
    """Yield the secrets in a URL: user, password, and query parameters with names such as `key` or `token`."""
    parsed = httpx2.URL(url)
    name, _, password = parsed.userinfo.decode().partition(":")
    yield from filter(None, (parsed.password, password) if password else (parsed.username, name))
    if parsed.userinfo:
        yield split_login(url)[1]["Authorization"].removeprefix("Basic ")
    yield from (value for name, value in parsed.params.multi_items() if _SECRET_NAME.search(name))


def validate_headers(headers: Mapping[Any, Any] | None) -> dict[str, str]:
    """Return HTTP headers with leading and trailing whitespace removed from their values.

    Raises:
        ConfigurationError: A name or value is not allowed in HTTP. The text contains neither, since both may be secrets.
    """
    validated = {}
    for position, (name, value) in enumerate((headers or {}).items(), 1):
        is_text = isinstance(name, str) and isinstance(value, str)
        if not (is_text and _NAME.fullmatch(name) and value.isascii() and value.strip().isprintable()):
            raise ConfigurationError(
                f"extra_headers=: header {position} must not contain characters that HTTP does not allow, such as line ends and accents"
            )
        validated[name] = value.strip()
    return validated
