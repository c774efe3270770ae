"""MCP servers defined by a file in the common `mcpServers` format of editors and assistants."""

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import shown
from actgent.support.strict_json import load_document

from .oauth_token_file import resolve_token_path
from .server_toolset import MCPServer
from .tool_lock_file import LOCK

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_KEYS = frozenset(
    "command args env cwd url headers required timeout connect_timeout trust_hints lock allow oauth".split()
)
_IGNORED = frozenset("type transport disabled description".split())
"""Keys in a server's entry that belong to other programs and are ignored. `disabled` skips the server."""

_FORM = 'the expected form is {"mcpServers": {"NAME": {"command": ..., "args": [...]} or {"url": ...}}}'


class AllowedEnvironment(dict[str, str]):
    """The environment variables that a file may use. A file that uses another variable that is set is rejected.

    For untrusted files: such a file chooses the server's command and URL, and could send any variable there.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        """Copy the environment variables named in `allowed` that are set in this process."""
        super().__init__({name: os.environ[name] for name in allowed if name in os.environ})

    def find_forbidden(self, entry: object) -> list[str]:
        """Return the environment variables that a server entry uses and that are set in this process but not allowed."""
        used = {found[1] for found in _VARIABLE.finditer(json.dumps(entry))}
        return sorted(name for name in used if name in os.environ and name not in self)


def mcp_servers(
    path: str | os.PathLike[str], *, environment: Mapping[str, str] | None = None
) -> list[MCPServer]:
    """Read a file of the form `{"mcpServers": {"name": {"command": ..., "args": [...]} | {"url": ...}}}`.

    `${NAME}` is replaced by that environment variable, `${NAME:-text}` by `text` if the variable is not set. For an untrusted
    file, pass the variables that its servers may use as `environment=`. A file `mcp.lock.json` in the same folder is the lock
    of all servers that name no lock.

    Raises:
        ConfigurationError: The file cannot be read, a key is unknown, or a variable is not set; the text has the location.
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
        make_server(name, entry, environment=known, folder=where.parent, location=f"{where}, server {name!r}")
        for name, entry in read_server_entries(data, location=str(where)).items()
    ]


def read_server_entries(data: object, *, location: str) -> Mapping[str, Any]:
    """Return the entries of the servers in the data of a file, by server name, without disabled servers.

    Raises:
        ConfigurationError: The data is not an object with `mcpServers`; `location` is the file for the error.
    """
    servers = data.get("mcpServers") if isinstance(data, dict) else None
    if not isinstance(servers, dict):
        found = (
            f"the keys {', '.join(map(repr, data))}" if isinstance(data, dict) else f"a {type(data).__name__}"
        )
        raise ConfigurationError(f'{location} has no object "mcpServers" (it has {found:.200}); {_FORM}')
    for name, entry in servers.items():
        if isinstance(entry, dict) and not isinstance(entry.get("disabled", False), bool):
            raise ConfigurationError(
                f"{location}, server {name!r}: disabled must be true or false, not {entry['disabled']!r:.200}"
            )
    return {
        name: entry
        for name, entry in servers.items()
        if not (isinstance(entry, dict) and entry.get("disabled"))
    }


def make_server(
    name: str, entry: object, *, environment: Mapping[str, str], folder: Path, location: str
) -> MCPServer:
    """Create an MCP server from an entry of a configuration file.

    Args:
        name: Name of the server.
        entry: The entry: command and arguments, or URL.
        environment: Environment variables that the entry may refer to.
        folder: Folder of the file, in which the lock file is searched.
        location: File and entry, for errors.

    Raises:
        ConfigurationError: The entry is invalid.
    """
    if not isinstance(entry, dict):
        raise ConfigurationError(f"{location}: the entry must be an object with `command` or `url`")
    if unknown := sorted(entry.keys() - _KEYS - _IGNORED):
        raise ConfigurationError(f"{location}: unknown key {unknown[0]!r} (keys: {', '.join(sorted(_KEYS))})")
    if isinstance(environment, AllowedEnvironment) and (refused := environment.find_forbidden(entry)):
        to = entry.get("url") or shlex.join([str(entry.get("command")), *map(str, entry.get("args") or ())])
        raise ConfigurationError(
            f"{location}: the file passes the environment variables {', '.join(refused)} to {shown(to)}: "
            f"allow that with {' '.join(f'--allow-env {name}' for name in refused)}"
        )
    options = {
        key: _fill_variables(value, environment, f"{location}, {key}")
        for key, value in entry.items()
        if key in _KEYS
    }
    if isinstance(lock := options.get("lock"), str):
        options["lock"] = folder / lock
    elif (folder / LOCK).is_file():
        options["lock"] = folder / LOCK
    try:
        if (oauth := options.get("oauth")) is not None:
            options["oauth"] = resolve_token_path(oauth, folder)
        return MCPServer(name=name, **options)
    except (TypeError, ValueError, ConfigurationError) as error:
        raise ConfigurationError(f"{location}: {error}") from error


def _fill_variables(value: Any, environment: Mapping[str, str], location: str) -> Any:
    """Replace references to environment variables in all texts of a JSON value. `location` is the file and entry for errors."""
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: _variable(found, environment, location), value)
    if isinstance(value, list):
        return [_fill_variables(item, environment, location) for item in value]
    if isinstance(value, dict):
        return {key: _fill_variables(item, environment, location) for key, item in value.items()}
    return value


def _variable(found: re.Match[str], environment: Mapping[str, str], location: str) -> str:
    text = environment.get(found[1], found[2])
    if text is None:
        raise ConfigurationError(f"{location}: the environment variable {found[1]} is not set")
    return text
