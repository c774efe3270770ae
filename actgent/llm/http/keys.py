"""Where a provider is and which key opens it: argument, then the provider's own variable, then the general one."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import httpx2

from actgent.errors import ConfigurationError, MissingKey

NO_KEY = "none"
"""What is sent to a server that asks for no key: the SDKs insist on one."""


def find_url(argument: str | None, variables: Sequence[str], *, default: str) -> str:
    """The address of an API, without a slash at its end.

    Raises:
        ConfigurationError: The argument is empty, or the address is no http(s) address. The text names argument and
            variables, never the address.
    """
    _check_given("base_url", argument, "take the address of the variables or of the provider")
    url = (argument or _first(variables) or default).strip()
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        parsed = httpx2.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigurationError(
            f"base_url= (or {' or '.join(variables)}) is not an http(s) address with a host: write it as in http://localhost:8000/v1"
        )
    return url.rstrip("/")


def find_key(argument: str | None, variables: Sequence[str], *, name: str, is_optional: bool) -> str:
    """The API key for the model called `name`.

    Raises:
        MissingKey: there is none, and it is not optional.
        ConfigurationError: The argument is empty, or the key has characters that no HTTP header can carry.
    """
    _check_given("api_key", argument, "take the key of the variables")
    key = (argument or _first(variables) or "").strip()
    if not key and is_optional:
        return NO_KEY
    if not key:
        raise MissingKey(name, variables, hint=_hint_of_file(variables))
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError(
            f"the API key for {name} (api_key= or {' or '.join(variables)}) has characters that no key has"
        )
    return key


def _check_given(name: str, argument: object, instead: str) -> None:
    """Refuse an argument that is given and empty, e.g. from a setting that was not filled in.

    An empty base_url would send key and conversation to the provider's public address; an empty api_key would send the
    key of an environment variable to that address.

    Raises:
        ConfigurationError: The argument is an empty text, or no text at all.
    """
    if argument is None:
        return
    if not isinstance(argument, str):
        raise ConfigurationError(f"{name}= is a text, not {type(argument).__name__}")
    if not argument.strip():
        raise ConfigurationError(f"{name}= is empty: fill it in, or leave it out (None) to {instead}")


def _hint_of_file(variables: Sequence[str]) -> str:
    """Say that `.env` is not read, if the file of that name in the working directory sets one of the variables."""
    try:
        text = Path(".env").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    names = "|".join(map(re.escape, variables))
    found = re.search(rf"^\s*(?:export\s+)?({names})\s*=", text, re.MULTILINE)
    return f"actgent does not read .env, which has {found[1]}: run `set -a; . ./.env` first" if found else ""


def _first(variables: Sequence[str]) -> str | None:
    return next((value for name in variables if (value := os.environ.get(name, "").strip())), None)
