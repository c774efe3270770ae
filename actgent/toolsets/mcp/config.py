"""Servers from a file in the usual `mcpServers` form, as editors and assistants have it."""

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from actgent.errors import ConfigurationError
from actgent.errors.printable import shown
from actgent.support.strict_json import load_document

from .lock import LOCK
from .server import MCPServer
from .tokens import in_folder

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_KEYS = frozenset(
    "command args env cwd url headers required timeout connect_timeout trust_hints lock allow oauth".split()
)
_IGNORED = frozenset("type transport disabled description".split())
"""What other programs have there; `disabled` leaves a server out."""

_FORM = (
    'a file of MCP servers holds {"mcpServers": {"NAME": {"command": ..., "args": [...]} or {"url": ...}}}'
)


class AllowedEnvironment(dict[str, str]):
    """The environment variables of this process that a file may use; a file that uses another set variable is refused.

    For files that somebody else may have written: a server's command and URL are theirs, and so is each variable in them.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        super().__init__({name: os.environ[name] for name in allowed if name in os.environ})

    def refused(self, given: object) -> list[str]:
        """Return the variables that a server's entry uses, and that are set but not allowed."""
        used = {found[1] for found in _VARIABLE.finditer(json.dumps(given))}
        return sorted(name for name in used if name in os.environ and name not in self)


def mcp_servers(
    path: str | os.PathLike[str], *, environment: Mapping[str, str] | None = None
) -> list[MCPServer]:
    """Read `{"mcpServers": {"name": {"command": ..., "args": [...]} | {"url": ...}}}`.

    `${NAME}` in a text is that environment variable, `${NAME:-text}` with a text where it is not set. For a file that a
    stranger may have written, pass `environment=` with the variables that its servers may have. A file
    `mcp.lock.json` beside it is the lock of all servers that name none.

    Raises:
        ConfigurationError: the file cannot be read, a key is not known, or a variable is not set; the text says where.
    """
    where = Path(path)
    try:
        data = load_document(where.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{where} cannot be read: {error.strerror}; {_FORM}") from error
    except ValueError as error:
        raise ConfigurationError(f"{where}: invalid JSON: {error}; {_FORM}") from error
    known = os.environ if environment is None else environment
    return [
        make_server(name, given, environment=known, folder=where.parent, at=f"{where}, server {name!r}")
        for name, given in listed_servers(data, at=str(where)).items()
    ]


def listed_servers(data: object, *, at: str) -> Mapping[str, Any]:
    """The servers of a file as it has them, but for those that are disabled.

    Raises:
        ConfigurationError: it is not of that form; `at` says where.
    """
    servers = data.get("mcpServers") if isinstance(data, dict) else None
    if not isinstance(servers, dict):
        found = (
            f"the keys {', '.join(map(repr, data))}" if isinstance(data, dict) else f"a {type(data).__name__}"
        )
        raise ConfigurationError(f'{at} has no object "mcpServers" (it has {found:.200}); {_FORM}')
    for name, given in servers.items():
        if isinstance(given, dict) and not isinstance(given.get("disabled", False), bool):
            raise ConfigurationError(
                f"{at}, server {name!r}: disabled is true or false, not {given['disabled']!r:.200}"
            )
    return {
        name: given
        for name, given in servers.items()
        if not (isinstance(given, dict) and given.get("disabled"))
    }


def make_server(
    name: str, given: object, *, environment: Mapping[str, str], folder: Path, at: str
) -> MCPServer:
    """Make a server as a file has it; a lock is looked for in the file's folder.

    Raises:
        ConfigurationError: something is wrong with it; `at` says where.
    """
    if not isinstance(given, dict):
        raise ConfigurationError(f"{at}: it is an object with a command or a url")
    if unknown := sorted(given.keys() - _KEYS - _IGNORED):
        raise ConfigurationError(f"{at}: unknown key {unknown[0]!r} (there are: {', '.join(sorted(_KEYS))})")
    if isinstance(environment, AllowedEnvironment) and (refused := environment.refused(given)):
        to = given.get("url") or shlex.join([str(given.get("command")), *map(str, given.get("args") or ())])
        raise ConfigurationError(
            f"{at}: the file passes the environment variables {', '.join(refused)} to {shown(to)}: "
            f"allow that with {' '.join(f'--allow-env {name}' for name in refused)}"
        )
    options = {
        key: _filled(value, environment, f"{at}, {key}") for key, value in given.items() if key in _KEYS
    }
    if isinstance(lock := options.get("lock"), str):
        options["lock"] = folder / lock
    elif (folder / LOCK).is_file():
        options["lock"] = folder / LOCK
    try:
        if (oauth := options.get("oauth")) is not None:
            options["oauth"] = in_folder(oauth, folder)
        return MCPServer(name=name, **options)
    except (TypeError, ValueError, ConfigurationError) as error:
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
