"""The toolsets of an agent's folder: documents of APIs in `openapi/`, and servers in `mcp_config.json`."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from actgent.errors import ConfigurationError, InvalidFile
from actgent.support.strict_json import load_document
from actgent.toolsets.mcp import listed_servers, make_server
from actgent.toolsets.openapi import LARGEST, OpenAPI
from actgent.toolsets.toolset import Toolset

from .folder import Folder
from .front_matter import read_yaml
from .json_object import json_object, short_reason

OPENAPI = "openapi"
SERVERS = "mcp_config.json"
_ENDINGS = (".yaml", ".yml", ".json")


class _AnyVariable(dict[str, str]):
    """An environment in which every variable is set: a file is checked where its secrets are not."""

    def get(self, _name: str, _default: Any = None) -> str:
        return "set"


def read_documents(folder: Folder, problems: list[InvalidFile]) -> dict[str, Any]:
    """The documents in `openapi/` by path; what is wrong with them goes to `problems`."""
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
                reason = f"{names[toolset.name]} is called {toolset.name!r}, too: rename one of them"
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
    text = folder.read(path, limit=LARGEST)
    try:
        return load_document(text) if path.endswith(".json") else YAML(typ="safe").load(text)
    except json.JSONDecodeError as error:
        raise InvalidFile(name, error.lineno, f"no JSON: {error.msg}") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = short_reason(error.problem or error.context)
        raise InvalidFile(name, mark.line + 1 if mark else 1, f"invalid YAML: {reason}") from None
    except (YAMLError, ValueError, TypeError, RecursionError):
        raise InvalidFile(name, 1, "it is neither JSON nor YAML, or nested too deeply") from None


def _openapi(path: str, document: Any) -> OpenAPI:
    return OpenAPI(document, name=Path(path).stem) if isinstance(document, Mapping) else OpenAPI({})


def read_servers(folder: Folder, problems: list[InvalidFile], documents: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `mcp_config.json` says of each server; what is wrong with it goes to `problems`.

    Environment variables that are not set are no problem yet: `load_toolsets` wants them.
    """
    try:
        text = folder.find(SERVERS)
        if text is None:
            return {}
        name = folder.name_of(SERVERS)
        servers = listed_servers(json_object(text, name, 1, what="it"), at=name)
    except InvalidFile as error:
        problems.append(error)
        return {}
    except ConfigurationError:
        reason = 'it holds {"mcpServers": {"name": {"command": ...}}}'
        problems.append(InvalidFile(name, 1, reason))
        return {}
    lines = read_yaml(text, name=name)
    taken = {Path(path).stem: path for path in documents}
    for server, given in servers.items():
        line = lines.line(("mcpServers", server))
        if server in taken:
            problems.append(InvalidFile(name, line, f"{taken[server]} is called {server!r}, too"))
        if reason := _why_not(server, given, _AnyVariable(), folder.path):
            problems.append(InvalidFile(name, line, reason))
    return dict(servers)


def _why_not(server: str, given: Any, environment: Mapping[str, str], folder: Path) -> str:
    """Tell what is wrong with a server; empty if nothing is."""
    try:
        make_server(server, given, environment=environment, folder=folder, at=f"server {server!r}")
    except ConfigurationError as error:
        return short_reason(error)
    return ""


def load_toolsets(
    folder: Path,
    documents: Mapping[str, Any],
    servers: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
) -> tuple[Toolset, ...]:
    """The toolsets of a folder that was read: an `OpenAPI` for each document, and the servers with their variables.

    Raises:
        ConfigurationError: a variable that a server needs is not set in the environment.
    """
    at = folder / SERVERS
    return (
        *(_openapi(path, document) for path, document in documents.items()),
        *(
            make_server(name, given, environment=environment, folder=folder, at=f"{at}, server {name!r}")
            for name, given in servers.items()
        ),
    )
