"""Base URL and API key of a provider: from the argument, else the provider's variables, else the general variable."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import httpx2

from actgent.errors import ConfigurationError, MissingKey

NO_KEY = "none"
"""Key that is sent to a server without authentication, since the SDKs require a key."""


def find_url(argument: str | None, variables: Sequence[str], *, default: str) -> str:
    """Return the base URL of an API without a trailing slash.

    Args:
        argument: Value of `base_url=`; None if it was not passed.
        variables: Environment variables, in the order in which they are read.
        default: URL if neither argument nor variable is set.

    Raises:
        ConfigurationError: The argument is empty, or the URL is not an http(s) URL with a host. The text names argument and
            variables, never the URL.
    """
    _check_argument("base_url", argument, "use the address of the variables or of the provider")
    url = (argument or _first_set_variable(variables) or default).strip()
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        parsed = httpx2.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigurationError(
            f"base_url= (or {' or '.join(variables)}) must be an http or https URL with a host, such as http://localhost:8000/v1"
        )
    return url.rstrip("/")


def find_key(argument: str | None, variables: Sequence[str], *, name: str, is_optional: bool) -> str:
    """Return the API key of a model.

    Args:
        argument: Value of `api_key=`; None if it was not passed.
        variables: Environment variables, in the order in which they are read.
        name: `provider:model`, for errors.
        is_optional: True returns `NO_KEY` if no key is set.

    Raises:
        MissingKey: No key is set, and it is not optional.
        ConfigurationError: The argument is empty, or the key has characters that HTTP headers do not allow.
    """
    _check_argument("api_key", argument, "use the key of the variables")
    key = (argument or _first_set_variable(variables) or "").strip()
    if not key and is_optional:
        return NO_KEY
    if not key:
        raise MissingKey(name, variables, hint=_hint_of_file(variables))
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError(
            f"the API key for {name} (api_key= or {' or '.join(variables)}) must not contain characters that HTTP headers do not allow"
        )
    return key


def _check_argument(name: str, argument: object, instead: str) -> None:
    """Raise `ConfigurationError` if an argument is not None and not a text, or if it is an empty text.

    `instead` says what None does, for the error.

    An empty base_url would send key and conversation to the provider's public address; an empty api_key would send the
    key of an environment variable to that address.

    Raises:
        ConfigurationError: The argument is an empty text, or not a text.
    """
    if argument is None:
        return
    if not isinstance(argument, str):
        raise ConfigurationError(f"{name}= must be a string, not {type(argument).__name__}")
    if not argument.strip():
        raise ConfigurationError(f"{name}= must not be empty: fill it in, or omit it (None) to {instead}")


def _hint_of_file(variables: Sequence[str]) -> str:
    """Return a hint that actgent does not read `.env`, if this file sets one of the variables; else an empty text."""
    try:
        text = Path(".env").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    names = "|".join(map(re.escape, variables))
    found = re.search(rf"^\s*(?:export\s+)?({names})\s*=", text, re.MULTILINE)
    return f"actgent does not read .env, which has {found[1]}: run `set -a; . ./.env` first" if found else ""


def _first_set_variable(variables: Sequence[str]) -> str | None:
    return next((value for name in variables if (value := os.environ.get(name, "").strip())), None)
