"""Toolsets of an agent's folder: OpenAPI documents in `openapi/`, and MCP servers in `mcp_config.json`."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from actgent.errors import ConfigurationError, InvalidFile
from actgent.support.strict_json import load_document
from actgent.toolsets.mcp import make_server, read_server_entries
from actgent.toolsets.openapi import MAX_DOCUMENT_BYTES, OpenAPI
from actgent.toolsets.toolset import Toolset

from .front_matter import read_yaml
from .strict_json_parsing import json_object, short_reason
from .untrusted_folder_reading import Folder

OPENAPI = "openapi"
SERVERS = "mcp_config.json"
_ENDINGS = (".yaml", ".yml", ".json")


class _AnyVariable(dict[str, str]):
    """Mapping in place of the environment in which every variable is set, so that a file can be validated without its secrets."""

    def get(self, _name: str, _default: Any = None) -> str:
        return "set"


def read_documents(folder: Folder, problems: list[InvalidFile]) -> dict[str, Any]:
    """Read the OpenAPI documents in `openapi/`, and return them by path. Append errors to `problems`."""
    documents: dict[str, Any] = {}
    names: dict[str, str] = {}
    for path in _document_paths(folder, problems):
        try:
            documents[path] = _document(folder, path)
            toolset = _openapi(path, documents[path])
        except InvalidFile as error:
            problems.append(error)
        except ConfigurationError as error:
            problems.append(InvalidFile(folder.name_of(path), 1, short_reason(error)))
        else:
            if names.setdefault(toolset.name, path) != path:
                reason = f"{names[toolset.name]} is also named {toolset.name!r}: rename one of them"
                problems.append(InvalidFile(folder.name_of(path), 1, reason))
    return documents


def _document_paths(folder: Folder, problems: list[InvalidFile]) -> list[str]:
    try:
        return [f"{OPENAPI}/{name}" for name in folder.names(OPENAPI) if name.endswith(_ENDINGS)]
    except InvalidFile as error:
        problems.append(error)
        return []


def _document(folder: Folder, path: str) -> Any:
    name = folder.name_of(path)
    text = folder.read(path, limit=MAX_DOCUMENT_BYTES)
    try:
        return load_document(text) if path.endswith(".json") else YAML(typ="safe").load(text)
    except json.JSONDecodeError as error:
        raise InvalidFile(name, error.lineno, f"invalid JSON: {error.msg}") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = short_reason(error.problem or error.context)
        raise InvalidFile(name, mark.line + 1 if mark else 1, f"invalid YAML: {reason}") from None
    except (YAMLError, ValueError, TypeError, RecursionError):
        raise InvalidFile(name, 1, "it is neither JSON nor YAML, or nested too deeply") from None


def _openapi(path: str, document: Any) -> OpenAPI:
    return OpenAPI(document, name=Path(path).stem) if isinstance(document, Mapping) else OpenAPI({})


def read_servers(folder: Folder, problems: list[InvalidFile], documents: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of each server in `mcp_config.json`, and append errors to `problems`.

    Missing environment variables are not an error here; `load_toolsets` requires them.
    """
    try:
        text = folder.find(SERVERS)
        if text is None:
            return {}
        name = folder.name_of(SERVERS)
        servers = read_server_entries(json_object(text, name, 1, label="it"), location=name)
    except InvalidFile as error:
        problems.append(error)
        return {}
    except ConfigurationError:
        reason = 'expected {"mcpServers": {"name": {"command": ...}}}'
        problems.append(InvalidFile(name, 1, reason))
        return {}
    lines = read_yaml(text, name=name)
    taken = {Path(path).stem: path for path in documents}
    for server, config in servers.items():
        line = lines.line(("mcpServers", server))
        if server in taken:
            problems.append(InvalidFile(name, line, f"{taken[server]} is also named {server!r}"))
        if reason := _server_error(server, config, _AnyVariable(), folder.path):
            problems.append(InvalidFile(name, line, reason))
    return dict(servers)


def _server_error(server: str, config: Any, environment: Mapping[str, str], folder: Path) -> str:
    """Return the error text of a server's configuration; empty if the configuration is valid."""
    try:
        make_server(server, config, environment=environment, folder=folder, location=f"server {server!r}")
    except ConfigurationError as error:
        return short_reason(error)
    return ""


def load_toolsets(
    folder: Path,
    documents: Mapping[str, Any],
    servers: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
) -> tuple[Toolset, ...]:
    """Create the toolsets of a folder: an `OpenAPI` for each document, and the MCP servers.

    Raises:
        ConfigurationError: An environment variable of an MCP server is not set.
    """
    at = folder / SERVERS
    return (
        *(_openapi(path, document) for path, document in documents.items()),
        *(
            make_server(
                name, config, environment=environment, folder=folder, location=f"{at}, server {name!r}"
            )
            for name, config in servers.items()
        ),
    )
