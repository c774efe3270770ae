"""The lock: what tools of MCP servers looked like when somebody agreed to them.

A server may say something else tomorrow: other words for the model, other parameters. The lock holds a digest of each
tool's name, description and schema; a tool that differs is withheld until it is locked again.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.support.files import write_whole

VERSION = 1
LOCK = "mcp.lock.json"
"""The lock's file beside the file of the servers."""


@attrs.frozen
class ToolLock:
    """Digests of tools, by server and name."""

    servers: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict)

    @classmethod
    def read(cls, path: Path) -> "ToolLock":
        """Read a lock's file.

        Raises:
            ConfigurationError: there is none, or it is no lock.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["version"] != VERSION:
                raise ConfigurationError(f"{path}: a newer actgent wrote this lock")
            return cls({server: dict(tools) for server, tools in data["servers"].items()})
        except FileNotFoundError as error:
            raise ConfigurationError(f"no such file: {path}; `actgent mcp lock` makes it") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"{path} is not a lock of MCP tools: `actgent mcp lock` makes it anew"
            ) from error

    def write(self, path: Path) -> None:
        """Write the lock's file whole, so that it reads well in a difference; in a block of `file_change(path)`."""
        data = {
            "version": VERSION,
            "servers": {name: dict(sorted(tools.items())) for name, tools in self.servers.items()},
        }
        write_whole(path, json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n")

    def why_withheld(self, server: str, tool: str, digest: str) -> str | None:
        """Tell why a tool may not be used; None: it is as it was when it was locked."""
        locked = self.servers.get(server, {}).get(tool)
        if locked is None:
            return "it is not in the lock; `actgent mcp lock` adds it"
        return (
            None
            if locked == digest
            else "it has changed since it was locked; `actgent mcp lock` takes it as it is now"
        )


def tool_digest(listed: Any) -> str:
    """The digest of what a model would read of a tool."""
    said = [listed.name, listed.title, listed.description, listed.input_schema]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
