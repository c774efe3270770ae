"""What must not be told: keys and headers, whole or in part, in the words of whoever was asked with them."""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import httpx2

from actgent.errors import ConfigurationError

SHORTEST = 8
"""A shorter secret is a placeholder, and would blot out innocent words."""
_PIECE = 4
"""Characters at either end of a secret that are as good as told."""
_MASKED_PIECE = 3
_MAX_SEARCHED = 10_000
_TOKEN = re.compile(r"[^\s\"'`<>(){}\[\],;:=/?&]+")
_MASK = re.compile(r"[*•…]+|\.{2,}|[xX]{4,}|#{2,}")
_SECRET_NAME = re.compile("key|token|secret|sig|pass|auth|cred", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@attrs.frozen
class Secrets:
    """The secrets of one client."""

    _values: tuple[str, ...] = attrs.field(repr=False)

    def blotted(self, text: str) -> str:
        """A text, cut at 10,000 characters, without the secrets, and without words that hold a part of one."""
        text = text[:_MAX_SEARCHED]
        for secret in self._values:
            if len(secret) >= SHORTEST:
                text = _blotted(text, secret)
        return text


def _blotted(text: str, secret: str) -> str:
    text = text.replace(secret, "[api key]")
    text = _TOKEN.sub(lambda token: "[api key]" if _tells(token[0], secret) else token[0], text)
    for start in range(len(secret) - SHORTEST + 1):
        text = text.replace(secret[start : start + SHORTEST], "[api key]")
    return text


def _tells(token: str, secret: str) -> bool:
    """Return True for a word that is the beginning or the end of a secret, as it is or with a mask over the rest."""
    pieces = [piece for piece in _MASK.split(token.rstrip(".!")) if piece]
    least = _PIECE if len(pieces) == 1 and pieces[0] == token.rstrip(".!") else _MASKED_PIECE
    begins, ends = secret[:least], secret[-least:]
    return any(len(piece) >= least and (piece.startswith(begins) or piece.endswith(ends)) for piece in pieces)


def without_login(url: str) -> tuple[str, dict[str, str]]:
    """An address without the `user:password@` that it may have, and the header that says the same."""
    parsed = httpx2.URL(url)
    if not parsed.userinfo:
        return url, {}
    login = base64.b64encode(f"{parsed.username}:{parsed.password}".encode()).decode()
    return str(parsed.copy_with(userinfo=b"")), {"Authorization": f"Basic {login}"}


def secrets_in(url: str) -> Iterator[str]:
    """What an address has in it that must not be told."""
    parsed = httpx2.URL(url)
    name, _, password = parsed.userinfo.decode().partition(":")
    yield from filter(None, (parsed.password, password) if password else (parsed.username, name))
    if parsed.userinfo:
        yield without_login(url)[1]["Authorization"].removeprefix("Basic ")
    yield from (value for name, value in parsed.params.multi_items() if _SECRET_NAME.search(name))


def checked_headers(headers: Mapping[Any, Any] | None) -> dict[str, str]:
    """Headers as HTTP carries them, without space and line ends around their values.

    Raises:
        ConfigurationError: one cannot be sent; the text tells neither its name nor its value, either may be a key.
    """
    checked = {}
    for place, (name, value) in enumerate((headers or {}).items(), 1):
        is_text = isinstance(name, str) and isinstance(value, str)
        if not (is_text and _NAME.fullmatch(name) and value.isascii() and value.strip().isprintable()):
            raise ConfigurationError(
                f"extra_headers= has characters in header {place} that no HTTP header has: look for line ends and accents"
            )
        checked[name] = value.strip()
    return checked
