"""Servers from a file in the usual `mcpServers` form, as editors and assistants have it."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actgent.errors import ConfigurationError

from .server import MCPServer

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_KEYS = frozenset(
    "command args env cwd url headers required timeout connect_timeout trust_hints lock allow".split()
)
_IGNORED = frozenset("type transport disabled description".split())
"""What other programs have there; `disabled` leaves a server out."""


def mcp_servers(
    path: str | os.PathLike[str], *, environment: Mapping[str, str] | None = None
) -> list[MCPServer]:
    """Read `{"mcpServers": {"name": {"command": ..., "args": [...]} | {"url": ...}}}`.

    `${NAME}` in a text is that environment variable, `${NAME:-text}` with a text where it is not set.

    Raises:
        ConfigurationError: the file cannot be read, a key is not known, or a variable is not set; the text says where.
    """
    where = Path(path)
    try:
        data = json.loads(where.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{where} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{where}: invalid JSON: {error}") from error
    servers = data.get("mcpServers") if isinstance(data, dict) else None
    if not isinstance(servers, dict):
        raise ConfigurationError(f'{where}: it holds {{"mcpServers": {{"name": {{"command": ...}}}}}}')
    known = os.environ if environment is None else environment
    return [
        _server(name, given, known, where)
        for name, given in servers.items()
        if not (isinstance(given, dict) and given.get("disabled") is True)
    ]


def _server(name: str, given: object, environment: Mapping[str, str], where: Path) -> MCPServer:
    at = f"{where}, server {name!r}"
    if not isinstance(given, dict):
        raise ConfigurationError(f"{at}: it is an object with a command or a url")
    if unknown := sorted(given.keys() - _KEYS - _IGNORED):
        raise ConfigurationError(f"{at}: unknown key {unknown[0]!r} (there are: {', '.join(sorted(_KEYS))})")
    options = {
        key: _filled(value, environment, f"{at}, {key}") for key, value in given.items() if key in _KEYS
    }
    if isinstance(lock := options.get("lock"), str):
        options["lock"] = where.parent / lock
    try:
        return MCPServer(name=name, **options)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{at}: {error}") from error


def _filled(value: Any, environment: Mapping[str, str], at: str) -> Any:
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: _variable(found, environment, at), value)
    if isinstance(value, list):
        return [_filled(item, environment, at) for item in value]
    if isinstance(value, dict):
        return {key: _filled(item, environment, at) for key, item in value.items()}
    return value


def _variable(found: re.Match[str], environment: Mapping[str, str], at: str) -> str:
    text = environment.get(found[1], found[2])
    if text is None:
        raise ConfigurationError(f"{at}: the environment variable {found[1]} is not set")
    return text
